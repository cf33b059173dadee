"""Checks of fields that the configs of all families share."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError


def whole_numbers(config: Any, may_be_zero: tuple[str, ...] = ()) -> None:
    """Raises ConfigError where a field of a config of type int is not a whole number >= 1."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        smallest = 0 if field.name in may_be_zero else 1
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if field.type is int and not (is_whole and value >= smallest):
            raise ConfigError(
                f"{field.name}={value!r} is not a whole number >= {smallest}. Set one."
            )


def floating(name: str, value: DTypeLike) -> np.dtype:
    """The dtype that a field names. Raises ConfigError where it is no floating one."""
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        dtype = None
    if value is None or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise ConfigError(
            f"{name}={value!r} is no floating-point dtype. Use float32, bfloat16 or another."
        )
    return dtype


def one_of(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError where this field of a config is none of them."""
    if getattr(config, name) not in choices:
        raise ConfigError(
            f"{name}={getattr(config, name)!r} is none of {', '.join(choices)}. Use one."
        )
