"""Model growth: a trained model of L layers becomes the start of one of twice as many.

[l_0 .. l_L-1] becomes [l_0 .. l_L-1, l_0 .. l_L-1]; embedding, head, final norm and the drafting
head stay. Source: arXiv:2509.01322, section 3.1.2, which trains 14 layers and
stacks them to 28.
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
    others stay. They may be `jax.ShapeDtypeStruct`, and are so again. The rule for optimizer state
    is the same function: moments are averages over gradients of their own parameter, so a copied
    layer starts with the moments of its original and the first steps have the usual length, while
    step counts (bias correction, schedule) go on. To start a fresh optimizer instead, initialise it
    from the stacked weights and warm up again. Errors of the bias controller, [L, A] without a
    path, are not covered: start them at zero.

    Raises ConfigError when `times` is below 1 or nothing in the tree is a stack of layers.
    """
    _check(times)
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in found]
    stacks = [i for i, (path, _) in enumerate(found) if _is_stack(path)]
    if not stacks:
        raise ConfigError(
            "no leaf of the tree lies under a key 'layers', so there is nothing to stack. Pass "
            "weights as nested dicts or optimizer state that holds such dicts."
        )
    grown = _repeat([leaves[i] for i in stacks], times)
    for i, leaf in zip(stacks, grown, strict=True):
        leaves[i] = leaf
    return jax.tree_util.tree_unflatten(structure, leaves)


def _is_stack(path) -> bool:
    return any(getattr(entry, "key", None) == "layers" for entry in path)


def _repeat(stacks: list[Any], times: int) -> list[Any]:
    """Every array repeated along its first axis, in one program, each where it was."""
    shardings = [getattr(a, "sharding", None) for a in stacks]
    kept = [s if isinstance(s, NamedSharding) else None for s in shardings]
    if any(isinstance(a, jax.ShapeDtypeStruct) for a in stacks):
        return [
            jax.ShapeDtypeStruct((times * a.shape[0], *a.shape[1:]), a.dtype, sharding=sharding)
            for a, sharding in zip(stacks, kept, strict=True)
        ]
    repeat = jax.jit(
        lambda arrays: [jnp.concatenate([a] * times) for a in arrays], out_shardings=kept
    )
    return repeat(stacks)


def _check(times: int):
    if times < 1:
        raise ConfigError(
            f"times={times} is below 1. Stack at least one copy; 2 doubles the depth."
        )
