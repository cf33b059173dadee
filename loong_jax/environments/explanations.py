"""Explanations of what is seen: a short formula, the fewest causes, a circuit's stuck gates."""

import itertools
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed, one_line
from loong_jax.environments.environment import Puzzle, State

FORMULAS = {1: (2, 7), 2: (3, 8), 3: (4, 9), 4: (5, 10), 5: (6, 11)}
"""Level: operators, rows shown."""
NAMES = "pqrs"
MAX_DEPTH = 40


def _columns(rows: list[str]) -> dict[str, int]:
    """The values of each name over the rows as a bit mask; a row is `1010` (p, q, r, s)."""
    return {
        name: sum(1 << place for place, row in enumerate(rows) if row[index] == "1")
        for index, name in enumerate(NAMES)
    }


def _shortest(rows: list[str], num_operators: int) -> list[dict[int, str]]:
    """By number of operators: each mask that no shorter formula has, with one formula."""
    full = (1 << len(rows)) - 1
    sizes: list[dict[int, str]] = [{mask: name for name, mask in _columns(rows).items()}]
    seen = set(sizes[0])
    for count in range(1, num_operators + 1):
        found: dict[int, str] = {}
        for mask, text in sizes[count - 1].items():
            if full ^ mask not in seen:
                found.setdefault(full ^ mask, f"not {text}")
        for left in range(count):
            right = count - 1 - left
            if left > right:
                break
            for (a, x), (b, y) in itertools.product(sizes[left].items(), sizes[right].items()):
                if a & b not in seen:
                    found.setdefault(a & b, f"({x} and {y})")
                if a | b not in seen:
                    found.setdefault(a | b, f"({x} or {y})")
        seen |= set(found)
        sizes.append(found)
    return sizes


class _Parser:
    """formula := part (and part)* | part (or part)*; part := NAME | not part | ( formula )."""

    def __init__(self, text: str, columns: dict[str, int], full: int):
        self._tokens = re.findall(r"[a-z]+|\S", text)
        self._columns, self._full = columns, full
        self._place = 0
        self.num_operators = 0

    def mask(self) -> int:
        found = self._formula(0)
        if self._place < len(self._tokens):
            raise Malformed(f"{self._tokens[self._place][:20]!r} was not expected")
        return found

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _formula(self, depth: int) -> int:
        found = self._part(depth)
        operator = self._peek()
        while self._peek() in ("and", "or"):
            if self._peek() != operator:
                raise Malformed("'and' and 'or' are mixed without brackets")
            self._place += 1
            self.num_operators += 1
            other = self._part(depth)
            found = found & other if operator == "and" else found | other
        return found

    def _part(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise Malformed(f"nested deeper than {MAX_DEPTH}")
        token = self._peek()
        self._place += 1
        if token == "not":
            self.num_operators += 1
            return self._full ^ self._part(depth + 1)
        if token == "(":
            found = self._formula(depth + 1)
            if self._peek() != ")":
                raise Malformed("a bracket is not closed")
            self._place += 1
            return found
        if token not in self._columns:
            raise Malformed(f"{token[:20]!r} is not one of {', '.join(NAMES)}")
        return self._columns[token]


class FormulaInduction(Puzzle):
    """State: {"rows": ["1010", ...], "values": "01...", "operators"}.

    No formula with fewer operators agrees with the rows.
    """

    name = "formula_induction"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_operators, num_rows = FORMULAS[level]
        rows = rng.sample(["".join(bits) for bits in itertools.product("01", repeat=4)], num_rows)
        rows.sort()
        masks = sorted(_shortest(rows, num_operators)[-1])
        if not masks:
            return None
        mask = rng.choice(masks)
        values = "".join(str(mask >> place & 1) for place in range(num_rows))
        return {"rows": rows, "values": values, "operators": num_operators}

    def prompt(self, state: State) -> str:
        rows = "\n".join(
            f"{' '.join(row)} | {value}"
            for row, value in zip(state["rows"], state["values"], strict=True)
        )
        return (
            f"Some rows of the truth table of a formula (1 is true):\n{' '.join(NAMES)} | value\n"
            f"{rows}\nFind a formula that agrees with all of them and has at most "
            f"{state['operators']} operators. It is built from p, q, r, s, not, and, or, and "
            "brackets; 'and' and 'or' are never mixed without brackets, and 'not' binds most. Any "
            "such formula is right. Answer with the formula on one line, as in\n(p and not q) or r"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        rows = state["rows"]
        parser = _Parser(one_line(answer), _columns(rows), (1 << len(rows)) - 1)
        mask = parser.mask()
        if parser.num_operators > state["operators"]:
            return f"{parser.num_operators} operators, more than {state['operators']}"
        for place, value in enumerate(state["values"]):
            if mask >> place & 1 != int(value):
                return f"row {rows[place]} is not {value}"
        return None

    def answer(self, state: State) -> str:
        mask = sum(1 << place for place, value in enumerate(state["values"]) if value == "1")
        sizes = _shortest(state["rows"], state["operators"])
        return next(found[mask] for found in sizes if mask in found)


THEORIES = {1: (5, 4), 2: (6, 5), 3: (7, 6), 4: (9, 7), 5: (11, 8)}
"""Level: causes, effects."""


def effects(rules: Sequence[Sequence[Any]], causes: frozenset[str]) -> set[str]:
    """Everything that follows from these causes."""
    known, grown = set(causes), True
    while grown:
        grown = False
        for body, head in rules:
            if head not in known and known.issuperset(body):
                known.add(head)
                grown = True
    return known


def _explanations(state: State, size: int) -> Iterator[frozenset[str]]:
    names = [f"c{number}" for number in range(1, state["causes"] + 1)]
    for chosen in itertools.combinations(names, size):
        known = effects(state["rules"], frozenset(chosen))
        if known.issuperset(state["seen"]) and known.isdisjoint(state["absent"]):
            yield frozenset(chosen)


def _smallest(state: State) -> frozenset[str]:
    sizes = range(state["causes"] + 1)
    return next(found for size in sizes for found in _explanations(state, size))


class Causes(Puzzle):
    """State: {"causes", "rules": [[body, head], ...], "seen", "absent"}."""

    name = "causal_abduction"
    unordered = ("rules",)

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_causes, num_effects = THEORIES[level]
        causes = [f"c{number}" for number in range(1, num_causes + 1)]
        found = [f"e{number}" for number in range(1, num_effects + 1)]
        rules: list[list[Any]] = []
        for place, head in enumerate(found):
            for _ in range(rng.choice((1, 2, 2, 3))):
                body = sorted(rng.sample(causes + found[:place], rng.choice((1, 2, 2))))
                if [body, head] not in rules:
                    rules.append([body, head])
        chosen = frozenset(rng.sample(causes, rng.randrange(2, num_causes // 2 + 1)))
        known = effects(rules, chosen)
        seen = [effect for effect in found if effect in known]
        absent = [effect for effect in found if effect not in known]
        if len(seen) < 2 or not absent:
            return None
        rng.shuffle(rules)
        state = {"causes": num_causes, "rules": rules, "seen": seen, "absent": absent}
        few = [size for size in range(3) if any(True for _ in _explanations(state, size))]
        minimum = 2 if level < 4 else 3
        return state if not few or few[0] >= minimum else None

    def prompt(self, state: State) -> str:
        rules = "\n".join(f"{' and '.join(body)} cause {head}" for body, head in state["rules"])
        return (
            f"Causes are c1 to c{state['causes']}. What follows from what:\n{rules}\nSeen: "
            f"{', '.join(state['seen'])}. Certainly absent: {', '.join(state['absent'])}.\nAn "
            "explanation is a set of causes from which all that was seen follows and nothing that "
            "is absent. Find one with as few causes as possible; any smallest one is right. "
            "Answer with its causes on one line, with commas between them, in the form cN, cM"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        found = answers.items(answers.one_line(answer))
        names = {f"c{number}" for number in range(1, state["causes"] + 1)}
        if not names.issuperset(found) or len(set(found)) < len(found):
            raise Malformed("not a list of different causes")
        known = effects(state["rules"], frozenset(found))
        if missing := [effect for effect in state["seen"] if effect not in known]:
            return f"{missing[0]} is not explained"
        if present := [effect for effect in state["absent"] if effect in known]:
            return f"{present[0]} would follow"
        smallest = len(_smallest(state))
        return f"{smallest} causes are enough" if len(found) > smallest else None

    def answer(self, state: State) -> str:
        return ", ".join(sorted(_smallest(state), key=lambda cause: int(cause[1:])))


CIRCUITS = {1: (5, 1, 4), 2: (8, 1, 5), 3: (7, 2, 7), 4: (9, 2, 8), 5: (11, 2, 10)}
"""Level: gates, faults, tests."""
NUM_INPUTS, NUM_OUTPUTS = 4, 3
KINDS = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "nand": lambda a, b: 1 - (a & b)
}  # fmt: skip


def outputs(gates: Sequence[Sequence[Any]], inputs: str, stuck: Mapping[int, int]) -> str:
    """Values of the last gates; wires are the inputs, then the gates in order."""
    wires = [int(value) for value in inputs]
    for number, (kind, first, second) in enumerate(gates, 1):
        value = stuck.get(number)
        wires.append(KINDS[kind](wires[first], wires[second]) if value is None else value)
    return "".join(map(str, wires[-NUM_OUTPUTS:]))


def _diagnoses(state: State, size: int) -> Iterator[Mapping[int, int]]:
    gates, tests = state["gates"], state["tests"]
    for chosen in itertools.combinations(range(1, len(gates) + 1), size):
        for values in itertools.product((0, 1), repeat=size):
            stuck = dict(zip(chosen, values, strict=True))
            if all(outputs(gates, given, stuck) == seen for given, seen in tests):
                yield stuck


def _wire(index: int) -> str:
    return f"x{index + 1}" if index < NUM_INPUTS else f"g{index - NUM_INPUTS + 1}"


class CircuitDiagnosis(Puzzle):
    """State: {"gates": [[kind, wire, wire], ...], "tests": [[inputs, outputs], ...], "faults"}."""

    name = "circuit_diagnosis"
    unordered = ("tests",)

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_gates, num_faults, num_tests = CIRCUITS[level]
        gates = []
        for number in range(num_gates):
            first, second = sorted(rng.sample(range(NUM_INPUTS + number), 2))
            gates.append([rng.choice(list(KINDS)), first, second])
        stuck = {gate: rng.randrange(2) for gate in rng.sample(range(1, num_gates + 1), num_faults)}
        every = ["".join(bits) for bits in itertools.product("01", repeat=NUM_INPUTS)]
        tests = [[given, outputs(gates, given, stuck)] for given in rng.sample(every, num_tests)]
        state = {"gates": gates, "tests": tests, "faults": num_faults}
        for size in range(num_faults):
            if any(True for _ in _diagnoses(state, size)):
                return None
        found = list(itertools.islice(_diagnoses(state, num_faults), 2))
        return state if len(found) == 1 else None

    def prompt(self, state: State) -> str:
        gates = "\n".join(
            f"g{number} = {_wire(first)} {kind} {_wire(second)}"
            for number, (kind, first, second) in enumerate(state["gates"], 1)
        )
        tests = "\n".join(f"{given} -> {seen}" for given, seen in state["tests"])
        last = len(state["gates"])
        seen = ", ".join(f"g{number}" for number in range(last - NUM_OUTPUTS + 1, last + 1))
        inputs = ", ".join(f"x{number}" for number in range(1, NUM_INPUTS + 1))
        return (
            f"A circuit with the inputs {inputs}:\n{gates}\n('nand' is the negation of 'and'.) "
            "Some gates are stuck: their output is always 0, or always 1, whatever they get. Tests "
            f"of the circuit, inputs {inputs} -> outputs {seen}:\n{tests}\nExactly one set of "
            f"{state['faults']} stuck gate(s) explains all tests, and no smaller set does. Answer "
            "with one line that names each stuck gate and its value, in the form gN=0, gM=1"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        stuck: dict[int, int] = {}
        for item in answers.items(answers.one_line(answer)):
            gate, equals, value = (part.strip() for part in item.partition("="))
            if not equals or gate[:1] != "g" or value not in ("0", "1"):
                raise Malformed(f"{item[:20]!r} is not gN=0 or gN=1")
            number = answers.integer(gate[1:])
            if not 0 < number <= len(state["gates"]) or number in stuck:
                raise Malformed(f"{gate} is no gate, or is named twice")
            stuck[number] = int(value)
        if len(stuck) != state["faults"]:
            return f"{len(stuck)} stuck gates, not {state['faults']}"
        for given, seen in state["tests"]:
            if (found := outputs(state["gates"], given, stuck)) != seen:
                return f"the inputs {given} would give {found}, not {seen}"
        return None

    def answer(self, state: State) -> str:
        stuck = next(_diagnoses(state, state["faults"]))
        return ", ".join(f"g{gate}={value}" for gate, value in sorted(stuck.items()))
