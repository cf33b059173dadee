"""Fusing experts into one model, leaf by leaf."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from loong_jax import own
from loong_jax.errors import ConfigError
from loong_jax.merge import pieces, streaming, tree
from loong_jax.merge import plan as plan_lib
from loong_jax.merge.methods import Method
from loong_jax.merge.plan import Experts, LeafTask, Plan
from loong_jax.merge.tree import PathRules
from loong_jax.models.parameters import Weights
from loong_jax.own import OwnPart


class MergedLeaf(NamedTuple):
    task: LeafTask
    value: tree.Leaf  # dtype and placement of the base's leaf
    counts: np.ndarray  # [3, I]: entries of each delta moved, left of these, agreed on of those


def fuse(
    base: Weights | None,
    experts: Experts,
    *,
    method: Method | OwnPart | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    batch_axes: tree.BatchAxes = 0,
    masks: Experts | None = None,
    importances: Experts | None = None,
    rules: PathRules | None = None,
) -> Weights:
    """Returns one model made of `experts`, all trained from `base`.

    Args:
        base: weights of the common ancestor (the SFT model); None where the method needs none.
        experts: weights by name, or a list, whose names are then fingerprints of the weights. Masks
            go by name, so neither order nor the presence of others changes an expert's mask.
        method: `LongcatFusion()` unless given.
        weights: of the experts, by name or in their order; equal unless given.
        batch_axes: how many leading axes of each leaf are stacks of matrices (layers, experts): a
            number, a function of the path, or a nested dict. Statistics are per matrix, so stacked
            and separate give the same.
        masks: explicit dropout masks of each expert, true where an entry survives, in place of the
            random ones; a leaf that a mask tree lacks is not dropped out.
        importances: of each expert's entries, for `Fisher` and `FisherDeltas`: not negative, in the
            form of the weights.
        rules: which leaves are controller state and which are spared dropout.

    Arithmetic is float32 and each leaf is cast once, to the dtype of the base's leaf. The result
    has the base's structure and sharding. Raises ConfigError if trees, integer leaves or weights
    do not fit, or a result is not finite.
    """
    beside = {"weights": weights, "masks": masks, "importances": importances}
    plan = prepare(base, experts, method=method, batch_axes=batch_axes, rules=rules, **beside)
    return jax.tree_util.tree_unflatten(plan.structure, [leaf.value for leaf in merge_leaves(plan)])


def prepare(base: Weights | None, experts: Experts, **settings: Any) -> Plan:
    """Checks the inputs of `fuse` and takes what the method must know of the whole model."""
    plan = plan_lib.make(base, experts, **settings)
    if not plan.merged_paths():  # whole numbers alone, which must agree
        return plan
    of_model = streaming.measured(plan.method, "measure_model", streaming.WholeModel(plan))
    return dataclasses.replace(plan, of_model=of_model)


def merge_leaves(plan: Plan) -> Iterator[MergedLeaf]:
    """Merges one leaf after the other, in tree order; a caller may write each out and forget it."""
    for path in plan.first:
        yield merge_leaf(plan, path)


def merge_leaf(
    plan: Plan, path: str, *, count: bool = True, into: pieces.WritableLeaf | None = None
) -> MergedLeaf:
    """Merges one leaf, on the host; the value lies where the base's leaf does.

    Without `count` nothing is counted. A leaf is merged into `into` where given, and then never
    held whole.
    """
    task = plan.task(path)
    first = plan.first[path]
    value: Any = copied(task, plan.rules)
    counts = np.zeros((3, len(task.experts)))
    if value is None:
        if into is None:
            value = np.empty(first.shape, first.dtype)
            flat = value.reshape(-1)

        def write(start: int, vector: np.ndarray) -> None:
            flat[start : start + len(vector)] = vector

        finite, counts = streaming.merge(task, into.write if into else write, count=count)
        if not finite:
            place = own.place_of(type(task.method))
            equation = f", in the equation of {place}" if ":" in place else ""
            raise ConfigError(
                f"The merge of {path} is not finite. Look for NaN or inf in the weights{equation},"
                f" or lower the scale if {first.dtype} overflows."
            )
        value = value if into is None else into
    if isinstance(first, jax.Array):
        value = jax.device_put(value, first.sharding)
    return MergedLeaf(task, value, counts)


def copied(task: LeafTask, rules: PathRules) -> tree.Leaf | None:
    """The leaf that the merged model has unchanged: integers, and controllers' state by default."""
    if task.role == "exact":
        base = task.first
        for name, leaf in task.experts.items():
            if leaf.dtype != base.dtype or not np.array_equal(np.asarray(leaf), np.asarray(base)):
                raise ConfigError(
                    f"{task.path} holds {base.dtype}, which has no mean, and expert {name} differs"
                    " from the base. Make them agree, or leave the leaf out."
                )
        return base
    keeps_base = task.role == "controller" and rules.controller_value == "base"
    has_nothing = not math.prod(task.first.shape)
    return task.first if (keeps_base and task.base is not None) or has_nothing else None
