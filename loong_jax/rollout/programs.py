"""The programs of an engine: the first tokens of prompts, and blocks of decode steps.

Any model with the `prefill` and `decode` of `loong_jax.models.moe.LongcatFlash` will do, and for
drafts with its `extend`, `draft` and `draft_extend`. All caches here are contiguous, one row of S
positions per sequence, whoever keeps them and how.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from loong_jax.rollout import draw, speculation
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.draw import Drawn, Truncation
from loong_jax.rollout.engine import Params, ResultTokens
from loong_jax.rollout.slots import Cache, DecodeState, Prefix, SlotState
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
    temperature: Float[Array, "members"]
    greedy: Bool[Array, "members"]
    stop: Int[Array, "members"]
    truncation: Truncation | None = None
    stops: Int[Array, "members stops"] | None = None


class ReadSoFar(NamedTuple):
    """Prompts that are being read in chunks."""

    cache: Cache
    logits: Float[Array, "B V"]  # after the last token that was read
    target: Int[Array, "B S L K"] | None  # the router's choices, where they are recorded
    drafting: Drafting | None  # where there are drafts


class StepOutput(NamedTuple):
    """Tokens of a step, per slot; stacked, one entry per token that a step may write."""

    token: Int[Array, "*most B"]
    wrote: Bool[Array, "*most B"]
    log_prob: Float[Array, "*most B"]
    raw_log_prob: Float[Array, "*most B"] | None = None
    target: Int[Array, "*most B L K"] | None = None


@dataclasses.dataclass(frozen=True)
class Programs:
    """Pure functions of weights and state, to be compiled by who keeps the caches."""

    model_of: Callable[[Params], Any]
    num_before: int  # tokens before the one to decode that the model is given as `history`
    decode_steps: int  # decode steps per call
    raw_log_probs: bool = False  # log-probabilities under softmax(logits) as well
    routing: bool = False  # the router's choices as well
    speculation: bool = False  # with drafts

    @property
    def block_tokens(self) -> int:
        """Tokens that a block may write, per slot."""
        return self.decode_steps * (speculation.TOKENS_PER_STEP if self.speculation else 1)

    def prefill(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, "B"],
        members: Members,
    ) -> tuple[Prefix, ResultTokens]:
        """Caches of the prompts, and the first token of every member."""
        mask_BT = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        model = self.model_of(params)
        output, cache = model.prefill(tokens, mask_BT)
        last_logits_BV = _logits_at(model, output, jnp.maximum(lengths - 1, 0))
        history = self._last_tokens(tokens, lengths, members.row)
        target = drafting = None
        if self.speculation:
            cache, drafting = speculation.read_whole(model, cache, output.hidden, tokens, lengths)
        if self.routing:
            target_BTLK = jnp.moveaxis(output.target, 0, 2)
            target = jnp.where(mask_BT[..., None, None], target_BTLK, NOT_RECORDED)
        return self._begin(cache, last_logits_BV, lengths, members, history, target, drafting)

    def chunk(
        self,
        params: Params,
        read: ReadSoFar,
        tokens: Int[Array, "B T"],
        start: Int[Array, "B"],
        num_new: Int[Array, "B"],
        following: Int[Array, "B"],
        history: Int[Array, "B before"] | None,
    ) -> ReadSoFar:
        """With the next `num_new` tokens of each prompt behind the `start` that were read.

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
            cache, drafting = speculation.read_chunk(
                model,
                cache._replace(main=main),
                output.hidden,
                tokens,
                start,
                num_new,
                following,
                drafting,
            )
        last_BV = _logits_at(model, output, jnp.maximum(num_new - 1, 0))
        if target is not None:
            row_B1 = jnp.arange(tokens.shape[0])[:, None]
            position_BT = start[:, None] + jnp.arange(tokens.shape[1])[None]
            position_BT = jnp.where(mask_BT, position_BT, target.shape[1])
            new_BTLK = jnp.moveaxis(output.target, 0, 2)
            target = target.at[row_B1, position_BT].set(new_BTLK, mode="drop")
        logits = jnp.where(num_new[:, None] > 0, last_BV, logits)
        return ReadSoFar(cache, logits, target, drafting)

    def begin(
        self,
        read: ReadSoFar,
        lengths: Int[Array, "B"],
        members: Members,
        history: Int[Array, "B before"] | None,
    ) -> tuple[Prefix, ResultTokens]:
        """As `prefill`, of prompts that were read in chunks."""
        if history is not None:
            history = history[members.row]
        cache, logits, target, drafting = read
        return self._begin(cache, logits, lengths, members, history, target, drafting)

    def _begin(self, cache, last_logits_BV, lengths, members, history, target, drafting):
        position = lengths[members.row]
        key = draw.stream_keys(members.stream)
        drawn = draw.draw(
            last_logits_BV[members.row],
            key,
            position,
            members.temperature,
            members.greedy,
            members.truncation,
            raw=self.raw_log_probs,
        )
        last_position = position + members.max_new_tokens - 1
        goes_on = members.exists & (drawn.token != members.stop) & (position < last_position)
        slot = SlotState(
            token=drawn.token,
            position=position,
            prompt_length=position,
            last_position=last_position,
            active=goes_on & ~_is_among(drawn.token, members.stops),
            key=key,
            temperature=members.temperature,
            greedy=members.greedy,
            stop=members.stop,
            history=history,
            truncation=members.truncation,
            stops=members.stops,
            drafting=jax.tree.map(lambda a: a[members.row], drafting),
        )
        result = ResultTokens.pack(
            drawn.token[:, None],
            members.exists[:, None],
            jnp.ones_like(drawn.token),
            drawn.log_prob[:, None],
            None if drawn.raw_log_prob is None else drawn.raw_log_prob[:, None],
            None if target is None else target[members.row],
        )
        return Prefix(cache, members.row, slot), result

    def _last_tokens(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, "B"], row: Int[Array, "members"]
    ) -> Int[Array, "members before"] | None:
        """The end of each member's prompt; anything in place of what a short one does not have."""
        if not self.num_before:
            return None
        index = lengths[row][:, None] - self.num_before + jnp.arange(self.num_before)[None]
        return jnp.take_along_axis(tokens[row], jnp.maximum(index, 0), axis=1)

    def decode_block(self, params: Params, state: DecodeState) -> tuple[DecodeState, ResultTokens]:
        """`decode_steps` steps of every slot as one scan."""
        model = self.model_of(params)
        if isinstance(model, Quicker):
            model = model.layers_cut()
        one_step = self._drafted_step if self.speculation else self._step

        def step(state: DecodeState, _):
            return one_step(model, state)

        state, written_KNB = jax.lax.scan(step, state, length=self.decode_steps)
        token, wrote, log_prob, raw, target = jax.tree.map(_by_slot, written_KNB)
        if self.speculation:
            token, log_prob, raw = speculation.compact(wrote, (token, log_prob, raw))
            wrote = speculation.compact(wrote, wrote)
        length = state.slot.position - state.slot.prompt_length + 1
        return state, ResultTokens.pack(token, wrote, length, log_prob, raw, target)

    def _step(self, model: Any, state: DecodeState) -> tuple[DecodeState, StepOutput]:
        """One token of every slot."""
        slot, target = state.slot, None
        known = _known(model, slot)
        if self.routing:
            logits, target_LBK, cache = model.decode_routed(
                slot.token, slot.position, state.cache, **known
            )
            target = jnp.moveaxis(target_LBK, 1, 0)
        else:
            logits, cache = model.decode(slot.token, slot.position, state.cache, **known)
        drawn, wrote = self._draw(slot, logits, slot.position + 1), slot.active
        slot = _advance(slot, drawn, wrote)
        written = self._output(slot, drawn, wrote)._replace(target=target)
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
        draft = self._draw(before, draft_logits, position + 1).token
        pair = jnp.stack([before.token, draft], axis=1)
        known = _known(model, before)
        logits, hidden, main = model.extend(pair, position, state.cache.main, **known)
        first = self._draw(before, logits[:, 0], position + 1)
        middle = _advance(before, first, wrote)
        kept = middle.active & (draft == first.token)
        second = self._draw(before, logits[:, 1], position + 2)
        slot = _advance(middle, second, kept)
        num_read = slot.position - position
        slot = slot._replace(drafting=speculation.advance(before.drafting, hidden, pair, num_read))
        counts = state.num_drafts + jnp.stack([jnp.sum(wrote), jnp.sum(kept)])
        both = self._output(middle, first, wrote), self._output(slot, second, kept)
        written = jax.tree.map(lambda *a: jnp.stack(a), *both)
        return DecodeState(state.cache._replace(main=main, draft=rows), slot, counts), written

    def _draw(self, slot: SlotState, logits: Float[Array, "B V"], position: Int[Array, "B"]):
        return draw.draw(
            logits,
            slot.key,
            position,
            slot.temperature,
            slot.greedy,
            slot.truncation,
            raw=self.raw_log_probs,
        )

    def _output(self, slot: SlotState, drawn: Drawn, wrote: Bool[Array, "B"]) -> StepOutput:
        raw = drawn.raw_log_prob
        return StepOutput(
            slot.token,
            wrote,
            jnp.where(wrote, drawn.log_prob, 0.0),
            None if raw is None else jnp.where(wrote, raw, 0.0),
        )

    def decode_block_of(
        self, params: Params, state: DecodeState, slots: Int[Array, "W"]
    ) -> tuple[DecodeState, ResultTokens]:
        """The same for `slots` alone; a number past the last slot stands for none."""
        part = state._replace(
            cache=jax.tree.map(lambda a: a.at[:, :, slots].get(mode="clip"), state.cache),
            slot=slot_rows.take(state.slot, slots),
        )
        part, result = self.decode_block(params, part)
        state = state._replace(num_drafts=part.num_drafts)
        return slot_rows.put(state, part.cache, part.slot, slots), result


def _known(model: Any, slot: SlotState) -> dict[str, Array]:
    """Inputs of a decode step beside the tokens in hand: those before, and who is decoding."""
    known = {} if slot.history is None else {"history": slot.history}
    return known | {"mask": slot.active} if isinstance(model, Quicker) else known


def _advance(slot: SlotState, drawn: Drawn, wrote: Bool[Array, "B"]) -> SlotState:
    """The slots under `wrote` with one more token; others stay as they are."""
    token = jnp.where(wrote, drawn.token, slot.token)
    position = jnp.where(wrote, slot.position + 1, slot.position)
    goes_on = (token != slot.stop) & (position < slot.last_position)
    goes_on = goes_on & ~_is_among(token, slot.stops)
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
    """Outputs of a block by slot."""
    steps, most, batch, *rest = written.shape
    return jnp.moveaxis(written.reshape(steps * most, batch, *rest), 1, 0)


def _logits_at(model: Any, output: Any, index: Int[Array, "B"]) -> Float[Array, "B V"]:
    """Logits at one position of each row; those of all others are not computed if that can be."""
    at = index[:, None, None]
    if isinstance(model, Quicker):
        return model.logits_of(jnp.take_along_axis(output.hidden, at, axis=1))[:, 0]
    return jnp.take_along_axis(output.logits, at, axis=1)[:, 0]


def _is_among(token: Int[Array, "B"], stops: Int[Array, "B stops"] | None) -> Bool[Array, "B"]:
    if stops is None:
        return jnp.zeros_like(token, bool)
    return jnp.any(token[:, None] == stops, axis=1)
