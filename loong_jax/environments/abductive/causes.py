"""Abduction: the fewest causes of what is seen; the stuck gates of a circuit."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State, canonical_json

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

    def canonical(self, state: State) -> str:
        return canonical_json({**state, "rules": sorted(state["rules"])})

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
KINDS = ("and", "or", "xor", "nand")


def _gate(kind: str, a: int, b: int) -> int:
    return {"and": a & b, "or": a | b, "xor": a ^ b, "nand": 1 - (a & b)}[kind]


def outputs(gates: Sequence[Sequence[Any]], inputs: str, stuck: Mapping[int, int]) -> str:
    """Values of the last gates; wires are the inputs, then the gates in order."""
    wires = [int(value) for value in inputs]
    for number, (kind, first, second) in enumerate(gates, 1):
        value = stuck.get(number)
        wires.append(_gate(kind, wires[first], wires[second]) if value is None else value)
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

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_gates, num_faults, num_tests = CIRCUITS[level]
        gates = []
        for number in range(num_gates):
            first, second = sorted(rng.sample(range(NUM_INPUTS + number), 2))
            gates.append([rng.choice(KINDS), first, second])
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

    def canonical(self, state: State) -> str:
        return canonical_json({**state, "tests": sorted(state["tests"])})

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
