"""Reinforcement learning on environment packages, as `loong synth resyn` writes them."""

import dataclasses

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.recipes import (
    EngineSettings,
    LocalVerifiers,
    PackagedProblems,
    Recipe,
    RlStage,
    SftStage,
    quickstart,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
MAX_NEW_TOKENS = 96
SAMPLING = SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)


def environments() -> Recipe:
    """Cold start on worked solutions of the packages, then RL with their verifiers.

    Command: loong train environments --packages OUT/packages. Machine: 2 CPU cores, 3 GB. Made for
    packages with short questions (--max-prompt-chars); how well it does was not measured.
    """
    return Recipe(
        name="environments",
        model=MoEConfig.tiny(),
        problems=PackagedProblems(),
        engine=EngineSettings(
            slots_per_replica=64,
            cache_length=176,
            prefill_length=32,
            prefill_members=32,
            chunked_prefill=True,
            pages=PageConfig(num_pages=704, page_size=16),
        ),
        verifiers=LocalVerifiers(),
        evaluation=EvaluationSettings(num_problems=8, sampling=SAMPLING),
        stages={
            "sft": SftStage(
                num_steps=600,
                optimizer=AdamW(
                    schedule=dataclasses.replace(quickstart.SFT_SCHEDULE, num_steps=600),
                    weight_decay=0.01,
                ),
                rows=16,
                row_length=192,
            ),
            "rl": RlStage(
                after="sft",
                domains=(),
                num_steps=40,
                scheduler=DoraPolicy(groups_per_step=16, max_staleness=2, max_ahead=0.4),
                objective=longcat_objective(
                    group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
                ),
                optimizer=AdamW(schedule=quickstart.SHORT_SCHEDULE),
                group_size=GROUP_SIZE,
                sampling=SAMPLING,
                rows=16,
                row_length=176,
                reward=RewardRule(malformed=-0.5),
            ),
        },
    )
