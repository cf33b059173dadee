"""Model growth: a trained model of L layers becomes the start of one of twice as many.

[l_0 .. l_L-1] becomes [l_0 .. l_L-1, l_0 .. l_L-1]; embedding, head, final norm and the drafting
head stay. Source: arXiv:2509.01322, which trains 14 layers and stacks them to 28.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from loong_jax.errors import ConfigError
from loong_jax.models.moe.config import MoEConfig

Tree = TypeVar("Tree")


def stack_config(config: MoEConfig, times: int = 2) -> MoEConfig:
    """The config of the stacked model."""
    _check(times)
    return dataclasses.replace(config, num_layers=times * config.num_layers)


def stack_layers(tree: Tree, times: int = 2) -> Tree:
    """Weights, or state shaped like them, with every stack of layers repeated `times` times.

    Leaves under a key `layers` are repeated along their first axis and keep their sharding; all
    others stay. The rule for optimizer state is the same function: moments are averages over
    gradients of their own parameter, so a copied layer starts with the moments of its original and
    the first steps have the usual length, while step counts (bias correction, schedule) go on. To
    start a fresh optimizer instead, initialise it from the stacked weights and warm up again.
    Errors of the bias controller, [L, A] without a path, are not covered: start them at zero.

    Raises ConfigError when `times` is below 1 or nothing in the tree is a stack of layers.
    """
    _check(times)
    num_stacked = 0

    def grow(path, leaf):
        nonlocal num_stacked
        if not any(getattr(entry, "key", None) == "layers" for entry in path):
            return leaf
        num_stacked += 1
        return _repeat(leaf, times)

    grown = jax.tree_util.tree_map_with_path(grow, tree)
    if not num_stacked:
        raise ConfigError(
            "no leaf of the tree lies under a key 'layers', so there is nothing to stack. Pass "
            "weights as nested dicts or optimizer state that holds such dicts."
        )
    return grown


def _repeat(leaf: Any, times: int) -> jax.Array:
    sharding = getattr(leaf, "sharding", None)
    sharding = sharding if isinstance(sharding, NamedSharding) else None
    return jax.jit(lambda a: jnp.concatenate([a] * times, axis=0), out_shardings=sharding)(leaf)


def _check(times: int):
    if times < 1:
        raise ConfigError(
            f"times={times} is below 1. Stack at least one copy; 2 doubles the depth."
        )
