"""LoRA: a low-rank change of frozen matrices is trained instead of the matrices themselves.

What is trained is a tree of `a` and `b` for each target, float32; the whole weights are
W + alpha / rank * a b, made inside the loss, so that the model knows nothing of it. Stacks of
matrices (layers, experts) have stacks of adapters. Source: arXiv:2106.09685.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from safetensors.numpy import save_file

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, refuse_below, refuse_outside
from loong_jax.models import parameters
from loong_jax.models.hf.publication import Place
from loong_jax.models.parameters import Weights
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.sharding import place_like

EXPERTS = "experts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Adapters of the matrices in the layers that `targets` names."""

    rank: int = 16
    alpha: float = 32.0  # the change is alpha / rank * a b
    # last names of matrices, as the weights have them, "experts" for those of experts; () for every
    # matrix of the layers but those of experts
    targets: tuple[str, ...] = ()

    def __post_init__(self):
        refuse_below(self, 1, "rank")
        refuse_outside(self, "(0, inf)", "alpha")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class _Sides(NamedTuple):
    """The axes of a matrix, or of a stack of them."""

    stack: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    def sizes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        """The sizes of the stack, of the input and of the output."""
        stack, inner, outer = (tuple(shape[axis] for axis in side) for side in self)
        return stack, math.prod(inner), math.prod(outer)


def _sides(model: PolicyModel, path: str) -> _Sides | None:
    axes = model.matrix_axes(tuple(path.split("/")))
    if axes is None:
        return None
    taken = axes[0] + axes[1]
    return _Sides(tuple(axis for axis in range(max(taken)) if axis not in taken), *axes)


def initial_adapters(
    model: PolicyModel, config: LoraConfig, base: Weights, key: Array
) -> dict[str, Any]:
    """Fresh adapters of `base`, which change nothing yet: `a` is drawn and `b` is 0.

    Raises ConfigError for a target that no matrix of the layers has.
    """
    leaves = parameters.by_path(base)
    matrices = {path: sides for path in sorted(leaves) if (sides := _sides(model, path))}
    names = set(map(_name, matrices))
    if unknown := sorted(set(config.targets) - names):
        raise ConfigError(
            f"lora.targets={config.targets} names {unknown[0]!r}, and the matrices of this model's "
            f"layers are {', '.join(sorted(names))}. Choose among these, or () for all but experts."
        )
    targets = config.targets or names - {EXPERTS}
    chosen = [path for path in matrices if _name(path) in targets]
    adapters: dict[str, Any] = {}
    for path, own in zip(chosen, jax.random.split(key, max(1, len(chosen))), strict=False):
        stack, inner, outer = matrices[path].sizes(leaves[path].shape)
        bound, shape = 1 / math.sqrt(inner), (*stack, inner, config.rank)
        adapters[f"{path}/a"] = jax.random.uniform(own, shape, minval=-bound, maxval=bound)
        adapters[f"{path}/b"] = jnp.zeros((*stack, config.rank, outer))
    return parameters.as_tree(adapters)


def _name(path: str) -> str:
    names = path.split("/")
    return EXPERTS if EXPERTS in names else names[-1]


@functools.lru_cache(maxsize=16)
def lora_policy(model: PolicyModel, config: LoraConfig) -> PolicyModel:
    """The policy whose trained weights are adapters of frozen ones; controllers hold still."""

    def join(adapters: Weights, frozen: Weights) -> Weights:
        own, whole = parameters.by_path(adapters), parameters.by_path(frozen)
        for path in sorted(whole):
            if f"{path}/a" in own:
                weight, sides = whole[path], _sides(model, path)
                assert sides is not None
                a, b, order = own[f"{path}/a"], own[f"{path}/b"], sum(sides, ())
                delta = config.scale * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
                turned = delta.reshape([weight.shape[axis] for axis in order])
                turned = turned.transpose(np.argsort(order))
                whole[path] = weight.astype(jnp.float32) + place_like(turned, weight)
        return parameters.as_tree(whole)

    def matrix_axes(path: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sides = _sides(model, "/".join(path[:-1]))
        assert sides is not None
        first = len(sides.stack)
        return (first,), (first + 1,)

    return dataclasses.replace(
        model,
        join=join,
        is_controller=lambda path: False,
        matrix_axes=matrix_axes,
        initial_memory=lambda: (),
        update_controllers=lambda weights, memory, load: (weights, memory),
        rate_multiplier=None,
    )


def save_peft(
    directory: Path,
    config: LoraConfig,
    adapters: Weights,
    model: PolicyModel,
    places: Iterable[Place],
    *,
    base: str | None = None,
) -> None:
    """Writes adapters as the peft library reads them: for the model whose tensors are `places`.

    `base` is what adapter_config.json names as the model that they belong to.
    """
    modules = dict(_modules(adapters, model, places))
    record = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
    tensors = {
        f"base_model.model.{module}.lora_{side}.weight": np.ascontiguousarray(value)
        for module, sides in modules.items()
        for side, value in sides.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    json_files.write_json(directory / "adapter_config.json", record)


def _modules(
    adapters: Weights, model: PolicyModel, places: Iterable[Place]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """By module of the published model: matrices of its adapter, stored (out, in)."""
    own = parameters.by_path(adapters)
    for place in places:
        if f"{place.leaf}/a" in own:
            sides = _sides(model, place.leaf)
            assert sides is not None
            index = tuple(place.region[axis][0] for axis in sides.stack)
            a, b = (np.asarray(own[f"{place.leaf}/{side}"][index]).T for side in "ab")
            yield place.name.removesuffix(".weight"), {"A": a, "B": b}
