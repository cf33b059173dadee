"""The assumptions of a simulated run: costs, and lengths of responses.

Costs are four fitted numbers, and assumptions that are named as such. Lengths are a seeded trace,
the same for every policy: lognormal up to a cap, and correlated among attempts at one problem: a
harder problem has longer responses (arXiv:2604.26256 finds stale samples harder, not worse).
Attempt i at issue j of problem k has the same length whoever schedules it.
"""

import dataclasses
import functools
import math

import numpy as np

from loong_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds and bytes of one model on one kind of accelerator.

    The first four are free: fitted on the 64-accelerator column of arXiv:2604.26256 alone. The
    rest are worked out from data sheets or assumed, and the bench prints how the result moves
    with each of them. Defaults: Qwen2.5-32B on four H800 per replica.
    """

    decode_base_s: float = 0.01845  # one decode step of one slot, all layers
    decode_slot_s: float = 9.349e-6  # more per active slot
    train_device_s: float = 1.705e-3  # forward, backward and scoring of one token, on one device
    step_fixed_s: float = 10.22  # of each training step, whatever the number of devices

    decode_context_s: float = 2.0e-8  # more per cached token read: 262 KB over 4 x 3.35 TB/s
    prefill_token_s: float = 4.0e-5  # one prompt token on one replica, 40 % of peak
    cache_token_bytes: float = 262_144.0  # 64 layers, 8 heads of 128, keys and values, bf16
    cache_capacity_tokens: float = 840_000.0  # of one replica
    move_bytes_per_s: float = 50e9  # between two replicas
    weight_bytes: float = 65e9
    assign_s: float = 2.0  # a replica takes up other weights that are already published
    publish_s: float = 4.4  # verl's figure for 30B (facts of its checkpoint engine)
    switch_s: float = 3.0  # devices go from the trainer to generation or back
    verify_s: float = 1.0
    score_share: float = 0.25  # of train_device_s: one forward of forward, twice and backward

    def decode_s(self, num_steps: float, active: int, context: float) -> float:
        """Seconds of `num_steps` decode steps with `active` slots over `context` cached tokens.

        Every step adds one token per slot to the context: the sum of the arithmetic series.
        """
        first = self.decode_base_s + self.decode_slot_s * active + self.decode_context_s * context
        return num_steps * first + self.decode_context_s * active * num_steps**2 / 2

    def decode_steps(self, seconds: float, active: int, context: float) -> float:
        """Inverse of `decode_s` in the number of steps."""
        first = self.decode_base_s + self.decode_slot_s * active + self.decode_context_s * context
        curve = self.decode_context_s * active
        return 2 * seconds / (first + math.sqrt(first * first + 2 * curve * seconds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthTrace:
    median_tokens: float
    sigma: float  # of the logarithm
    cap_tokens: int  # a response that would be longer ends here
    group_size: int = 16  # G
    prompt_tokens: int = 1024
    same_problem: float = 0.5  # share of the logarithm's variance that the problem explains
    seed: int = 0

    def __post_init__(self):
        if not (self.median_tokens > 0 and self.sigma >= 0 and self.cap_tokens >= 1):
            raise ConfigError(
                f"median_tokens={self.median_tokens} and cap_tokens={self.cap_tokens} must be "
                f"positive and sigma={self.sigma} >= 0."
            )
        if not 0 <= self.same_problem <= 1 or self.group_size < 1:
            raise ConfigError(
                f"same_problem={self.same_problem} must be in [0, 1], a share of variance, and "
                f"group_size={self.group_size} at least 1."
            )

    def difficulty(self, problem: int) -> float:
        """A standard normal number; the problem's part of the logarithm of its lengths."""
        return _difficulty(self.seed, problem)

    def lengths(self, problem: int, issue: int = 0) -> np.ndarray:
        """Response tokens of the G attempts, int64 [G], each in [1, cap_tokens]. Do not change."""
        return _lengths(self, problem, issue)


@functools.lru_cache(maxsize=1 << 17)
def _difficulty(seed: int, problem: int) -> float:
    return float(np.random.default_rng([seed, problem]).standard_normal())


@functools.lru_cache(maxsize=1 << 17)
def _lengths(trace: LengthTrace, problem: int, issue: int) -> np.ndarray:
    own = np.random.default_rng([trace.seed, problem, 1 + issue])
    noise = own.standard_normal(trace.group_size)
    z = math.sqrt(trace.same_problem) * trace.difficulty(problem)
    z = z + math.sqrt(1 - trace.same_problem) * noise
    tokens = trace.median_tokens * np.exp(trace.sigma * z)
    return np.clip(np.round(tokens), 1, trace.cap_tokens).astype(np.int64)


TRACES: dict[str, LengthTrace] = {
    # median and sigma reproduce the published mean 2.4K, p99 and cap of arXiv:2604.26256
    "dora-32b": LengthTrace(median_tokens=1100, sigma=1.30, cap_tokens=30_720),
    # 64K cap with about one response in a hundred at it
    "dora-prod": LengthTrace(median_tokens=2000, sigma=1.50, cap_tokens=65_536),
    "laminar": LengthTrace(median_tokens=1600, sigma=1.0, cap_tokens=16_384),
    # control: a short tail, where little can be won
    "short": LengthTrace(median_tokens=900, sigma=0.5, cap_tokens=16_384),
}
