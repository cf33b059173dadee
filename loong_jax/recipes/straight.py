"""Recipes of one or two stages in a row: with the quickstart's model, and over many processes."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.recipes import (
    START,
    TEACHER,
    DomainProblems,
    EngineSettings,
    EvaluationStage,
    FileProblems,
    GeneratedProblems,
    LocalVerifiers,
    MeshSettings,
    PackagedProblems,
    PodSettings,
    RayVerifiers,
    Recipe,
    RlStage,
    SampleStage,
    SftStage,
    Stage,
    ThinkingStyle,
    ToolSettings,
    quickstart,
)
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupCosine
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.agentic.agent import TurnLimits
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import SamplingSettings

MAX_NEW_TOKENS = 96  # of an answer to a problem of one's own
# Rows of several examples of any length, of which not all are known.
PACKED = dict(rows=5, micro_rows=0, row_length=0)
# A form is learnt before a sum.
FORM_FIRST = {
    "optimizer": AdamW(schedule=quickstart.SHORT_SCHEDULE),
    "reward": RewardRule(malformed=-0.5),
}


def problems() -> Recipe:
    """Trains on a file of your own problems: cold start on its solutions, then RL.

    Command: loong train problems --problems FILE.jsonl; with --start-from DIR there is no cold
    start, and the file needs no solutions. Machine: 2 CPU cores, 3 GB.
    docs/tutorials/own_problems.md says what the file holds and has an example. Without
    --start-from the model is the quickstart's, which reads and writes printable ASCII, a token per
    character.
    """
    sft, rl = _small_stages(MAX_NEW_TOKENS)
    return _of_tiny(
        "problems",
        problems=FileProblems(),
        engine=EngineSettings(
            slots_per_replica=64,
            prefill_members=64,
            chunked_prefill=True,
            narrow_slots=(16,),
            groups_per_replica=4,
        ),
        evaluation=EvaluationSettings(num_problems=128, sampling=rl.sampling),
        stages={
            "before": EvaluationStage(),
            "sft": dataclasses.replace(sft, always_runs=False),
            "rl": rl,
        },
    )


def environments() -> Recipe:
    """Cold start on worked solutions of the packages, then RL with their verifiers.

    The packages are those that `loong synth resyn` writes. Command: loong train environments
    --packages OUT/packages. Machine: 2 CPU cores, 3 GB. Made for packages with short questions
    (--max-prompt-chars); how well it does was not measured. With --start-from DIR there is no cold
    start, unless --sft.always-runs asks for it.
    """
    sft, rl = _small_stages(MAX_NEW_TOKENS)
    return _of_tiny(
        "environments",
        problems=PackagedProblems(),
        engine=EngineSettings(
            slots_per_replica=64,
            cache_length=176,
            prefill_lengths=(32,),
            prefill_members=32,
            chunked_prefill=True,
            pages=PageConfig(num_pages=704, page_size=16),
        ),
        verifiers=LocalVerifiers(),
        evaluation=EvaluationSettings(num_problems=8, sampling=rl.sampling),
        stages={
            "before": EvaluationStage(),
            "sft": dataclasses.replace(sft, rows=16, row_length=192, always_runs=False),
            "rl": dataclasses.replace(rl, num_steps=40, row_length=176, **FORM_FIRST),
        },
    )


def agentic_mini() -> Recipe:
    """Prices of baskets: the policy calls a price list, reads what it answers, and adds up.

    A miniature of RL on problems that cannot be solved without a tool.
    Command: loong train agentic-mini. Machine: 2 CPU cores, 3 GB. How well it does was not
    measured; that its turns, calls and caches are what they should be is tested.
    """
    sft, rl = _small_stages(128)  # of all turns together, those of tools included
    return _of_tiny(
        "agentic-mini",
        problems=GeneratedProblems(
            domains={"stem": DomainProblems(environment="basket", levels=(1,))}
        ),
        engine=EngineSettings(
            slots_per_replica=32,
            cache_length=144,
            prefill_lengths=(16,),
            prefill_members=32,
            chunked_prefill=True,
            groups_per_replica=6,
            pages=PageConfig(num_pages=288, page_size=16),
        ),
        tools=ToolSettings(names=("prices",), limits=TurnLimits(max_turns=3, timeout_s=10.0)),
        verifiers=RayVerifiers(),
        evaluation=EvaluationSettings(num_problems=128, sampling=rl.sampling),
        stages={
            "sft": dataclasses.replace(sft, row_length=256, always_runs=False),
            "rl": dataclasses.replace(rl, domains=("stem",), row_length=160, **FORM_FIRST),
        },
    )


def _of_tiny(name: str, **settings: Any) -> Recipe:
    return Recipe(name=name, model=MoEConfig.tiny(), model_of_start=True, **settings)


def _small_stages(max_new_tokens: int) -> tuple[SftStage, RlStage]:
    """A cold start and RL after it, for a model of a million parameters."""
    schedule = dataclasses.replace(quickstart.SFT_SCHEDULE, num_steps=600)
    optimizer = AdamW(schedule=schedule, weight_decay=0.01)
    sft = SftStage(num_steps=600, optimizer=optimizer, rows=8, thinking=ThinkingStyle())
    rl = RlStage(
        after="sft",
        domains=(),
        num_steps=20,
        scheduler=DoraPolicy(groups_per_step=16, max_staleness=2, max_ahead=0.4),
        objective=longcat_objective(
            group_size=quickstart.GROUP_SIZE, max_response_tokens=max_new_tokens
        ),
        optimizer=AdamW(schedule=quickstart.RL_SCHEDULE),
        group_size=quickstart.GROUP_SIZE,
        sampling=SamplingSettings(max_new_tokens=max_new_tokens),
        rows=16,
    )
    return sft, rl


def _of_quickstart(name: str, stages: dict[str, Stage]) -> Recipe:
    """Stages on the quickstart's model and problems; lengths follow from what is posed."""
    return _of_tiny(
        name,
        problems=quickstart.three_domains(),
        engine=EngineSettings(narrow_slots=(16, 64), groups_per_replica=2),
        # in minutes: pass@16 would take most of the time (--evaluation.pass-at)
        evaluation=EvaluationSettings(
            num_problems=128,
            sampling=SamplingSettings(max_new_tokens=quickstart.MAX_NEW_TOKENS),
            pass_at=0,
        ),
        stages=stages,
    )


def sft() -> Recipe:
    """Fine-tuning alone: the cold start of the quickstart, or conversations of your own.

    Command: loong train sft --start-from DIR --data chat.jsonl, where DIR is a checkpoint as
    Hugging Face has it, a run, or an import; each line has `messages`, or `prompt` and `response`.
    A model of its own tokens takes three epochs of them, at a rate of up to 2e-5 (2e-4 with --lora)
    after 3 % of warm-up, unless options say otherwise. Without --start-from weights are fresh,
    without --data it learns solutions of the problems of the run it starts from, or of the
    quickstart's. Machine: 2 CPU cores, 3 GB for a model of a
    million parameters.
    """
    cold = dataclasses.replace(quickstart.COLD_START, **PACKED)
    return _of_quickstart("sft", {"before": EvaluationStage(), "sft": cold})


def rl() -> Recipe:
    """Reinforcement learning alone, on a file of problems or on those of the run it starts from.

    Command: loong train rl --start-from DIR --problems mine.jsonl, where DIR is a checkpoint as
    Hugging Face has it, a run (its last finished stage), a stage of one, or an import. Without
    --problems those of that run are posed, or the quickstart's three domains where DIR is of no
    run. The weights are evaluated before and after. A model of its own tokens is trained at a rate
    of 2e-6 (2e-5 with --lora) unless an option gives another. Machine: 2 CPU cores, 3 GB for a
    model of a million parameters.
    """
    stage = quickstart.rl_stage(START, (), num_steps=50)
    stage = dataclasses.replace(stage, rows=16, row_length=0)
    return _of_quickstart("rl", {"before": EvaluationStage(), "rl": stage})


def distill() -> Recipe:
    """A fresh student learns a teacher's right answers: rejection sampling, then SFT.

    Command: loong train distill --teacher runs/quickstart. The teacher answers problems of the
    training side, verifiers keep what is right, and the student, of any size, learns it. Machine:
    2 CPU cores, 3 GB.
    """
    samples = SampleStage(
        teacher=TEACHER,
        num_problems=1024,
        sampling=SamplingSettings(max_new_tokens=quickstart.MAX_NEW_TOKENS),
    )
    sft = dataclasses.replace(
        quickstart.COLD_START,
        thinking=quickstart.MOSTLY_HURRIED,
        samples_of="samples",
        **PACKED,
    )
    return _of_quickstart("distill", {"samples": samples, "sft": sft})


# ---- over the devices of several processes: the same command on every host ----------------------


def pod_sft() -> Recipe:
    """Trains the quickstart's model of a million parameters on a mesh of sixteen devices.

    Command, the same on every host: loong train pod-sft --checkpoints gs://BUCKET/RUN/checkpoints.
    Machine: a slice of 16 chips, such as v5e:4x4; for another one give --mesh.* sizes whose product
    is its number of devices. It is a rehearsal of everything but size: sharded weights,
    checkpoints, preemption, resumption. It has run on CPU devices only.
    """
    return Recipe(
        name="pod-sft",
        model=MoEConfig.tiny(chunk_tokens=None),
        problems=quickstart.three_domains(),
        mesh=MeshSettings(fsdp=4, expert=4),
        pod=PodSettings(),
        stages={
            "sft": SftStage(
                num_steps=900,
                optimizer=_pod_optimizer(peak=3e-3, num_steps=900),
                rows=32,
                row_length=216,
                thinking=ThinkingStyle(first_pairs=60_000),
            )
        },
    )


def pod_sft_flash() -> Recipe:
    """Trains LongCat-Flash, 560.7 billion parameters, in bfloat16 over float32 weights and moments.

    Command, the same on every host: loong train pod-sft-flash --checkpoints
    gs://BUCKET/RUN/checkpoints. With --start-from DIR it starts from what `loong import-hf` wrote
    to DIR. Machine: 512 chips of 95 GB, such as v5p:8x8x8. Its state, 12 bytes a parameter, is
    13.1 GB a chip. Nobody has run it: whether the rest fits is for `loong plan` to say.

    Adam's epsilon is the published one, the weight of the hidden z-loss what readings of the report
    give (arXiv:2509.01322). The weight of the drafting head is that of the later part of
    DeepSeek-V3's training (arXiv:2412.19437, section 4.2). The balance loss has no published
    weight: give `losses` a `DeviceBalance` of 32 groups whose weight keeps `router/stability_ratio`
    below 0.1, the report's rule. Nor has the bias controller a published rate: errors and scores
    are both 1 / A in the mean, so that of the small recipes means the same here.
    """
    return Recipe(
        name="pod-sft-flash",
        model=MoEConfig.flash(param_dtype=jnp.float32, num_mtp_layers=1),
        problems=quickstart.three_domains(),
        mesh=MeshSettings(fsdp=16, expert=32),
        pod=PodSettings(losses=AuxiliaryLosses(mtp=0.1, hidden_z=1e-7), routing_every=100),
        stages={
            "sft": SftStage(
                num_steps=1000,
                optimizer=_pod_optimizer(peak=1e-5, num_steps=1000, eps=1e-16),
                rows=512,
                row_length=4096,
                thinking=ThinkingStyle(),
            )
        },
    )


def _pod_optimizer(*, peak: float, num_steps: int, eps: float = 1e-8) -> AdamW:
    schedule = WarmupCosine(peak=peak, warmup_steps=20, num_steps=num_steps, final_share=0.1)
    return AdamW(schedule=schedule, weight_decay=0.01, eps=eps)
