"""Weights as a flat list of named leaves, and what each leaf is to a merge.

Layers and experts may be stacked on leading axes of one leaf or held apart under integer keys:
`layers/3/up` and row 3 of `layers/up` name the same matrix, so statistics and masks are the same.
Which entries of a delta survive depends on the seed and on what the matrix is: path, expert, place
in its stack. Mesh, stacking, the order of experts and the other leaves do not change it. Bits come
from a hash of a 64-bit key and the position in the matrix, not from `jax.random`: the same in every
release of JAX, and compiled for a CPU in a twentieth of the time.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from loong_jax.errors import ConfigError
from loong_jax.models.parameters import Weights

Leaf = Any  # jax.Array, np.ndarray, or what is read from a disk: pieces.StoredLeaf
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


# --- random choices ------------------------------------------------------------------------------


def leaf_key(seed: int, path: str, expert: str) -> UInt32[np.ndarray, "2"]:
    """A key for the leaf: hash of seed, path and expert, with the path's integer keys folded in."""
    name, indices = identity(path)
    digest = hashlib.blake2b(f"{seed}\n{name}\n{expert}".encode(), digest_size=8).digest()
    return matrix_key(np.frombuffer(digest, "<u4").astype(np.uint32), indices)


def fold(first: Any, second: Any, index: Any) -> tuple[Any, Any]:
    """The key (first, second) of matrix `index` of a stack."""
    return scramble(first, second, 2 * index), scramble(first, second, 2 * index + 1)


def scramble(first: Any, second: Any, position: Any) -> Any:
    """32 random bits of a key at a position: mix(mix(position ^ first) + second)."""
    return _mix(_mix(position ^ first) + second)


def _mix(x: Any) -> Any:
    """Every bit of x reaches every bit of the result (finalizer of MurmurHash3, public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def keep_run(
    key: UInt32[Array, "2"], keep_rate: Array | float, start: Array | int, length: int
) -> Bool[Array, " n"]:
    """True with probability `keep_rate`: `length` entries of a matrix from position `start` on.

    Uniform numbers have 24 bits, so a rate of 1 keeps everything.
    """
    position = jnp.arange(length, dtype=jnp.uint32) + jnp.asarray(start, jnp.uint32)
    bits = scramble(key[0], key[1], position)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2**-24) < keep_rate


def matrix_key(key: UInt32[np.ndarray, "2"], place: tuple[int, ...]) -> UInt32[np.ndarray, "2"]:
    """The key of one matrix of a stack, from the leaf's."""
    first, second = key[:1], key[1:]
    for index in place:
        first, second = fold(first, second, np.full(1, index, np.uint32))
    return np.concatenate([first, second])


def fingerprint(leaves: Mapping[str, Leaf], batch_axes: BatchAxes) -> str:
    """A name made of the weights themselves, for experts that were given without one.

    A sum of hashes over matrices and wrapping integer sums inside them, so neither mesh nor
    stacking nor the order of leaves changes it.
    """
    total = 0
    for path, leaf in leaves.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        num_axes = num_batch_axes(batch_axes, path, leaf.ndim)
        name, indices = identity(path)
        sums = _checksums(on_host(leaf), num_axes)
        for place in np.ndindex(sums.shape):
            text = f"{name}{indices + place}{int(sums[place])}"
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            total += int.from_bytes(digest, "little")
    return f"{total % 2**64:016x}"


def _checksums(leaf: np.ndarray, batch_axes: int) -> UInt32[np.ndarray, "..."]:
    """Checksums of matrices: sum modulo 2^32 of entries' bits times odd numbers of positions."""
    leaf = np.ascontiguousarray(leaf)
    leaf = leaf.astype(np.float32) if leaf.dtype.itemsize > 4 else leaf
    bits = leaf.view(f"u{leaf.dtype.itemsize}").reshape(*leaf.shape[:batch_axes], -1)
    odd = np.arange(bits.shape[-1], dtype=np.uint32) * np.uint32(2654435768) + np.uint32(1)
    return np.asarray(np.sum(bits.astype(np.uint32) * odd, axis=-1, dtype=np.uint32))
