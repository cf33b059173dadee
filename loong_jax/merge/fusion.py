"""Fusing experts into one model, leaf by leaf."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from loong_jax.errors import ConfigError
from loong_jax.merge import masks as mask_lib
from loong_jax.merge import methods, tree
from loong_jax.merge.methods import LongcatFusion, Method
from loong_jax.merge.tree import PathRules, Weights

Experts = Mapping[str, Weights] | Sequence[Weights]


class MergedLeaf(NamedTuple):
    path: str
    role: tree.LeafRole
    base: tree.Leaf | None
    experts: dict[str, tree.Leaf]
    value: tree.Leaf  # dtype and placement of the base's leaf
    kept: dict[str, float]  # share of the entries of a delta that dropout or trimming left
    erased: dict[str, float]  # share of those that the election removed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a merge decides before it touches a leaf: names, weights, norms."""

    base: dict[str, tree.Leaf] | None
    experts: dict[str, dict[str, tree.Leaf]]  # in the order of their names
    masks: dict[str, dict[str, tree.Leaf]] | None
    structure: Any
    method: Method
    weights: dict[str, float]
    norms: dict[str, float]  # global L2 norm of each delta, where the method asks for it
    batch_axes: tree.BatchAxes
    rules: PathRules


def fuse(
    base: Weights | None,
    experts: Experts,
    *,
    method: Method | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    batch_axes: tree.BatchAxes = 0,
    masks: Experts | None = None,
    rules: PathRules | None = None,
) -> Weights:
    """Returns one model made of `experts`, all trained from `base`.

    Args:
        base: weights of the common ancestor (the SFT model); None for `Linear` alone.
        experts: weights by name, or a list, whose names are then fingerprints of the weights. Masks
            go by name, so neither order nor the presence of others changes an expert's mask.
        method: `LongcatFusion()` unless given.
        weights: of the experts, by name or in their order; equal unless given.
        batch_axes: how many leading axes of each leaf are stacks of matrices (layers, experts): a
            number, a function of the path, or a nested dict. Statistics are per matrix, so stacked
            and separate give the same.
        masks: explicit dropout masks of each expert, true where an entry survives, in place of the
            random ones; a leaf that a mask tree lacks is not dropped out.
        rules: which leaves are controller state and which are spared dropout.

    Arithmetic is float32 and each leaf is cast once, to the dtype of the base's leaf. The result
    has the base's structure and sharding. Raises ConfigError if trees, integer leaves or weights
    do not fit, or a result is not finite.
    """
    plan = prepare(
        base,
        experts,
        method=method,
        weights=weights,
        batch_axes=batch_axes,
        masks=masks,
        rules=rules,
    )
    return jax.tree_util.tree_unflatten(
        plan.structure, [leaf.value for leaf in merge_leaves(plan, with_shares=False)]
    )


def prepare(
    base: Weights | None,
    experts: Experts,
    *,
    method: Method | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    batch_axes: tree.BatchAxes = 0,
    masks: Experts | None = None,
    rules: PathRules | None = None,
) -> Plan:
    """Checks the inputs of `fuse` and takes the global norms: the first pass over the weights."""
    method = LongcatFusion() if method is None else method
    rules = PathRules() if rules is None else rules
    if base is None and not isinstance(method, methods.Linear):
        raise ConfigError(f"{type(method).__name__} merges deltas. Give the base they start from.")
    if not experts:
        raise ConfigError("There are no experts to merge. Give at least one.")
    named, weights, masks = _name(experts, weights, masks, batch_axes)
    flat = {name: tree.flatten(named[name])[0] for name in sorted(named)}
    flat_base, structure = tree.flatten(next(iter(named.values())) if base is None else base)
    for name, leaves in flat.items():
        tree.check_alike(flat_base, leaves, name)
    plan = Plan(
        base=None if base is None else flat_base,
        experts=flat,
        masks=None if masks is None else {n: tree.flatten(m)[0] for n, m in masks.items()},
        structure=structure,
        method=method,
        weights=_check_weights(method, {name: weights.get(name, 1.0) for name in flat}),
        norms={},
        batch_axes=batch_axes,
        rules=rules,
    )
    _check_masks(plan)
    if isinstance(method, LongcatFusion):
        if method.combine == "disjoint_mean" and (method.keep_rate < 1 or plan.masks):
            warnings.warn(
                "combine='disjoint_mean' after dropout multiplies what the experts share by up to"
                " (1 - (1 - q)^n) / q. Use combine='sum', or keep_rate=1.",
                stacklevel=3,
            )
        if method.normalise == "global":
            plan = dataclasses.replace(plan, norms=_global_norms(plan))
    return plan


def merge_leaves(plan: Plan, *, with_shares: bool = True) -> Iterator[MergedLeaf]:
    """Merges one leaf after the other, in tree order; a caller may write each out and forget it."""
    factors = [1.0] * len(plan.experts)
    if plan.norms:
        factors = [float(factor) for factor in methods.balance(tuple(plan.norms.values()))]
    for path, first in (plan.base or next(iter(plan.experts.values()))).items():
        base = None if plan.base is None else first
        experts = {name: leaves[path] for name, leaves in plan.experts.items()}
        role = plan.rules.role(path, first.dtype)
        shares = {name: 1.0 for name in experts}, {name: 0.0 for name in experts}
        if role == "exact":
            tree.check_equal(path, first, experts)
            value: Any = first
        elif role == "controller" and base is not None and plan.rules.controller_value == "base":
            value = base
        else:
            value, *counts = _merge_leaf(plan, path, base, experts, role, factors, with_shares)
            if not bool(jnp.all(jnp.isfinite(value))):
                raise ConfigError(
                    f"The merge of {path} is not finite. Look for NaN or inf in the weights, or"
                    f" lower the scale if {value.dtype} overflows."
                )
            value = _like(value, first)
            if with_shares:
                shares = _shares(counts, list(experts))
        yield MergedLeaf(path, role, base, experts, value, *shares)


def _merge_leaf(
    plan: Plan,
    path: str,
    base: tree.Leaf | None,
    experts: dict[str, tree.Leaf],
    role: tree.LeafRole,
    factors: list[float],
    with_shares: bool,
) -> tuple[Array, ...]:
    leaves = tuple(jnp.asarray(leaf) for leaf in experts.values())
    first = leaves[0] if base is None else jnp.asarray(base)
    num_axes = tree.num_batch_axes(plan.batch_axes, path, first.ndim)
    weights, method = tuple(plan.weights.values()), plan.method
    if role == "controller":
        method, weights = methods.Linear(), (1.0,) * len(weights)
    numbers, choices = _split(method)
    masks, keys = None, None
    if isinstance(method, methods.LongcatFusion | methods.Dare):
        if plan.masks is not None:
            if path in next(iter(plan.masks.values())):
                masks = tuple(jnp.asarray(plan.masks[name][path], bool) for name in experts)
        elif role == "merged" and method.keep_rate < 1:
            keys = tuple(mask_lib.leaf_key(method.seed, path, name) for name in experts)
    if isinstance(method, methods.Ties):
        size = math.prod(first.shape[num_axes:])
        numbers["num_kept"] = max(1, int(numbers.pop("density") * size)) if size else 0
    return _leaf_program(
        None if base is None else first,
        leaves,
        masks,
        keys,
        weights,
        tuple(factors),
        numbers,
        kind=type(method),
        choices=tuple(choices.items()),
        batch_axes=num_axes,
        dtype=first.dtype,
        with_shares=with_shares,
    )


def _split(method: Method) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers that one compiled program takes as arguments, and choices that are part of it."""
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    fields.pop("seed", None)
    free = ("scale", "keep_rate", "density")
    numbers = {name: fields.pop(name) for name in free if name in fields}
    return numbers, fields


@functools.partial(
    jax.jit, static_argnames=("kind", "choices", "batch_axes", "dtype", "with_shares")
)
def _leaf_program(
    base: Array | None,
    experts: tuple[Array, ...],
    masks: methods.Marks | None,
    keys: tuple[Array, ...] | None,
    weights: methods.Numbers,
    factors: methods.Numbers,
    numbers: dict[str, Any],
    *,
    kind: type[Method],
    choices: tuple[tuple[str, Any], ...],
    batch_axes: int,
    dtype: Any,
    with_shares: bool,
) -> tuple[Array, ...]:
    axes = tuple(range(batch_axes, experts[0].ndim))
    models = tuple(expert.astype(jnp.float32) for expert in experts)
    start = jnp.zeros_like(models[0]) if base is None else base.astype(jnp.float32)
    deltas = tuple(model - start for model in models)
    if keys is not None:
        masks = tuple(
            mask_lib.keep_mask(key, numbers["keep_rate"], delta, batch_axes)
            for key, delta in zip(keys, deltas, strict=True)
        )
    settings = {**numbers, **dict(choices)}
    if kind is methods.LongcatFusion:
        fused = methods.longcat(start, deltas, masks, weights, factors, axes, **settings)
    elif kind is methods.Linear:
        fused = methods.linear(models, weights, **settings)
    elif kind is methods.TaskArithmetic:
        fused = methods.task_arithmetic(start, deltas, weights, **settings)
    elif kind is methods.Ties:
        num_kept = settings.pop("num_kept")
        fused = methods.ties(start, deltas, weights, num_kept, axes, **settings)
    elif kind is methods.Dare:
        fused = methods.dare(start, deltas, masks, weights, axes, **settings)
    else:
        fused = methods.sce(start, deltas, axes, **settings)
    value = fused.value.astype(dtype)
    if not with_shares:
        return (value,)
    moved = [delta != 0 for delta in deltas]
    kept = [moves & mark for moves, mark in zip(moved, fused.kept, strict=True)]
    agreed = [keeps & mark for keeps, mark in zip(kept, fused.agreed, strict=True)]
    counts = (jnp.stack([_count(mark, axes) for mark in marks]) for marks in (moved, kept, agreed))
    return value, *counts


def _count(marks: Array, axes: tuple[int, ...]) -> Array:
    """Per matrix: a whole stack may hold more entries than int32 counts."""
    return jnp.sum(marks, axis=axes, dtype=jnp.int32)


def _shares(
    counts: Sequence[Array], names: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    moved, kept, agreed = (
        np.asarray(count, np.float64).reshape(len(names), -1).sum(axis=1) for count in counts
    )
    kept_share = np.where(moved > 0, kept / np.maximum(moved, 1), 1.0)
    erased_share = np.where(kept > 0, 1 - agreed / np.maximum(kept, 1), 0.0)
    return (
        dict(zip(names, kept_share.tolist(), strict=True)),
        dict(zip(names, erased_share.tolist(), strict=True)),
    )


def _like(value: Array, leaf: tree.Leaf) -> tree.Leaf:
    """Where `leaf` lives: NumPy stays NumPy, and a sharded array keeps its sharding."""
    if isinstance(leaf, jax.Array):
        return value if value.sharding == leaf.sharding else jax.device_put(value, leaf.sharding)
    return np.asarray(value).astype(leaf.dtype, copy=False)


def _name(
    experts: Experts,
    weights: Mapping[str, float] | Sequence[float] | None,
    masks: Experts | None,
    batch_axes: tree.BatchAxes,
) -> tuple[dict[str, Weights], dict[str, float], dict[str, Weights] | None]:
    """Experts, weights and masks by name; experts of a list are named by what they hold."""
    if isinstance(experts, Mapping):
        names = [str(name) for name in experts]
        values = list(experts.values())
    else:
        values, names = list(experts), []
        for expert in values:
            name = mask_lib.fingerprint(tree.flatten(expert)[0], batch_axes)
            twins = sum(other.split("#")[0] == name for other in names)
            names.append(f"{name}#{twins}" if twins else name)

    def by_name(given: Any, what: str) -> dict[str, Any] | None:
        if given is None:
            return None
        found = (
            {str(name): value for name, value in given.items()}
            if isinstance(given, Mapping)
            else dict(zip(names, given, strict=len(given) == len(names)))
        )
        if set(found) != set(names) or len(given) != len(names):
            raise ConfigError(
                f"There are {what} for {sorted(found)} and experts {sorted(names)}. Give one for"
                " each expert, by the same names or in the same order."
            )
        return found

    return (
        dict(zip(names, values, strict=True)),
        by_name(weights, "weights") or {},
        by_name(masks, "masks"),
    )


def _check_weights(method: Method, weights: dict[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    if not all(map(math.isfinite, weights.values())):
        raise ConfigError(f"weights={weights} are not all finite.")
    if isinstance(method, LongcatFusion):
        if min(weights.values()) < 0 or total <= 0:
            raise ConfigError(f"weights={weights} must be non-negative with a positive sum.")
        return {name: weight / total for name, weight in weights.items()}
    if isinstance(method, methods.Sce) and len(set(weights.values())) > 1:
        raise ConfigError("Sce calculates its weights from the deltas. Leave weights out.")
    if getattr(method, "normalise", False) and total == 0:
        raise ConfigError(f"weights={weights} sum to 0 and cannot be normalised. Change them.")
    return weights


def _check_masks(plan: Plan) -> None:
    if plan.masks is None:
        return
    if not isinstance(plan.method, methods.LongcatFusion | methods.Dare):
        raise ConfigError(f"{type(plan.method).__name__} drops nothing out. Leave masks out.")
    first = next(iter(plan.masks.values())).keys()
    for name, leaves in plan.masks.items():
        if leaves.keys() != first:
            raise ConfigError(
                f"The masks of expert {name} are for {sorted(leaves.keys() ^ first)[:5]} more or"
                " fewer leaves than the others'. Mask the same leaves of every expert."
            )
        for path, mask in leaves.items():
            expected = getattr(plan.experts[name].get(path), "shape", None)
            if mask.shape != expected:
                raise ConfigError(
                    f"The mask {path} of expert {name} has shape {mask.shape} and its leaf"
                    f" {expected}. Give masks of the shape of the weights."
                )


def _global_norms(plan: Plan) -> dict[str, float]:
    """L2 norm of each delta over everything that is merged, summed in float64 over matrices."""
    assert plan.base is not None
    squares: dict[str, list[float]] = {name: [] for name in plan.experts}
    for path, base in plan.base.items():
        if plan.rules.role(path, base.dtype) not in ("merged", "no_dropout"):
            continue
        num_axes = tree.num_batch_axes(plan.batch_axes, path, base.ndim)
        for name, leaves in plan.experts.items():
            square = _squares(jnp.asarray(base), jnp.asarray(leaves[path]), num_axes)
            squares[name].extend(np.asarray(square, np.float64).ravel().tolist())
    norms = {name: math.sqrt(math.fsum(values)) for name, values in squares.items()}
    for name, norm in norms.items():
        if not math.isfinite(norm):
            raise ConfigError(f"Expert {name} or the base holds NaN or inf; it cannot be merged.")
    return norms


@functools.partial(jax.jit, static_argnames="batch_axes")
def _squares(base: Array, expert: Array, batch_axes: int) -> Float[Array, "..."]:
    delta = expert.astype(jnp.float32) - base.astype(jnp.float32)
    return jnp.sum(jnp.square(delta), axis=tuple(range(batch_axes, delta.ndim)))
