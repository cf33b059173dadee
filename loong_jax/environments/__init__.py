"""Generators of problems whose answers are checked without a reference.

Knows: errors, problems, sandbox, syntax.
"""

import importlib
from typing import Any

from loong_jax.environments.environment import LEVELS, Environment, ProblemStream, Solution
from loong_jax.problems.problem import Domain, Problem, split_of

WORKED = {  # module and class; solutions are in steps, each easier than a leap over several
    "vector_sum": "chains:VectorSum",
    "gates": "chains:Gates",
    "masks": "machines:Masks",
    "basket": "chains:Basket",  # with a tool
    "equation": "numbers:Equation",
    "fractions": "numbers:FractionSum",
    "units": "numbers:Units",
    "bases": "numbers:Bases",
    "divisor": "numbers:Divisor",
    "urn": "numbers:Urn",
    "addition": "numbers:Addition",
    "truths": "chains:Truths",
    "ranking": "chains:Ranking",
    "largest": "chains:Largest",
    "program": "machines:Program",
    "registers": "machines:Registers",
    "rewriting": "machines:Rewriting",
    "comparators": "machines:Comparators",
    "brackets": "machines:Brackets",
    "run_length": "machines:RunLength",
    "postfix": "machines:Postfix",
}
PUZZLES = {  # logic tasks, whose prompts are long and say all that counts
    "sudoku": "boards:Sudoku",
    "zebra": "riddles:Zebra",
    "knights_and_knaves": "riddles:Knights",
    "propositional_entailment": "entailment:Propositional",
    "first_order_entailment": "entailment:FirstOrder",
    "cryptarithm": "codes:Cryptarithm",
    "graph_colouring": "automata:GraphColouring",
    "hamiltonian_path": "automata:HamiltonianPath",
    "nonogram": "boards:Nonogram",
    "futoshiki": "boards:Futoshiki",
    "sequence": "rules:NextTerms",
    "grid_transformation": "rules:GridTransformation",
    "formula_induction": "explanations:FormulaInduction",
    "automaton_induction": "automata:Automaton",
    "cellular_rule": "automata:CellularRule",
    "matrix_completion": "rules:MissingCell",
    "circuit_diagnosis": "explanations:CircuitDiagnosis",
    "causal_abduction": "explanations:Causes",
    "mastermind": "codes:Mastermind",
    "lights_out": "boards:LightsOut",
    "predecessor": "automata:Predecessor",
    "missing_operators": "codes:MissingOperators",
}
ENVIRONMENTS = WORKED | PUZZLES
GYM = "gym/"  # before the name of a dataset of reasoning-gym

__all__ = [
    "ENVIRONMENTS", "LEVELS", "PUZZLES", "WORKED", "Domain", "Environment", "Problem",
    "ProblemStream", "Solution", "get_environment", "split_of",
]  # fmt: skip


def get_environment(name: str, **settings: Any) -> Environment:
    """The environment of this name; `settings` are its arguments, such as `run` of a code one.

    `gym/NAME` is a dataset of reasoning-gym (environments/gym.py).
    """
    if name.startswith(GYM):
        return _class_of("gym:Gym")(name.removeprefix(GYM))
    if name not in ENVIRONMENTS:
        raise ValueError(f"environment {name!r} is unknown. Choose one of {sorted(ENVIRONMENTS)}.")
    return _class_of(ENVIRONMENTS[name])(**settings)


def _class_of(place: str) -> Any:
    module, _, kind = place.partition(":")
    return getattr(importlib.import_module(f"loong_jax.environments.{module}"), kind)
