"""How the scripted author writes environments: families of puzzles as module texts.

A family is the parts of a module that differ: how a state is drawn, worded and solved, and for
some, to which many answers may be right, how it is judged. `source` puts them together under the
protocol of `environments.modules`.
"""

import dataclasses
import textwrap

HEAD = '''"""{title}."""
import math
import random

SIZES = {sizes}


def levels():
    return [1, 2, 3, 4, 5]


def generate(level, seed):
    rng = random.Random(seed * 8 + level)
    n = SIZES[level - 1]
{draw}


def question(state):
    return {asks}


def reference(state):
{solve}


def reward(state, answer):
{judge}
'''
_DIGITS = 'return {"s": "".join(rng.choice("0123456789") for _ in range(n))}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Python texts: `draw` sees rng, n and returns a state; the others see `state`, `answer`."""

    name: str
    title: str
    keywords: tuple[str, ...]  # that make a scripted author think of it
    draw: str = _DIGITS
    asks: str  # an expression
    solve: str
    judge: str = "return answer.strip() == reference(state)"
    sizes: tuple[int, ...] = (3, 4, 5, 7, 9)

    def source(self, sizes: tuple[int, ...] | None = None) -> str:
        """The module's text, with other sizes of the levels if given."""
        return HEAD.format(
            title=self.title,
            sizes=sizes or self.sizes,
            draw=_block(self.draw),
            asks=self.asks,
            solve=_block(self.solve),
            judge=_block(self.judge),
        )


def _block(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")


_ALL = (
    Family(
        name="digit_sum", title="Sum of digits modulo 97", keywords=("arithmetic", "modular"),
        asks='"sum " + "+".join(state["s"])', sizes=(2, 3, 4, 5, 6),
        solve='return str(sum(map(int, state["s"])) % 97)',
    ),
    Family(
        name="prefix_sums", title="Running sums modulo 10", keywords=("sequence", "arithmetic"),
        asks='"run " + state["s"]', sizes=(2, 3, 4, 5, 6),
        solve="""
        total, found = 0, ""
        for digit in state["s"]:
            total += int(digit)
            found += str(total % 10)
        return found
        """,
    ),
    Family(
        name="product", title="Product of digits modulo 97", keywords=("arithmetic", "modular"),
        draw='return {"s": [rng.randint(1, 6) for _ in range(n)]}',
        asks='"mul " + "*".join(map(str, state["s"]))',
        solve='return str(math.prod(state["s"]) % 97)', sizes=(3, 4, 5, 6, 7),
    ),
    Family(
        name="double", title="Every digit twice", keywords=("string", "repetition"),
        asks='"dbl " + state["s"]', sizes=(2, 3, 4, 5, 6),
        solve='return "".join(d + d for d in state["s"])',
    ),
    Family(
        name="rotate", title="Digits rotated to the left", keywords=("rotation", "string"),
        draw="""
        s = "".join(rng.choice("0123456789") for _ in range(n))
        return {"s": s, "k": rng.randint(1, n - 1)}
        """,
        asks='f"rot {state[\'k\']} {state[\'s\']}"',
        solve='return state["s"][state["k"] :] + state["s"][: state["k"]]',
    ),
    Family(
        name="walk", title="Where a walk on a grid ends", keywords=("navigation", "grid"),
        draw='return {"s": "".join(rng.choice("urdl") for _ in range(n))}',
        asks='"walk " + state["s"]',
        solve="""
        x = state["s"].count("r") - state["s"].count("l")
        y = state["s"].count("u") - state["s"].count("d")
        return f"{x},{y}"
        """,
        sizes=(3, 5, 7, 9, 12),
    ),
    Family(
        name="subset_sum", title="Numbers that add up to a goal", keywords=("subset", "knapsack"),
        draw="""
        numbers = [rng.randint(10, 99) for _ in range(n)]
        chosen = rng.sample(numbers, max(2, n // 2))
        return {"numbers": numbers, "goal": sum(chosen), "chosen": chosen}
        """,
        asks='f"pick {state[\'goal\']} of " + " ".join(map(str, state["numbers"]))',
        solve='return " ".join(map(str, state["chosen"]))',
        judge="""
        words = answer.split()
        left = [str(number) for number in state["numbers"]]
        if not words or len(words) > len(left):
            return False
        for word in words:
            if word not in left:
                return False
            left.remove(word)
        return sum(int(word) for word in words) == state["goal"]
        """,
    ),
    Family(
        name="maze", title="A way through a maze", keywords=("navigation", "path"),
        draw="""
        cells = [["#" if rng.random() < 0.3 else "." for _ in range(n)] for _ in range(n)]
        x = y = 0
        cells[0][0] = "."
        while (x, y) != (n - 1, n - 1):
            if y == n - 1 or (x < n - 1 and rng.random() < 0.5):
                x += 1
            else:
                y += 1
            cells[y][x] = "."
        return {"rows": ["".join(row) for row in cells]}
        """,
        asks='''(
        "Walk from the top left to the bottom right over dots, at most 60 moves of u, d, l, r:\\n"
        + "\\n".join(state["rows"]) + "\\nAnswer with the letters of the moves alone."
    )''',
        solve="""
        rows = state["rows"]
        n, ways = len(rows), {(0, 0): ""}
        queue = [(0, 0)]
        for x, y in queue:
            for c, p, q in (("r", x + 1, y), ("d", x, y + 1), ("l", x - 1, y), ("u", x, y - 1)):
                if 0 <= p < n and 0 <= q < n and rows[q][p] == "." and (p, q) not in ways:
                    ways[p, q] = ways[x, y] + c
                    queue.append((p, q))
        return ways[n - 1, n - 1]
        """,
        judge="""
        moves, rows = answer.strip(), state["rows"]
        if not 0 < len(moves) <= 60:
            return False
        x = y = 0
        for move in moves:
            if move not in "udlr":
                return False
            x, y = x + (move == "r") - (move == "l"), y + (move == "d") - (move == "u")
            if not (0 <= x < len(rows) and 0 <= y < len(rows)) or rows[y][x] == "#":
                return False
        return x == y == len(rows) - 1
        """,
        sizes=(3, 4, 5, 6, 7),
    ),
)  # fmt: skip
FAMILIES = {family.name: family for family in _ALL}
