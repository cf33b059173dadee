"""Recipes whose one stage runs over the devices of several processes."""

import dataclasses
import math

from loong_jax.errors import ConfigError
from loong_jax.launch.recipe.problems import Problems
from loong_jax.launch.recipe.stages import SftStage
from loong_jax.models.moe import MoEConfig
from loong_jax.models.moe.controller import BiasController
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
class PodSftRecipe:
    """Supervised fine-tuning on demonstrations over all processes.

    `rates_of` is the config, narrower say, that the learning rate was chosen for; each matrix then
    has its own rate (`models.moe.width_transfer`).
    """

    name: str  # of the recipe, as config.json and summary.json have it
    seed: int = 0  # of fresh weights and of the order of the data
    model: MoEConfig
    # a directory of weights that `loong import-hf` or a stage of a run wrote; None: fresh weights
    start_from: str | None = None
    stack_start: int = 1  # how often the layers of start_from are repeated
    rates_of: MoEConfig | None = None
    bias: BiasController = BiasController(rate=0.01)  # of the routers
    losses: AuxiliaryLosses = AuxiliaryLosses()
    routing_every: int = 0  # steps between looks at the routers; 0: never
    problems: Problems
    mesh: MeshSettings
    sft: SftStage
    # where all processes write and see the same files: gs://..., or a directory of a shared file
    # system; None: RUN_DIR/checkpoints
    checkpoints: str | None = None
    keep_checkpoints: int = 2  # the latest so many; older ones are deleted

    def __post_init__(self):
        if self.sft.after is not None or self.sft.wall_time_of:
            raise ConfigError(
                f"sft.after={self.sft.after!r} and sft.wall_time_of={self.sft.wall_time_of} name "
                "stages of a run, and this recipe has one stage. Leave them out."
            )
        for name in ("num_steps", "rows", "row_length", "checkpoint_every"):
            if getattr(self.sft, name) < 1:
                raise ConfigError(
                    f"sft.{name}={getattr(self.sft, name)} must be at least 1. Raise it."
                )
        if self.stack_start < 1 or (self.stack_start > 1 and self.start_from is None):
            raise ConfigError(
                f"stack_start={self.stack_start} repeats the layers of start_from="
                f"{self.start_from!r}. Use 1, or name what to stack and a whole number above 1."
            )
        if self.routing_every < 0:
            raise ConfigError(
                f"routing_every={self.routing_every} is below 0. Use a number of steps, or 0."
            )
        self.losses.refuse_misfit(self.model)
        model, mesh = self.model, self.mesh
        for size, name, axis in (
            (self.sft.rows, "sft.rows", "data"),
            (self.sft.rows, "sft.rows", "fsdp"),
            (self.sft.rows, "sft.rows", "expert"),
            (self.sft.row_length, "sft.row_length", "context"),
            (model.hidden_size, "model.hidden_size", "fsdp"),
            (model.num_experts, "model.num_experts", "expert"),
            (model.num_heads, "model.num_heads", "tensor"),
            (model.vocab_size, "model.vocab_size", "tensor"),
            (model.ffn_hidden_size, "model.ffn_hidden_size", "tensor"),
            (model.expert_ffn_hidden_size, "model.expert_ffn_hidden_size", "tensor"),
        ):
            if size % getattr(mesh, axis):
                raise ConfigError(
                    f"{name}={size} cannot be cut into mesh.{axis}={getattr(mesh, axis)} equal "
                    "parts. Change one of the two."
                )
        parts = mesh.data * mesh.fsdp * mesh.expert
        if self.sft.rows % parts:
            raise ConfigError(
                f"sft.rows={self.sft.rows} cannot be cut into mesh.data={mesh.data} times "
                f"mesh.fsdp={mesh.fsdp} times mesh.expert={mesh.expert}, {parts} equal parts. "
                "Change one of them."
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(
                f"keep_checkpoints={self.keep_checkpoints} must be at least 1. Raise it."
            )
