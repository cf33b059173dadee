"""The programs of an engine: the first tokens of prompts, and blocks of decode steps.

Any model with the `prefill` and `decode` of `loong_jax.models.moe.LongcatFlash` will do, and for
drafts with its `extend`, `draft` and `draft_extend`. All caches here are contiguous, one row of S
positions per sequence, whoever keeps them and how.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from loong_jax.models.parameters import Weights
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout import speculation
from loong_jax.rollout.engine_config import EngineSettings, SampleRequest
from loong_jax.rollout.slots import (
    Cache,
    DecodeState,
    Drawing,
    Drawn,
    Prefix,
    SlotState,
    Truncation,
)
from loong_jax.rollout.speculation import Drafting

NOT_RECORDED = -1  # in place of a target: no choice to replay


@runtime_checkable
class Quicker(Protocol):
    """Optional, of a model: what lets an engine leave work out."""

    def layers_cut(self) -> Any:
        """The same function, quicker to call many times in one program."""
        ...

    def logits_of(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits from some of the `hidden` that `prefill` returned."""
        ...

    def decode(self, tokens, positions, cache, *, mask: Bool[Array, "B"], **known) -> Any:
        """Only sequences in `mask` count; `decode_routed` and `extend` take it too."""
        ...


class Members(NamedTuple):
    """Samples to start from a prefill, as arrays; rows past the last one have `exists` false."""

    row: Int[Array, "members"]
    exists: Bool[Array, "members"]
    stream: UInt32[Array, "members 5"]
    max_new_tokens: Int[Array, "members"]
    drawing: Drawing

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        end_ids: Sequence[int],
        config: EngineSettings,
    ) -> "Members":
        """Member i samples `requests[i]` after the prompt `rows[i]`.

        Each of `end_ids` ends a sample, as its own stop_ids do.
        """
        count = config.prefill_members
        row, stream = np.zeros(count, np.int32), np.zeros((count, 5), np.uint32)
        max_new_tokens, top_k = np.ones(count, np.int32), np.zeros(count, np.int32)
        temperature, top_p = np.ones(count, np.float32), np.ones(count, np.float32)
        greedy, min_p = np.zeros(count, bool), np.zeros(count, np.float32)
        num_ends = len(end_ids)
        stops = np.full((count, num_ends + config.max_stop_ids), -1, np.int32)
        stops[:, :num_ends] = end_ids
        for i, (prompt, request) in enumerate(zip(rows, requests, strict=True)):
            sampling = request.sampling
            row[i], stream[i] = prompt, request.stream
            max_new_tokens[i] = sampling.max_new_tokens
            temperature[i], greedy[i] = sampling.temperature, sampling.greedy
            top_k[i], top_p[i], min_p[i] = sampling.top_k, sampling.top_p, sampling.min_p
            stops[i, num_ends : num_ends + len(sampling.stop_ids)] = sampling.stop_ids
        exists: Any = np.arange(count) < len(requests)
        kept: Any = (top_k, top_p, min_p)
        drawing: Any = (temperature, greedy, stops)
        drawing += (Truncation(*kept) if config.truncation else None,)
        return cls(row, exists, stream, max_new_tokens, Drawing(*drawing))  # pyright: ignore


class ResultTokens(NamedTuple):
    """The tokens of a call; with validity and lengths in one array, so it costs one host copy.

    Log-probabilities are in nats, under what was drawn from. `target` holds the router's choices,
    where these are recorded: of decoding, for the token that was read to draw each one; of prefill,
    for the positions of the prompt, -1 for those not read.
    """

    data: Any  # int32 [batch, tokens | valid | length]
    log_prob: Any  # float32 [batch, tokens]
    target: Any = None  # int32 [batch, tokens, L, K]

    @classmethod
    def pack(
        cls,
        tokens: jax.Array,
        valid: jax.Array,
        length: jax.Array,
        log_prob: jax.Array,
        target: jax.Array | None = None,
    ):
        """Packs [batch, steps] tokens, valid and log-probabilities, and [batch] length."""
        data = jnp.concatenate(
            [tokens, valid.astype(tokens.dtype), length[:, None].astype(tokens.dtype)], axis=1
        )
        return cls(data, log_prob, target)

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


class CachedPrefixes(NamedTuple):
    """Prompts of which the first `start` tokens are read already, one per row of the cache."""

    cache: Cache  # of `cache_length`
    start: np.ndarray  # int32 [prefill_prompts]


class ReadSoFar(NamedTuple):
    """Prompts of which some tokens, or all, are read."""

    cache: Cache
    logits: Float[Array, "B V"]  # after the last token that was read
    target: Int[Array, "B S L K"] | None  # the router's choices, where they are recorded
    drafting: Drafting | None  # where there are drafts


@dataclasses.dataclass(frozen=True)
class Reading:
    """Prompts and the samples that are to start from them, on the way."""

    prompts: tuple[np.ndarray, ...]
    lengths: np.ndarray  # int32 [B], 0 for rows without a prompt
    start: np.ndarray  # int32 [B], tokens read so far; all of a prompt that is read at the end
    members: Members
    read: ReadSoFar | None = None  # of chunks; None: whole prompts, read in one call at the end
    label: Any = None  # of whoever began it, for the end

    @property
    def num_left(self) -> int:
        """Tokens left of the prompt that has most left."""
        return int((self.lengths - self.start).max())


class StepOutput(NamedTuple):
    """Tokens of a step, per slot; stacked, one entry per token that a step may write."""

    token: Int[Array, "*most B"]
    wrote: Bool[Array, "*most B"]
    log_prob: Float[Array, "*most B"]
    target: Int[Array, "*most B L K"] | None = None


@dataclasses.dataclass(frozen=True)
class Programs:
    """Pure functions of weights and state, to be compiled by who keeps the caches."""

    model_of: Callable[[Weights], Any]
    config: EngineSettings

    @property
    def block_tokens(self) -> int:
        """Tokens that a block may write, per slot."""
        steps = self.config.decode_steps
        return steps * speculation.TOKENS_PER_STEP if self.config.speculation else steps

    def prefill(
        self,
        params: Weights,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, "B"],
        members: Members,
        history: Int[Array, "B before"] | None,
    ) -> tuple[Prefix, ResultTokens]:
        """Caches of the prompts, which end in `history`, and the first token of every member."""
        mask_BT = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        model = self.model_of(params)
        output, cache = model.prefill(tokens, mask_BT)
        last_logits_BV = logits_at(model, output, jnp.maximum(lengths - 1, 0))
        target = drafting = None
        if self.config.speculation:
            cache, drafting = speculation.read_whole(model, cache, output.hidden, tokens, lengths)
        if self.config.routing:
            target_BTLK = jnp.moveaxis(output.target, 0, 2)
            target = jnp.where(mask_BT[..., None, None], target_BTLK, NOT_RECORDED)
        read = ReadSoFar(cache, last_logits_BV, target, drafting)
        return self.first_tokens(read, lengths, members, history)

    def read_chunk(
        self,
        params: Weights,
        read: ReadSoFar,
        tokens: Int[Array, "B T"],
        start: Int[Array, "B"],
        num_new: Int[Array, "B"],
        following: Int[Array, "B"],
        history: Int[Array, "B before"] | None,
    ) -> ReadSoFar:
        """Reads the next `num_new` tokens of each prompt, behind the `start` that were read.

        Prompts without new tokens keep their logits. `following` is the token after the new ones.
        """
        cache, logits, target, drafting = read
        mask_BT = jnp.arange(tokens.shape[1])[None] < num_new[:, None]
        before = {} if history is None else {"history": history}
        model = self.model_of(params)
        if drafting is None:
            output, cache = model.prefill(tokens, mask_BT, cache, start, **before)
        else:
            output, main = model.prefill(tokens, mask_BT, cache.main, start, **before)
            cache, hidden = cache._replace(main=main), output.hidden
            cache, drafting = speculation.read_chunk(
                model, cache, hidden, tokens, start, num_new, following, drafting
            )
        last_BV = logits_at(model, output, jnp.maximum(num_new - 1, 0))
        if target is not None:
            row_B1 = jnp.arange(tokens.shape[0])[:, None]
            position_BT = start[:, None] + jnp.arange(tokens.shape[1])[None]
            position_BT = jnp.where(mask_BT, position_BT, target.shape[1])
            new_BTLK = jnp.moveaxis(output.target, 0, 2)
            target = target.at[row_B1, position_BT].set(new_BTLK, mode="drop")
        logits = jnp.where(num_new[:, None] > 0, last_BV, logits)
        return ReadSoFar(cache, logits, target, drafting)

    def first_tokens(
        self,
        read: ReadSoFar,
        lengths: Int[Array, "B"],
        members: Members,
        history: Int[Array, "B before"] | None,
    ) -> tuple[Prefix, ResultTokens]:
        """The first token of every member, behind prompts that are read and end in `history`."""
        position = lengths[members.row]
        key = slot_rows.stream_keys(members.stream)
        drawn = slot_rows.draw(read.logits[members.row], key, position, members.drawing)
        last_position = position + members.max_new_tokens - 1
        is_end = _ends(drawn.token, members.drawing)
        slot = SlotState(
            token=drawn.token,
            position=position,
            prompt_length=position,
            last_position=last_position,
            active=members.exists & ~is_end & (position < last_position),
            key=key,
            drawing=members.drawing,
            history=None if history is None else history[members.row],
            drafting=jax.tree.map(lambda a: a[members.row], read.drafting),
        )
        result = ResultTokens.pack(
            drawn.token[:, None],
            members.exists[:, None],
            jnp.ones_like(drawn.token),
            drawn.log_prob[:, None],
            None if read.target is None else read.target[members.row],
        )
        return Prefix(read.cache, members.row, slot), result

    def decode_block(self, params: Weights, state: DecodeState) -> tuple[DecodeState, ResultTokens]:
        """`decode_steps` steps of every slot as one scan."""
        model = self.model_of(params)
        if isinstance(model, Quicker):
            model = model.layers_cut()
        one_step = self._drafted_step if self.config.speculation else self._step

        def step(state: DecodeState, _):
            return one_step(model, state)

        state, written_KNB = jax.lax.scan(step, state, length=self.config.decode_steps)
        token, wrote, log_prob, target = jax.tree.map(_by_slot, written_KNB)
        if self.config.speculation:
            token, log_prob = speculation.compact(wrote, (token, log_prob))
            wrote = speculation.compact(wrote, wrote)
        length = state.slot.position - state.slot.prompt_length + 1
        return state, ResultTokens.pack(token, wrote, length, log_prob, target)

    def _step(self, model: Any, state: DecodeState) -> tuple[DecodeState, StepOutput]:
        slot, target = state.slot, None
        known = _known(model, slot)
        if self.config.routing:
            logits, target_LBK, cache = model.decode_routed(
                slot.token, slot.position, state.cache, **known
            )
            target = jnp.moveaxis(target_LBK, 1, 0)
        else:
            logits, cache = model.decode(slot.token, slot.position, state.cache, **known)
        drawn, wrote = _draw(slot, logits, slot.position + 1), slot.active
        slot = _advance(slot, drawn, wrote)
        written = StepOutput(slot.token, wrote, jnp.where(wrote, drawn.log_prob, 0.0), target)
        return state._replace(cache=cache, slot=slot), jax.tree.map(lambda a: a[None], written)

    def _drafted_step(self, model: Any, state: DecodeState) -> tuple[DecodeState, StepOutput]:
        """One token of every slot, or two where the draft of the first one is right."""
        before, wrote = state.slot, state.slot.active
        position = before.position
        assert before.drafting is not None
        assert state.num_drafts is not None
        draft_logits, rows = speculation.draft_logits(
            model, state.cache.draft, before.drafting, before.token, position
        )
        draft = _draw(before, draft_logits, position + 1).token
        pair = jnp.stack([before.token, draft], axis=1)
        known = _known(model, before)
        logits, hidden, main = model.extend(pair, position, state.cache.main, **known)
        first = _draw(before, logits[:, 0], position + 1)
        middle = _advance(before, first, wrote)
        kept = middle.active & (draft == first.token)
        second = _draw(before, logits[:, 1], position + 2)
        slot = _advance(middle, second, kept)
        num_read = slot.position - position
        slot = slot._replace(drafting=speculation.advance(before.drafting, hidden, pair, num_read))
        counts = state.num_drafts + jnp.stack([jnp.sum(wrote), jnp.sum(kept)])
        both = (
            StepOutput(middle.token, wrote, jnp.where(wrote, first.log_prob, 0.0)),
            StepOutput(slot.token, kept, jnp.where(kept, second.log_prob, 0.0)),
        )
        written = jax.tree.map(lambda *a: jnp.stack(a), *both)
        return DecodeState(state.cache._replace(main=main, draft=rows), slot, counts), written

    def decode_block_of(
        self, params: Weights, state: DecodeState, slots: Int[Array, "W"]
    ) -> tuple[DecodeState, ResultTokens]:
        """The same for `slots` alone; a number past the last slot stands for none."""
        part = state._replace(
            cache=jax.tree.map(lambda a: a.at[:, :, slots].get(mode="clip"), state.cache),
            slot=slot_rows.take(state.slot, slots),
        )
        part, result = self.decode_block(params, part)
        state = state._replace(num_drafts=part.num_drafts)
        return slot_rows.put(state, part.cache, part.slot, slots), result


def _draw(slot: SlotState, logits: Float[Array, "B V"], position: Int[Array, "B"]) -> Drawn:
    return slot_rows.draw(logits, slot.key, position, slot.drawing)


def _known(model: Any, slot: SlotState) -> dict[str, Array]:
    """Inputs of a decode step beside the tokens in hand: those before, and who is decoding."""
    known = {} if slot.history is None else {"history": slot.history}
    return known | {"mask": slot.active} if isinstance(model, Quicker) else known


def _advance(slot: SlotState, drawn: Drawn, wrote: Bool[Array, "B"]) -> SlotState:
    """The slots under `wrote` with one more token; others stay as they are."""
    token = jnp.where(wrote, drawn.token, slot.token)
    position = jnp.where(wrote, slot.position + 1, slot.position)
    goes_on = ~_ends(token, slot.drawing) & (position < slot.last_position)
    history = slot.history
    if history is not None:
        moved = jnp.concatenate([history[:, 1:], slot.token[:, None]], axis=1)
        history = jnp.where(wrote[:, None], moved, history)
    return slot._replace(
        token=token,
        position=position,
        active=jnp.where(wrote, goes_on, slot.active),
        history=history,
    )


def _by_slot(written: Shaped[Array, "steps most B *rest"]) -> Shaped[Array, "B tokens *rest"]:
    steps, most, batch, *rest = written.shape
    return jnp.moveaxis(written.reshape(steps * most, batch, *rest), 1, 0)


def logits_at(model: Any, output: Any, index: Int[Array, "B"]) -> Float[Array, "B V"]:
    """Logits at one position of each row; those of all others are not computed if that can be."""
    at = index[:, None, None]
    if isinstance(model, Quicker):
        return model.logits_of(jnp.take_along_axis(output.hidden, at, axis=1))[:, 0]
    return jnp.take_along_axis(output.logits, at, axis=1)[:, 0]


def _ends(token: Int[Array, "B"], drawing: Drawing) -> Bool[Array, "B"]:
    return jnp.any(token[:, None] == drawing.stops, axis=1)
