"""Recipes of one or two stages in a row."""

import dataclasses
from pathlib import Path

from loong_jax.errors import ConfigError
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.launch.recipe.engine import EngineSettings, LocalVerifiers, RayVerifiers
from loong_jax.launch.recipe.problems import FileProblems, OneDomain, PackagedProblems, Problems
from loong_jax.launch.recipe.stages import RlStage, SampleStage, SftStage, StageSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.rollout.agentic.agent import TurnLimits

START, TEACHER = "start", "teacher"  # what stages call the weights that a recipe names


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """What samples may call; which of it a problem offers is for the problem to say."""

    names: tuple[str, ...]  # of loong_jax.launch.tools.TOOLS
    limits: TurnLimits = TurnLimits()
    max_parked: int = 256  # samples of a replica whose tools run; above it no prompt is begun
    max_calls_at_once: int = 16  # of a replica
    describe: bool = False  # in every prompt; False where the cold start teaches what there is


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgenticRecipe:
    """Cold start and reinforcement learning on problems that require tools."""

    name: str
    seed: int = 0
    model: MoEConfig
    bias_rate: float = 0.01
    problems: OneDomain
    engine: EngineSettings
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    tools: ToolSettings
    sft: SftStage
    rl: RlStage

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run."""
        return {"sft": self.sft, "rl": self.rl}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentsRecipe:
    """Cold start and reinforcement learning on environment packages."""

    name: str
    packages: str = ""  # a directory of packages, such as OUT/packages of `loong synth resyn`
    package_names: tuple[str, ...] = ()  # () for all
    levels: tuple[int, ...] = ()  # () for those of each package
    max_prompt_chars: int = 64  # packages with longer questions at these levels are left out
    seed: int = 0
    model: MoEConfig
    bias_rate: float = 0.01
    engine: EngineSettings
    verifiers: LocalVerifiers | RayVerifiers = LocalVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    sft: SftStage
    rl: RlStage

    @property
    def problems(self) -> PackagedProblems:
        return PackagedProblems(
            directory=self.packages,
            names=self.package_names,
            levels=self.levels,
            max_prompt_chars=self.max_prompt_chars,
        )

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run."""
        return {"sft": self.sft, "rl": self.rl}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnProblemsRecipe:
    """Reinforcement learning on a file of problems, after a cold start on its worked solutions.

    With `start_from`, what `loong import-hf` or a stage of a run wrote, there is no cold start, and
    the model is the one found there. `sft_continued` is what RL is compared with: more fine-tuning,
    on the solutions of the file.
    """

    name: str
    seed: int = 0
    model: MoEConfig
    start_from: Path | None = None
    bias_rate: float = 0.01
    problems: FileProblems = FileProblems()
    engine: EngineSettings
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    sft: SftStage
    rl: RlStage
    sft_continued: SftStage | None = None

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run."""
        if self.start_from is not None:
            return {"rl": dataclasses.replace(self.rl, after=START)}
        stages: dict[str, StageSettings] = {"sft": self.sft, "rl": self.rl}
        if self.sft_continued is not None:
            stages["sft_continued"] = dataclasses.replace(self.sft_continued, after="sft")
        return stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftRecipe:
    """Supervised fine-tuning alone, of fresh weights or of `start_from`."""

    name: str
    seed: int = 0
    model: MoEConfig
    start_from: Path | None = None
    bias_rate: float = 0.01
    problems: Problems
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    sft: SftStage

    def stages(self) -> dict[str, StageSettings]:
        """The stage by name."""
        after = None if self.start_from is None else START
        return {"sft": dataclasses.replace(self.sft, after=after)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RlRecipe:
    """Reinforcement learning alone, of the weights in `start_from`.

    A penalty of the objective pulls to the `teacher`, a model of the same sizes, or where there is
    none to the weights that it starts from.
    """

    name: str
    seed: int = 0
    model: MoEConfig
    start_from: Path | None = None
    teacher: Path | None = None
    bias_rate: float = 0.01
    problems: Problems
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    rl: RlStage

    def __post_init__(self):
        if self.teacher is not None and self.rl.objective.kl is None:
            raise ConfigError(
                f"teacher={self.teacher} would teach nothing: rl.objective.kl is None. Use an "
                "objective with a penalty, such as grpo_objective(beta=...)."
            )

    def stages(self) -> dict[str, StageSettings]:
        """The stage by name."""
        reference = None if self.teacher is None else TEACHER
        return {"rl": dataclasses.replace(self.rl, after=START, reference=reference)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillRecipe:
    """A student learns the teacher's right answers (rejection sampling).

    The teacher may be of other sizes; the student begins with `start_from` or with fresh weights.
    """

    name: str
    seed: int = 0
    model: MoEConfig  # of the student
    start_from: Path | None = None
    teacher: Path | None = None
    bias_rate: float = 0.01
    problems: Problems
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    samples: SampleStage
    sft: SftStage

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run."""
        after = None if self.start_from is None else START
        return {
            "samples": self.samples,
            "sft": dataclasses.replace(self.sft, after=after, samples_of="samples"),
        }
