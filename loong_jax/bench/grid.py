"""The six models on which ours is timed against transformers, and why these.

Each is a family member in small: both kinds of experts, ranks below the width, two attentions and
two dense FFNs per logical layer. Together they move what the time goes to.
"""

import dataclasses

from loong_jax.errors import ConfigError
from loong_jax.models.moe.config import MoEConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and the batch it is timed on."""

    name: str
    reason: str
    config: MoEConfig
    batch: int  # B
    length: int  # T

    @property
    def num_tokens(self) -> int:
        return self.batch * self.length


def _sized(width: int, **changes) -> MoEConfig:
    """A model of residual width `width` with the published F = 2 D, a third of the targets of zero
    computation, K_e = 2 K / 3 and alpha_kv = 2; `changes` override single fields."""
    sizes = dict(
        vocab_size=2048,
        hidden_size=width,
        num_layers=2,
        num_heads=width // 64,
        q_lora_rank=width // 2,
        kv_lora_rank=width // 4,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        ffn_hidden_size=2 * width,
        expert_ffn_hidden_size=width // 2,
        num_experts=8,
        num_zero_experts=4,
        num_chosen=3,
        target_ffn_experts=2.0,
        gate_scale=6.0,
        max_position=4096,
    )
    return MoEConfig.tiny(**(sizes | changes))


GRID: tuple[Setting, ...] = (
    Setting(
        name="quickstart",
        reason="the model that `make quickstart` trains: overheads weigh as much as products",
        config=MoEConfig.tiny(),
        batch=48,
        length=64,
    ),
    Setting(
        name="wide",
        reason="four times the width: dense products dominate",
        config=_sized(512),
        batch=8,
        length=128,
    ),
    Setting(
        name="many_small_experts",
        reason="128 experts of 64 columns, 8 of 192 targets per token: dispatch dominates",
        config=_sized(
            256,
            expert_ffn_hidden_size=64,
            num_experts=128,
            num_zero_experts=64,
            num_chosen=8,
            target_ffn_experts=5.0,
        ),
        batch=16,
        length=128,
    ),
    Setting(
        name="few_big_experts",
        reason="4 experts four times as wide as the model: a few large products",
        config=_sized(
            256,
            expert_ffn_hidden_size=1024,
            num_experts=4,
            num_zero_experts=2,
            num_chosen=2,
            target_ffn_experts=1.5,
        ),
        batch=16,
        length=128,
    ),
    Setting(
        name="long_sequence",
        reason="one sequence of 2048 tokens: scores and softmax dominate",
        config=_sized(256),
        batch=1,
        length=2048,
    ),
    Setting(
        name="many_short_sequences",
        reason="256 sequences of 16 tokens, as short answers are: attention of tiny matrices",
        config=_sized(256),
        batch=256,
        length=16,
    ),
)


def setting(name: str) -> Setting:
    """The setting of that name.

    Raises:
      ConfigError: there is no such setting.
    """
    by_name = {setting.name: setting for setting in GRID}
    if name not in by_name:
        raise ConfigError(f"{name!r} is no setting. Choose among {', '.join(by_name)}.")
    return by_name[name]
