"""Recipes of one or two stages in a row, with the quickstart's model and problems."""

import dataclasses

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.recipes import (
    START,
    TEACHER,
    EngineSettings,
    EvaluationStage,
    FileProblems,
    Recipe,
    RlStage,
    SampleStage,
    SftStage,
    quickstart,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW
from loong_jax.rollout.records import SamplingSettings

GROUP_SIZE = 8
MAX_NEW_TOKENS = 96  # of an answer to a problem of one's own


# Before and after a stage, in minutes: pass@16 would take most of the time (--evaluation.pass-at).
EVALUATION = EvaluationSettings(
    num_problems=128,
    sampling=SamplingSettings(max_new_tokens=quickstart.MAX_NEW_TOKENS),
    pass_at=0,
)


def engine() -> EngineSettings:
    """Replicas whose lengths follow from the problems."""
    return EngineSettings(narrow_slots=(16, 64), groups_per_replica=2)


def problems() -> Recipe:
    """Trains on a file of your own problems: cold start on its solutions, then RL.

    Command: loong train problems --problems FILE.jsonl; with --start-from DIR there is no cold
    start, and the file needs no solutions. Machine: 2 CPU cores, 3 GB.
    docs/tutorials/own_problems.md says what the file holds and has an example. Without
    --start-from the model is the quickstart's, which reads and writes printable ASCII, a token per
    character.
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
            "before": EvaluationStage(),
            "sft": SftStage(
                is_cold_start=True,
                num_steps=600,
                optimizer=AdamW(
                    schedule=dataclasses.replace(quickstart.SFT_SCHEDULE, num_steps=600),
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
                optimizer=AdamW(schedule=quickstart.RL_SCHEDULE),
                group_size=GROUP_SIZE,
                sampling=sampling,
                rows=16,
            ),
        },
    )


def sft() -> Recipe:
    """Fine-tuning alone: the cold start of the quickstart, or conversations of your own.

    Command: loong train sft --start-from DIR --data chat.jsonl, where DIR is a checkpoint as
    Hugging Face has it, a run, or an import; each line has `messages`, or `prompt` and `response`.
    A model of its own tokens takes three epochs of them, at a rate of up to 2e-5 (2e-4 with --lora)
    after 3 % of warm-up, unless options say otherwise. Without --start-from weights are fresh,
    without --data it learns the quickstart's solutions. Machine: 2 CPU cores, 3 GB for a model of a
    million parameters.
    """
    real = quickstart.quickstart()
    return Recipe(
        name="sft",
        model=real.model,
        problems=real.problems,
        engine=engine(),
        evaluation=EVALUATION,
        stages={
            "before": EvaluationStage(),
            "sft": dataclasses.replace(real.stages["sft"], row_length=0),
        },
    )


def rl() -> Recipe:
    """Reinforcement learning alone, on a file of problems or the quickstart's three domains.

    Command: loong train rl --start-from DIR --problems mine.jsonl, where DIR is a checkpoint as
    Hugging Face has it, a run (its last finished stage), a stage of one, or an import. The weights
    are evaluated before and after. A model of its own tokens is trained at a rate of 2e-6 (2e-5
    with --lora) unless an option gives another. Machine: 2 CPU cores, 3 GB for a model of a million
    parameters.
    """
    real = quickstart.quickstart()
    return Recipe(
        name="rl",
        model=real.model,
        problems=real.problems,
        engine=engine(),
        evaluation=EVALUATION,
        stages={
            "before": EvaluationStage(),
            "rl": dataclasses.replace(quickstart.rl_stage(START, (), num_steps=50), row_length=0),
        },
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
        engine=engine(),
        evaluation=EVALUATION,
        stages={
            "samples": SampleStage(
                teacher=TEACHER,
                num_problems=1024,
                sampling=SamplingSettings(max_new_tokens=quickstart.MAX_NEW_TOKENS),
            ),
            "sft": dataclasses.replace(shown, first_pairs=0, samples_of="samples", row_length=0),
        },
    )
