"""Functions of a whole number in two pieces, "if n is even" and "if n is odd", by their values.

(-1)^n is such a function as it stands. Values are compared at whole numbers of both parities.
"""

import re
from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import Node, number, substitute, symbols

_SAID = re.compile(r"(?P<name>[a-zN])\W*(?:even|odd)(?: (?:numbers?|integers?))?")
_AT = (1, 2, 3, 4, 7, 10, 13, 18)
OTHERWISE = Node("text", ("otherwise",))
Branches = Sequence[tuple[Node, Node]]  # values and conditions


def variable(conditions: Sequence[Node]) -> str | None:
    """n, where all conditions say that n is even or odd; None where one says anything else."""
    names = set()
    for condition in conditions:
        if condition == OTHERWISE:
            continue
        match = _SAID.fullmatch(condition.args[0]) if condition.head == "text" else None
        if match is None:
            return None
        names.add(match["name"])
    return names.pop() if len(names) == 1 else None


def equal(gold: Branches, answer: Branches, name: str) -> bool | None:
    """Whether both have the same value at even and at odd numbers."""
    for one in (gold, answer):
        if not all(symbols(value) <= {name} for value, _ in one):
            return None
    for at in _AT:
        own, given = _value(gold, at), _value(answer, at)
        if own is None or given is None:
            return None
        same = values.equal(*(substitute(x, name, number(at)) for x in (own, given)))
        if not same:
            return same
    return True


def _value(branches: Branches, at: int) -> Node | None:
    """The value of the first branch that holds; None where none does, or two that disagree."""
    wanted = "odd" if at % 2 else "even"
    for value, condition in branches:
        if condition == OTHERWISE or wanted in condition.args[0]:
            return value
    return None
