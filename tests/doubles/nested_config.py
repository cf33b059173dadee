"""A config with every kind of field, for tests of reading, comparing and overriding."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError

# A file can name classes of the package alone: under this name the module is one of its own.
__name__ = "loong_jax.nested_config"
sys.modules[__name__] = sys.modules["tests.doubles.nested_config"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    name: str = "a"
    levels: tuple[int, ...] = (1,)
    rate: float = 1.0
    note: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam:
    beta: float = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon:
    momentum: float = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    """A whole run, as far as tests care."""

    seed: int = 0  # of everything that is drawn
    optimizer: Adam | Muon = Adam()
    inners: tuple[Inner, ...] = (Inner(),)
    by_domain: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    path: Path | None = None
    dtype: DTypeLike = np.float32
    note: Any = None
    num_steps: int = 10
    log_every: int = 1

    def __post_init__(self):
        if self.num_steps < 1:
            raise ConfigError(f"num_steps={self.num_steps} must be at least 1. Raise it.")


def toy() -> Outer:
    """A recipe that runs nothing.

    Command: loong train toy.
    """
    return Outer(inners=(Inner(name="first"), Inner(name="second")), path=Path("data"))
