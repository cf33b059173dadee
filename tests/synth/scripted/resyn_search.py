"""Families that are judged by their own rules, without a reference: many answers may be right."""

from tests.synth.scripted.resyn_family import Family

FAMILIES = (
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
        sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="factors", title="A product of two factors", keywords=("factor", "number"),
        draw="""
        low = [11, 17, 29, 47, 83][n - 1]
        return {"n": rng.randint(low, 2 * low) * rng.randint(low, 2 * low)}
        """,
        asks='f"fac {state[\'n\']}"',
        solve="""
        for a in range(2, state["n"]):
            if state["n"] % a == 0:
                return f"{a}*{state['n'] // a}"
        """,
        judge="""
        match = re.fullmatch("([1-9][0-9]{0,8})[*]([1-9][0-9]{0,8})", answer.strip(), re.ASCII)
        if not match:
            return False
        a, b = int(match[1]), int(match[2])
        return a > 1 and b > 1 and a * b == state["n"]
        """,
        imports=("re",), sizes=(1, 2, 3, 4, 5),
    ),
    Family(
        name="signs", title="Signs that reach a goal", keywords=("expression", "arithmetic"),
        draw="""
        numbers = [rng.randint(1, 9) for _ in range(n)]
        signs = "".join(rng.choice("+-") for _ in range(n - 1))
        total = numbers[0]
        for sign, number in zip(signs, numbers[1:]):
            total += number if sign == "+" else -number
        return {"numbers": numbers, "goal": total, "signs": signs}
        """,
        asks='f"signs {state[\'goal\']} = " + "?".join(map(str, state["numbers"]))',
        solve='return state["signs"]',
        judge="""
        signs = answer.strip()
        if len(signs) != len(state["numbers"]) - 1 or set(signs) - set("+-"):
            return False
        total = state["numbers"][0]
        for sign, number in zip(signs, state["numbers"][1:]):
            total += number if sign == "+" else -number
        return total == state["goal"]
        """,
        sizes=(4, 5, 6, 8, 10),
    ),
    Family(
        name="colours", title="Three colours for a graph", keywords=("graph", "colouring"),
        draw="""
        colours = [rng.choice("rgb") for _ in range(n)]
        edges = [
            [a, b] for a in range(n) for b in range(a + 1, n)
            if colours[a] != colours[b] and rng.random() < 0.9
        ]
        return {"n": n, "edges": edges, "colours": "".join(colours)}
        """,
        asks='''(
        "Colour the nodes 0, 1, ... with r, g, b so that ends of an edge differ. Edges: "
        + ", ".join(f"{a}-{b}" for a, b in state["edges"])
        + f". Answer with {state['n']} letters, that of node 0 first."
    )''',
        solve='return state["colours"]',
        judge="""
        letters = answer.strip()
        if len(letters) != state["n"] or set(letters) - set("rgb"):
            return False
        return all(letters[a] != letters[b] for a, b in state["edges"])
        """,
        sizes=(5, 6, 7, 9, 11),
    ),
    Family(
        name="order", title="An order that keeps all rules", keywords=("graph", "schedule"),
        draw="""
        jobs = rng.sample("abcdefghijklmnop", n)
        rules = [[jobs[i], jobs[j]] for i in range(n) for j in range(i + 1, n)
                 if j == i + 1 or rng.random() < 0.2]
        rng.shuffle(rules)
        return {"rules": rules[: max(2, len(rules) - 1)], "jobs": jobs}
        """,
        asks='''(
        "Put the jobs into one line without spaces so that a stands before b for each rule ab: "
        + " ".join(a + b for a, b in state["rules"]) + ". Jobs: " + "".join(sorted(state["jobs"]))
    )''',
        solve='return "".join(state["jobs"])',
        judge="""
        line = answer.strip()
        if sorted(line) != sorted(state["jobs"]):
            return False
        return all(line.index(a) < line.index(b) for a, b in state["rules"])
        """,
        sizes=(4, 5, 6, 8, 10),
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
    Family(
        name="equation", title="Whole numbers that solve an equation", keywords=("equation",),
        draw="""
        a, b = rng.sample(range(3 + n, 8 + 3 * n), 2)
        x, y = rng.randint(1, 2 + 2 * n), rng.randint(1, 2 + 2 * n)
        return {"a": a, "b": b, "c": a * x + b * y, "x": x, "y": y}
        """,
        asks='f"{state[\'a\']}x+{state[\'b\']}y={state[\'c\']}, x y > 0"',
        solve='return f"{state[\'x\']} {state[\'y\']}"',
        judge="""
        match = re.fullmatch("([1-9][0-9]{0,5}) ([1-9][0-9]{0,5})", answer.strip(), re.ASCII)
        if not match:
            return False
        return state["a"] * int(match[1]) + state["b"] * int(match[2]) == state["c"]
        """,
        imports=("re",), sizes=(1, 2, 4, 7, 11),
    ),
    Family(
        name="assignment", title="Bits that satisfy all clauses", keywords=("logic", "constraint"),
        draw="""
        bits = [rng.randrange(2) for _ in range(n)]
        clauses = []
        while len(clauses) < 4 * n:
            chosen = rng.sample(range(n), 2)
            clause = [[i, rng.randrange(2)] for i in chosen]
            if any(bits[i] == want for i, want in clause):
                clauses.append(clause)
        return {"bits": bits, "clauses": clauses}
        """,
        asks='''(
        "Choose bits x0, x1, ... so that each pair holds at least once: " + ", ".join(
            " or ".join(f"x{i}={want}" for i, want in clause) for clause in state["clauses"]
        ) + f". Answer with {len(state['bits'])} bits, x0 first."
    )''',
        solve='return "".join(map(str, state["bits"]))',
        judge="""
        bits = answer.strip()
        if len(bits) != len(state["bits"]) or set(bits) - set("01"):
            return False
        return all(
            any(bits[i] == str(want) for i, want in clause) for clause in state["clauses"]
        )
        """,
        sizes=(4, 5, 6, 8, 10),
    ),
)  # fmt: skip
