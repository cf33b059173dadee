"""The whole of LongCat-Flash-Thinking's recipe, and the controls of its miniature."""

import dataclasses

from loong_jax.errors import ConfigError
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.launch.recipe.engine import EngineSettings, LocalVerifiers, RayVerifiers
from loong_jax.launch.recipe.problems import Problems
from loong_jax.launch.recipe.stages import FusionStage, RlStage, SftStage, StageSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.rl.rewards import NoiseReward


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongcatRecipe:
    """Cold start, one expert per domain, fusion, general RL (arXiv:2509.18883, Fig. 2)."""

    name: str
    seed: int = 0
    model: MoEConfig
    bias_rate: float = 0.01  # of the routers' bias controller
    problems: Problems
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    sft: SftStage
    rl_stem: RlStage
    rl_logic: RlStage
    rl_code: RlStage
    fused: FusionStage
    general: RlStage

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run."""
        names = ("sft", "rl_stem", "rl_logic", "rl_code", "fused", "general")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlsRecipe:
    """What a sceptic asks for, from the same cold start and for the same wall time per expert:

    the reward replaced by noise of the same mean and group variance, and more of the cold start.
    Noise is a random walk, so one run of it proves little: each of `noise_seeds` has its own run.
    """

    name: str
    seed: int = 0
    model: MoEConfig
    bias_rate: float = 0.01
    problems: Problems
    engine: EngineSettings = EngineSettings()
    verifiers: LocalVerifiers | RayVerifiers = RayVerifiers()
    evaluation: EvaluationSettings = EvaluationSettings()
    noise_seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)  # each noise control is repeated with each
    noise_stem: RlStage
    noise_logic: RlStage
    noise_code: RlStage
    sft_continued: SftStage

    def __post_init__(self):
        for domain, stage in self._noise().items():
            if not isinstance(stage.reward, NoiseReward):
                raise ConfigError(
                    f"noise_{domain}.reward={stage.reward!r} is no NoiseReward. A control that "
                    "rewards right answers controls nothing; give it NoiseReward(rule=...)."
                )

    def stages(self) -> dict[str, StageSettings]:
        """Stages by name, in the order they run; all start from another run's `sft`."""
        stages: dict[str, StageSettings] = {
            _noise_stage(domain, seed): dataclasses.replace(
                stage, reward=dataclasses.replace(stage.reward, seed=seed)
            )
            for seed in self.noise_seeds
            for domain, stage in self._noise().items()
        }
        return stages | {"sft_continued": self.sft_continued}

    def stands_for(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By control: which of our stages are compared with which expert of the real run."""
        noise = {
            f"rl_{domain}": tuple(_noise_stage(domain, seed) for seed in self.noise_seeds)
            for domain in self._noise()
        }
        return {"noise reward": noise, "continued SFT": dict.fromkeys(noise, ("sft_continued",))}

    def _noise(self) -> dict[str, RlStage]:
        return {"stem": self.noise_stem, "logic": self.noise_logic, "code": self.noise_code}


def _noise_stage(domain: str, seed: int) -> str:
    return f"noise_{domain}_{seed}"
