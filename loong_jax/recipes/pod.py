"""Training over the devices of several processes: the same command on every host."""

import jax.numpy as jnp

from loong_jax.models.moe import MoEConfig
from loong_jax.recipes import MeshSettings, PodSettings, Recipe, SftStage, ThinkingStyle, quickstart
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rl.optimizers import AdamW, WarmupCosine


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
                optimizer=_optimizer(peak=3e-3, num_steps=900),
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
                optimizer=_optimizer(peak=1e-5, num_steps=1000, eps=1e-16),
                rows=512,
                row_length=4096,
                thinking=ThinkingStyle(),
            )
        },
    )


def _optimizer(*, peak: float, num_steps: int, eps: float = 1e-8) -> AdamW:
    schedule = WarmupCosine(peak=peak, warmup_steps=20, num_steps=num_steps, final_share=0.1)
    return AdamW(schedule=schedule, weight_decay=0.01, eps=eps)
