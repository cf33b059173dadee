"""The engine contract: JetStream 0.3.0's methods and argument names, and what training needs more.

Weights are an argument of every call, so one engine serves any number of policy versions with the
same compiled code. What goes beyond JetStream is keyword-only or a method of its own:

* a `SampleRequest` per sample: temperature, greedy, length limit, stop token, and the five numbers
  that name its random stream, so a sample does not depend on its slot, batch or replica;
* log-probabilities beside tokens, several decode steps per call, many prompts per prefill;
* `extract`, the inverse of `insert`, `cancel` and `release`;
* room for samples apart from slots: `num_that_fit`, `reserve`, and what `find` finds again.

JetStream itself is not imported. Source: github.com/AI-Hypercomputer/JetStream, engine_api.py.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.rollout.records import SamplingSettings, Ticket

Params = Any  # weights of one policy version
Prefix = Any  # what prefill hands to insert
DecodeState = Any  # everything that generate changes
Sampler = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """How one sample is drawn. Equal requests draw equal tokens from equal weights."""

    stream: tuple[int, int, int, int, int]  # uint32: run seed, hash of problem (2), issue, attempt
    sampling: SamplingSettings = dataclasses.field(default_factory=SamplingSettings)

    @classmethod
    def of(
        cls, ticket: Ticket, attempt: int, sampling: SamplingSettings, *, seed: int
    ) -> "SampleRequest":
        problem = problem_hash(ticket.problem.uid)
        return cls(stream=(seed, *problem, ticket.issue, attempt), sampling=sampling)


def problem_hash(uid: str) -> tuple[int, int]:
    """64 bits of a problem's uid as two unsigned 32-bit numbers."""
    digest = hashlib.blake2b(uid.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")


class SlotData(NamedTuple):
    """What one slot wrote during a call; NumPy arrays once the result is on the host."""

    tokens: Any  # int32 [samples, steps]
    valid: Any  # int32 [samples, steps], 1 where a token was written
    lengths: Any  # int32 [samples], tokens written so far
    log_prob: Any = None  # float32 [samples, steps], nats, as sampled
    raw_log_prob: Any = None  # float32 [samples, steps], nats, of the unmodified distribution
    target: Any = None  # int32 [samples, steps, L, K], chosen for the token that was read


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ResultTokens:
    """Tokens, validity and lengths in one integer array, so that a call costs one host copy.

    `data` is int32 [batch, tokens | valid | length]; `log_prob` float32 [batch, tokens], in nats,
    under what was drawn from. `raw_log_prob` is that under softmax(logits), where it is recorded,
    and `target` int32 [batch, tokens, L, K] the router's choices: of decoding, for the token that
    was read to draw each one; of prefill, for the positions of the prompt, -1 for those not read.
    """

    data: Any
    log_prob: Any
    tokens_idx: tuple[int, int] = dataclasses.field(metadata={"static": True})
    valid_idx: tuple[int, int] = dataclasses.field(metadata={"static": True})
    length_idx: tuple[int, int] = dataclasses.field(metadata={"static": True})
    samples_per_slot: int = dataclasses.field(default=1, metadata={"static": True})
    raw_log_prob: Any = None
    target: Any = None

    @classmethod
    def pack(
        cls,
        tokens: jax.Array,
        valid: jax.Array,
        length: jax.Array,
        log_prob: jax.Array,
        raw_log_prob: jax.Array | None = None,
        target: jax.Array | None = None,
    ):
        """From [batch, steps] tokens, valid and log-probabilities and [batch] length."""
        steps = tokens.shape[1]
        data = jax.numpy.concatenate(
            [tokens, valid.astype(tokens.dtype), length[:, None].astype(tokens.dtype)], axis=1
        )
        return cls(
            data,
            log_prob,
            (0, steps),
            (steps, 2 * steps),
            (2 * steps, 2 * steps + 1),
            raw_log_prob=raw_log_prob,
            target=target,
        )

    def copy_to_host_async(self) -> None:
        if not isinstance(self.data, np.ndarray):
            self.data.copy_to_host_async()
            self.log_prob.copy_to_host_async()

    def convert_to_numpy(self) -> "ResultTokens":
        arrays = {
            name: np.asarray(getattr(self, name))
            for name in ("data", "log_prob", "raw_log_prob", "target")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(self, **arrays)

    def get_result_at_slot(self, slot: int) -> SlotData:
        rows = slice(slot * self.samples_per_slot, (slot + 1) * self.samples_per_slot)
        return SlotData(
            tokens=self.data[rows, slice(*self.tokens_idx)],
            valid=self.data[rows, slice(*self.valid_idx)],
            lengths=self.data[rows, self.length_idx[0]],
            log_prob=self.log_prob[rows],
            raw_log_prob=None if self.raw_log_prob is None else self.raw_log_prob[rows],
            target=None if self.target is None else self.target[rows],
        )


@runtime_checkable
class Engine(Protocol):
    """What samples tokens from prompts and weights. Only `load_params` may take long on its own."""

    def load_params(self, *args: Any, **kwargs: Any) -> Params: ...

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Prefix | None = None,
        padded_tokens: jax.Array,
        true_length: int,
        sampler: Sampler | None = None,
        request_id: Any = None,
        request: SampleRequest | None = None,
    ) -> tuple[Prefix, ResultTokens]:
        """Reads one prompt and draws the first token after it."""
        ...

    def prefill_multisampling(
        self,
        *,
        params: Params,
        existing_prefix: Prefix | None = None,
        padded_tokens: jax.Array,
        true_length: int,
        sampler: Sampler | None = None,
        rng: Any = None,
        num_samples: int,
        requests: Sequence[SampleRequest] | None = None,
    ) -> tuple[Prefix, ResultTokens]:
        """Reads one prompt once and draws the first token of `num_samples` samples."""
        ...

    def prefill_batch(
        self,
        *,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        existing_prefix: Any = None,
        version: int | None = None,
    ) -> tuple[Prefix, ResultTokens]:
        """Reads several prompts of one bucket; member i samples `requests[i]` after `rows[i]`.

        Takes at most `max_prefill_prompts` prompts and `max_prefill_members` members.
        `existing_prefix` is what `find` returned for the same prompts; `version` numbers the
        policy, so that what it wrote is found by prompts of that version alone.
        """
        ...

    def num_chunks(self, prompts: Sequence[np.ndarray], existing_prefix: Any = None) -> int:
        """How many calls of the largest bucket a prefill of these prompts takes."""
        ...

    def begin_reading(
        self,
        *,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        existing_prefix: Any = None,
        version: int | None = None,
    ) -> Any:
        """As `prefill_batch`, but nothing is read yet: blocks may go between the chunks."""
        ...

    def read_chunk(self, params: Params, reading: Any) -> Any:
        """Reads on; `reading.num_left` says how many tokens are left."""
        ...

    def end_reading(self, reading: Any) -> tuple[Prefix, ResultTokens]:
        """What `prefill_batch` would have returned."""
        ...

    def check_sampling(self, sampling: SamplingSettings) -> None:
        """Raises ConfigError for settings that this engine was not built for."""
        ...

    def check_length(self, prompt_length: int, max_new_tokens: int) -> None:
        """Raises ValueError for a sample that no slot can hold."""
        ...

    def prefill_length(self, prompt_length: int) -> int:
        """The bucket a prompt falls into, by its own length alone."""
        ...

    def insert(
        self, prefix: Prefix, decode_state: DecodeState, slot: int, request_id: Any = None
    ) -> DecodeState: ...

    def bulk_insert(
        self,
        prefix: Prefix,
        decode_state: DecodeState,
        slots: Sequence[int],
        *,
        members: Sequence[int] | None = None,
    ) -> DecodeState:
        """Puts member `members[i]` (default: i) of the prefix into `slots[i]`."""
        ...

    def generate(
        self,
        params: Params,
        decode_state: DecodeState,
        sampler: Sampler | None = None,
        *,
        slots: np.ndarray | None = None,
    ) -> tuple[DecodeState, ResultTokens]:
        """Some decode steps of all slots, or of `slots` alone; rows of the result follow them."""
        ...

    def warm_up(self, params: Params) -> None:
        """Compiles what decoding needs; takes long once."""
        ...

    def free_resource(self, slot: int) -> Any: ...

    def init_decode_state(self, *args: Any, **kwargs: Any) -> DecodeState: ...

    def get_prefix_destination_sharding(self) -> Any: ...

    def get_tokenizer(self) -> Any: ...

    def build_tokenizer(self, metadata: Any) -> Any: ...

    def extract(self, decode_state: DecodeState, slot: int) -> Prefix:
        """The running sample of a slot, as `insert` takes it."""
        ...

    def accepts(self, prefix: Any) -> bool:
        """Whether a prefix, of another engine perhaps, can be inserted here as it is."""
        ...

    def cancel(self, decode_state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Ends what runs in `slots`; they write nothing more until the next insert."""
        ...

    def release(
        self,
        decode_state: DecodeState,
        slot: int,
        *,
        tokens: np.ndarray | None = None,
        version: int | None = None,
    ) -> DecodeState:
        """Frees what an ended slot holds; `tokens`, prompt and response, may be found again."""
        ...

    def find(self, decode_state: DecodeState, prompts: Sequence[np.ndarray], version: int) -> Any:
        """What is kept of the beginnings of these prompts, for `prefill_batch`, or None."""
        ...

    def forget(self, decode_state: DecodeState, version: int) -> DecodeState:
        """What was kept under `version` is not found any more."""
        ...

    def num_that_fit(
        self, prefix: Prefix, decode_state: DecodeState, members: Sequence[int]
    ) -> int:
        """How many of `members`, in order, there is room for now, free slots apart."""
        ...

    def reserve(self, decode_state: DecodeState, slots: Sequence[int]) -> bool:
        """Takes room for the next block of `slots`, the first ones first; false where it ends."""
        ...

    def cache_pressure(self, decode_state: DecodeState) -> float:
        """Share of the cache that slots share, in [0, 1], that is taken; 0 where each has its own.

        What is only kept to be found again counts as free.
        """
        ...

    def statistics(self, decode_state: DecodeState) -> dict[str, int]:
        """Counters since `init_decode_state`."""
        ...

    @property
    def max_concurrent_decodes(self) -> int: ...

    @property
    def samples_per_slot(self) -> int: ...

    @property
    def max_prefill_length(self) -> int: ...

    @property
    def max_narrow_slots(self) -> int:
        """Up to how many slots `generate(slots=...)` takes; 0 where it takes none."""
        ...

    @property
    def max_prefill_prompts(self) -> int: ...

    @property
    def max_prefill_members(self) -> int: ...

    @property
    def mesh(self) -> Any: ...

    @property
    def colocated_cpus(self) -> Any: ...

    @property
    def use_chunked_prefill(self) -> bool: ...

    @property
    def prefill_chunk_size(self) -> int: ...


def refuse_truncation(sampling: SamplingSettings) -> None:
    """Raises ConfigError for top-k, top-p and min-p, which cost a sort of all logits every step."""
    if sampling.is_truncated:
        raise ConfigError(
            f"top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}: this engine "
            "draws from the whole distribution. Use top_p=1.0, top_k=0 and min_p=0.0 and lower the "
            "temperature for sharper samples, or build the engine with truncation=True."
        )
