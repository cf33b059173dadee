"""What is decided of a statement without asking anybody: is it one, and is it worth proving?

Truth tables decide for propositional logic what LongCat-Flash-Thinking 2.2.2 leaves to a model.
What they cannot tell is whether the statement is the one that was meant.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from loong_jax.synth.formal import formulas, statement
from loong_jax.synth.formal.backends import Backend
from loong_jax.synth.formal.statement import Statement

# Every way to leave, in the order of the stages; the last word is for those that stay.
STAGES = (
    *("no reply", "syntax", "foreign atom", "contradictory", "trivial", "refutable"),
    *("no back-translation", "judged different", "not as intended", "kin of another", "kept"),
)


class Decision(NamedTuple):
    stage: str  # of STAGES: where it was stopped, or "kept"
    detail: str = ""


KEPT = Decision("kept")


def read(hypotheses: Sequence[str], goal: str, backend: Backend) -> Statement | Decision:
    """The syntax filter: the parts are formulas, and the whole is a statement of the backend."""
    try:
        read = statement.of_parts(hypotheses, goal)
        text = backend.statement_text(read)
    except ValueError as error:
        return Decision("syntax", str(error)[:200])
    [judged] = backend.check_statements([text])
    if not judged.is_correct:
        return Decision("syntax", f"{judged.reason}: {judged.evidence}"[:200])
    return read


def look(posed: Statement, atoms: Collection[str]) -> Decision:
    """The mechanical part of the semantic filter; `atoms` are those that the problem speaks of."""
    if foreign := sorted(set(posed.atoms) - set(atoms)):
        return Decision("foreign atom", ", ".join(foreign))
    if len(posed.atoms) > formulas.MAX_ATOMS:
        return Decision("syntax", f"{len(posed.atoms)} atoms are too many for a truth table")
    if not formulas.is_satisfiable(posed.hypotheses):
        return Decision("contradictory", "no row of the truth table makes all hypotheses true")
    if formulas.follows([], posed.goal):
        return Decision("trivial", "the goal needs no hypothesis")
    if same := [h for h in posed.hypotheses if formulas.are_equivalent(h, posed.goal)]:
        return Decision("trivial", f"the goal is the hypothesis {formulas.show(same[0])}")
    if not formulas.follows(posed.hypotheses, posed.goal):
        return Decision("refutable", "a row of the truth table makes the goal alone false")
    return KEPT


def compare(posed: Statement, intended: Statement) -> Decision:
    """Where what is meant is known: hypothesis by hypothesis, and the goal."""
    if statement.says_the_same(posed, intended):
        return KEPT
    return Decision("not as intended", formulas.show(intended.formula)[:200])
