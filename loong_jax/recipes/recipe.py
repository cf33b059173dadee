"""One recipe: the whole config of a run."""

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe import MoEConfig
from loong_jax.models.moe.balance import BiasController
from loong_jax.problems.response import ResponseForm
from loong_jax.recipes.problems import ProblemSource
from loong_jax.recipes.stages import PlainName, RlStage, SampleStage, SftStage, Stage
from loong_jax.remote import AnyPath
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rollout.agentic.agent import TurnLimits
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.sharding import ShardingRules


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
        refuse_below(self, 1, "stack_start", "keep_checkpoints")
        refuse_below(self, 0, "routing_every")


Controls = Mapping[str, Mapping[str, tuple[str, ...]]]

_CUT = (  # sizes of a model, and the axis of a mesh that cuts each
    ("hidden_size", "fsdp"),
    ("num_experts", "expert"),
    ("num_heads", "tensor"),
    ("num_kv_heads", "tensor"),
    ("vocab_size", "tensor"),
    ("ffn_hidden_size", "tensor"),
    ("expert_ffn_hidden_size", "tensor"),
)


def refuse_misfit(model: ModelConfig, mesh: MeshSettings, name: str = "mesh") -> None:
    """ConfigError where a mesh does not divide a size of the model that it cuts."""
    for size, axis in _CUT:
        have, parts = getattr(model, size, 0), getattr(mesh, axis)
        if have % parts:
            fit = [n for n in range(1, have + 1) if have % n == 0]
            fit = fit[: bisect.bisect(fit, parts) + 1]  # the next larger one too
            raise ConfigError(
                f"model.{size}={have} cannot be cut into {name}.{axis}={parts} equal parts. "
                f"Use one of {fit} for {name}.{axis}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalVerifiers:
    """Verifiers as child processes of this one."""

    num_workers: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayVerifiers:
    """Verifiers as Ray actors on CPU."""

    num_workers: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """The tools of samples; a problem names those that it offers."""

    names: tuple[str, ...]  # of loong_jax.run.texts.TOOLS
    limits: TurnLimits = TurnLimits()
    max_paused: int = 256  # samples of a replica whose tools run; above it no prompt is begun
    max_calls_at_once: int = 16  # of a replica
    describe: bool = False  # in every prompt; False where the cold start teaches what there is
    offers_all: bool = False  # to problems that do not name their tools


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stages in a row on one model, its tokens and its problems.

    With `start_from` the model is the one found there, and so are tokenizer, chat template and,
    unless set, the form of responses. `controls` are stages that another run's experts are compared
    with: by label and expert, which stages stand for it.
    """

    name: str  # of the recipe, as config.json and summary.json have it
    seed: int = 0  # of fresh weights, problems and samples
    model: ModelConfig
    # True: that of `start_from` takes the place of `model`, which fresh weights alone have
    model_of_start: Annotated[bool, tyro.conf.Fixed] = False
    # a directory or URL in the layout of Hugging Face, an import, a run, a stage of one, a merge
    start_from: AnyPath | None = None
    teacher: AnyPath | None = None  # the same, of weights that a distillation or penalty follows
    # of activations and of the weights that engines sample with; None: as they are found
    dtype: DTypeLike | None = None
    tokenizer: AnyPath | None = None  # a tokenizer.json or its directory; None: the checkpoint's
    form: ResponseForm | None = None  # of responses; None: that of the checkpoint's vocabulary
    bias: BiasController = BiasController(rate=0.01)  # of the routers
    problems: ProblemSource | None
    data: Path | None = None  # JSON lines of conversations, which SFT learns instead of solutions
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    # of a response, in every stage and evaluation; None: what these say
    max_new_tokens: int | None = None
    tools: ToolSettings | None = None  # that every problem offers
    mesh: MeshSettings = MeshSettings()  # of the trainer
    # of each replica; one device stands for the trainer's mesh where they share devices
    replica_mesh: MeshSettings = MeshSettings()
    pod: Annotated[PodSettings | None, PlainName] = None  # training over several processes
    stages: Annotated[Mapping[str, Stage], PlainName]  # by name, in the order they run
    experts: tuple[tuple[str, str], ...] = ()  # (stage, domain): what is fused and reported
    controls: Controls = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not self.stages:
            raise ConfigError("stages is empty. Give the recipe at least one stage.")
        for name, _ in self.experts:
            if name not in self.stages:
                raise ConfigError(
                    f"experts={self.experts} names {name!r}, and the stages are "
                    f"{tuple(self.stages)}. Name stages of the recipe."
                )
        for name in ("mesh", "replica_mesh"):  # runs of before had None for one device
            if getattr(self, name) is None:
                object.__setattr__(self, name, MeshSettings())
            refuse_misfit(self.model, getattr(self, name), name)
        if self.pod is not None:
            self._refuse_pod(self.pod)
        for name, stage in self.stages.items():
            if isinstance(stage, SftStage | RlStage):
                self._refuse_rows(name, stage)

    def with_stage(self, name: str, **changes: Any) -> "Recipe":
        """The recipe with fields of one stage replaced."""
        stage = dataclasses.replace(self.stages[name], **changes)
        return dataclasses.replace(self, stages={**self.stages, name: stage})

    def mapped(self, change: Callable[[str, Stage], Stage]) -> "Recipe":
        """The recipe with what `change` makes of each stage."""
        stages = {name: change(name, stage) for name, stage in self.stages.items()}
        return dataclasses.replace(self, stages=stages)

    def changed(self, kinds: Any, **changes: Any) -> "Recipe":
        """The recipe with fields of all stages of these kinds replaced."""
        return self.mapped(
            lambda _, one: dataclasses.replace(one, **changes) if isinstance(one, kinds) else one
        )

    def engine_on(self, rules: ShardingRules) -> EngineSettings:
        """The settings of engines under `rules`; they record routing if a stage replays it."""
        replays = any(isinstance(s, RlStage) and s.replays_routing for s in self.stages.values())
        recorded = dataclasses.replace(self.engine, routing=self.engine.routing or replays)
        return recorded.shared_by(rules.parts("act_batch"))

    @property
    def learns_from_teacher(self) -> bool:
        """True if a stage samples the teacher's weights, or has nothing else to learn from."""
        rl = [stage for stage in self.stages.values() if isinstance(stage, RlStage)]
        samples = any(isinstance(stage, SampleStage) for stage in self.stages.values())
        return samples or any(one.learns_from_all and one.objective.kl is not None for one in rl)

    def _refuse_pod(self, pod: PodSettings) -> None:
        (name, stage), *others = self.stages.items()
        if others or not isinstance(stage, SftStage):
            raise ConfigError(
                "training over several processes is supervised fine-tuning alone, and the stages "
                f"are {tuple(self.stages)}. Leave pod out, or keep one stage of SFT."
            )
        if stage.after is not None or stage.wall_time_of or stage.epochs is not None:
            raise ConfigError(
                f"{name}.after={stage.after!r} and {name}.wall_time_of={stage.wall_time_of} name "
                f"stages of a run, and this recipe has one stage; {name}.epochs={stage.epochs} is "
                "not counted over processes. Leave them out, and give num_steps."
            )
        if pod.stack_start > 1 and self.start_from is None:
            raise ConfigError(
                f"stack_start={pod.stack_start} repeats the layers of start_from=None. Use 1, or "
                "name what to stack."
            )
        if isinstance(self.model, MoEConfig):
            pod.losses.refuse_misfit(self.model)

    def _refuse_rows(self, name: str, stage: SftStage | RlStage) -> None:
        mesh = self.mesh
        if stage.row_length % mesh.context:
            raise ConfigError(
                f"{name}.row_length={stage.row_length} cannot be cut into mesh.context="
                f"{mesh.context} equal parts. Change one of the two."
            )
        parts = mesh.data * mesh.fsdp * mesh.expert
        if stage.rows % parts:
            raise ConfigError(
                f"{name}.rows={stage.rows} cannot be cut into mesh.data={mesh.data} times "
                f"mesh.fsdp={mesh.fsdp} times mesh.expert={mesh.expert}, {parts} equal parts. "
                "Change one of them."
            )
