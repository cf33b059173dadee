"""The engine by the routes that a GPU takes, kernels emulated: the tokens of the CPU's routes."""

import functools

import jax
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.models.moe.kernels import latent_split
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.sharding import ShardingRules
from tests.doubles import tiny
from tests.models.moe import hopper_kernels
from tests.rollout.engine_runs import Run, prompts_of, request
from tests.sweeps import thinned

# Widths that the decode kernel takes, and experts so many that single rows are grouped.
MODEL = moe.MoEConfig.tiny(
    num_layers=1,
    kv_lora_rank=16,
    qk_rope_head_dim=16,
    num_experts=24,
    num_zero_experts=4,
    num_chosen=4,
    target_ffn_experts=3.0,
    num_mtp_layers=1,
    chunk_tokens=None,
)
PROMPTS = prompts_of(3, 30)
CACHES = {
    "slots": {},
    "pages": dict(pages=PageConfig(num_pages=8, page_size=32, view_lengths=(32,))),
    "drafts": dict(speculation=True),
}


def sample(engine, weights):
    """Greedy tokens of both prompts, and their log-probabilities."""
    requests = [request(i, greedy=True) for i in range(2)]
    found = Run(engine, weights).fill(PROMPTS, [0, 1], requests).decode(3)
    return found.tokens, found.log_probs


@pytest.mark.slow
@pytest.mark.parametrize("cache", thinned(CACHES, 1))
def test_the_tokens_and_their_log_probabilities_are_those_of_the_cpu(monkeypatch, cache):
    two = dict(slots_per_replica=2, prefill_prompts=2, prefill_members=2)
    config = tiny.engine_shapes(cache_length=64, prefill_lengths=(32,), **two, **CACHES[cache])
    graphdef, weights = moe.init_weights(MODEL, jax.random.key(0))
    weights["head"] = weights["head"] * 3

    def engine():
        return engine_for(graphdef, MODEL, AsciiTokenizer(), config)

    expected = sample(engine(), weights)
    hopper_kernels.emulate(monkeypatch)
    monkeypatch.setattr(ShardingRules, "platform", "gpu")
    monkeypatch.setattr(ShardingRules, "compute_capability", (9, 0))
    ran, attend = [], functools.partial(latent_split.attend, interpret=True)
    monkeypatch.setattr(latent_split, "attend", lambda *a: ran.append(a[5]) or attend(*a))
    found = sample(engine(), weights)
    assert {0, 1} == set(ran)
    assert found[0] == expected[0]
    for name, log_probs in found[1].items():
        np.testing.assert_allclose(log_probs, expected[1][name], atol=2e-5)
