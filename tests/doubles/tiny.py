"""A model smaller than the quickstart's, in which no two sizes are equal by chance."""

import jax

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models.families import family_of
from loong_jax.models.moe.config import MoEConfig
from loong_jax.rollout.engine_config import EngineSettings


def tokenizer() -> AsciiTokenizer:
    """The tokenizer of the miniature recipe; its 128 tokens are those of `smallest_config`."""
    return AsciiTokenizer()


def smallest_config(**changes) -> MoEConfig:
    """Two layers, about 50 thousand parameters; sizes divide over meshes of two along any axis.

    It keeps every feature: two kinds of experts, both ranks, both parts of the heads.
    """
    sizes = dict(
        hidden_size=32,
        num_heads=2,
        q_lora_rank=12,
        kv_lora_rank=20,
        qk_nope_head_dim=10,
        qk_rope_head_dim=6,
        v_head_dim=14,
        ffn_hidden_size=48,
        expert_ffn_hidden_size=18,
        num_experts=4,
        num_zero_experts=2,
        num_chosen=3,
        target_ffn_experts=2.0,
        gate_scale=2.5,
    )
    return MoEConfig.tiny(**(sizes | changes))


def engine_shapes(**changes) -> EngineSettings:
    """Eight slots of 32 positions, blocks of four steps."""
    shapes = dict(
        slots_per_replica=8,
        cache_length=32,
        prefill_lengths=(8,),
        prefill_prompts=4,
        prefill_members=8,
        decode_steps=4,
    )
    return EngineSettings(**(shapes | changes))


def on_mesh(config, rules, weights):
    """The graph of a model under `rules`, and its `weights` where they lie then."""
    graphdef, like = family_of(config).abstract_weights(config, rules)
    return graphdef, jax.tree.map(lambda a, b: jax.device_put(b, a.sharding), like, weights)
