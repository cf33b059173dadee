"""Tickets, groups and rollouts: the records that go from engine to trainer.

A ticket is one issue of one problem; its group of G rollouts is dispatched, versioned, filtered and
trained together. Records hold token arrays by reference and never JAX arrays.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from loong_jax.problems.problem import Problem
from loong_jax.problems.response import FORMS, ResponseForm, read
from loong_jax.problems.verdict import Verdict

FinishReason = Literal["stop", "length", "cancelled", "failed"]
TicketEnd = Literal["trained", "filtered", "stale", "ungradable", "failed", "cancelled_at_end"]
TICKET_ENDS: tuple[TicketEnd, ...] = (
    "trained",
    "filtered",
    "stale",
    "ungradable",
    "failed",
    "cancelled_at_end",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """The sampling of tokens. All three log-probabilities are taken under this temperature."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    max_new_tokens: int = 64
    greedy: bool = False
    min_p: float = 0.0  # least likely token kept, as a share of the likeliest
    stop_ids: tuple[int, ...] = ()  # tokens that end a sample, beside those of the tokenizer
    stops: tuple[str, ...] = ()  # texts that do; the token that completes one is the last

    def __post_init__(self):
        if not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature} must be positive. Use greedy=True for argmax."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not in (0, 1]. Use 1.0 to keep every token.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} is not in [0, 1]. Use 0.0 to keep every token.")
        if self.top_k < 0 or self.max_new_tokens < 1:
            raise ValueError(
                f"top_k={self.top_k} must be >= 0 and max_new_tokens={self.max_new_tokens} >= 1. "
                "Correct the recipe."
            )

        if "" in self.stops:
            raise ValueError("stops hold an empty text, which every sample has. Leave it out.")

    @property
    def is_truncated(self) -> bool:
        """True where some tokens cannot be drawn; such rollouts do not train."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ticket:
    """One issue of one problem. `number` counts all tickets of a run, in the order of issue."""

    number: int
    problem: Problem
    issue: int = 0  # how often this problem was issued before
    max_new_tokens: int | None = None  # of each attempt, where below that of the sampling

    @property
    def key(self) -> str:
        return f"{self.problem.uid}#{self.issue}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """Consecutive tokens of a response that were all written by the policy, or all by tools."""

    role: Literal["policy", "tool"]
    first: int  # of its tokens, counted in the response
    num_tokens: int
    # Of a turn of tools alone:
    num_calls: int = 0  # that the policy made in the turn before
    failures: tuple[str, ...] = ()  # "error", "timeout", "refused", "malformed": one a failed call
    wall_s: float = 0.0  # from the end of the policy's turn to the last answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One attempt at a problem. NumPy arrays, aligned with `tokens` (the response alone)."""

    ticket: int
    attempt: int  # 0..G-1
    prompt: np.ndarray  # int32 [prompt length]
    tokens: np.ndarray  # int32 [response length]
    loss_mask: np.ndarray  # bool, true where the policy wrote a token that trains
    engine_logprob: np.ndarray  # float32, nats, as sampled; 0 where the policy did not write
    sampling: SamplingSettings
    versions: tuple[tuple[int, int], ...]  # ((first token, policy version), ...); DORA: exactly one
    finish_reason: FinishReason
    text: str = ""  # of the policy, its last turn where there are several
    behavior_logprob: np.ndarray | None = (
        None  # float32, trainer's program under the rollout's own version
    )
    started_s: float = 0.0
    ended_s: float = 0.0
    verdict: Verdict | None = None
    reward: float | None = None  # None: masked from loss and baseline
    failure: str = ""
    # int16 [prompt and response, L, K]: the router's choices, -1 where there is none to replay
    routing: np.ndarray | None = None
    turns: tuple[Turn, ...] = ()  # of the policy and of tools in turn; () where no tool was called

    @property
    def version(self) -> int:
        return self.versions[0][1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The G rollouts of one ticket, all under one policy version."""

    ticket: Ticket
    version: int
    rollouts: tuple[Rollout, ...]

    def replace_rollouts(self, rollouts: tuple[Rollout, ...]) -> "Group":
        return dataclasses.replace(self, rollouts=rollouts)


# ---- what a group of replicas reports; times are seconds of the clock it was given ---------------

Emit = Callable[[Any], None]  # takes an event, from any thread
# of a replica that was asked to score: the groups, or None where it could not
WhenScored = Callable[[tuple[Group, ...] | None], None]


class GroupGenerated(NamedTuple):
    """All G rollouts of a ticket are written."""

    group: Group


class BlockDecoded(NamedTuple):
    """One block of decode steps, with the prefills that went before it."""

    replica: int
    version: int
    start_s: float
    end_s: float
    num_tokens: int  # written by the policy in this interval
    active_slots: int  # when the block began
    num_prompts: int = 0  # read by prefill


class GroupsMigrated(NamedTuple):
    """Running groups moved between two replicas of one version."""

    source: int
    target: int
    ticket_numbers: tuple[int, ...]
    num_tokens_moved: int  # of cache, prompts included
    num_tokens_reprefilled: int  # whose cache could not move


class ReplicaIdle(NamedTuple):
    """The replica has written all it was given."""

    replica: int


class ReplicaFailed(NamedTuple):
    """One replica died with all it was writing; the others go on."""

    replica: int
    error: str


# ---- rollouts for people -------------------------------------------------------------------------


def rollouts_of(groups: Iterable[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def completion_metrics(
    rollouts: Sequence[Rollout], form: ResponseForm = FORMS["tagged"]
) -> dict[str, float]:
    """Lengths in tokens, shares in [0, 1]; empty for no rollouts.

    `rewards/mean` leaves masked rollouts out; `rewards/masked` is their share.
    """
    if not rollouts:
        return {}
    lengths = np.array([len(rollout.tokens) for rollout in rollouts])
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    metrics = {
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/cut_off": _share(r.finish_reason == "length" for r in rollouts),
        "completions/well_formed": _share(read(r.text, form).is_well_formed for r in rollouts),
        "rewards/masked": 1 - len(rewards) / len(rollouts),
    }
    if rewards:
        metrics["rewards/mean"] = float(np.mean(rewards))
    return metrics


def staleness_histogram(groups: Iterable[Group], trainer_version: int) -> dict[str, int]:
    """The number of rollouts that were trained on at each staleness, in steps."""
    counts = Counter(
        trainer_version - rollout.version for group in groups for rollout in group.rollouts
    )
    return {str(staleness): counts[staleness] for staleness in sorted(counts)}


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([bool(flag) for flag in flags]))


def readable(
    problem: Problem, rollout: Rollout, form: ResponseForm = FORMS["tagged"]
) -> dict[str, Any]:
    """A line of a `rollouts/*.jsonl` file as JSON values.

    `thinking` and `answer` are null where the form of the response is broken.
    """
    found, verdict = read(rollout.text, form), rollout.verdict
    return {
        "uid": problem.uid,
        "domain": problem.domain,
        "level": problem.level,
        "prompt": problem.prompt,
        "text": rollout.text,
        "thinking": found.thinking if found.is_well_formed else None,
        "answer": found.answer if found.is_well_formed else None,
        "outcome": verdict.outcome if verdict else None,
        "reason": verdict.reason if verdict else "",
        "evidence": verdict.evidence if verdict else "",
        "isolation": verdict.isolation if verdict else "none",
        "version": rollout.version,
        "reward": rollout.reward,
        "num_tokens": len(rollout.tokens),
        "finish_reason": rollout.finish_reason,
    }
