"""How many parameters a model has, and how many of them one token meets."""

import math

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.moe.config import MoEConfig
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
    """How many numbers each array of the weights has; a path is as in `parameters.by_path`."""
    _, weights = abstract_weights(config)
    return {path: math.prod(leaf.shape) for path, leaf in parameters.by_path(weights).items()}
