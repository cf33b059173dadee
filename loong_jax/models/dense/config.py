"""Sizes of a dense decoder: Llama, Qwen2, Qwen3. Source: their published configs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError, refuse_outside
from loong_jax.models import checking
from loong_jax.models.rope import RopeScaling

RematWord = Literal["off", "layer"]


def _shape(sizes: tuple[int, ...], **fields: Any) -> Callable[..., "DenseConfig"]:
    """A function of changes to a shape; `sizes` are the first fields of `DenseConfig`."""

    def make(**changes: Any) -> "DenseConfig":
        names = (field.name for field in dataclasses.fields(DenseConfig))
        shape: dict[str, Any] = dict(zip(names, sizes, strict=False))
        return DenseConfig(**(shape | fields | changes))

    return staticmethod(make)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """Every size of the model; letters are those of the annotations.

    `num_heads` queries share `num_kv_heads` keys and values, each by as many. `chunk_tokens`,
    without a mesh, is how many tokens the feed-forward nets take at a time, recomputing them in the
    backward pass: a CPU core then works out of its cache. `unroll_layers` makes the layers a
    straight line instead of a loop. `remat` says what a layer keeps for its backward pass: all it
    made, on a single CPU its products with weights, or its input only.
    """

    vocab_size: int  # V
    hidden_size: int  # D
    num_layers: int  # L
    num_heads: int  # N
    num_kv_heads: int  # KV
    head_dim: int  # H
    ffn_hidden_size: int  # F
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False  # norms over H of every query and key
    tied: bool = False  # the embedding is the head
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    rope: RopeScaling | None = None  # stretches the rotary positions
    max_position: int = 2048
    residual_gain: float = 1.0  # of fresh weights that write to the residual stream
    chunk_tokens: int | None = None
    unroll_layers: bool = False
    dtype: DTypeLike = jnp.float32  # of activations
    param_dtype: DTypeLike = jnp.float32  # of weights; fresh norms are float32
    remat: RematWord = "off"

    def __post_init__(self):
        for name in ("dtype", "param_dtype"):  # as one type: configs that are equal hash alike
            object.__setattr__(self, name, checking.floating(name, getattr(self, name)))
        checking.whole_numbers(self)
        refuse_outside(
            self, "(0, inf]", "rms_norm_eps", "rope_theta", "residual_gain", "chunk_tokens"
        )
        if self.rope is not None and not isinstance(self.rope, get_args(RopeScaling)):
            names = ", ".join(kind.__name__ for kind in get_args(RopeScaling))
            raise ConfigError(f"rope={self.rope!r} stretches no positions. Pass one of {names}.")
        checking.one_of(self, "remat", get_args(RematWord))
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}, and "
                "as many queries share each key. Change one."
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"head_dim={self.head_dim} is odd, and rotation works on pairs. Make it even."
            )

    @property
    def num_groups(self) -> int:
        """G, the queries that share a key."""
        return self.num_heads // self.num_kv_heads

    @property
    def letters(self) -> dict[str, int]:
        """Sizes by their letters, for arguments of the model that must have them."""
        return {
            "L": self.num_layers,
            "KV": self.num_kv_heads,
            "H": self.head_dim,
            "D": self.hidden_size,
        }

    @property
    def num_attentions(self) -> int:
        """Attentions of the model, each before a dense feed-forward net."""
        return self.num_layers

    @property
    def pair_width(self) -> int:
        """Numbers of an attention, over all heads, that meet for a query and a key that it sees."""
        return self.num_heads * 2 * self.head_dim

    def chunk_rows(self, num_tokens: int) -> int | None:
        """The number of sequences of `num_tokens` in a chunk; None where there are no chunks."""
        return self.chunk_tokens and max(1, self.chunk_tokens // max(1, num_tokens))

    # Shapes: V, D, L, N, KV, H and F, then other fields. All are called with changes of fields.
    # Half a million parameters, and five million in the proportions of Llama, to measure on a CPU.
    tiny = _shape((128, 96, 3, 4, 2, 32, 256), qkv_bias=True, tied=True, max_position=1024)
    llama_5m = _shape((512, 256, 6, 4, 2, 64, 768), tied=True)
    # SmolLM2-135M, Qwen2-1.5B and Qwen2.5-7B.
    smollm2 = _shape(
        (49_152, 576, 30, 9, 3, 64, 1536),
        tied=True,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        max_position=8192,
    )
    qwen2_1b5 = _shape(
        (151_936, 1536, 28, 12, 2, 128, 8960), qkv_bias=True, tied=True, rope_theta=1e6
    )
    qwen25_7b = _shape(
        (152_064, 3584, 28, 28, 4, 128, 18_944),
        qkv_bias=True,
        rope_theta=1e6,
        max_position=131_072,
        dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16,
    )


SHAPES: Mapping[str, Callable[..., DenseConfig]] = {  # by name on the command line
    "tiny-dense": DenseConfig.tiny,
    "llama-5m": DenseConfig.llama_5m,
    "smollm2-135m": DenseConfig.smollm2,
    "qwen2-1.5b": DenseConfig.qwen2_1b5,
    "qwen2.5-7b": DenseConfig.qwen25_7b,
}
