"""Entailment with a certificate: a refutation or derivation, or a countermodel.

First-order premises are facts and universally quantified rules without functions (Horn clauses), so
a goal that is not entailed has a countermodel over the named constants (Herbrand).
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State

NUM_VARIABLES = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
NAMES = "pqrstuvw"
MAX_STEPS = 300

Clause = frozenset[int]  # literal +i: variable i (from 1) is true, -i: it is false


def _literal(number: int) -> str:
    name = NAMES[abs(number) - 1]
    return name if number > 0 else f"not {name}"


def _falsified(clause: Clause, assigned: Sequence[int]) -> bool:
    return all(-literal in assigned for literal in clause)


def refutation(
    clauses: Sequence[Clause], num_variables: int
) -> tuple[list[tuple[int, int, Clause]], None] | tuple[None, list[int]]:
    """A list of resolution steps (numbers of two clauses from 1, resolvent), or a model.

    Splits on variables in order; what both halves falsify is resolved on the way back.
    """
    known = list(clauses)
    steps: list[tuple[int, int, Clause]] = []

    def falsify(assigned: list[int]) -> tuple[int | None, list[int] | None]:
        for number, clause in enumerate(known):
            if _falsified(clause, assigned):
                return number, None
        if len(assigned) == num_variables:
            return None, assigned
        pivot = len(assigned) + 1
        sides: list[int] = []
        for literal in (-pivot, pivot):
            number, model = falsify([*assigned, literal])
            if number is None:
                return None, model
            if -literal not in known[number]:
                return number, None
            sides.append(number)
        resolvent = (known[sides[0]] | known[sides[1]]) - {pivot, -pivot}
        steps.append((sides[0] + 1, sides[1] + 1, resolvent))
        known.append(resolvent)
        return len(known) - 1, None

    number, model = falsify([])
    if number is None:
        assert model is not None
        return None, model
    return steps, None


class Propositional(Puzzle):
    """State: {"variables", "premises": clauses, "goal": a clause}."""

    name = "propositional_entailment"

    def draw(self, level: int, rng: random.Random) -> State | None:
        count = NUM_VARIABLES[level]
        wanted = rng.random() < 0.5
        premises: set[tuple[int, ...]] = set()
        while len(premises) < 2 * count + wanted * count // 2:
            chosen = sorted(rng.sample(range(1, count + 1), rng.choice((2, 3, 3))))
            premises.add(tuple(v if rng.random() < 0.5 else -v for v in chosen))
        goal = sorted(rng.sample(range(1, count + 1), 2))
        goal = [v if rng.random() < 0.5 else -v for v in goal]
        state = {"variables": count, "premises": sorted(map(list, premises)), "goal": goal}
        if refutation(list(map(frozenset, state["premises"])), count)[0] is not None:
            return None  # premises that contradict each other entail everything
        steps, _ = refutation(_clauses(state), count)
        if (steps is not None) != wanted or (steps is not None and len(steps) < count):
            return None
        return state

    def prompt(self, state: State) -> str:
        clauses = _clauses(state)
        num_premises = len(state["premises"])
        rows = [
            f"{number}. {' or '.join(map(_literal, sorted(clause, key=abs)))}"
            for number, clause in enumerate(clauses, 1)
        ]
        names = NAMES[: state["variables"]]
        example = ", ".join(f"{name}=true" for name in names[:2])
        return (
            f"Do the premises entail the conclusion '{' or '.join(map(_literal, state['goal']))}'"
            "? 'Or' includes both. Premises:\n" + "\n".join(rows[:num_premises]) + "\nNegation of "
            "the conclusion:\n" + "\n".join(rows[num_premises:]) + "\n"
            "Give a certificate with your answer. If they do, write 'entailed' on the first line, "
            "then a refutation by resolution: one step a line, as in\n"
            f"{len(rows) + 1}. 1 2: p, not q\n"
            "(the next number, the numbers of two clauses above, and the literals of their "
            "resolvent on one variable); the last line derives the empty clause, written false. "
            f"At most {MAX_STEPS} steps. If they do not, write 'not entailed' on the first line "
            f"and on the second a value of each of {', '.join(names)} under which the premises "
            f"hold and the conclusion does not, in the form {example}, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        clauses, (is_entailed, rest) = _clauses(state), _certificate(answer, MAX_STEPS)
        if not is_entailed:
            names = NAMES[: state["variables"]]
            values = answers.assignment("\n".join(rest), names, ("true", "false"))
            model = [
                number if values[name] == "true" else -number
                for number, name in enumerate(names, 1)
            ]
            for number, clause in enumerate(clauses, 1):
                if _falsified(clause, model):
                    return f"clause {number} does not hold"
            return None
        for line in rest:
            if flaw := _step(line, clauses, state["variables"]):
                return flaw
        return None if not clauses[-1] else "the last clause is not empty"

    def answer(self, state: State) -> str:
        clauses = _clauses(state)
        steps, model = refutation(clauses, state["variables"])
        if steps is None:
            assert model is not None
            values = (f"{NAMES[abs(v) - 1]}={'true' if v > 0 else 'false'}" for v in model)
            return "not entailed\n" + ", ".join(values)
        rows = [
            f"{number}. {a} {b}: {', '.join(map(_literal, sorted(clause, key=abs))) or 'false'}"
            for number, (a, b, clause) in enumerate(steps, len(clauses) + 1)
        ]
        return "\n".join(["entailed", *rows])


def _certificate(answer: str, most: int) -> tuple[bool, list[str]]:
    """True where it says 'entailed', and the lines below; at most so many of a derivation."""
    first, *rest = answers.lines(answer) or [""]
    if first not in ("entailed", "not entailed"):
        raise Malformed("the first line is neither 'entailed' nor 'not entailed'")
    if first == "entailed" and not 1 <= len(rest) <= most:
        raise Malformed(f"{len(rest)} lines of a derivation, not 1 to {most}")
    return first == "entailed", rest


def _clauses(state: State) -> list[Clause]:
    """Premises, then the negated goal, a unit clause for each of its literals."""
    return [frozenset(c) for c in state["premises"]] + [frozenset([-g]) for g in state["goal"]]


def _step(line: str, clauses: list[Clause], num_variables: int) -> str | None:
    """Adds the step's clause; says what is wrong with it."""
    match = re.fullmatch(r"([0-9]{1,4})\. ?([0-9]{1,4}) +([0-9]{1,4}) ?: ?([a-z, ]{1,200})", line)
    if match is None:
        raise Malformed(f"{line[:40]!r} is not 'N. I J: literals'")
    number, first, second = (int(match[place]) for place in (1, 2, 3))
    if number != len(clauses) + 1 or not (0 < first < number and 0 < second < number):
        raise Malformed(f"step {number} is out of order, or uses a clause that is not above it")
    literals: set[int] = set()
    for item in [] if match[4].strip() == "false" else answers.items(match[4]):
        word = item.removeprefix("not ").strip()
        if len(word) != 1 or word not in NAMES[:num_variables]:
            raise Malformed(f"{item!r} is no literal")
        literals.add((NAMES.index(word) + 1) * (-1 if item.startswith("not ") else 1))
    left, right = clauses[first - 1], clauses[second - 1]
    resolvents = ((left - {v}) | (right - {-v}) for v in left if -v in right)
    if not any(resolvent == literals for resolvent in resolvents):
        return f"step {number} is no resolvent of {first} and {second}"
    clauses.append(frozenset(literals))
    return None


THEORIES = {1: (3, 3, 1), 2: (3, 4, 2), 3: (4, 5, 3), 4: (4, 6, 4), 5: (5, 7, 5)}
"""Level: constants, rules, longest derivation."""
CONSTANTS = "abcde"
ARITY = {"P": 1, "Q": 1, "S": 1, "T": 1, "R": 2, "U": 2}
VARIABLES = "xyz"
MAX_LINES = 200

Atom = tuple[str, ...]  # predicate, then its terms


def _text(atom: Sequence[str]) -> str:
    return f"{atom[0]}({','.join(atom[1:])})"


def _variables(rule: Sequence[Sequence[str]]) -> list[str]:
    return sorted({term for atom in rule for term in atom[1:]})


def _put(atom: Sequence[str], values: dict[str, str]) -> Atom:
    return (atom[0], *(values.get(term, term) for term in atom[1:]))


def _instances(
    rules: Sequence[Sequence[Sequence[str]]], constants: str
) -> Iterator[tuple[int, dict[str, str], list[Atom], Atom]]:
    """Number of a rule, values of its variables, body and head: all ground instances."""
    for number, rule in enumerate(rules, 1):
        names = _variables(rule)
        for chosen in itertools.product(constants, repeat=len(names)):
            values = dict(zip(names, chosen, strict=True))
            *body, head = (_put(atom, values) for atom in rule)
            yield number, values, body, head


def closure(state: State) -> dict[Atom, tuple[int, int, dict[str, str], list[Atom]]]:
    """Every entailed atom: rounds it takes to derive, rule (0: a fact), values, body."""
    known = {tuple(fact): (0, 0, {}, []) for fact in state["facts"]}
    instances = list(_instances(state["rules"], CONSTANTS[: state["constants"]]))
    depth, new = 0, known
    while new:
        depth, new = depth + 1, {}
        for number, values, body, head in instances:
            if head not in known and head not in new and all(atom in known for atom in body):
                new[head] = (depth, number, values, body)
        known |= new
    return known


class FirstOrder(Puzzle):
    """State: {"constants", "facts", "rules": [[body atom, ..., head], ...], "goal"}."""

    name = "first_order_entailment"

    def draw(self, level: int, rng: random.Random) -> State | None:
        count, num_rules, depth = THEORIES[level]
        constants = CONSTANTS[:count]

        def atom(terms: str) -> list[str]:
            predicate = rng.choice(sorted(ARITY))
            return [predicate, *(rng.choice(terms) for _ in range(ARITY[predicate]))]

        rules: list[list[list[str]]] = []
        while len(rules) < num_rules:
            body = [atom(VARIABLES[: rng.choice((2, 2, 3))]) for _ in range(rng.choice((1, 2)))]
            bound = "".join(_variables(body))
            rule = [*body, atom(bound)]
            if rule[-1] not in body and rule not in rules:
                rules.append(rule)
        facts = sorted({tuple(atom(constants)) for _ in range(count + 1)})
        state = {"constants": count, "facts": list(map(list, facts)), "rules": rules}
        known = closure(state)
        if max(entry[0] for entry in known.values()) != depth:
            return None
        if rng.random() < 0.5:
            goals = sorted(found for found, entry in known.items() if entry[0] == depth)
        else:
            heads = sorted({rule[-1][0] for rule in rules})
            goals = [
                (predicate, *terms)
                for predicate in heads
                for terms in itertools.product(constants, repeat=ARITY[predicate])
                if (predicate, *terms) not in known
            ]
        return state | {"goal": list(rng.choice(goals))} if goals else None

    def prompt(self, state: State) -> str:
        rules = [
            f"{number}. For all {', '.join(_variables(rule))}: if "
            f"{' and '.join(map(_text, rule[:-1]))} then {_text(rule[-1])}."
            for number, rule in enumerate(state["rules"], 1)
        ]
        constants = ", ".join(CONSTANTS[: state["constants"]])
        return (
            f"The constants are {constants}; other objects may exist or not. Facts: "
            f"{', '.join(map(_text, state['facts']))}. Rules:\n" + "\n".join(rules) + "\nDo facts "
            f"and rules entail {_text(state['goal'])}? Give a certificate with your answer. If "
            "they do, write 'entailed' on the first line, then a derivation: on each line a rule "
            "with the constants for its variables, as in\nrule 1 x=a y=b\nwhose conditions are "
            "facts or were derived above; the last line derives the goal. At most "
            f"{MAX_LINES} lines. If they do not, write 'not entailed' on the first line and on the "
            "second a countermodel over the constants alone: all atoms that are true in it, in "
            "the form P(a); R(a,b)"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        is_entailed, rest = _certificate(answer, MAX_LINES)
        facts, goal = set(map(tuple, state["facts"])), tuple(state["goal"])
        if not is_entailed:
            return _model_flaw(state, "\n".join(rest), facts, goal)
        head: Atom = ()
        for line in rest:
            rule, values = _read_step(state, line)
            *body, head = (_put(atom, values) for atom in rule)
            for atom in body:
                if atom not in facts:
                    return f"{_text(atom)} is not known at {line!r}"
            facts.add(head)
        return None if head == goal else f"the last line derives {_text(head)}"

    def answer(self, state: State) -> str:
        known, goal = closure(state), tuple(state["goal"])
        if goal not in known:
            return "not entailed\n" + "; ".join(map(_text, sorted(known)))
        rows: dict[Atom, str] = {}

        def derive(atom: Atom) -> None:
            _, number, values, body = known[atom]
            if number and atom not in rows:
                for other in body:
                    derive(other)
                pairs = " ".join(f"{name}={value}" for name, value in values.items())
                rows[atom] = f"rule {number} {pairs}"

        derive(goal)
        return "\n".join(["entailed", *rows.values()])


def _read_step(state: State, line: str) -> tuple[list[list[str]], dict[str, str]]:
    match = re.fullmatch(r"rule ([0-9]{1,3})((?: [xyz]=[a-e]){1,3})", line)
    if match is None or not 0 < int(match[1]) <= len(state["rules"]):
        raise Malformed(f"{line[:40]!r} is not 'rule N x=a ...'")
    rule = state["rules"][int(match[1]) - 1]
    pairs = [pair.split("=") for pair in match[2].split()]
    values = {name: value for name, value in pairs}
    if len(values) < len(pairs) or sorted(values) != _variables(rule):
        raise Malformed(f"{line!r} does not name each variable of its rule once")
    if set(values.values()) - set(CONSTANTS[: state["constants"]]):
        raise Malformed(f"{line!r} names an unknown constant")
    return rule, values


def _model_flaw(state: State, text: str, facts: set[Atom], goal: Atom) -> str | None:
    constants = CONSTANTS[: state["constants"]]
    true: set[Atom] = set()
    for item in answers.items(answers.one_line(text), ";"):
        match = re.fullmatch(r"([A-Z])\(([a-e])(?:, ?([a-e]))?\)", item)
        if match is None:
            raise Malformed(f"{item[:20]!r} is no atom")
        atom = tuple(part for part in match.groups() if part)
        if ARITY.get(atom[0]) != len(atom) - 1 or set(atom[1:]) - set(constants):
            raise Malformed(f"{item} is no atom of this problem")
        true.add(atom)
    if missing := facts - true:
        return f"the fact {_text(min(missing))} is not true in the model"
    if goal in true:
        return "the goal is true in the model"
    for number, _, body, head in _instances(state["rules"], constants):
        if head not in true and all(atom in true for atom in body):
            return f"rule {number} does not hold: {_text(head)} is not true"
    return None
