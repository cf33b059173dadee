"""Statements told in words.

A glossary gives each atom a plain clause. `p -> q -> r` becomes "if the lamp is lit and the door is
open, then the cat sleeps"; an implication among the premises stands in square brackets.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Atom, Formula, Implies, Not
from loong_jax.synth.formal.statement import Statement

CLAUSES = (
    *("the lamp is lit", "the door is open", "the cat sleeps", "the bell rings"),
    *("the river is high", "the bridge is closed", "the train is late", "the shop is full"),
    *("the soup is hot", "the window is wet", "the engine runs", "the road is dry"),
    *("the baker is awake", "the tide is low", "the flag is raised", "the letter is sent"),
    *("the gate is locked", "the snow melts", "the garden is green", "the alarm is set"),
)
NOT = "it is false that "


def draw_glossary(atoms: Sequence[str], rng: np.random.Generator) -> dict[str, str]:
    """A clause for each atom. Atoms are listed in the order of the alphabet."""
    chosen = rng.permutation(len(CLAUSES))
    return {name: CLAUSES[chosen[i]] for i, name in enumerate(sorted(atoms))}


def tell(statement: Statement, glossary: Mapping[str, str]) -> str:
    """The problem: a line for each hypothesis, then what is to be shown."""
    lines = [f"Suppose that {_said(h, glossary)}." for h in statement.hypotheses]
    return "\n".join([*lines, f"Show that {_said(statement.goal, glossary)}."])


def glossary_text(glossary: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {clause}" for name, clause in glossary.items())


def _said(formula: Formula, glossary: Mapping[str, str]) -> str:
    match formula:
        case Atom(name):
            return glossary[name]
        case Not(Atom(name)):
            return f"{NOT}{glossary[name]}"
        case Not(inner):
            return f"{NOT}[{_said(inner, glossary)}]"
        case Implies():
            premises, conclusion = formulas.premises_of(formula)
            told = [
                f"[{_said(p, glossary)}]" if isinstance(p, Implies) else _said(p, glossary)
                for p in premises
            ]
            return f"if {' and '.join(told)}, then {_said(conclusion, glossary)}"
