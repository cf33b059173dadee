"""What the policies of the real-engine bench are compared in: model, shapes, trace and batches.

The arithmetic behind them, for one core that writes and one that trains. With B slots and steps of
one price, responses of mean length m and P groups of G, let

    x = P G m / B   steps that write a batch with every slot full,
    t               steps of a run-out: from the first slot left free to the last response
    r               the scoring and training of a batch, in steps,
    a               what is read again at a weight update, in steps, where that is done.

Then a training step takes about

    synchronous          x + t + r
    one step off         max(x + t, r)
    prefilled again      max(x + a, r)
    DORA, one replica    max(x + t / (S + 1), r)   it runs out once for S + 1 batches
    stale cache          max(x, r)                 it never runs out, and mixes versions

Generation is the limit where r < x. Only B moves that on a CPU: a token costs 1 / B of a step to
write and a fixed number of operations to train. DORA is twice synchronous where t + r is more than
x + 2 t / (S + 1), so t should not be small beside x: few groups per step. It is ahead of reading
again where t / (S + 1) < a, so S should not be small. On one core it cannot be ahead of stale
caches, which pay for a weight update in another coin.
"""

import dataclasses

from loong_jax.models import moe
from loong_jax.orchestrator import baselines, dora
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.protocols import Policy
from loong_jax.orchestrator.simulation.model import LengthTrace


def _model(*, width: int, num_layers: int) -> moe.MoEConfig:
    return moe.MoEConfig.tiny(
        vocab_size=512,
        hidden_size=width,
        num_layers=num_layers,
        num_heads=max(2, width // 64),
        q_lora_rank=width // 2,
        kv_lora_rank=width // 4,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        ffn_hidden_size=2 * width,
        expert_ffn_hidden_size=width,
        num_experts=4,
        num_zero_experts=2,
        num_chosen=2,
        target_ffn_experts=4 / 3,
        gate_scale=6.0,
        max_position=1024,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What all policies have in common."""

    model: moe.MoEConfig
    trace: LengthTrace
    groups_per_step: int = 4  # P
    max_staleness: int  # S, of every policy that has one
    slots_per_replica: int  # B
    narrow_slots: tuple[int, ...] = ()  # none: every step is a full one, as on an accelerator
    decode_steps: int = 4
    prefill_lengths: tuple[int, ...] = (16, 64, 256)
    num_steps: int  # that count; whole cycles of S + 1 steps are fair to all
    warm_up: int
    rounds: int = 1  # runs of each policy, in turns with the others, each on another trace
    train_rows: int = 2  # rows per micro-batch
    cores: tuple[int, int] | None = None  # of engine and trainer; None: anywhere

    @property
    def cache_length(self) -> int:
        return self.trace.prompt_tokens + self.trace.cap_tokens


# Lengths of "dora-late" (arXiv:2604.26256, step 100: median 1,097, cap 30,720) over 128, with a
# short prompt: mean 27, one response in forty at the cap. Responses per slot and step follow the
# published run too: 512 x 16 on 64 devices are about one (512 slots on each replica of four, as the
# simulator assumes), so a synchronous step waits for its longest response and not for waves of
# them. Here that would leave no work in a step beside its fixed costs, so there are two per slot:
# four slots, 2 groups of 4. Full slots then write a batch in 56 decode steps (x), the run-out takes
# 45 (t), and where a token costs 0.15 to 0.25 of a decode step to train, training 35 to 57 (r):
# generation is the limit or nearly so, which more slots would end. On the virtual clock that makes
# 2.2 to 2.4 of DORA over synchronous, 2.1 to 2.3 of reading again, 2.5 to 2.7 of stale caches and
# 1.2 to 1.3 of one step off; with S = 4 1.9 to 2.05 of DORA.
# The model is deep and narrow: its steps are bound by the latency of their operations, as those of
# an accelerator are by reading weights, so they have one price. A call decodes one step: a slot is
# filled again before the next one, and what the host does per call is part of a step.
GENERATION_BOUND = Setting(
    model=_model(width=64, num_layers=8),  # 1.1 million parameters
    trace=LengthTrace(median_tokens=8.6, sigma=1.7, cap_tokens=240, group_size=4, prompt_tokens=4),
    groups_per_step=2,
    max_staleness=8,
    slots_per_replica=4,
    decode_steps=1,
    num_steps=36,
    warm_up=9,
    rounds=3,
    train_rows=1,
    prefill_lengths=(4, 64, 244),
)
# With 32 slots x is 9, and the trainer is the limit of whoever overlaps. 4.2 million parameters.
TRAINER_BOUND = Setting(
    model=_model(width=256, num_layers=2),
    trace=LengthTrace(median_tokens=8.6, sigma=1.3, cap_tokens=240, group_size=4, prompt_tokens=16),
    max_staleness=4,
    slots_per_replica=32,
    num_steps=8,
    warm_up=8,
)
# Steps of few slots cost less in these shapes, so that a run-out is cheap: little is to be won.
NARROW_SHAPES = dataclasses.replace(TRAINER_BOUND, narrow_slots=(1, 2, 4, 8, 16))
REGIMES = {
    "generation_bound": GENERATION_BOUND,
    "trainer_bound": TRAINER_BOUND,
    "narrow_shapes": NARROW_SHAPES,
}


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A policy and the replicas it has; `groups` may wait in a replica beyond its slots."""

    policy: Policy
    num_replicas: int
    groups: int  # per replica


def placements(setting: Setting) -> dict[str, Deployment]:
    """All policies, each with the placement that suits it on one core."""
    p, s = setting.groups_per_step, setting.max_staleness
    ahead = 3.0  # batches of P in flight: enough that no slot is ever empty for want of work
    in_slots = max(1, setting.slots_per_replica // setting.trace.group_size)
    more = 3 * max(p, in_slots)
    return {
        "sync": Deployment(baselines.SynchronousPolicy(groups_per_step=p), 1, p),
        "sync, tail batching": Deployment(
            baselines.TailBatchingPolicy(groups_per_step=p, max_ahead=1.5), 1, more
        ),
        "one step off": Deployment(baselines.OneStepOffPolicy(groups_per_step=p), 1, p),
        "partial, prefilled again": Deployment(
            baselines.PartialRolloutPolicy(groups_per_step=p, max_staleness=s, max_ahead=ahead),
            1,
            more,
        ),
        "partial, stale cache": Deployment(
            baselines.PartialRolloutPolicy(
                groups_per_step=p, max_staleness=s, max_ahead=ahead, keep_cache=True
            ),
            1,
            more,
        ),
        "DORA": Deployment(
            DoraPolicy(groups_per_step=p, max_staleness=s, max_ahead=s + 1), 1, p * (s + 1)
        ),
        "DORA, two replicas": Deployment(
            DoraPolicy(groups_per_step=p, max_staleness=s, max_ahead=s + 1), 2, p * (s + 1)
        ),
        "DORA, several versions": Deployment(
            dora.algorithm_1(groups_per_step=p, max_staleness=s, max_ahead=ahead, triggers=None),
            2,
            more,
        ),
    }
