"""The miniature of the whole recipe, for one machine without accelerator."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.recipes import (
    DomainProblems,
    EngineSettings,
    FusionStage,
    GeneratedProblems,
    RayVerifiers,
    Recipe,
    RlStage,
    SftStage,
    Stage,
    ThinkingStyle,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant, WarmupCosine
from loong_jax.rl.rewards import NoiseReward, RepetitionDetector, RewardRule
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
MAX_NEW_TOKENS = 48
UNBOUNDED = 100_000  # steps; the time limit comes first
DOMAINS = ("stem", "logic", "code")
EXPERTS = {f"rl_{domain}": domain for domain in DOMAINS}
# Rates for a model of a million parameters.
SFT_SCHEDULE = WarmupCosine(peak=3e-3, warmup_steps=20, num_steps=900, final_share=0.1)
RL_SCHEDULE, SHORT_SCHEDULE = (WarmupConstant(peak=1e-4, warmup_steps=n) for n in (8, 4))
# Marks before each step of a thought: all are written down, or some are leapt over, which is right
# in a demonstration and hard to repeat.
CAREFUL, HURRIED = "=", "~"
NUM_HURRIED_STEPS = 3
NOISE_SEEDS = range(6)  # noise is a random walk, so one run of it proves little
MOSTLY_HURRIED = ThinkingStyle(careful_share=0.35)
COLD_START = SftStage(
    num_steps=900,
    optimizer=AdamW(schedule=SFT_SCHEDULE, weight_decay=0.01),
    rows=15,
    micro_rows=5,  # of so few a CPU keeps the temporaries in its caches
    row_length=76,  # each holds one demonstration: the longest have 75 tokens
    thinking=dataclasses.replace(MOSTLY_HURRIED, first_pairs=9500),
)


def quickstart() -> Recipe:
    """Trains a LongCat-Flash reasoner of a million parameters, from nothing to a report.

    Command: make quickstart, or loong train quickstart. Machine: 2 CPU cores, 3 GB; six minutes
    when idle. Expect sampled pass@1 of 30 to 40 % in every domain after the cold start,
    80 to 90 % for each expert in its own domain. The fused model came out between 3.4 points below
    and 10 above the expert of a domain, from run to run.

    The cold start shows two ways of thinking, both ending in right answers: careful ones write down
    every value, hurried ones leap over some and are hard to repeat. It masters the careful way and
    leaves mostly the hurried one; which of them pays is for reinforcement learning to find out.
    """
    return Recipe(
        name="quickstart",
        model=MoEConfig.tiny(chunk_tokens=None, unroll_layers=True),
        model_of_start=True,
        problems=three_domains(),
        engine=EngineSettings(
            cache_length=80,
            prefill_lengths=(32,),
            prefill_prompts=2,  # more hardly come at a time
            narrow_slots=(16, 32),
            groups_per_replica=4,
        ),
        verifiers=RayVerifiers(),
        evaluation=EvaluationSettings(
            num_problems=512, sampling=SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)
        ),
        stages={
            "sft": COLD_START,
            **{name: rl_stage("sft", (domain,), num_steps=50) for name, domain in EXPERTS.items()},
            "fused": FusionStage(base="sft", experts=tuple(EXPERTS)),
            "general": dataclasses.replace(
                rl_stage("fused", DOMAINS, num_steps=8),
                scheduler=DoraPolicy(groups_per_step=16, max_staleness=2, max_ahead=0.4),
                solved_after=5000,  # the fused model solves most problems: look for those it cannot
            ),
        },
        experts=tuple(EXPERTS.items()),
    )


def three_domains() -> GeneratedProblems:
    """The problems of the quickstart, two of whose domains are shown in other shares."""
    return GeneratedProblems(
        domains={
            "stem": DomainProblems(environment="vector_sum", levels=(2,)),
            "logic": DomainProblems(environment="gates", levels=(2,), demonstration_share=0.8),
            "code": DomainProblems(environment="masks", levels=(2,), demonstration_share=2.0),
        }
    )


def rl_stage(after: str, domains: tuple[str, ...], *, num_steps: int) -> RlStage:
    return RlStage(
        after=after,
        domains=domains,
        num_steps=num_steps,
        scheduler=DoraPolicy(groups_per_step=32, max_staleness=2, max_ahead=0.4),
        objective=longcat_objective(group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS),
        optimizer=AdamW(schedule=RL_SCHEDULE),
        group_size=GROUP_SIZE,
        sampling=SamplingSettings(max_new_tokens=MAX_NEW_TOKENS),
        rows=4,  # of so few a CPU keeps the temporaries in its caches
        score_rows=2,  # most hold a group
        row_length=176,
        # No right response comes near the limit here: what reaches it runs on in circles. Masked
        # instead, such responses would go unpunished and take over.
        reward=RewardRule(repetition=RepetitionDetector(threshold=1.2, window=200, min_length=24)),
    )


def controls() -> Recipe:
    """The quickstart's controls: rewards of noise, and more of the cold start, at equal wall time.

    Command: loong train quickstart-controls --from runs/quickstart. Each control starts from that
    run's cold start and trains for as long as the expert it is compared with (the continued cold
    start: as long as all three), so the machine should be the same. No control should gain.
    """
    real = quickstart()
    noise = {
        name: tuple(f"noise_{domain}_{seed}" for seed in NOISE_SEEDS)
        for name, domain in EXPERTS.items()
    }
    stages: dict[str, Stage] = {
        names[seed]: noise_control(real.stages[name], name, seed)
        for seed in NOISE_SEEDS
        for name, names in noise.items()
    }
    stages["sft_continued"] = dataclasses.replace(
        COLD_START,
        after="sft",
        thinking=MOSTLY_HURRIED,
        num_steps=UNBOUNDED,
        optimizer=AdamW(schedule=WarmupConstant(peak=3e-4, warmup_steps=8), weight_decay=0.01),
        wall_time_of=tuple(EXPERTS),
    )
    return dataclasses.replace(
        real,
        name="quickstart-controls",
        stages=stages,
        experts=(),
        controls={
            "noise reward": noise,
            "continued SFT": dict.fromkeys(noise, ("sft_continued",)),
        },
    )


def noise_control(real: Stage, name: str, seed: int) -> RlStage:
    assert isinstance(real, RlStage)
    rule = real.reward if isinstance(real.reward, RewardRule) else real.reward.rule
    return dataclasses.replace(
        real,
        reward=NoiseReward(rule=rule, seed=seed),
        num_steps=UNBOUNDED,
        wall_time_of=(name,),
    )


def thinking(steps: Sequence[str], rng: np.random.Generator, *, is_careful: bool) -> str:
    """Steps as `=314=013=240=244`, or hurried `~013~240~244`: two drawn by `rng`, and the last.

    Fewer than three steps are all written; without steps there is no thinking.
    """
    mark = CAREFUL if is_careful else HURRIED
    if not is_careful and len(steps) >= NUM_HURRIED_STEPS:
        early = rng.choice(len(steps) - 1, NUM_HURRIED_STEPS - 1, replace=False)
        steps = [steps[place] for place in (*sorted(early.tolist()), -1)]
    return "".join(mark + step for step in steps)
