"""Automata: one that sorts words, cellular ones on a ring; graphs to be coloured and walked."""

import itertools
import operator
import random
import re

from loong_jax.environments import answers, csp
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State

SAMPLES = {1: (2, 8), 2: (2, 12), 3: (3, 12), 4: (3, 18), 5: (4, 20)}
"""Level: states allowed, words shown."""
MAX_WORD = 6
LETTERS = "ab"


def _final(table: dict[tuple[int, str], int], word: str) -> int:
    state = 0
    for letter in word:
        state = table[state, letter]
    return state


def _search(words: dict[str, bool], num_states: int) -> dict[tuple[int, str], int] | None:
    """Transitions that keep accepted and rejected words in different states.

    Follows the words, shortest first, and chooses a transition when one is first needed; new
    states are taken in order.
    """
    ordered = sorted(words, key=lambda word: (len(word), word))

    def extend(index: int, table: dict[tuple[int, str], int], used: int, kinds: dict[int, bool]):
        if index == len(ordered):
            return table
        word, state = ordered[index], 0
        for letter in word:
            if (state, letter) not in table:
                for target in range(min(used + 1, num_states)):
                    found = extend(
                        index,
                        table | {(state, letter): target},
                        max(used, target + 1),
                        kinds,
                    )
                    if found is not None:
                        return found
                return None
            state = table[state, letter]
        if kinds.get(state, words[word]) != words[word]:
            return None
        return extend(index + 1, table, used, kinds | {state: words[word]})

    return extend(0, {}, 1, {})


class Automaton(Puzzle):
    """State: {"states", "accepted": words, "rejected": words}.

    No automaton with one state less fits.
    """

    name = "automaton_induction"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_states, num_words = SAMPLES[level]
        table = {
            (state, letter): rng.randrange(num_states)
            for state in range(num_states)
            for letter in LETTERS
        }
        accepting = {state for state in range(num_states) if rng.random() < 0.5}
        every = [
            "".join(word)
            for length in range(1, MAX_WORD + 1)
            for word in itertools.product(LETTERS, repeat=length)
        ]
        words = {word: _final(table, word) in accepting for word in rng.sample(every, num_words)}
        if not num_words // 4 < sum(words.values()) < 3 * num_words // 4:
            return None
        if _search(words, num_states - 1) is not None:
            return None
        return {
            "states": num_states,
            "accepted": sorted(word for word, accept in words.items() if accept),
            "rejected": sorted(word for word, accept in words.items() if not accept),
        }

    def prompt(self, state: State) -> str:
        count = state["states"]
        return (
            f"A deterministic automaton with the states 0 to {count - 1} reads words of a and b "
            "from the left, starting in state 0. It accepts a word if it ends in an accepting "
            f"state. Find one that accepts {', '.join(state['accepted'])} and rejects "
            f"{', '.join(state['rejected'])}. Any such automaton is right. Answer with {count + 1} "
            "lines: for each state in order where a and b lead, then the accepting states, as in\n"
            "0: a=1 b=0\naccept: 0, 1"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        count, found = state["states"], answers.lines(answer)
        if len(found) != count + 1:
            raise Malformed(f"{len(found)} lines, not {count + 1}")
        table: dict[tuple[int, str], int] = {}
        for number, line in enumerate(found[:-1]):
            match = re.fullmatch(r"([0-9]): ?a=([0-9]),? b=([0-9])", line)
            if match is None or int(match[1]) != number:
                raise Malformed(f"{line[:40]!r} is not '{number}: a=STATE b=STATE'")
            table |= {(number, "a"): int(match[2]), (number, "b"): int(match[3])}
        if max(table.values()) >= count:
            raise Malformed(f"a state above {count - 1}")
        head, colon, rest = found[-1].partition(":")
        if head != "accept" or not colon:
            raise Malformed("the last line does not start with 'accept:'")
        accepting = set(map(answers.integer, answers.items(rest) if rest.strip() else []))
        if not accepting <= set(range(count)):
            raise Malformed(f"an accepting state is not in 0 to {count - 1}")
        for kind, wanted in (("accepted", True), ("rejected", False)):
            for word in state[kind]:
                if (_final(table, word) in accepting) != wanted:
                    return f"{word} is not {kind}"
        return None

    def answer(self, state: State) -> str:
        words = dict.fromkeys(state["accepted"], True) | dict.fromkeys(state["rejected"], False)
        table = _search(words, state["states"])
        assert table is not None
        rows = []
        for number in range(state["states"]):
            a, b = (table.setdefault((number, letter), 0) for letter in LETTERS)
            rows.append(f"{number}: a={a} b={b}")
        accepting = sorted({_final(table, word) for word in state["accepted"]})
        return "\n".join([*rows, f"accept: {', '.join(map(str, accepting))}"])


RINGS = {1: (2, 1, 10, 4, 1), 2: (2, 1, 12, 5, 2), 3: (2, 2, 14, 6, 1), 4: (2, 2, 16, 7, 2),
          5: (2, 2, 18, 8, 3)}  # fmt: skip
"""Level: symbols, radius, width, rows shown, rows asked."""
SYMBOLS = "012"


def neighbourhood(row: str, place: int, radius: int) -> str:
    width = len(row)
    return "".join(row[(place + d) % width] for d in range(-radius, radius + 1))


def after(row: str, rule: dict[str, str], radius: int) -> str | None:
    """The next row, or None where a neighbourhood is not in the rule."""
    symbols = [rule.get(neighbourhood(row, place, radius)) for place in range(len(row))]
    return None if None in symbols else "".join(symbol for symbol in symbols if symbol)


def _seen(rows: list[str], radius: int) -> dict[str, str]:
    return {
        neighbourhood(row, place, radius): below[place]
        for row, below in itertools.pairwise(rows)
        for place in range(len(row))
    }


class CellularRule(Puzzle):
    """State: {"rows", "radius", "asked"}."""

    name = "cellular_rule"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_symbols, radius, width, num_shown, num_asked = RINGS[level]
        symbols = SYMBOLS[:num_symbols]
        rows = ["".join(rng.choice(symbols) for _ in range(width))]
        rule: dict[str, str] = {}
        for _ in range(num_shown + num_asked - 1):
            row = rows[-1]
            for place in range(width):  # the rule is drawn entry by entry, as it is needed
                rule.setdefault(neighbourhood(row, place, radius), rng.choice(symbols))
            rows.append(after(row, rule, radius) or "")
        shown, known = rows[:num_shown], _seen(rows[:num_shown], radius)
        asked = rows[num_shown - 1 : -1]
        if any(after(row, known, radius) is None for row in asked):
            return None
        if min(len(set(row)) for row in rows) < 2 or len(set(rows)) < len(rows):
            return None
        return {"rows": shown, "radius": radius, "asked": num_asked}

    def prompt(self, state: State) -> str:
        radius, width = state["radius"], len(state["rows"][0])
        return (
            f"Each row is made from the row above by one rule: the symbol at a place depends on "
            f"the {2 * radius + 1} symbols above it, from {radius} to the left to {radius} to the "
            f"right, and the rows close to a ring.\n" + "\n".join(state["rows"]) + "\nWhat follows "
            f"is settled by these rows. Answer with the next {state['asked']} row(s), one a line, "
            f"{width} symbols each."
        )

    def canonical(self, state: State) -> str:
        """The rows turned so that the first is smallest: the ring has no first place."""
        rows = state["rows"]
        turns = (tuple(row[k:] + row[:k] for row in rows) for k in range(len(rows[0])))
        return f"{state['radius']},{state['asked']}:" + "/".join(min(turns))

    def _continuation(self, state: State) -> list[str]:
        rows, known = list(state["rows"]), _seen(state["rows"], state["radius"])
        for _ in range(state["asked"]):
            row = after(rows[-1], known, state["radius"])
            assert row is not None
            rows.append(row)
        return rows[len(state["rows"]) :]

    def flaw(self, state: State, answer: str) -> str | None:
        width = len(state["rows"][0])
        given = answers.grid(answer, state["asked"], width, SYMBOLS)
        return answers.difference(given, self._continuation(state), "row")

    def answer(self, state: State) -> str:
        return "\n".join(self._continuation(state))


WIDTH = {1: 8, 2: 10, 3: 12, 4: 14, 5: 16}
TRIPLES = ["".join(bits) for bits in itertools.product("10", repeat=3)]


def _rule(state: State) -> dict[str, str]:
    return dict(zip(TRIPLES, state["rule"], strict=True))


class Predecessor(Puzzle):
    """The past of a cellular automaton: a row from which the row seen was made. Any such row
    counts.

    State: {"rule": results of 111 .. 000, "row"}.

    Half of the rule's results are 1, and the row is not all one symbol.
    """

    name = "predecessor"

    def draw(self, level: int, rng: random.Random) -> State | None:
        rule = "".join(rng.sample("11110000", 8))
        before = "".join(rng.choice("01") for _ in range(WIDTH[level]))
        row = after(before, _rule({"rule": rule}), 1) or ""
        by_one_place = {"11110000", "00001111", "11001100", "00110011", "10101010", "01010101"}
        if rule in by_one_place or len(set(row)) < 2 or row in (before, before[::-1]):
            return None
        return {"rule": rule, "row": row}

    def prompt(self, state: State) -> str:
        rule = ", ".join(f"{triple} gives {result}" for triple, result in _rule(state).items())
        return (
            "On a ring of cells each new symbol depends on the cell's left neighbour, itself and "
            f"its right neighbour: {rule}. After one step the ring reads {state['row']} (its last "
            "cell is next to its first). Find a ring from which this was made. Any that gives it "
            f"is right. Answer with its {len(state['row'])} symbols, first cell first."
        )

    def canonical(self, state: State) -> str:
        row = state["row"]
        return f"{state['rule']}:{min(row[k:] + row[:k] for k in range(len(row)))}"

    def flaw(self, state: State, answer: str) -> str | None:
        row = state["row"]
        (before,) = answers.grid(answer, 1, len(row), "01")
        found = after(before, _rule(state), 1)
        return None if found == row else f"it becomes {found}"

    def answer(self, state: State) -> str:
        """Cell by cell, keeping one start for each reachable last pair."""
        rule, row, found = _rule(state), state["row"], []
        for first in map("".join, itertools.product("01", repeat=2)):
            reached = {first: first}  # last two cells: all cells so far
            for symbol in row[1:-1]:
                longer = (cells + cell for cells in reached.values() for cell in "01")
                reached = {cells[-2:]: cells for cells in longer if rule[cells[-3:]] == symbol}
            found += reached.values()
        return next(cells for cells in found if after(cells, rule, 1) == row)


NUM_COLOURED = {1: 7, 2: 10, 3: 13, 4: 16, 5: 20}
NUM_VISITED = {1: 7, 2: 9, 3: 11, 4: 13, 5: 16}
COLOURS = ("red", "green", "blue")


def _edge_text(state: State) -> str:
    return ", ".join(f"{a}-{b}" for a, b in state["edges"])


class GraphColouring(Puzzle):
    """State: {"nodes", "edges"}. There are about 2.2 edges for each node."""

    name = "graph_colouring"

    def draw(self, level: int, rng: random.Random) -> State | None:
        nodes = NUM_COLOURED[level]
        colour = [rng.randrange(3) for _ in range(nodes)]
        allowed = [
            [a + 1, b + 1]
            for a, b in itertools.combinations(range(nodes), 2)
            if colour[a] != colour[b]
        ]
        wanted = round(2.2 * nodes)
        if len(allowed) < wanted:
            return None
        edges = sorted(rng.sample(allowed, wanted))
        degrees = [sum(node in edge for edge in edges) for node in range(1, nodes + 1)]
        return {"nodes": nodes, "edges": edges} if min(degrees) >= 2 else None

    def prompt(self, state: State) -> str:
        return (
            f"A graph has the nodes 1 to {state['nodes']} and the edges {_edge_text(state)}. "
            "Colour every node red, green or blue so that no edge joins two nodes of one colour. "
            "Any such colouring is right. Answer with one line in the form 1=red, 2=green, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        nodes = [str(node) for node in range(1, state["nodes"] + 1)]
        colour = answers.assignment(answer, nodes, COLOURS)
        for a, b in state["edges"]:
            if colour[str(a)] == colour[str(b)]:
                return f"{a} and {b} are both {colour[str(a)]}"
        return None

    def answer(self, state: State) -> str:
        network = csp.Network(state["nodes"], 3)
        for a, b in state["edges"]:
            network.relate(a - 1, b - 1, operator.ne)
        colours = network.solutions([7] * state["nodes"], 1)[0]
        return ", ".join(f"{node}={COLOURS[colour]}" for node, colour in enumerate(colours, 1))


class HamiltonianPath(Puzzle):
    """State: {"nodes", "edges"}. There are 1.6 edges for each node."""

    name = "hamiltonian_path"

    def draw(self, level: int, rng: random.Random) -> State | None:
        nodes = NUM_VISITED[level]
        path = rng.sample(range(1, nodes + 1), nodes)
        edges = {(min(pair), max(pair)) for pair in itertools.pairwise(path)}
        while len(edges) < round(1.6 * nodes):
            a, b = sorted(rng.sample(range(1, nodes + 1), 2))
            edges.add((a, b))
        return {"nodes": nodes, "edges": sorted(map(list, edges))}

    def prompt(self, state: State) -> str:
        return (
            f"A graph has the nodes 1 to {state['nodes']} and the edges {_edge_text(state)}. "
            "Find a path along edges that visits every node exactly once; it may start anywhere. "
            "Any such path is right. Answer with one line: the nodes in order, with commas between "
            "them."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        path = answers.integers(answer, state["nodes"])
        if sorted(path) != list(range(1, state["nodes"] + 1)):
            return "not every node once"
        edges = {tuple(edge) for edge in state["edges"]}
        for a, b in itertools.pairwise(path):
            if (min(a, b), max(a, b)) not in edges:
                return f"there is no edge {a}-{b}"
        return None

    def answer(self, state: State) -> str:
        """Depth first, to the neighbour with fewest ways on (Warnsdorff)."""
        neighbours: dict[int, set[int]] = {n: set() for n in range(1, state["nodes"] + 1)}
        for a, b in state["edges"]:
            neighbours[a].add(b)
            neighbours[b].add(a)

        def extend(path: list[int]) -> list[int] | None:
            if len(path) == state["nodes"]:
                return path
            free = neighbours[path[-1]] - set(path)
            for node in sorted(free, key=lambda n: (len(neighbours[n] - set(path)), n)):
                if (found := extend([*path, node])) is not None:
                    return found
            return None

        starts = sorted(neighbours, key=lambda n: (len(neighbours[n]), n))
        path = next(path for start in starts if (path := extend([start])) is not None)
        return ", ".join(map(str, path))
