"""Meshes of a recipe, and what training over the devices of several processes asks for besides."""

import dataclasses
import math

from loong_jax.errors import ConfigError
from loong_jax.models.moe import MoEConfig
from loong_jax.rl.auxiliary import AuxiliaryLosses


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """Sizes of a mesh over the devices of all processes; their product is the number of devices.

    Which arrays each axis cuts is in `loong_jax.sharding.ShardingRules`.
    """

    data: int = 1  # rows of the batch; weights are whole
    fsdp: int = 1  # rows of the batch, and the weights while they rest
    expert: int = 1  # rows of the batch, and the experts
    tensor: int = 1  # heads, and the width of FFNs and experts
    context: int = 1  # positions within a row

    def __post_init__(self):
        for name, size in dataclasses.asdict(self).items():
            if size < 1:
                raise ConfigError(f"mesh.{name}={size} must be at least 1. Raise it.")

    @property
    def num_devices(self) -> int:
        return math.prod(dataclasses.asdict(self).values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Training over a mesh: how the weights begin, what the loss adds, where checkpoints go.

    `rates_of` is the config, narrower say, that the learning rate was chosen for; each matrix then
    has its own rate (`models.moe.scaling`).
    """

    stack_start: int = 1  # how often the layers of start_from are repeated
    rates_of: MoEConfig | None = None
    losses: AuxiliaryLosses = AuxiliaryLosses()
    routing_every: int = 0  # steps between looks at the routers; 0: never
    # where all processes write and see the same files: gs://..., or a directory of a shared file
    # system; None: RUN_DIR/checkpoints
    checkpoints: str | None = None
    keep_checkpoints: int = 2  # the latest so many; older ones are deleted

    def __post_init__(self):
        if self.stack_start < 1:
            raise ConfigError(f"stack_start={self.stack_start} must be at least 1. Raise it.")
        if self.routing_every < 0:
            raise ConfigError(
                f"routing_every={self.routing_every} is below 0. Use a number of steps, or 0."
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(
                f"keep_checkpoints={self.keep_checkpoints} must be at least 1. Raise it."
            )
