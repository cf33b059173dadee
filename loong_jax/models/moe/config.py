"""Sizes of a LongCat-Flash model. Source: arXiv:2509.01322; the family's published configs."""

import dataclasses
import math
from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError, refuse_below, refuse_outside
from loong_jax.models import checking
from loong_jax.models.moe.core_attention import AttentionKind
from loong_jax.models.moe.exchange import Exchange, GatherExchange
from loong_jax.models.moe.kernels.expert_gemm import ExpertGemm
from loong_jax.models.rope import YarnScaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramEmbedding:
    """Hashed tables that tell the input embedding which tokens came before.

    There are `num_splits` tables for each order from 2 to `max_order`; table i has
    `base_rows` + 2 i + 1 rows of D / (number of tables) values. Source: arXiv:2601.21204.
    """

    max_order: int = 4  # tokens of the longest n-gram
    num_splits: int = 4  # tables per order
    base_rows: int = 78 * 131_072
    eos_token: int = 2  # no n-gram reaches back over it

    def __post_init__(self):
        refuse_below(self, 2, "max_order")
        refuse_below(self, 1, "num_splits", "base_rows")
        if sum(self.rows) >= 2**31:
            raise ConfigError(
                f"the tables of n-grams have {sum(self.rows)} rows together, and rows are counted "
                "in 32 bits. Lower ngram.base_rows or the number of tables."
            )

    @property
    def orders(self) -> tuple[int, ...]:
        """The order of each table."""
        orders = range(2, self.max_order + 1)
        return tuple(order for order in orders for _ in range(self.num_splits))

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each table, which its hash is reduced by."""
        return tuple(self.base_rows + 2 * table + 1 for table in range(len(self.orders)))


# A layer may keep for its backward pass: rows that arrived, the residual stream between its
# sub-layers, the logits of the router, the products of gate and up of either FFN and, where they
# are grouped products, of the experts, what splash attention or cuDNN needs to go back, the
# queries, keys and values of cuDNN, and what the ranks of an attention hold before their norms.
KEPT = (
    "dispatched",
    "residual",
    "router",
    "ffn_0",
    "ffn_1",
    "experts",
    "attention",
    "expanded",
    "latents",
)

RematWord: TypeAlias = Literal["off", "layer", "all_but_dispatched"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Every size of the model; letters are those of the annotations.

    `target_ffn_experts` is the mean number of experts with weights that a token should meet; the
    bias controller holds it. `num_layers` counts logical layers, each with two attentions.
    `chunk_tokens` says how much attention and dense FFNs do at a time, recomputing it in the
    backward pass, where no mesh is used: a CPU core then works out of its cache, and training runs
    about twice as fast. None does everything at once. `unroll_layers` makes the layers a straight
    line instead of a loop, which takes longer to compile by a factor of about L; on CPU a training
    step of a few layers then no longer copies what every layer keeps for its backward pass into
    arrays over all layers and out again. `residual_gain` multiplies the deviation of
    fresh output matrices of attentions, dense FFNs and experts: with (4 L)^-1/2 the 4 L dense
    branches together add as much variance to the residual stream as one does with 1.

    `exchange` is how tokens reach experts on other devices, `expert_gemm` what multiplies them
    there. `token_chunks` cuts the tokens of each device so that exchanges also hide behind experts
    (see `experts`); where it does not divide them, the greatest common divisor does. `remat` says
    what a layer keeps for its backward pass: all it made, its input only, or its input and the rows
    that the exchange brought, so that no exchange is done twice. A tuple names what it keeps beside
    its input, of `KEPT`.
    """

    vocab_size: int  # V
    hidden_size: int  # D
    num_layers: int  # L
    num_heads: int  # N
    q_lora_rank: int  # Q
    kv_lora_rank: int  # C
    qk_nope_head_dim: int  # H
    qk_rope_head_dim: int  # R
    v_head_dim: int  # U
    ffn_hidden_size: int  # F
    expert_ffn_hidden_size: int  # M
    num_experts: int  # E
    num_zero_experts: int  # Z
    num_chosen: int  # K
    target_ffn_experts: float  # K_e
    num_mtp_layers: int = 0  # 0 or 1 heads that draft one more token
    gate_scale: float = 6.0  # multiplies every gate; gamma of arXiv:2509.01322, section 2.3
    residual_gain: float = 1.0  # of fresh weights that write to the residual stream
    rms_norm_eps: float = 1e-5
    lora_norm_eps: float = 1e-6  # of the two norms on latents
    rope_theta: float = 1e7
    yarn: YarnScaling | None = None  # stretches the rotary positions
    max_position: int = 131_072
    ngram: NgramEmbedding | None = None  # adds what came before to the input embedding
    chunk_tokens: int | None = None  # without a mesh: tokens per chunk of attention and dense FFN
    unroll_layers: bool = False  # a straight line instead of a loop
    # how it is computed; None: by length and platform
    attention: AttentionKind | None = None
    dtype: DTypeLike = jnp.float32  # of activations
    param_dtype: DTypeLike = jnp.float32  # of weights; router and norms stay float32
    exchange: Exchange = GatherExchange()
    token_chunks: int = 1  # of a device's tokens: one is exchanged while experts compute another
    expert_gemm: ExpertGemm = "auto"
    remat: RematWord | tuple[str, ...] = "off"

    def __post_init__(self):
        for name in ("dtype", "param_dtype"):  # as one type: configs that are equal hash alike
            object.__setattr__(self, name, checking.floating(name, getattr(self, name)))
        checking.whole_numbers(self, may_be_zero=("num_zero_experts", "num_mtp_layers"))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kinds = _PARTS.get(field.name, ())
            if kinds and not (isinstance(value, kinds) or value is field.default is None):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise ConfigError(f"{field.name}={value!r} is no {names}. Pass one that is made.")
        words, is_tuple = get_args(RematWord), isinstance(self.remat, tuple)
        if not (set(self.remat) <= set(KEPT) if is_tuple else self.remat in words):
            raise ConfigError(
                f"remat={self.remat!r} names what no layer makes. Give a tuple of some of "
                f"{', '.join(KEPT)}; or one of {', '.join(words)} alone."
            )
        checking.one_of(self, "expert_gemm", get_args(ExpertGemm))
        if self.num_chosen > self.num_targets:
            raise ConfigError(
                f"num_chosen={self.num_chosen} is not in 1..{self.num_targets}, the sum of both "
                "kinds of experts. Lower num_chosen or add experts."
            )
        refuse_outside(self, "[0, 1]", "num_mtp_layers", why="one head drafts one token")
        choices = f"(0, {self.num_chosen}]"
        refuse_outside(self, choices, "target_ffn_experts", why="up to the choices of a token")
        if self.qk_rope_head_dim % 2:
            raise ConfigError(
                f"qk_rope_head_dim={self.qk_rope_head_dim} is odd, and rotation works on pairs. "
                "Make it even."
            )
        factors = "gate_scale", "residual_gain", "rms_norm_eps", "lora_norm_eps", "rope_theta"
        refuse_outside(self, "(0, inf]", *factors, "chunk_tokens")
        if self.yarn is not None and self.rope_theta == 1:
            raise ConfigError(
                "rope_theta=1 turns all pairs alike, so YaRN cannot tell fast ones from slow ones. "
                "Raise it or leave yarn out."
            )
        if self.ngram is not None and self.hidden_size % len(self.ngram.orders):
            raise ConfigError(
                f"hidden_size={self.hidden_size} does not divide over the {len(self.ngram.orders)} "
                "tables of n-grams. Change ngram.max_order or ngram.num_splits."
            )

    @property
    def num_targets(self) -> int:
        """A = E + Z."""
        return self.num_experts + self.num_zero_experts

    @property
    def letters(self) -> dict[str, int]:
        """Sizes by their letters, for arguments of the model that must have them."""
        return {
            "L": self.num_layers,
            "A": self.num_targets,
            "K": self.num_chosen,
            "D": self.hidden_size,
        }

    @property
    def num_attentions(self) -> int:
        """Attentions of the model, each before a dense feed-forward net."""
        return 2 * self.num_layers

    @property
    def pair_width(self) -> int:
        """Numbers of an attention, over all heads, that meet for a query and a key that it sees."""
        return self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def mean_ffn_experts(self) -> float:
        """K_e, or what comes nearest to it where K choices among E and Z cannot meet so many."""
        least = max(0, self.num_chosen - self.num_zero_experts)
        return min(max(least, self.target_ffn_experts), self.num_chosen, self.num_experts)

    @property
    def q_scale(self) -> float:
        """alpha_q, which undoes the variance that the low rank costs the queries."""
        return math.sqrt(self.hidden_size / self.q_lora_rank)

    @property
    def kv_scale(self) -> float:
        """alpha_kv, the same for keys and values; the rotary key is not scaled."""
        return math.sqrt(self.hidden_size / self.kv_lora_rank)

    @property
    def attention_scale(self) -> float:
        """The factor of attention scores before the softmax."""
        plain = (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        return plain if self.yarn is None else plain * self.yarn.score_scale

    def chunk_rows(self, num_tokens: int) -> int | None:
        """The number of sequences of `num_tokens` in a chunk; None where there are no chunks."""
        return self.chunk_tokens and max(1, self.chunk_tokens // max(1, num_tokens))

    @classmethod
    def tiny(cls, **changes) -> "MoEConfig":
        """The quickstart's model, about a million parameters; `changes` override single fields."""
        sizes: dict[str, Any] = dict(
            vocab_size=128,
            hidden_size=128,
            num_layers=2,
            num_heads=4,
            q_lora_rank=64,
            kv_lora_rank=32,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
            ffn_hidden_size=256,
            expert_ffn_hidden_size=64,
            num_experts=8,
            num_zero_experts=4,
            num_chosen=3,
            target_ffn_experts=2.0,
            gate_scale=4.0,
            rope_theta=1e4,
            max_position=1024,
            chunk_tokens=512,
        )
        return cls(**(sizes | changes))

    @classmethod
    def flash(cls, **changes) -> "MoEConfig":
        """LongCat-Flash-Chat and -Thinking: 560.7 billion parameters."""
        sizes: dict[str, Any] = dict(
            vocab_size=131_072,
            hidden_size=6144,
            num_layers=28,
            num_heads=64,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            ffn_hidden_size=12_288,
            expert_ffn_hidden_size=2048,
            num_experts=512,
            num_zero_experts=256,
            num_chosen=12,
            target_ffn_experts=8.0,
            dtype=jnp.bfloat16,
            param_dtype=jnp.bfloat16,
        )
        return cls(**(sizes | changes))

    @classmethod
    def lite(cls, **changes) -> "MoEConfig":
        """LongCat-Flash-Lite: 68.6 billion parameters, 31.4 of them in tables of n-grams."""
        sizes: dict[str, Any] = dict(
            hidden_size=3072,
            num_layers=14,
            num_heads=32,
            ffn_hidden_size=6144,
            expert_ffn_hidden_size=1024,
            num_experts=256,
            num_zero_experts=128,
            yarn=YarnScaling(
                factor=10.0, original_max_position=32_768, mscale=1.0, mscale_all_dim=1.0
            ),
            rope_theta=5e6,
            max_position=327_680,
            ngram=NgramEmbedding(),
        )
        return cls.flash(**(sizes | changes))


_PARTS: dict[str, tuple[type, ...]] = {
    "exchange": get_args(Exchange),
    "attention": get_args(AttentionKind),
    "yarn": (YarnScaling,),
    "ngram": (NgramEmbedding,),
}
