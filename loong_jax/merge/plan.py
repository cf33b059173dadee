"""The plan of a merge, made before it touches a leaf: names, weights, checks, tasks of leaves."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.merge import tree
from loong_jax.merge.methods import Linear, LongcatFusion, Method
from loong_jax.merge.tree import PathRules
from loong_jax.models.parameters import Weights
from loong_jax.own import OwnPart, part_of

Experts = Mapping[str, Weights] | Sequence[Weights]
ByName = dict[str, dict[str, tree.Leaf]]  # leaves by path, by expert in the order of their names


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafTask:
    """One leaf to merge, with all that the merge of it depends on."""

    path: str
    role: tree.LeafRole
    base: tree.Leaf | None
    experts: dict[str, tree.Leaf]
    masks: tuple[tree.Leaf, ...] | None  # explicit ones
    importances: tuple[tree.Leaf, ...] | None
    method: Method
    weights: tuple[float, ...]
    of_model: dict[str, Any]  # the method's measurements of the whole model
    batch_axes: int

    @property
    def first(self) -> tree.Leaf:
        """The leaf whose dtype and place the merged one has."""
        return next(iter(self.experts.values())) if self.base is None else self.base

    @property
    def draws_masks(self) -> bool:
        is_thinned = self.method.drops_out and getattr(self.method, "keep_rate") < 1  # noqa: B009
        return is_thinned and self.masks is None and self.role == "merged"

    @property
    def is_thinned(self) -> bool:
        return self.draws_masks or self.masks is not None

    def keys(self) -> list[np.ndarray] | None:
        """The key of each expert's mask, where masks are drawn."""
        if not self.draws_masks:
            return None
        seed = getattr(self.method, "seed")  # noqa: B009
        return [tree.leaf_key(seed, self.path, name) for name in self.experts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A merge, checked."""

    base: dict[str, tree.Leaf] | None
    experts: ByName
    masks: ByName | None
    importances: ByName | None
    structure: Any
    method: Method
    weights: dict[str, float]
    of_model: dict[str, Any]  # see LeafTask; empty until `fusion.prepare` fills it
    batch_axes: tree.BatchAxes
    rules: PathRules

    @property
    def first(self) -> dict[str, tree.Leaf]:
        return next(iter(self.experts.values())) if self.base is None else self.base

    def task(self, path: str) -> LeafTask:
        first = self.first[path]
        role = self.rules.role(path, first.dtype)
        method, weights = self.method, tuple(self.weights.values())
        masks = importances = None
        if role == "controller":
            method, weights = Linear(), (1.0,) * len(weights)
        elif role != "exact":
            if self.masks is not None and path in next(iter(self.masks.values())):
                masks = tuple(tree.on_host(leaves[path]) for leaves in self.masks.values())
            if self.importances is not None:
                importances = tuple(tree.on_host(t[path]) for t in self.importances.values())
        return LeafTask(
            path=path,
            role=role,
            base=None if self.base is None else tree.on_host(first),
            experts={name: tree.on_host(leaves[path]) for name, leaves in self.experts.items()},
            masks=masks,
            importances=importances,
            method=method,
            weights=weights,
            of_model=self.of_model,
            batch_axes=tree.num_batch_axes(self.batch_axes, path, len(first.shape)),
        )

    def merged_paths(self) -> list[str]:
        """The leaves that the method is applied to."""
        roles = {path: self.rules.role(path, leaf.dtype) for path, leaf in self.first.items()}
        return [path for path, role in roles.items() if role in ("merged", "no_dropout")]


def make(
    base: Weights | None,
    experts: Experts,
    *,
    method: Method | OwnPart | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    batch_axes: tree.BatchAxes = 0,
    masks: Experts | None = None,
    importances: Experts | None = None,
    rules: PathRules | None = None,
) -> Plan:
    """Checks the inputs of `fuse`; see there. Reads no weights, but to name unnamed experts."""
    chosen: Method = LongcatFusion() if method is None else part_of(method)
    if base is None and chosen.needs_base:
        raise ConfigError(f"{type(chosen).__name__} merges deltas. Give the base they start from.")
    if not experts:
        raise ConfigError("There are no experts to merge. Give at least one.")
    if chosen.num_experts not in (None, len(experts)):
        raise ConfigError(
            f"{type(chosen).__name__} merges {chosen.num_experts} experts and was given "
            f"{len(experts)}. Give {chosen.num_experts}, or take another method, as karcher."
        )
    named, beside = _name(
        experts, batch_axes, weights=weights, masks=masks, importances=importances
    )
    given_weights = beside["weights"] or {}
    flat = {name: tree.flatten(named[name])[0] for name in sorted(named)}
    flat_base, structure = tree.flatten(next(iter(named.values())) if base is None else base)
    for name, leaves in flat.items():
        tree.check_alike(flat_base, leaves, name)

    def by_name(trees: dict[str, Weights] | None) -> ByName | None:
        return None if trees is None else {name: tree.flatten(trees[name])[0] for name in flat}

    plan = Plan(
        base=None if base is None else flat_base,
        experts=flat,
        masks=by_name(beside["masks"]),
        importances=by_name(beside["importances"]),
        structure=structure,
        method=chosen,
        weights=_check_weights(chosen, {name: given_weights.get(name, 1.0) for name in flat}),
        of_model={},
        batch_axes=batch_axes,
        rules=PathRules() if rules is None else rules,
    )
    _check_beside(plan)
    if (
        isinstance(chosen, LongcatFusion)
        and chosen.combine == "disjoint_mean"
        and (chosen.keep_rate < 1 or plan.masks)
    ):
        warnings.warn(
            "combine='disjoint_mean' after dropout multiplies what the experts share by up to"
            " (1 - (1 - q)^n) / q. Use combine='sum', or keep_rate=1.",
            stacklevel=4,
        )
    return plan


def _name(
    experts: Experts, batch_axes: tree.BatchAxes, **beside: Any
) -> tuple[dict[str, Weights], dict[str, Any]]:
    """Experts and what belongs to each by name; experts of a list are named by what they hold."""
    if isinstance(experts, Mapping):
        names = [str(name) for name in experts]
        values = list(experts.values())
    else:
        values, names = list(experts), []
        for expert in values:
            name = tree.fingerprint(tree.flatten(expert)[0], batch_axes)
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

    found = {what: by_name(given, what) for what, given in beside.items()}
    return dict(zip(names, values, strict=True)), found


def _check_weights(method: Method, weights: dict[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    if not all(map(math.isfinite, weights.values())):
        raise ConfigError(f"weights={weights} are not all finite.")
    if method.weights_are == "shares":
        if min(weights.values()) < 0 or total <= 0:
            raise ConfigError(f"weights={weights} must be non-negative with a positive sum.")
        return {name: weight / total for name, weight in weights.items()}
    if method.weights_are == "none" and len(set(weights.values())) > 1:
        kind = type(method).__name__
        raise ConfigError(f"{kind} takes no weights, and {weights} differ. Leave weights out.")
    if getattr(method, "normalise", False) and total == 0:
        raise ConfigError(f"weights={weights} sum to 0 and cannot be normalised. Change them.")
    return weights


def _check_beside(plan: Plan) -> None:
    """Raises ConfigError for masks and importances that do not fit the method or the weights."""
    kind = type(plan.method).__name__
    if plan.masks is not None and not plan.method.drops_out:
        raise ConfigError(f"{kind} drops nothing out. Leave masks out.")
    if plan.method.takes_importances and plan.importances is None:
        raise ConfigError(
            f"{kind} weighs every entry and was given no importances. Give those of each expert"
            " (merge.diagonal_fisher makes them)."
        )
    if plan.importances is not None and not plan.method.takes_importances:
        raise ConfigError(f"{kind} takes no importances. Leave them out, or choose Fisher.")
    masked = {path for leaves in (plan.masks or {}).values() for path in leaves}
    for what, trees, needed in (
        ("mask", plan.masks, masked),
        ("importance", plan.importances, set(plan.merged_paths())),
    ):
        for name, leaves in (trees or {}).items():
            if missing := sorted(needed - leaves.keys()):
                raise ConfigError(
                    f"The {what}s of expert {name} lack {missing[:5]}. Give one for the same leaves"
                    " of every expert."
                )
            for path, leaf in leaves.items():
                expected = getattr(plan.experts[name].get(path), "shape", None)
                if leaf.shape != expected:
                    raise ConfigError(
                        f"The {what} {path} of expert {name} has shape {leaf.shape} and its leaf"
                        f" {expected}. Give {what}s of the shape of the weights."
                    )
