"""The stages that recipes are made of."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import tyro

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.merge import search
from loong_jax.merge.methods import OWN_METHOD, FusionMethod, LongcatFusion
from loong_jax.orchestrator import baselines
from loong_jax.orchestrator.curriculum import Curriculum
from loong_jax.orchestrator.dora import DoraPolicy, algorithm_1
from loong_jax.own import Contract, OwnPart, as_own
from loong_jax.rl.collapse import CollapseRules
from loong_jax.rl.lora import LoraConfig
from loong_jax.rl.objectives import Objective
from loong_jax.rl.optimizers import Optimizer, WarmupCosine
from loong_jax.rl.rewards import NoiseReward, RewardRule
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.reuse import GroupReuse

START, TEACHER = "start", "teacher"  # stages' names of the weights that a recipe gives
PlainName = tyro.conf.arg(name="")  # options of the part are named as if they were the whole's


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkingStyle:
    """The shares of careful and hurried ways of thinking in a cold start; see `quickstart`."""

    first_pairs: int = 0  # demonstrations that teach the skill, mostly in the careful style
    first_careful_share: float = 0.9
    careful_share: float = 0.5  # of the demonstrations after them; the others are hurried

    def __post_init__(self):
        refuse_below(self, 0, "first_pairs")
        for name in ("first_careful_share", "careful_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not in [0, 1]. Give a share.")

    def careful_share_at(self, number: int) -> float:
        """The chance that demonstration `number` is careful."""
        return self.first_careful_share if number < self.first_pairs else self.careful_share


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftStage:
    """Fine-tuning on worked solutions or conversations: of solvers, of a file, of a teacher."""

    num_steps: int
    # passes over all examples, which say num_steps; a schedule of that length follows, with 3 % of
    # warm-up where it has none
    epochs: float | None = None
    optimizer: Optimizer  # AdamW or Muon, with its schedule
    lora: LoraConfig | None = None  # trained in place of the weights; None: these
    rows: int = 48
    micro_rows: int = 0  # computed at once at most, and their gradients added up; 0: all
    row_length: int = 0  # tokens; 0: what the examples need
    # of solutions of generated problems; None: careful alone
    thinking: Annotated[ThinkingStyle | None, PlainName] = None
    checkpoint_every: int = 100  # steps
    after: str | None = None  # None: from start_from, or fresh weights
    always_runs: bool = True  # False: a cold start, left out where the recipe has start_from
    samples_of: str | None = None  # the stage whose samples are learnt; None: worked solutions
    wall_time_of: tuple[str, ...] = ()  # stages whose training time, added up, ends this one

    def __post_init__(self):
        refuse_below(self, 1, "num_steps", "rows", "checkpoint_every")
        refuse_below(self, 0, "micro_rows", "row_length")
        if self.epochs is not None and (self.samples_of or not 0 < self.epochs < math.inf):
            raise ConfigError(
                f"epochs={self.epochs} must be positive, and of examples that are there before the "
                "run. Use 3, or give num_steps in its place."
            )


Scheduler = (
    DoraPolicy
    | baselines.SynchronousPolicy
    | baselines.TailBatchingPolicy
    | baselines.OneStepOffPolicy
    | baselines.PartialRolloutPolicy
    | baselines.DropAndReplacePolicy
    | OwnPart
)
OWN_SCHEDULER = Contract(
    Scheduler,
    ("groups_per_step", "max_staleness", "mixes_versions", "needs", "decide"),
    "docs/how-to/add_scheduler.md",
)
SCHEDULERS: dict[str, Callable[..., Scheduler]] = {  # by name on the command line
    "dora": DoraPolicy,
    "multi-version": algorithm_1,
    "synchronous": baselines.SynchronousPolicy,
    "tail-batching": baselines.TailBatchingPolicy,
    "one-step-off": baselines.OneStepOffPolicy,
    "partial-rollout": baselines.PartialRolloutPolicy,
    "drop-and-replace": baselines.DropAndReplacePolicy,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RlStage:
    """Asynchronous reinforcement learning on the problems of `domains`."""

    after: str  # the stage whose weights it starts from
    domains: tuple[str, ...]  # () for all of the recipe's
    num_steps: int
    scheduler: Scheduler
    objective: Objective
    optimizer: Optimizer
    lora: LoraConfig | None = None  # trained in place of the weights; None: these
    group_size: int = 8  # G
    sampling: SamplingSettings = SamplingSettings()
    reward: RewardRule | NoiseReward = RewardRule()
    rows: int = 48  # of a micro-batch
    row_length: int = 0  # tokens; 0: what the longest prompt and a response need
    max_issues: int = 1  # how often a problem that taught nothing is posed
    solved_after: int = 200  # tickets in a row, nearly all with every answer right, end the stage
    checkpoint_every: int = 10
    verdict_deadline_s: float = 20.0
    stall_timeout_s: float = 1200.0  # without any event, in which compilation counts too
    replays_routing: bool = False  # trains with the experts that the engine chose
    # rows hold a prompt once for all its responses; None: where the model can
    shares_prompts: bool | None = None
    score_rows: int = 4  # of such rows scored at once; each group is scored on its own
    reuse: GroupReuse = GroupReuse()  # of trained groups, beside the scheduler's fresh ones
    collapse: CollapseRules = CollapseRules()  # stops the run; nothing unless set
    reference: str | None = None  # whose weights a penalty pulls to; None: those it starts from
    curriculum: Curriculum = Curriculum()  # problems posed, and lengths of answers
    learns_from_all: bool = False  # from groups of equal rewards too: by the penalty alone
    wall_time_of: tuple[str, ...] = ()  # stages whose training time, added up, ends this one

    def __post_init__(self):
        scheduler = as_own(self.scheduler, "scheduler", OWN_SCHEDULER)
        object.__setattr__(self, "scheduler", scheduler)
        refuse_below(self, 1, "num_steps", "rows", "score_rows", "max_issues", "solved_after")
        refuse_below(self, 1, "checkpoint_every")
        refuse_below(self, 2, "group_size")  # a group of one has nothing to be compared with
        counted = getattr(self.objective.reduction, "group_size", self.group_size)
        if counted != self.group_size:
            raise ConfigError(
                f"group_size={self.group_size}, and objective.reduction.group_size={counted} "
                "divides the loss by other groups than are drawn. Give both the same value."
            )
        for name, usual in (("verdict_deadline_s", 20), ("stall_timeout_s", 1200)):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive. Use {usual}.")
        if self.sampling.greedy or self.sampling.is_truncated:
            raise ConfigError(
                f"sampling={self.sampling} is greedy or cuts the distribution off, and what it "
                "draws cannot train. Sample with greedy=False, top_p=1, top_k=0, min_p=0."
            )
        if 0 < self.row_length <= self.sampling.max_new_tokens:
            raise ConfigError(
                f"row_length={self.row_length} has no room for a prompt beside the "
                f"sampling.max_new_tokens={self.sampling.max_new_tokens} of a response. Raise it."
            )
        if self.reuse.share:  # or else one of your own need not be read to look at a run
            self.reuse.refuse_without(self.scheduler.max_staleness)
        context, limit = self.curriculum.context, self.sampling.max_new_tokens
        if context.is_on and context.limits[-1] > limit:
            raise ConfigError(
                f"curriculum.context.limits={context.limits} ends above sampling.max_new_tokens="
                f"{limit}, which bounds every response. Lower the limits or raise it."
            )
        if self.curriculum.is_on and getattr(self.scheduler, "deterministic", False):
            raise ConfigError(
                "scheduler.deterministic promises an order of problems that no timing changes, and "
                f"{self.curriculum} decides by verdicts as they arrive. Leave one of them out."
            )

    @property
    def scores_in_step(self) -> bool:
        """True where every rollout is of the weights that its step begins with."""
        return self.scheduler.max_staleness == 0 and not self.scheduler.mixes_versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusionStage:
    """Fuses stages; `scale` and `keep_rate` are chosen on validation problems.

    Each of `experts` is an expert of the recipe, which says its domain.
    """

    base: str
    experts: tuple[str, ...]
    method: FusionMethod = LongcatFusion()
    scales: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)  # of methods that have one
    keep_rates: tuple[float, ...] = (0.8, 1.0)  # the same
    num_problems: int = 64  # per domain and point of the grid

    def __post_init__(self):
        refuse_below(self, 1, "num_problems")
        if not (self.experts and self.scales and self.keep_rates):
            raise ConfigError(
                f"experts={self.experts}, scales={self.scales} and keep_rates={self.keep_rates} "
                "must not be empty. Give at least one of each."
            )
        object.__setattr__(self, "method", as_own(self.method, "method", OWN_METHOD))
        if not isinstance(self.method, OwnPart):  # which are tried before anything runs
            search.candidates(self.method, self.scales, self.keep_rates)  # which may refuse


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleStage:
    """A teacher's answers to training problems, of which the right ones are kept."""

    teacher: str  # a stage or what the recipe names
    num_problems: int  # of each domain
    samples_per_problem: int = 4
    max_kept: int = 2  # right answers to one problem, so that easy ones do not prevail
    sampling: SamplingSettings = SamplingSettings()

    def __post_init__(self):
        if not 1 <= self.max_kept <= self.samples_per_problem or self.num_problems < 1:
            raise ConfigError(
                f"max_kept={self.max_kept} must lie in 1..{self.samples_per_problem}, "
                f"samples_per_problem, and num_problems={self.num_problems} be at least 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationStage:
    """Evaluates weights and trains nothing: what later stages are compared with.

    Left out where the recipe names no such weights, or has no problems to pose.
    """

    of: str = START


Stage = SftStage | RlStage | FusionStage | SampleStage | EvaluationStage
Trained = TypeVar("Trained", bound=SftStage | RlStage)


def of_length(stage: Trained, num_steps: int, *, warmup_share: float = 0.0) -> Trained:
    """A stage with as many steps, which a schedule of the stage's length follows.

    Where that has no warm-up, it gets this share of it; it is never more than half.
    """
    optimizer, schedule = stage.optimizer, stage.optimizer.schedule
    if isinstance(schedule, WarmupCosine) and schedule.num_steps == stage.num_steps:
        warmup = schedule.warmup_steps or math.ceil(warmup_share * num_steps)
        schedule = dataclasses.replace(
            schedule, num_steps=num_steps, warmup_steps=min(warmup, num_steps // 2)
        )
        optimizer = dataclasses.replace(optimizer, schedule=schedule)
    return dataclasses.replace(stage, num_steps=num_steps, optimizer=optimizer)


def of_sizes(stage: RlStage, *, group_size: int, max_new_tokens: int) -> RlStage:
    """A stage with groups and responses of other sizes, which the mean of its loss follows."""
    reduction: Any = stage.objective.reduction
    sizes = {"group_size": group_size, "max_response_tokens": max_new_tokens}
    known = {name: size for name, size in sizes.items() if hasattr(reduction, name)}
    reduction = dataclasses.replace(reduction, **known)
    return dataclasses.replace(
        stage,
        group_size=group_size,
        sampling=dataclasses.replace(stage.sampling, max_new_tokens=max_new_tokens),
        objective=dataclasses.replace(stage.objective, reduction=reduction),
    )


def inputs_of(stage: Stage) -> tuple[str, ...]:
    """Names of the stages, or of what the recipe gives, that a stage reads."""
    one = ("after", "samples_of", "reference", "teacher", "base", "of")
    names = [getattr(stage, field, None) for field in one]
    for field in ("experts", "wall_time_of"):
        names += getattr(stage, field, ())
    return tuple(filter(None, names))
