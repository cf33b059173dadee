"""A statement to be proved: hypotheses and a goal, as people write theorems.

Two statements are kin when a change of names and of the order of hypotheses makes them equal. Kin
have the same proofs, so they never sit on both sides of a split.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Formula

_ROUNDS = 4  # of refinement; more than the longest chain of hypotheses needs to be told apart by


class Statement(NamedTuple):
    """`goal` follows from `hypotheses`. The goal is no implication: its premises are hypotheses."""

    hypotheses: tuple[Formula, ...]
    goal: Formula

    @property
    def formula(self) -> Formula:
        """The closed theorem `h1 -> (h2 -> ... -> goal)`."""
        return formulas.implication(self.hypotheses, self.goal)

    @property
    def atoms(self) -> list[str]:
        return formulas.atoms_of([*self.hypotheses, self.goal])

    @property
    def uid(self) -> str:
        """Equal for equal statements."""
        return hashlib.blake2b(formulas.show(self.formula).encode(), digest_size=8).hexdigest()

    @property
    def kin(self) -> str:
        """Equal for kin; some that are not kin share it as well."""
        return _kin(self)


def of_parts(hypotheses: Sequence[str], goal: str) -> Statement:
    """A statement from the texts of its formulas. Raises formulas.Malformed."""
    more, last = formulas.premises_of(formulas.parse(goal))
    return Statement((*(formulas.parse(text) for text in hypotheses), *more), last)


def says_the_same(left: Statement, right: Statement) -> bool:
    """True if their goals are equivalent and their hypotheses are, each to one of the other's.

    Hypothesis by hypothesis, because two theorems are always equivalent as a whole.
    """
    rest = list(right.hypotheses)  # equivalence makes classes: first come, first matched
    for formula in left.hypotheses:
        twin = next((r for r in rest if formulas.are_equivalent(formula, r)), None)
        if twin is None:
            return False
        rest.remove(twin)
    return not rest and formulas.are_equivalent(left.goal, right.goal)


@functools.lru_cache(maxsize=65536)
def _kin(statement: Statement) -> str:
    """Refines colours of atoms by where they stand (Weisfeiler and Leman's method)."""
    color = dict.fromkeys(statement.atoms, "")
    for _ in range(_ROUNDS):
        seen: dict[str, list[str]] = {name: [] for name in color}
        for hypothesis in statement.hypotheses:
            _note(hypothesis, _painted(hypothesis, color), seen)
        _note(statement.goal, f"goal {_painted(statement.goal, color)}", seen)
        color = {name: _hash("|".join(sorted(places))) for name, places in seen.items()}
    lines = sorted(_painted(hypothesis, color) for hypothesis in statement.hypotheses)
    return _hash("\n".join([*lines, _painted(statement.goal, color)]))


def _note(formula: Formula, where: str, seen: dict[str, list[str]]) -> None:
    for index, name in enumerate(formulas.leaves(formula)):
        seen[name].append(f"{index} of {where}")


def _painted(formula: Formula, color: Mapping[str, str]) -> str:
    return formulas.fold(formula, lambda name: f"<{color[name]}>", "~{}".format, "({}>{})".format)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
