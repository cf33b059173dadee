"""The engine contract: what draws tokens from prompts and weights, as the scheduler uses it.

Weights are an argument of every call, so one engine serves any number of policy versions with the
same compiled code. Methods have JetStream's names where the two contracts coincide (`load_params`,
`init_decode_state`, `bulk_insert`, `generate`); what only JetStream asks for is in
`rollout.jetstream`. A `SampleRequest` names the settings and the random stream of a sample, which
therefore does not depend on its slot, batch or replica.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.models.parameters import Weights
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.records import SamplingSettings, Ticket

Prefix = Any  # from `prefill` to `bulk_insert`
DecodeState = Any  # everything that `generate` changes
Reading = Any  # prompts on their way through prefill; `num_left` tokens are to be read


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """The sampling of one sequence. Equal requests draw equal tokens from equal weights."""

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


class PrefillWork(NamedTuple):
    """Prompts of one bucket; member i is to sample `requests[i]` after `prompts[rows[i]]`.

    At most `prefill_prompts` prompts and `prefill_members` members.
    """

    prompts: Sequence[np.ndarray]
    rows: Sequence[int]
    requests: Sequence[SampleRequest]
    existing_prefix: Any = None  # from `Engine.find` for the same prompts
    version: int | None = None  # of the policy: prompts of that version alone find what is written


class ResultTokens(NamedTuple):
    """The tokens of a call; with validity and lengths in one array, so it costs one host copy.

    Both log-probabilities are in nats: under what was drawn from, and, where it is recorded, under
    softmax(logits). `target` holds the router's choices, where these are recorded: of decoding, for
    the token that was read to draw each one; of prefill, for the positions of the prompt, -1 for
    those not read.
    """

    data: Any  # int32 [batch, tokens | valid | length]
    log_prob: Any  # float32 [batch, tokens]
    raw_log_prob: Any = None  # float32 [batch, tokens]
    target: Any = None  # int32 [batch, tokens, L, K]

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
        """Packs [batch, steps] tokens, valid and log-probabilities, and [batch] length."""
        data = jax.numpy.concatenate(
            [tokens, valid.astype(tokens.dtype), length[:, None].astype(tokens.dtype)], axis=1
        )
        return cls(data, log_prob, raw_log_prob, target)

    @property
    def tokens(self) -> Any:
        """int32 [batch, steps]."""
        return self.data[:, : self.log_prob.shape[1]]

    @property
    def num_valid(self) -> Any:
        """int [batch]: how many tokens a row wrote, which come first in it."""
        return self.data[:, self.log_prob.shape[1] : -1].sum(axis=1)

    @property
    def length(self) -> Any:
        """int32 [batch]: tokens of each sample so far."""
        return self.data[:, -1]

    def convert_to_numpy(self) -> "ResultTokens":
        return jax.tree.map(np.asarray, self)

    def written(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probabilities of a row, without what was not written."""
        count = int(self.num_valid[row])
        return self.tokens[row, :count], self.log_prob[row, :count]


@runtime_checkable
class Engine(Protocol):
    """Compiled code, without weights or slots. Only `warm_up` may take long on its own."""

    @property
    def config(self) -> EngineSettings: ...

    def get_tokenizer(self) -> Tokenizer: ...

    def load_params(self, weights: Weights) -> Weights:
        """Weights as the other methods take them."""
        ...

    def warm_up(self, params: Weights) -> None:
        """Compiles what decoding needs."""
        ...

    def init_decode_state(self) -> DecodeState: ...

    # ---- prefill --------------------------------------------------------------------------------

    def begin_prefill(self, params: Weights, work: PrefillWork) -> Reading: ...

    def prefill_chunk(self, params: Weights, reading: Reading) -> Reading:
        """Reads on, where `reading.num_left` is above 0; blocks may go between chunks."""
        ...

    def end_prefill(self, params: Weights, reading: Reading) -> tuple[Prefix, ResultTokens]:
        """The prefix of all members and the first token of each."""
        ...

    def find(self, decode_state: DecodeState, prompts: Sequence[np.ndarray], version: int) -> Any:
        """The kept beginnings of these prompts, as `existing_prefix`, or None."""
        ...

    # ---- slots ----------------------------------------------------------------------------------

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
        self, params: Weights, decode_state: DecodeState, *, slots: np.ndarray | None = None
    ) -> tuple[DecodeState, ResultTokens]:
        """`decode_steps` steps of all slots, or of `slots` alone, whose rows the result has then:
        as many as one of `narrow_slots` holds.
        """
        ...

    def extract(self, decode_state: DecodeState, slot: int) -> Prefix:
        """The running sample of a slot: the inverse of an insert."""
        ...

    def accepts(self, prefix: Any) -> bool:
        """True for a prefix, of another engine perhaps, that can be inserted here as it is."""
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

    def forget(self, decode_state: DecodeState, version: int) -> DecodeState:
        """Drops what was kept under `version`."""
        ...

    # ---- room for samples, apart from slots -----------------------------------------------------

    def num_that_fit(
        self, prefix: Prefix, decode_state: DecodeState, members: Sequence[int]
    ) -> int:
        """The number of `members`, in order, that there is room for now."""
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
