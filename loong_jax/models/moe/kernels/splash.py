"""Attention by JAX's own Pallas kernel for TPU, over keys and values that are expanded whole.

The kernel builds causality from the order of the queries and segments from their ids, visits only
blocks of which causality leaves something, and takes heads whose keys (H + R, 192 published) are
wider than their values (U, 128). Source: jax.experimental.pallas.ops.tpu.splash_attention.
"""

import dataclasses
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from loong_jax.errors import ConfigError
from loong_jax.models.moe.kernels import AttentionMask, Operands, expand
from loong_jax.sharding import ShardingRules

_LANES = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splash:
    """Splash attention, for TPU; elsewhere its kernel is interpreted, which only tests should want.

    Lengths must be multiples of 128. Blocks are the largest divisors of the length that divide the
    sizes below.
    """

    query_block: int = 512
    key_block: int = 512

    def __post_init__(self):
        for name in ("query_block", "key_block"):
            if (size := getattr(self, name)) < 1 or size % _LANES:
                raise ConfigError(
                    f"{name}={size} is no multiple of {_LANES}, the lanes of a TPU. Use one."
                )


# A kernel of JAX's splash attention, a pytree of its lists of blocks: from queries [N, T, h], keys
# [N, S, h], values [N, S, U] and segments of one sequence to what they mix.
Kernel: TypeAlias = Any


def fits(num_queries: int, num_keys: int) -> bool:
    """True if these lengths, of one device, divide into blocks."""
    return num_queries % _LANES == 0 and num_keys % _LANES == 0


def make_kernel(
    sizes: Splash, num_heads: int, query_index: tuple[int, ...], num_shards: int, interpret: bool
) -> Kernel:
    """The kernel for queries that stand at `query_index` among as many keys.

    `num_heads` are those of one device; `num_shards` devices share the queries between them.

    Raises:
      ConfigError: a device's share of the queries is no multiple of 128.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    num_keys = len(query_index)
    num_queries = num_keys // num_shards
    if not fits(num_queries, num_keys):
        raise ConfigError(
            f"{num_queries} tokens per device are no multiple of {_LANES}, which splash attention "
            "needs. Pad the sequences, or set attention=Blockwise()."
        )
    rows = math.gcd(sizes.query_block, num_queries)
    columns = math.gcd(sizes.key_block, num_keys)
    causal = masks.CausalMask((num_keys, num_keys))
    causal.q_sequence = np.asarray(query_index, np.int32)
    sizes_of: dict[str, Any] = {f"block_q{way}": rows for way in ("", "_dkv", "_dq")}
    sizes_of |= {f"block_kv{way}": columns for way in ("", "_dkv", "_dq")}
    blocks = splash.BlockSizes(**sizes_of)
    return splash.make_splash_mha(
        masks.MultiHeadMask([causal] * num_heads),
        block_sizes=blocks,
        head_shards=1,
        residual_checkpoint_name="attention",
        q_seq_shards=num_shards,
        interpret=interpret,
    )


def specs(kernel: Kernel | None, rules: ShardingRules) -> Kernel | None:
    """Partitions in the place of a kernel's arrays: its lists of blocks follow the queries."""
    if kernel is None:
        return None
    spec = rules.spec(None, "act_length")
    return kernel.manual_sharding_spec(spec)


def attend(operands: Operands, mask: AttentionMask, kernel: Kernel) -> Float[Array, "B T N U"]:
    """softmax(query key) value for every query and head; the kernel has the indices already."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    key_BNSh, value_BNSU = expand(*operands[1:])
    query_BNTh = jnp.swapaxes(operands.query, 1, 2)
    segments = splash.SegmentIds(mask.query_segment, mask.key_segment)
    mixed_BNTU = jax.vmap(kernel)(query_BNTh, key_BNSh, value_BNSU, segments)
    return jnp.swapaxes(mixed_BNTU, 1, 2)
