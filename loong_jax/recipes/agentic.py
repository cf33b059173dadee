"""A miniature of agentic reinforcement learning: problems that cannot be solved without a tool."""

import dataclasses

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.recipes import (
    DomainProblems,
    EngineSettings,
    GeneratedProblems,
    RayVerifiers,
    Recipe,
    RlStage,
    SftStage,
    ToolSettings,
    quickstart,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.agentic.agent import TurnLimits
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
MAX_NEW_TOKENS = 128  # of all turns together, those of tools included
SAMPLING = SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)


def agentic_mini() -> Recipe:
    """Prices of baskets: the policy calls a price list, reads what it answers, and adds up.

    Command: loong train agentic-mini. Machine: 2 CPU cores, 3 GB. How well it does was not
    measured; that its turns, calls and caches are what they should be is tested.
    """
    return Recipe(
        name="agentic-mini",
        model=MoEConfig.tiny(),
        problems=GeneratedProblems(
            domains={"stem": DomainProblems(environment="basket", levels=(1,))}
        ),
        engine=EngineSettings(
            slots_per_replica=32,
            cache_length=144,
            prefill_length=16,
            prefill_members=32,
            chunked_prefill=True,
            groups_per_replica=6,
            pages=PageConfig(num_pages=288, page_size=16),
        ),
        tools=ToolSettings(names=("prices",), limits=TurnLimits(max_turns=3, timeout_s=10.0)),
        verifiers=RayVerifiers(),
        evaluation=EvaluationSettings(num_problems=128, sampling=SAMPLING),
        stages={
            "sft": SftStage(
                num_steps=600,
                optimizer=AdamW(
                    schedule=dataclasses.replace(quickstart.SFT_SCHEDULE, num_steps=600),
                    weight_decay=0.01,
                ),
                rows=8,
                row_length=256,
            ),
            "rl": RlStage(
                after="sft",
                domains=("stem",),
                num_steps=20,
                scheduler=DoraPolicy(groups_per_step=16, max_staleness=2, max_ahead=0.4),
                objective=longcat_objective(
                    group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
                ),
                optimizer=AdamW(schedule=quickstart.SHORT_SCHEDULE),
                group_size=GROUP_SIZE,
                sampling=SAMPLING,
                rows=16,
                row_length=160,
                reward=RewardRule(malformed=-0.5),  # a form is learnt before a sum
            ),
        },
    )
