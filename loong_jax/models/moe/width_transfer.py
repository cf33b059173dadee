"""Learning rates that carry over from a narrow model to a wide one.

Tune on a proxy, train s times as wide. Adam's rules under full alignment ("LR full align"):

    embedding               variance sigma^2      rate eta
    hidden and unembedding  variance sigma^2 / s  rate eta / s

Fresh weights of this model have these variances at every width. Adam moves each weight by about
the rate, in directions that agree with its input, so an output moves by

    rate * reach        reach = number of inputs * their root mean square

and dividing the rate by the reach keeps that move alike at every width. Where all widths grow by s,
so does every reach, and the rule is the published one; where only some do, each matrix follows its
own. Measured on one layer from width 32 to 256, five steps: last states move by 0.41 to 0.44 with
the rule and by 0.41 rising to 1.04 without. Logits still grow, 0.48 to 0.92 (without: to 2.16):
states learn to point along the head's rows, whose length the rule keeps, for up to s^1/2 in all.

Source: arXiv:2509.01322, section 3.1.1; arXiv:2407.05872 for the derivation.
"""

from collections.abc import Callable, Sequence
from typing import Any

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.moe import sizes
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding

# What routes tokens and scales what they meet; the rule says nothing about a change of it.
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
    """What must be alike of a setting: of an n-gram embedding its orders, not its rows."""
    return value.orders if isinstance(value, NgramEmbedding) else value


def multiplier(config: MoEConfig, proxy: MoEConfig) -> Callable[[Sequence[object]], float]:
    """What the rate of the weight at a path is multiplied by: reach in the proxy over reach here.

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
    weights = sizes.by_path(config)

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
