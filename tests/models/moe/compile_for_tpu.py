"""Compiles a training pass of a small flash model ahead of time; prints what exchanges hide.

Run as `python -m tests.models.moe.compile_for_tpu v5p:2x2x2`, in an environment that keeps libtpu
from looking for a TPU. Prints one line of JSON per asynchronous all-to-all of the compiled program:
the scopes of the dense products that are scheduled between its start and its end. With the
published widths the windows hold the same, and compiling takes four
times the processor time.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies

from loong_jax.models import moe
from loong_jax.models.moe import exchange
from loong_jax.run.devices import compiler_options
from loong_jax.sharding import ShardingRules, make_mesh

HIDDEN_SIZE = 1536  # a quarter of the published one
PRODUCT = re.compile(r'op_name="[^"]*(ffn_0|attention_1|ffn_1)[^"]*dot_general"')


def compiled_text(topology: str) -> str:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    rules = ShardingRules(mesh=make_mesh(expert=len(devices), devices=devices))
    kind = exchange.PaddedExchange()
    config = moe.MoEConfig.flash(
        num_layers=2,
        vocab_size=2048,
        hidden_size=HIDDEN_SIZE,
        num_heads=8,
        q_lora_rank=384,
        kv_lora_rank=128,
        ffn_hidden_size=3072,
        expert_ffn_hidden_size=512,
        num_experts=64,
        num_zero_experts=32,
        exchange=kind,
        remat="all_but_dispatched",
    )

    def loss(weights, tokens):
        logits = nnx.merge(graphdef, nnx.State(weights))(tokens).logits
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    with jax.set_mesh(rules.mesh):
        graphdef, weights = moe.abstract_weights(config, rules)
        sharding = rules.spec("act_batch", "act_length")
        tokens = jax.ShapeDtypeStruct((len(devices), 512), jnp.int32, sharding=sharding)
        lowered = jax.jit(jax.grad(loss)).lower(weights, tokens)
        return lowered.compile(compiler_options=compiler_options(topology, kind)).as_text()


def windows(text: str) -> list[dict]:
    """Each all-to-all of some size, in the order of the schedule."""
    found, lines = [], text.splitlines()
    for start, line in enumerate(lines):
        made = re.match(r"\s*(?:ROOT )?%?([\w.-]+) = .*? all-to-all(-start)?\(", line)
        if made is None or not re.search(rf"\[\d+,\d+,{HIDDEN_SIZE}\]", line):
            continue
        inside = []
        if made[2]:
            end = rf"all-to-all-done\([^)]*%?{re.escape(made[1])}\)"
            for later in lines[start + 1 :]:
                if re.search(end, later):
                    break
                product = PRODUCT.search(later)
                inside += [product[1]] if product else []
        scope = re.search(r'op_name="([^"]*)"', line)
        found.append({"scope": scope[1] if scope else "", "inside": inside})
    return found


if __name__ == "__main__":
    for window in windows(compiled_text(sys.argv[1])):
        print(json.dumps(window))
