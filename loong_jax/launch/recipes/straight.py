"""Recipes of one or two stages in a row, with the quickstart's model and problems."""

import dataclasses

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.launch.recipe import (
    START,
    TEACHER,
    EngineSettings,
    FileProblems,
    Recipe,
    RlStage,
    SampleStage,
    SftStage,
)
from loong_jax.launch.recipes import quickstart
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.policy import DoraPolicy
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant, WarmupCosine
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
MAX_NEW_TOKENS = 96  # of an answer to a problem of one's own


def problems() -> Recipe:
    """Trains on a file of your own problems: cold start on its solutions, then RL.

    Command: loong train problems --problems FILE.jsonl; with --start-from RUN there is no cold
    start, and the file needs no solutions. Machine: 2 CPU cores, 3 GB. docs/own_problems.md says
    what the file holds and has an example. Prompts and answers are printable ASCII, prompt and
    answer together 256 tokens, which are characters here.
    """
    sampling = SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)
    return Recipe(
        name="problems",
        model=MoEConfig.tiny(),
        problems=FileProblems(),
        engine=EngineSettings(
            slots_per_replica=64,
            prefill_members=64,
            chunked_prefill=True,
            narrow_slots=(16,),
            groups_per_replica=4,
        ),
        evaluation=EvaluationSettings(num_problems=128, sampling=sampling),
        stages={
            "sft": SftStage(
                is_cold_start=True,
                num_steps=600,
                optimizer=AdamW(
                    schedule=WarmupCosine(
                        peak=3e-3, warmup_steps=20, num_steps=600, final_share=0.1
                    ),
                    weight_decay=0.01,
                ),
                rows=8,
            ),
            "rl": RlStage(
                after="sft",
                domains=(),
                num_steps=20,
                scheduler=DoraPolicy(groups_per_step=16, max_staleness=2, max_ahead=0.4),
                objective=longcat_objective(
                    group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
                ),
                optimizer=AdamW(schedule=WarmupConstant(peak=1e-4, warmup_steps=8)),
                group_size=GROUP_SIZE,
                sampling=sampling,
                rows=16,
            ),
        },
    )


def sft() -> Recipe:
    """The cold start of the quickstart alone, or more of it for a model that there is.

    Command: loong train sft; with --start-from RUN it goes on from those weights. Machine: 2 CPU
    cores, 3 GB.
    """
    real = quickstart.quickstart()
    return Recipe(
        name="sft",
        model=real.model,
        problems=real.problems,
        engine=real.engine,
        evaluation=real.evaluation,
        stages={"sft": real.stages["sft"]},
    )


def rl() -> Recipe:
    """Reinforcement learning alone, on the quickstart's three domains by turns.

    Command: loong train rl --start-from runs/sft. It takes a run (its last finished stage), a
    stage of one, or what `loong import-hf` made of a model with the quickstart's tokens. Machine:
    2 CPU cores, 3 GB.
    """
    real = quickstart.quickstart()
    return Recipe(
        name="rl",
        model=real.model,
        problems=real.problems,
        engine=real.engine,
        evaluation=real.evaluation,
        stages={"rl": quickstart.rl_stage(START, (), num_steps=50)},
    )


def distill() -> Recipe:
    """A fresh student learns a teacher's right answers: rejection sampling, then SFT.

    Command: loong train distill --teacher runs/quickstart. The teacher answers problems of the
    training side, verifiers keep what is right, and the student, of any size, learns it. Machine:
    2 CPU cores, 3 GB.
    """
    real = quickstart.quickstart()
    shown = real.stages["sft"]
    assert isinstance(shown, SftStage)
    return Recipe(
        name="distill",
        model=real.model,
        problems=real.problems,
        engine=real.engine,
        evaluation=real.evaluation,
        stages={
            "samples": SampleStage(
                teacher=TEACHER,
                num_problems=1024,
                sampling=SamplingSettings(max_new_tokens=quickstart.MAX_NEW_TOKENS),
            ),
            "sft": dataclasses.replace(shown, first_pairs=0, samples_of="samples"),
        },
    )
