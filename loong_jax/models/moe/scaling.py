"""From a small model to a large one: counts of parameters, growth in depth, transfer of rates.

Growth: a trained model of L layers becomes the start of one of twice as many, [l_0 .. l_L-1,
l_0 .. l_L-1]; embedding, head, final norm and the drafting head stay. Source: arXiv:2509.01322,
section 3.1.2, which trains 14 layers and stacks them to 28.

Learning rates carry over from a narrow model to one s times as wide by Adam's rules under full
alignment ("LR full align"):

    embedding               variance sigma^2      rate eta
    hidden and unembedding  variance sigma^2 / s  rate eta / s

Fresh weights of this model have these variances at every width. Adam moves each weight by about
the rate, in directions that agree with its input, so an output moves by

    rate * reach        reach = number of inputs * their root mean square

and dividing the rate by the reach keeps that move alike at every width. Where all widths grow by s,
so does every reach, and the rule is the published one; where only some do, each matrix follows its
own. Logits still grow, by up to s^1/2 in all: states learn to point along the head's rows, whose
length the rule keeps. Source: arXiv:2509.01322, section 3.1.1; arXiv:2407.05872 for the derivation.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.moe.model import abstract_weights


def num_params(config: MoEConfig) -> int:
    """All parameters, the biases of routers included."""
    return sum(by_path(config).values())


def num_active_params(
    config: MoEConfig, ffn_experts: float | None = None, *, drafts: bool = False
) -> int:
    """Parameters that multiply one token which meets `ffn_experts` experts with weights a layer.

    `mean_ffn_experts` unless given. Tables that are only looked up do not count, nor do biases of
    routers, which choose and do not multiply; a head that drafts counts where it `drafts`. Raises
    ConfigError for more experts than a token can meet.
    """
    met = config.mean_ffn_experts if ffn_experts is None else ffn_experts
    most = min(config.num_chosen, config.num_experts)
    if not 0 <= met <= most:
        raise ConfigError(
            f"ffn_experts={met} is not in 0..{most}, the experts that num_chosen="
            f"{config.num_chosen} choices among num_experts={config.num_experts} can meet. Choose "
            "there, or leave it out for their mean."
        )
    sizes = by_path(config)
    experts = sum(size for path, size in sizes.items() if path.startswith("layers/experts/"))
    looked_up = sizes["embedding"] + sizes.get("ngram/table", 0)
    idle = 0 if drafts else sum(size for path, size in sizes.items() if path.startswith("mtp/"))
    biases = sum(size for path, size in sizes.items() if path.endswith("router/bias"))
    others = sum(sizes.values()) - experts - looked_up - idle - biases
    return others + round(experts * met / config.num_experts)


def by_path(config: MoEConfig) -> dict[str, int]:
    """The size of each array of the weights; a path is as in `parameters.by_path`."""
    _, weights = abstract_weights(config)
    return {path: math.prod(leaf.shape) for path, leaf in parameters.by_path(weights).items()}


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


def _is_stack(path: Sequence[Any]) -> bool:
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


def _check(times: int) -> None:
    if times < 1:
        raise ConfigError(
            f"times={times} is below 1. Stack at least one copy; 2 doubles the depth."
        )


# Settings of routing and scale; the rule does not cover a change of them.
_ALIKE = (
    "num_experts",
    "num_zero_experts",
    "num_chosen",
    "target_ffn_experts",
    "gate_scale",
    "ngram",
)


def reaches(config: MoEConfig) -> dict[str, float]:
    """The reach of each matrix by the end of its path; what is not named here has no reach.

    Embedding, norm weights and biases sum over nothing. Inputs are normed to a root mean square of
    1, behind the norms of the latents to alpha_q and alpha_kv.
    """
    c = config
    return {
        "head": c.hidden_size,
        "router/kernel": c.hidden_size,
        "query_down": c.hidden_size,
        "query_up": c.q_lora_rank * c.q_scale,
        "latent_down": c.hidden_size,
        "latent_up": c.kv_lora_rank * c.kv_scale,
        "out": c.num_heads * c.v_head_dim,
        "gate": c.hidden_size,
        "up": c.hidden_size,
        "down": c.ffn_hidden_size,
        "experts/gate_up": c.hidden_size,
        "experts/down": c.expert_ffn_hidden_size,
        "mtp/projection": 2 * c.hidden_size,
        "ngram/projection": c.hidden_size,
    }


def _plain(value: Any) -> Any:
    """The part of a setting that the proxy must share: of an n-gram embedding its orders alone."""
    return value.orders if isinstance(value, NgramEmbedding) else value


def multiplier(config: MoEConfig, proxy: MoEConfig) -> Callable[[Sequence[object]], float]:
    """The factor of the learning rate for the weight at a path: reach in the proxy over reach here.

    Paths hold the keys of nested dicts, outermost first, or the key entries of `jax.tree_util`. One
    that leads to no weight of the model raises ValueError. Raises ConfigError where the proxy
    differs in more than widths and depth.
    """
    for name in _ALIKE:
        here, there = (_plain(getattr(c, name)) for c in (config, proxy))
        if here != there:
            raise ConfigError(
                f"{name}={here} differs from the proxy's {there}: the rule transfers widths only. "
                "Give the proxy the same."
            )
    wide, narrow = reaches(config), reaches(proxy)
    weights = by_path(config)

    def of(path: Sequence[object]) -> float:
        names = parameters.names_of(path)
        if "/".join(names) not in weights:
            raise ValueError(
                f"path={path!r} leads to no weight of the model. Pass the keys to one, outermost "
                "first, such as ('layers', 'ffn_0', 'down')."
            )
        for name in ("/".join(names[-2:]), names[-1]):
            if name in wide:
                return narrow[name] / wide[name]
        return 1.0

    return of
