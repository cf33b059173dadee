"""Generators of problems whose answers are checked without a reference."""

from typing import Any

from loong_jax.environments.basket import Basket
from loong_jax.environments.code.brackets import Brackets
from loong_jax.environments.code.comparators import Comparators
from loong_jax.environments.code.postfix import Postfix
from loong_jax.environments.code.program import Program
from loong_jax.environments.code.registers import Registers
from loong_jax.environments.code.rewriting import Rewriting
from loong_jax.environments.code.run_length import RunLength
from loong_jax.environments.environment import LEVELS, STYLES, Environment, Style
from loong_jax.environments.gates import Gates
from loong_jax.environments.gym import PREFIX, Gym
from loong_jax.environments.logic.largest import Largest
from loong_jax.environments.logic.ranking import Ranking
from loong_jax.environments.logic.truths import Truths
from loong_jax.environments.masks import Masks
from loong_jax.environments.problem import Domain, Problem, split_of
from loong_jax.environments.stem.addition import Addition
from loong_jax.environments.stem.bases import Bases
from loong_jax.environments.stem.divisor import Divisor
from loong_jax.environments.stem.equation import Equation
from loong_jax.environments.stem.fractions import FractionSum
from loong_jax.environments.stem.units import Units
from loong_jax.environments.stem.urn import Urn
from loong_jax.environments.stream import ProblemStream
from loong_jax.environments.vector_sum import VectorSum

ENVIRONMENTS: dict[str, type] = {
    "vector_sum": VectorSum,
    "gates": Gates,
    "masks": Masks,
    "basket": Basket,  # with a tool
    "equation": Equation,
    "fractions": FractionSum,
    "units": Units,
    "bases": Bases,
    "divisor": Divisor,
    "urn": Urn,
    "addition": Addition,
    "truths": Truths,
    "ranking": Ranking,
    "largest": Largest,
    "program": Program,
    "registers": Registers,
    "rewriting": Rewriting,
    "comparators": Comparators,
    "brackets": Brackets,
    "run_length": RunLength,
    "postfix": Postfix,
}

__all__ = [
    "ENVIRONMENTS", "LEVELS", "STYLES", "Domain", "Environment", "Problem",
    "ProblemStream", "Style", "get_environment", "kind_of", "split_of",
]  # fmt: skip


def kind_of(name: str) -> type | None:
    """The class of the environment of this name, or None."""
    return Gym if name.startswith(PREFIX) else ENVIRONMENTS.get(name)


def get_environment(name: str, **settings: Any) -> Environment:
    """The environment of this name; `settings` are its fields, such as `run` of a code one.

    `gym/NAME` is a dataset of reasoning-gym (environments/gym.py).
    """
    kind = kind_of(name)
    if kind is None:
        raise ValueError(f"environment {name!r} is unknown. Choose one of {sorted(ENVIRONMENTS)}.")
    if kind is Gym:
        settings["dataset"] = name.removeprefix(PREFIX)
    return kind(**settings)
