"""Compiles attention and a decoding step for v5p ahead of time and prints facts about them as JSON.

A process of its own: libtpu wants to be loaded once, with the environment of `printed_for_tpu`.
"""

import json
import math
import re

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies

from loong_jax.models import moe
from loong_jax.models.moe import core_attention
from loong_jax.models.moe.kernels import AttentionMask, Operands
from loong_jax.sharding import ShardingRules, make_mesh

LENGTHS = (1024, 2048, 4096)
WIDTHS = dict(nope=128, rope=64, rank=512, value=128)


def attention(rules, length, differentiate, heads=2):
    """The published widths of heads over one sequence."""

    def array(dtype, sizes, *names):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=rules.spec(*names))

    width, rank, rope = WIDTHS["nope"] + WIDTHS["rope"], WIDTHS["rank"], WIDTHS["rope"]
    tokens = None, "act_length"
    bf16, int32 = jnp.bfloat16, jnp.int32
    operands = Operands(
        array(bf16, (1, length, heads, width), *tokens, "heads", None),
        array(bf16, (1, length, rank), *tokens, None),
        array(bf16, (1, length, rope), *tokens, None),
        array(bf16, (rank, heads, WIDTHS["nope"]), None, "heads", None),
        array(bf16, (rank, heads, WIDTHS["value"]), None, "heads", None),
    )
    spread, whole = (array(int32, (1, length), None, axis) for axis in ("act_length", None))
    mask = AttentionMask(spread, spread, whole, whole)

    def value(operands, mask):
        return core_attention.whole(operands, mask, rules)

    def gradient(operands, mask):
        return jax.grad(lambda o: jnp.sum(value(o, mask).astype(jnp.float32)))(operands)

    return jax.jit(gradient if differentiate else value).lower(operands, mask).compile()


def decode(rules, batch=32, capacity=8192):
    """A step over a long cache, which is donated."""
    config = moe.MoEConfig.flash(
        num_layers=3,
        num_experts=4,
        num_zero_experts=2,
        num_chosen=2,
        target_ffn_experts=1,
        num_heads=16,
        hidden_size=512,
        ffn_hidden_size=512,
        expert_ffn_hidden_size=256,
        vocab_size=512,
    )
    graphdef, weights = moe.abstract_weights(config, rules)
    spec = rules.spec("layers", None, "act_batch", "act_keys", "act_rank")
    sizes = config.num_layers, 2, batch, capacity
    cache = moe.LatentCache(
        *(
            jax.ShapeDtypeStruct((*sizes, width), jnp.bfloat16, sharding=spec)
            for width in (config.kv_lora_rank, config.qk_rope_head_dim)
        )
    )
    number = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=rules.spec("act_batch"))

    def step(weights, tokens, positions, cache):
        return nnx.merge(graphdef, nnx.State(weights)).decode(tokens, positions, cache)

    compiled = jax.jit(step, donate_argnums=3).lower(weights, number, number, cache).compile()
    return compiled, sum(math.prod(a.shape) * 2 for a in cache)


def main():
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1").devices
    facts = {}
    alone = ShardingRules(mesh=make_mesh(devices=devices))
    for name, differentiate in (("forward", False), ("backward", True)):
        programs = [attention(alone, length, differentiate) for length in LENGTHS]
        facts[name] = [p.memory_analysis().temp_size_in_bytes for p in programs]
        facts[f"{name}_kernels"] = (
            programs[-1].as_text().count('custom_call_target="tpu_custom_call"')
        )
    spread = ShardingRules(mesh=make_mesh(devices=devices, context=4), zigzag=True)
    exchange = r"= \(?(\w+\[[\d,]*\])\S* (all-gather|reduce-scatter|all-to-all)(?:-start)?\("
    facts["exchanged"] = re.findall(exchange, attention(spread, 4096, True).as_text())
    compiled, facts["cache"] = decode(alone)
    memory = compiled.memory_analysis()
    facts["decode_alias"] = memory.alias_size_in_bytes
    facts["decode_temporary"] = memory.temp_size_in_bytes
    kernel = r"%latent_attention\S* = .*tpu_custom_call"
    facts["decode_kernels"] = len(re.findall(kernel, compiled.as_text()))
    facts["decode_copies"] = re.findall(r"= bf16\[3,2,32,8192,\d+\]\S* copy\(", compiled.as_text())
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
