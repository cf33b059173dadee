"""Tickets, groups and rollouts: the records that go from engine to trainer, and their one form as
bytes, in the journal and in checkpoints.

A ticket is one issue of one problem; its group of G rollouts is dispatched, versioned, filtered and
trained together. Records hold token arrays by reference and never JAX arrays.

`group_to_plain` and its like turn records into nested dicts that keep token arrays by reference;
`encode` turns any nest of JSON values and one-dimensional arrays into bytes: a line of JSON with
dtype and length of each array, then the arrays, one for each dtype, every one aligned. The array
named "json" is the JSON of what is small.
"""

import dataclasses
import io
import json
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from loong_jax.errors import refuse_below, refuse_no_share
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import FORMS, ResponseForm, read
from loong_jax.problems.verdict import Verdict

FinishReason = Literal["stop", "length", "cancelled", "failed"]
TicketEnd = Literal["trained", "filtered", "stale", "ungradable", "failed", "cancelled_at_end"]
TICKET_ENDS: tuple[TicketEnd, ...] = typing.get_args(TicketEnd)


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
        refuse_no_share(self, "top_p")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} is not in [0, 1]. Use 0.0 to keep every token.")
        refuse_below(self, 0, "top_k")
        refuse_below(self, 1, "max_new_tokens")
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
    behavior_logprob: np.ndarray | None = None  # float32, trainer's program, the rollout's version
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
        "completions/cut_off": float(np.mean([r.finish_reason == "length" for r in rollouts])),
        "completions/well_formed": float(
            np.mean([read(r.text, form).is_well_formed for r in rollouts])
        ),
        "rewards/masked": 1 - len(rewards) / len(rollouts),
    }
    if rewards:
        metrics["rewards/mean"] = float(np.mean(rewards))
    return metrics


def staleness_histogram(groups: Iterable[Group], trainer_version: int) -> dict[str, int]:
    """The number of rollouts that were trained on at each staleness, in steps."""
    counts = Counter(trainer_version - rollout.version for rollout in rollouts_of(groups))
    return {str(staleness): counts[staleness] for staleness in sorted(counts)}


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


# ---- outside a process's memory ------------------------------------------------------------------

Plain = dict[str, Any]

ALIGNMENT = 8  # bytes

_JSON = "json"
_REFERENCE = "$array"  # {"$array": [dtype, first, last]}: a part of the array of that dtype


def ticket_to_plain(ticket: Ticket) -> Plain:
    return vars(ticket) | {"problem": ticket.problem.to_json()}


def ticket_from_plain(record: Mapping[str, Any]) -> Ticket:
    return Ticket(**{**record, "problem": Problem.from_json(record["problem"])})


def group_to_plain(group: Group) -> Plain:
    rollouts = [rollout_to_plain(rollout) for rollout in group.rollouts]
    return vars(group) | {"ticket": ticket_to_plain(group.ticket), "rollouts": rollouts}


def group_from_plain(record: Mapping[str, Any]) -> Group:
    return Group(
        ticket=ticket_from_plain(record["ticket"]),
        version=record["version"],
        rollouts=tuple(rollout_from_plain(rollout) for rollout in record["rollouts"]),
    )


def rollout_to_plain(rollout: Rollout) -> Plain:
    record: Plain = dict(vars(rollout))
    record["sampling"] = dataclasses.asdict(rollout.sampling)
    record["versions"] = [list(pair) for pair in rollout.versions]
    record["turns"] = [dataclasses.asdict(turn) for turn in rollout.turns]
    if rollout.routing is not None:
        shape, targets = list(rollout.routing.shape), rollout.routing.reshape(-1)
        record["routing"] = {"shape": shape, "targets": targets}
    if rollout.verdict is not None:
        record["verdict"] = dataclasses.asdict(rollout.verdict)
    return record


def rollout_from_plain(record: Mapping[str, Any]) -> Rollout:
    verdict, sampling = record["verdict"], dict(record["sampling"])
    sampling |= {name: tuple(sampling.get(name, ())) for name in ("stop_ids", "stops")}
    routing = record.get("routing")
    if routing is not None:
        routing = np.asarray(routing["targets"]).reshape(routing["shape"])
    turns = (dict(turn, failures=tuple(turn["failures"])) for turn in record.get("turns", ()))
    changes = {
        "turns": tuple(Turn(**turn) for turn in turns),
        "routing": routing,
        "sampling": SamplingSettings(**sampling),
        "versions": tuple((first, version) for first, version in record["versions"]),
        "verdict": None if verdict is None else Verdict(**verdict),
    }
    return Rollout(**{**record, **changes})


def encode(nest: Mapping[str, Any]) -> bytes:
    """Dicts have strings as keys; tuples come back as lists, NumPy's numbers as Python's."""
    pieces: dict[str, list[np.ndarray]] = {}
    lengths: dict[str, int] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            assert value.ndim == 1, f"an array of shape {value.shape} in a record: flatten it"
            dtype = value.dtype.name
            first = lengths.get(dtype, 0)
            lengths[dtype] = first + len(value)
            pieces.setdefault(dtype, []).append(value)
            return {_REFERENCE: [dtype, first, lengths[dtype]]}
        if isinstance(value, Mapping):
            return {str(key): strip(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [strip(item) for item in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(strip(nest), allow_nan=True)
    arrays = {_JSON: np.frombuffer(text.encode(), np.uint8)}
    arrays |= {dtype: np.concatenate(parts) for dtype, parts in pieces.items()}
    header = json.dumps({name: [a.dtype.str, len(a)] for name, a in arrays.items()}).encode()
    blobs = [header.ljust(len(header) + -(len(header) + 1) % ALIGNMENT) + b"\n"]
    blobs += [a.tobytes().ljust(a.nbytes + -a.nbytes % ALIGNMENT, b"\0") for a in arrays.values()]
    return b"".join(blobs)


def decode(data: bytes | memoryview) -> Plain:
    """Inverse of `encode`; arrays are views of `data`. Whoever stored it has checked the bytes."""
    blob = memoryview(data)
    if blob[:2] == b"PK":
        return _decode_npz(blob)
    end = bytes(blob[:4096]).index(b"\n") + 1  # the header names one array per dtype
    arrays = {}
    for name, (dtype, length) in json.loads(bytes(blob[:end])).items():
        arrays[name] = np.frombuffer(blob, dtype, length, end)
        end += arrays[name].nbytes + -arrays[name].nbytes % ALIGNMENT

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {_REFERENCE}:
                dtype, first, last = value[_REFERENCE]
                return arrays[dtype][first:last]
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return fill(json.loads(arrays[_JSON].tobytes()))


def _decode_npz(blob: memoryview) -> Plain:
    """Decodes a record of earlier releases' checkpoints, tuples and other keys told apart."""
    with np.load(io.BytesIO(blob), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, dict):
            ((kind, content),) = value.items()
            if kind == "$array":
                return arrays[content]
            if kind == "$tuple":
                return tuple(fill(item) for item in content)
            return {fill(key): fill(item) for key, item in content}
        return value

    return fill(json.loads(arrays.pop("text").tobytes()))
