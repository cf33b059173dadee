"""Global batches of which every process makes only the rows that its own devices hold.

The rows of a batch are cut into F equal parts, one for each device along the axes that cut rows.
Part f packs the pairs f, f + F, f + 2F, ... in order, so a batch depends on the mesh and on how
many pairs were used, and not on how many processes there are.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Int

from loong_jax.errors import ConfigError
from loong_jax.rl import sft
from loong_jax.sharding import ShardingRules

PairAt = Callable[[int], tuple[str, str]]  # (prompt, response) by number, endless


def first_cursors(rules: ShardingRules) -> Int[Array, "F"]:
    """The number of pairs that each part has used before the first step: none."""
    return jnp.zeros((rules.parts("act_batch"),), jnp.int32, out_sharding=rules.spec("act_batch"))


def batch_template(settings: sft.SftSettings, rules: ShardingRules) -> dict[str, Any]:
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
        encode: sft.Encode,
        settings: sft.SftSettings,
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
            self._streams[part] = sft.batches(map(pair_at, numbers), encode, own)

    def __next__(self) -> tuple[dict[str, Array], ...]:
        made: dict[int, Any] = {}
        for part, stream in self._streams.items():
            batch, taken = next(stream)
            made[part] = sft.micro_batches(batch, self._num_micro_batches)
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
