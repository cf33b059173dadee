"""Weights as a flat list of named leaves, and what each leaf is to a merge.

Layers and experts may be stacked on leading axes of one leaf or held apart under integer keys:
`layers/3/up` and row 3 of `layers/up` name the same matrix, so statistics and masks are the same.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.models.parameters import Weights

Leaf = jax.Array | np.ndarray
LeafRole = Literal["merged", "no_dropout", "controller", "exact"]
BatchAxes = int | Mapping[str, Any] | Callable[[str], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathRules:
    """Leaves that are treated apart, as regular expressions searched for in `a/b/c` paths."""

    # Set by a controller and trained by no gradient: neither dropped out nor elected.
    controller: str = r"(^|/)router/bias$|e_score_correction_bias$"
    # Its value: the base's, or the experts' average.
    controller_value: Literal["base", "average"] = "base"
    # Merged in full: a few large, coupled entries that a rescaled dropout would throw about.
    no_dropout: str = r"router|norm|embed|(^|/)(lm_)?head(/weight)?$"

    def __post_init__(self):
        for name in ("controller", "no_dropout"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is no regular expression: {error}. Correct it;"
                    " '(?!)' matches nothing."
                ) from error

    def role(self, path: str, dtype: Any) -> LeafRole:
        """The role of a leaf in a merge; integer and boolean leaves must agree exactly."""
        if not jnp.issubdtype(dtype, jnp.floating):
            if jnp.issubdtype(dtype, jnp.complexfloating):
                raise ConfigError(f"{path} is {dtype}, and only real weights can be merged.")
            return "exact"
        if re.search(self.controller, path):
            return "controller"
        return "no_dropout" if re.search(self.no_dropout, path) else "merged"


def flatten(weights: Weights) -> tuple[dict[str, Leaf], Any]:
    """The leaves by path (`layers/up`), in tree order, and the structure to rebuild the tree."""
    entries, structure = jax.tree_util.tree_flatten_with_path(weights)
    leaves = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in entries}
    if len(leaves) != len(entries):
        raise ConfigError("Two leaves have the same path: a key contains `/`. Rename it.")
    return leaves, structure


def on_host(leaf: Any) -> Any:
    """A leaf that can be read piece by piece: what lies on devices is copied, to be let go after.

    Not by `np.asarray` of the leaf itself, which would keep its host copy as long as it lives.
    """
    return np.asarray(jnp.copy(leaf)) if isinstance(leaf, jax.Array) else leaf


def check_alike(base: Mapping[str, Leaf], expert: Mapping[str, Leaf], name: str) -> None:
    """Raises ConfigError unless `expert` has the paths and shapes of `base`."""
    if base.keys() != expert.keys():
        missing, extra = sorted(base.keys() - expert.keys()), sorted(expert.keys() - base.keys())
        raise ConfigError(
            f"Expert {name} is not of the base's form: it lacks {missing[:5]} and adds {extra[:5]}."
            " Merge only models that were trained from the same base."
        )
    for path, leaf in base.items():
        if expert[path].shape != leaf.shape:
            raise ConfigError(
                f"{path} has shape {expert[path].shape} in expert {name} and {leaf.shape} in the"
                " base. Merge only models of one configuration."
            )


def check_equal(path: str, base: Leaf, experts: Mapping[str, Leaf]) -> None:
    """Raises ConfigError unless every expert holds the base's values bit for bit."""
    for name, leaf in experts.items():
        if leaf.dtype != base.dtype or not np.array_equal(np.asarray(leaf), np.asarray(base)):
            raise ConfigError(
                f"{path} holds {base.dtype}, which has no mean, and expert {name} differs from the"
                " base. Make them agree, or leave the leaf out."
            )


def num_batch_axes(batch_axes: BatchAxes, path: str, ndim: int) -> int:
    """The number of leading axes of a leaf that are stacks of separate matrices.

    `batch_axes` is one number for all leaves, a function of the path, or a nested dict that
    follows the weights and may end early: a number there holds for everything below it.
    """
    found: Any = batch_axes
    if callable(found):
        found = found(path)
    for part in path.split("/"):
        if not isinstance(found, Mapping):
            break
        found = found.get(part, 0)
    if not isinstance(found, int) or not 0 <= found <= ndim:
        raise ConfigError(
            f"batch_axes gives {found!r} for {path}, which has {ndim} axes. Give how many leading"
            " axes are stacks (layers, experts)."
        )
    return found


def identity(path: str) -> tuple[str, tuple[int, ...]]:
    """The path without integer keys, and those keys: `layers/3/up` is (3,) of `layers/up`."""
    parts = path.split("/")
    names = [part for part in parts if not part.isdecimal()]
    return "/".join(names), tuple(int(part) for part in parts if part.isdecimal())
