"""How large the bench is, and what every training run of it shares."""

import dataclasses
from pathlib import Path
from typing import Literal

from loong_jax.errors import ConfigError
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.launch.recipe import (
    EngineSettings,
    FileProblems,
    LocalVerifiers,
    Recipe,
    RlStage,
    SftStage,
)
from loong_jax.launch.recipes import straight
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.policy import DoraPolicy
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant, WarmupCosine
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import SamplingSettings

DOMAIN = "logic"  # of all problems here
HELD_OUT_SHARE = 0.2  # of problems for tests, and as much for validation, by a hash of the question
GROUP_SIZE = 8
PAGE = 16  # tokens
SLOTS = 64  # of a replica
NEVER = 1_000_000  # tickets: no run may end early, or it would consume less than the others


@dataclasses.dataclass(frozen=True, kw_only=True)
class Habits:
    """How the solver that a cold start imitates writes."""

    careful_share: float = 0.5  # of all: every value is written, and the answer is right
    guess_share: float = 0.0  # of the others, which write none: the answer is another instance's

    def __post_init__(self):
        if not (0 <= self.careful_share <= 1 and 0 <= self.guess_share <= 1):
            raise ConfigError(
                f"careful_share={self.careful_share} and guess_share={self.guess_share} must lie "
                "in [0, 1]. Use 0.5 for half."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynSize:
    """Of a part that poses problems of ReSyn's environments: learning or breadth."""

    environments: tuple[int, ...]  # of each arm
    instances: int  # of every arm, whatever its number of environments
    unseen: int = 8  # environments RL never poses; half of them are not in the cold start either
    levels: tuple[int, ...] = (1, 3)  # that RL poses; those between and beyond are held out
    cold_levels: int = 3  # that the cold start shows, from 1
    demonstrations: int = 150  # of an environment and level in the cold start, at most
    habits: Habits = Habits()  # of these demonstrations
    cold_steps: int = 450
    cold_end: float = 0.5  # share of the cold start's highest learning rate at its end
    steps: int = 50  # of every run that starts from the cold start
    groups_per_step: int = 24  # P; responses are P * 8
    rate: float = 3e-4  # of RL's learning, at its highest
    rate_end: float = 1.0  # share of it at the end
    other_levels: bool = True  # whether levels that RL does not pose are measured as well
    tests: int = 24  # held-out problems of an environment and level, at most
    fewest_tests: int = 12  # of one that counts; some pose few questions at level 1
    samples: int = 1  # of a held-out problem
    side: Literal["test", "validation"] = "test"  # that these are of; validation to choose settings

    def __post_init__(self):
        falls = sorted(set(self.environments), reverse=True)
        if not self.environments or list(self.environments) != falls or falls[-1] < 1:
            raise ConfigError(f"environments={self.environments} must fall to 1 or more: 24 12 6.")
        if odd := [n for n in self.environments if self.instances % n or self.instances < n]:
            raise ConfigError(
                f"instances={self.instances} is no multiple of {odd[0]} environments: arms would "
                "not be equal. Change one of the two."
            )
        if not self.levels or list(self.levels) != sorted(set(self.levels)):
            raise ConfigError(f"levels={self.levels} must name levels that rise: 1 3.")
        if not {self.cold_levels, *self.levels} <= {1, 2, 3, 4} or self.unseen < 0:
            raise ConfigError(
                f"levels={self.levels} and cold_levels={self.cold_levels} must lie in 1..4, since "
                f"of five levels one is shown by nothing, and unseen={self.unseen} be at least 0."
            )
        if not 1 <= self.fewest_tests <= self.tests:
            raise ConfigError(
                f"fewest_tests={self.fewest_tests} must lie in 1..{self.tests}, which is tests."
            )

    @property
    def shown_levels(self) -> int:
        """The highest level that the cold start or RL shows."""
        return max(*self.levels, self.cold_levels)

    @property
    def top_level(self) -> int:
        """The highest that is measured, which nothing shows."""
        return self.shown_levels + 1


# The solver that learning starts from has a bad habit, which is the same at every level.
LEARNING = ResynSize(
    environments=(12,),
    instances=1800,
    cold_levels=4,
    demonstrations=250,
    habits=Habits(guess_share=0.8),
    cold_steps=2400,
    cold_end=0.1,
    steps=30,
    rate=5e-4,
    rate_end=0.1,
    tests=64,
)
BREADTH = ResynSize(environments=(24, 12, 6), instances=480, steps=26, other_levels=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoongSize:
    """Of the part loong, which poses problems of LoongEnv and the seeds they were made from."""

    seeds: int = 6000  # questions that LoongEnv starts from; a fifth of them is held out
    items: int = 60  # that it is to make, by each of its three strategies
    demonstrations: int = 2400  # worked seeds in the cold start, at most
    cold_steps: int = 200
    cold_end: float = 0.5  # share of the cold start's highest learning rate at its end
    steps: int = 30  # of every run that starts from the cold start
    groups_per_step: int = 16  # P; responses are P * 8
    rate: float = 3e-4  # of RL's learning, at its highest
    rate_end: float = 1.0  # share of it at the end
    tests: int = 240  # held-out seeds to measure on, at most
    samples: int = 2  # of a held-out seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is trained on, for how long, and how closely it is looked at."""

    learning: ResynSize = LEARNING
    breadth: ResynSize = BREADTH
    loong: LoongSize = LoongSize()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """In tokens, which are characters here."""

    prompt: int  # with the mark before it
    response: int  # at most

    @property
    def whole(self) -> int:
        return -(-(self.prompt + self.response) // PAGE) * PAGE


RESYN = Lengths(prompt=40, response=72)
LOONGENV = Lengths(prompt=48, response=48)


def model() -> MoEConfig:
    return MoEConfig.tiny()


def recipe(
    file: Path,
    num_tests: int,
    lengths: Lengths,
    size: ResynSize | LoongSize,
    seed: int,
    side: Literal["test", "validation"] = "test",
) -> Recipe:
    """A cold start on the file's solutions, RL on its problems, and more of the former.

    `num_tests` is how many problems the file has on the held-out `side`, all of which are posed.
    """
    sampling = SamplingSettings(max_new_tokens=lengths.response)
    return dataclasses.replace(
        straight.problems(),
        seed=seed,
        model=model(),
        problems=FileProblems(file=file, held_out_share=HELD_OUT_SHARE),
        engine=EngineSettings(
            slots_per_replica=SLOTS,
            cache_length=lengths.whole,
            prefill_length=PAGE * 2,
            prefill_members=SLOTS,
            chunked_prefill=True,
            narrow_slots=(SLOTS // 4,),
            groups_per_replica=SLOTS // GROUP_SIZE,
            pages=PageConfig(num_pages=SLOTS * lengths.whole // PAGE, page_size=PAGE),
        ),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=EvaluationSettings(
            side=side,
            num_problems=num_tests,
            samples_per_problem=size.samples,
            sampling=sampling,
            greedy=False,
            pass_at=0,
        ),
        stages={
            "sft": _sft(lengths, size.cold_steps, WarmupCosine(
                peak=3e-3, warmup_steps=min(20, size.cold_steps // 2), num_steps=size.cold_steps,
                final_share=size.cold_end,
            )),
            "rl": _rl(sampling, lengths, size),
            "sft_continued": dataclasses.replace(
                _sft(lengths, size.steps, WarmupConstant(peak=3e-4, warmup_steps=8)), after="sft"
            ),
        },
    )  # fmt: skip


def _sft(lengths: Lengths, steps: int, schedule: WarmupCosine | WarmupConstant) -> SftStage:
    return SftStage(
        num_steps=steps,
        optimizer=AdamW(schedule=schedule, weight_decay=0.01),
        rows=16,
        row_length=lengths.whole,
    )


def _rl(sampling: SamplingSettings, lengths: Lengths, size: ResynSize | LoongSize) -> RlStage:
    return RlStage(
        after="sft",
        domains=(),
        num_steps=size.steps,
        scheduler=DoraPolicy(
            groups_per_step=size.groups_per_step,
            max_staleness=2,
            max_ahead=0.4,
            deterministic=True,
        ),
        objective=longcat_objective(
            group_size=GROUP_SIZE, max_response_tokens=sampling.max_new_tokens
        ),
        optimizer=AdamW(
            schedule=WarmupCosine(
                peak=size.rate,
                warmup_steps=min(4, size.steps // 2),
                num_steps=size.steps,
                final_share=size.rate_end,
            )
        ),
        group_size=GROUP_SIZE,
        sampling=sampling,
        rows=16,
        row_length=lengths.whole,
        reward=RewardRule(malformed=-0.5),
        checkpoint_every=max(10, size.steps // 2),
        solved_after=NEVER,
    )
