"""Supervised fine-tuning on worked solutions: the cold start before reinforcement learning."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from loong_jax.data import packing, tool_template
from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.models.parameters import Weights
from loong_jax.rl import batching, logprobs, policy_model, trainer
from loong_jax.rl.auxiliary import Batch, Metrics
from loong_jax.rl.batching import Layout
from loong_jax.rl.optimizers import Optimizer
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.rl.trainer import TrainState
from loong_jax.sharding import ShardingRules

Encode = Callable[[Any], dict[str, np.ndarray]]  # an example as tokens and loss mask
PairAt = Callable[[int], tuple[str, str]]  # (prompt, response) by number, endless
StepReport = Callable[[TrainState, int, dict[str, float]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings:
    optimizer: Optimizer
    num_steps: int
    rows: int = 48
    micro_rows: int = 0  # computed at once at most; 0: all
    row_length: int = 128
    routing_every: int = 0  # steps between looks at the routers; 0: none

    def __post_init__(self):
        refuse_below(self, 0, "routing_every")
        refuse_below(self, 1, "num_steps", "rows", "row_length")

    @property
    def num_micro_batches(self) -> int:
        return num_micro_batches(self.rows, self.micro_rows)


def num_micro_batches(rows: int, micro_rows: int) -> int:
    """In how many parts, one after another, a batch is computed: their gradients add up."""
    return -(-rows // (micro_rows or rows))


def encode_pair(tokenizer: Tokenizer, prompt: str, response: str) -> dict[str, np.ndarray]:
    """As `encode_response`, of a prompt that is text."""
    return encode_response(tokenizer, tokenizer.prompt_ids(prompt), response)


def encode_response(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], response: str
) -> dict[str, np.ndarray]:
    """Tokens of prompt, response and <eos>; the loss is on the response and its end.

    What tools wrote in a response of several turns is not under the loss.
    """
    tokens = list(prompt_ids)
    mask = [False] * len(tokens)
    for piece, is_of_tools in tool_template.split(response):
        written = tokenizer.encode(piece)
        tokens += written
        mask += [not is_of_tools] * len(written)
    if not any(mask) or tokens[-1] not in tokenizer.end_ids:
        tokens.append(tokenizer.eos_id)
        mask.append(True)
    return {"tokens": np.array(tokens, np.int32), "loss_mask": np.array(mask)}


def pair_encoder(tokenizer: Tokenizer) -> Encode:
    """The encoder of (prompt, response) pairs."""
    return lambda pair: encode_pair(tokenizer, *pair)


def batches(
    examples: Iterable[Any], encode: Encode, settings: SftSettings
) -> Iterator[tuple[Batch, int]]:
    """Packed batches, each with how many examples it holds; ends with these. Order is kept."""
    stream: Iterator[Any] = map(encode, examples)
    while True:
        first = next(stream, None)
        if first is None:
            return
        packed, taken, left_over = packing.pack_prefix(
            itertools.chain([first], stream), settings.row_length, settings.rows
        )
        yield packed, taken
        if left_over is not None:
            stream = itertools.chain([left_over], stream)


def micro_batches(
    batch: Batch, count: int, *, lists: bool = False, parts: int = 1
) -> tuple[Batch, ...]:
    """`count` equal parts of a batch, the last filled up with empty rows.

    With `lists` they name the tokens under the loss, so that no logits are made for others, those
    of each of `parts` equal parts of the rows of a micro-batch apart.
    """
    missing = -len(batch["tokens"]) % (count * parts)
    filled: Batch = {name: np.pad(a, ((0, missing), (0, 0))) for name, a in batch.items()}
    if lists:
        filled["predicted"] = packing.predicted(filled, filled["loss_mask"], count * parts)
    return tuple(
        jax.tree.map(lambda a, number=number: np.split(a, count)[number], filled)
        for number in range(count)
    )


def batch_shapes(model: PolicyModel, rows: int, row_length: int) -> Batch:
    """Shapes of a micro-batch on the mesh, whose every token is under the loss."""
    layout = Layout(lists=model.lists, parts=model.rules.parts("act_batch"))
    found = batching.shapes(layout, model.rules, rows, row_length)._asdict()
    names = ("tokens", "loss_mask", "segment_ids", "positions", "predicted")
    return {name: found[name] for name in names if found[name] is not None}


def sft_loss(
    weights: Weights,
    batch: Batch,
    frozen: Any = (),
    num_tokens: Int[Array, ""] | None = None,
    *,
    model: PolicyModel,
    num_micro_batches: int = 1,
) -> tuple[Float[Array, ""], tuple[Int[Array, "L A"], Metrics]]:
    """The part of a micro-batch in the loss to go down, with its load and the metrics of its terms.

    The loss is the negative log-likelihood of the tokens under `loss_mask`, in nats, over the
    `num_tokens` of those in the whole batch (None: in this one), and the mean over micro-batches of
    the model's auxiliary losses. With such losses "loss" stays the former, so that runs compare.
    """
    weights = model.join(weights, frozen)
    if model.forward_with_losses is not None:
        output, *of_one = model.forward_with_losses(weights, batch)
        added, metrics = jax.tree.map(lambda term: term / num_micro_batches, of_one)
        loss = nll_of_output(weights, output, batch, num_tokens, model=model)
        return loss + added, (output.load, {"loss": loss} | metrics)
    logprob, _, load, _ = policy_model.replayed_logprobs(model, weights, batch, 1.0)
    loss = _nll(logprob, batch, num_tokens)
    return loss, (load, {"loss": loss})


def nll_of_output(
    weights: Weights,
    output: Any,
    batch: Batch,
    num_tokens: Int[Array, ""] | None = None,
    *,
    model: PolicyModel,
) -> Float[Array, ""]:
    """The negative log-likelihood as `sft_loss` counts it, given the model's output."""
    logits = functools.partial(model.logits, weights)
    which = batch["tokens"], batch["segment_ids"], batch.get("predicted")
    logprob, _ = logprobs.listed_logprobs(logits, output.hidden, *which, 1.0)
    return _nll(logprob, batch, num_tokens)


def _nll(
    logprob: Float[Array, "B T"], batch: Batch, num_tokens: Int[Array, ""] | None
) -> Float[Array, ""]:
    mask = batch["loss_mask"]
    num_tokens = jnp.sum(mask) if num_tokens is None else num_tokens
    return -jnp.sum(jnp.where(mask, logprob, 0.0)) / jnp.maximum(num_tokens, 1)


@functools.lru_cache(maxsize=16)
def make_train_step(model: PolicyModel, optimizer: Optimizer) -> Callable[..., Any]:
    """Compiled `train_step(state, micro_batches, frozen=()) -> (state, metrics, load)`; the state
    is donated.
    """

    @functools.partial(model.rules.jit, donate_argnames="state")
    def train_step(
        state: TrainState, batches: tuple[Batch, ...], frozen: Any = ()
    ) -> tuple[TrainState, Metrics, Int[Array, "L A"]]:
        loss_of = functools.partial(sft_loss, model=model, num_micro_batches=len(batches))
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        num_tokens = sum(jnp.sum(batch["loss_mask"]) for batch in batches)

        def add(
            gradient: Weights, batch: Batch
        ) -> tuple[Weights, tuple[Int[Array, "L A"], Metrics]]:
            # In place, as `trainer.accumulate` adds, the quickstart's step takes a CPU 5 % longer.
            (_, found), further = gradient_of(state.weights, batch, frozen, num_tokens)
            return jax.tree.map(jnp.add, gradient, further), found

        none = jax.tree.map(jnp.zeros_like, state.weights)
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *batches)
        gradient, found = jax.lax.scan(add, none, stacked)
        load, terms = jax.tree.map(lambda parts: jnp.sum(parts, axis=0), found)
        state, metrics = trainer.apply_gradient(
            state, gradient, load, model=model, optimizer=optimizer
        )
        return state, metrics | terms, load

    return train_step


@functools.lru_cache(maxsize=16)
def make_routing_metrics(model: PolicyModel) -> Callable[[Weights, Batch], Metrics]:
    """Compiled `routing_metrics(weights, batch) -> metrics`, of a model that has routers."""
    if model.routing_metrics is None:
        raise ConfigError("routing_every asks for metrics of routers, and this model has none.")
    return model.rules.jit(
        functools.partial(model.routing_metrics, loss=functools.partial(nll_of_output, model=model))
    )


class Fed(NamedTuple):
    """The batch of a step."""

    micro_batches: tuple[Batch, ...]  # on the devices
    num_tokens: int
    metrics: dict[str, float]  # of how it was made


def run(
    model: PolicyModel,
    settings: SftSettings,
    state: TrainState,
    examples: Iterable[Any],
    encode: Encode | Tokenizer,
    *,
    cursor: int = 0,
    frozen: Any = (),
    on_step: StepReport | None = None,
    keep_going: Callable[[], bool] = lambda: True,
) -> tuple[TrainState, int]:
    """Trains to step `settings.num_steps`; returns the state and how many examples were used.

    `examples` starts at the first one, also on resume: `cursor` of them are passed over. Pairs of
    prompt and response need a tokenizer alone.
    `on_step(state, cursor, metrics)` runs after every step and may save the two, but must not keep
    the state, which the next step consumes. Raises ValueError where the examples end too soon.
    """
    if not callable(encode):
        encode = pair_encoder(encode)
    later = itertools.islice(iter(examples), cursor, None)
    stream = batches(later, encode, settings)
    parts = model.rules.parts("act_batch")

    def feed(step: int) -> Fed:
        nonlocal cursor
        batch, taken = next(stream, (None, 0))
        if batch is None:
            raise ValueError(
                f"the examples ended after {cursor}, at step {step} of "
                f"{settings.num_steps}. Give more, or train for fewer steps."
            )
        cursor += taken
        count = settings.num_micro_batches
        given = micro_batches(batch, count, lists=model.lists, parts=parts)
        num_tokens = int(np.sum(batch["segment_ids"] > 0))
        return Fed(tuple(map(model.rules.put_rows, given)), num_tokens, {"num_pairs": taken})

    def report(state: TrainState, numbers: dict[str, float]) -> None:
        if on_step is not None:
            on_step(state, cursor, numbers)

    step = make_train_step(model, settings.optimizer)
    how = dict(frozen=frozen, on_step=report, keep_going=keep_going)
    return run_on(model, settings, state, feed, step, **how), cursor


def run_on(
    model: PolicyModel,
    settings: SftSettings,
    state: TrainState,
    feed: Callable[[int], Fed],
    train_step: Callable[..., Any],
    *,
    frozen: Any = (),
    on_step: Callable[[TrainState, dict[str, float]], None],
    keep_going: Callable[[], bool],
) -> TrainState:
    """Trains to step `settings.num_steps` on what `feed(step)` gives after each `step`.

    `train_step` is as `make_train_step` makes it, or compiled.
    """
    while (step := int(state.step)) < settings.num_steps and keep_going():
        start = time.monotonic()
        batches, num_tokens, made = feed(step)
        looked = {}
        if settings.routing_every and (step + 1) % settings.routing_every == 0:
            looked = make_routing_metrics(model)(state.weights, batches[0])
        # CPUs run side by side what does not depend on each other, and two programs that exchange
        # data may then wait for each other for ever: each ends, on all devices, before the next.
        state, metrics, load = jax.block_until_ready(train_step(state, batches, frozen))
        numbers = {name: float(value) for name, value in (metrics | looked).items()}
        numbers |= model.load_metrics(load) | made
        numbers["tokens_per_s"] = num_tokens / (time.monotonic() - start)
        numbers["packed_share"] = num_tokens / (settings.rows * settings.row_length)
        on_step(state, numbers)
    return state


# ---- global batches, of which every process makes only the rows that its own devices hold
#
# The rows are cut into F equal parts, one for each device along the axes that cut rows. Part f
# packs the pairs f, f + F, f + 2F, ... in order, so a batch depends on the mesh and on how many
# pairs were used, and not on how many processes there are.


def first_cursors(rules: ShardingRules) -> Int[Array, "F"]:
    """The number of pairs that each part has used before the first step: none."""
    return jnp.zeros((rules.parts("act_batch"),), jnp.int32, out_sharding=rules.spec("act_batch"))


def batch_template(settings: SftSettings, rules: ShardingRules) -> dict[str, Any]:
    """Shapes, dtypes and shardings of a micro-batch, as `jax.ShapeDtypeStruct`."""
    parts = rules.parts("act_batch")
    shape = parts * -(-settings.rows // (parts * settings.num_micro_batches)), settings.row_length
    sharding = _cut(rules, "act_batch", "act_keys")
    dtypes = dict(tokens=jnp.int32, loss_mask=bool, segment_ids=jnp.int32, positions=jnp.int32)
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, dtype in dtypes.items()
    }


def _cut(rules: ShardingRules, *names: str) -> NamedSharding:
    assert rules.mesh is not None, "a sharded feed needs a mesh, if only of one device"
    return NamedSharding(rules.mesh, rules.partition(*names))


class ShardedFeed:
    """`next(feed)` are the micro-batches of the next step; `feed.cursors()` what a checkpoint must
    hold.

    Arrays of a batch are sharded by rows; every device along the other axes holds whole rows.
    """

    def __init__(
        self,
        pair_at: PairAt,
        encode: Encode,
        settings: SftSettings,
        rules: ShardingRules,
        cursors: Int[Array, "F"],
    ):
        parts = rules.parts("act_batch")
        if settings.rows % parts:
            raise ConfigError(
                f"rows={settings.rows} cannot be shared among {parts} devices (slice, data, fsdp "
                f"and expert together). Use a multiple of {parts}."
            )
        self._num_parts = parts
        self._num_micro_batches = settings.num_micro_batches
        self._template = batch_template(settings, rules)
        self._cursor_sharding = _cut(rules, "act_batch")
        self._cursors = {  # of the parts that this process makes
            shard.index[0].start or 0: int(np.asarray(shard.data)[0])
            for shard in cursors.addressable_shards
        }
        self._streams = {}
        for part, cursor in self._cursors.items():
            numbers = itertools.count(part + cursor * parts, parts)
            own = dataclasses.replace(settings, rows=settings.rows // parts)
            self._streams[part] = batches(map(pair_at, numbers), encode, own)

    def __next__(self) -> tuple[dict[str, Array], ...]:
        made: dict[int, Any] = {}
        for part, stream in self._streams.items():
            batch, taken = next(stream)
            made[part] = micro_batches(batch, self._num_micro_batches)
            self._cursors[part] += taken
        height = self._template["tokens"].shape[0] // self._num_parts

        def rows_of(number: int, name: str, index: Any) -> np.ndarray:
            return made[(index[0].start or 0) // height][number][name]

        return tuple(
            {
                name: jax.make_array_from_callback(
                    like.shape, like.sharding, functools.partial(rows_of, number, name)
                )
                for name, like in self._template.items()
            }
            for number in range(self._num_micro_batches)
        )

    def cursors(self) -> Int[Array, "F"]:
        """The number of pairs that each part has used."""

        def cursor_of(index: Any) -> np.ndarray:
            return np.array([self._cursors[index[0].start or 0]], np.int32)

        return jax.make_array_from_callback((self._num_parts,), self._cursor_sharding, cursor_of)
