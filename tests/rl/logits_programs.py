"""Programs of training over abstract arrays, and the most of the logits that each holds.

    python -m tests.rl.logits_programs NAME

compiles those of one model for TPU and prints {program: [most, whole]} as JSON: a process of its
own, as libtpu wants.
"""

import dataclasses
import functools
import json
import math
import re
import sys
from typing import Any

import jax
from jax.experimental import topologies

from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import family_of
from loong_jax.models.moe import MoEConfig
from loong_jax.models.moe.balance import DeviceBalance
from loong_jax.rl import auxiliary, batching, objectives, optimizers, sft, trainer
from loong_jax.rl.policy_model import policy_of
from loong_jax.sharding import ShardingRules, make_mesh

FEW, MANY, ROWS, LENGTH = 1000, 2500, 8, 128
MODELS: dict[str, Any] = {
    "longcat": MoEConfig.tiny(
        num_layers=1, hidden_size=64, num_experts=4, num_zero_experts=2, num_mtp_layers=1
    ),
    "qwen2": DenseConfig.tiny(num_layers=1, hidden_size=64),
}
LOSSES = {
    "longcat": auxiliary.AuxiliaryLosses(
        mtp=0.5, balance=DeviceBalance(num_groups=2, weight=0.3), hidden_z=1e-3
    ),
    "qwen2": auxiliary.NONE,
}
ADAM = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-3))
GRPO = objectives.grpo_objective(group_size=4, beta=0.0)


def lowered(name: str, rules: ShardingRules, num_words: int) -> dict[str, jax.stages.Lowered]:
    """Every program of RL and SFT that makes logits, for batches whose every token counts."""
    model = dataclasses.replace(MODELS[name], vocab_size=num_words)
    graphdef, weights = family_of(model).abstract_weights(model, rules)
    policy = policy_of(graphdef, model, 0.01, LOSSES[name], rules=rules)
    programs = trainer.make_programs(policy, GRPO, ADAM, 0)
    with rules.scope():
        state = jax.eval_shape(functools.partial(trainer.initial_state, policy, ADAM), weights)
    weights, state = trainer.on_mesh(rules, (weights, state))
    rows = batching.shapes(programs.layout, rules, ROWS, LENGTH)
    calls = trainer.calls(programs, policy, state, rows, weights)
    found = {step: calls[step].lower() for step in ("logprobs", "accumulate")}
    batch = sft.batch_shapes(policy, ROWS, LENGTH)
    found["sft"] = sft.make_train_step(policy, ADAM).lower(state, (batch,))
    if policy.routing_metrics is not None:
        found["routers"] = sft.make_routing_metrics(policy).lower(weights, batch)
    return found


def most_and_whole(text: str, rules: ShardingRules, num_words: int) -> tuple[int, int]:
    """Numbers of the largest float32 array of words on a device, and of logits of all tokens."""
    words = num_words // rules.parts("act_vocab")
    whole = ROWS * LENGTH // rules.parts("act_batch") * words
    shapes = [tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", text)]
    sizes = [math.prod(s) for s in shapes if words in s or math.prod(s) == whole]
    return max(sizes), whole


def main() -> None:
    name = sys.argv[1]
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    sizes = {"longcat": dict(fsdp=2, expert=2), "qwen2": dict(fsdp=2, tensor=2)}[name]
    rules = ShardingRules(mesh=make_mesh(**sizes, devices=devices), act_vocab="tensor")
    found = {
        program: most_and_whole(made.compile().as_text() or "", rules, FEW)
        for program, made in lowered(name, rules, FEW).items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
