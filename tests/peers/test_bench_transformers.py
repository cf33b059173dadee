"""`loong bench model` against transformers on the smallest setting: both compute the same."""

import dataclasses

import pytest

from loong_jax.bench import model, ours
from tests.bench.smallest import SMALLEST
from tests.doubles import tiny
from tests.sweeps import thinned

pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def _needs_torch():
    pytest.importorskip("torch", reason="torch comes with the extra `peers`")
    pytest.importorskip("transformers", reason="transformers comes with the extra `peers`")


@pytest.mark.parametrize("num_zero_experts", thinned([0, 2], 1))
def test_both_sides_compute_the_same_in_every_variant(num_zero_experts):
    sizes = dict(num_zero_experts=num_zero_experts, expert_ffn_hidden_size=16)  # torch wants fours
    config = tiny.smallest_config(num_layers=2, **sizes)
    setting = dataclasses.replace(SMALLEST, config=config)
    found = model.measure(model.Options(compiled=False, budget_s=0.05), [setting])
    row = found["settings"]["smallest"]
    for name in ("forward", "train_step"):
        assert len(row[name]["variants_s"]) == 6
        assert not row[name]["variants_that_do_not_work"]
        assert row[name]["largest_difference"] < 2e-5
        assert row[name]["speedup"] > 0
        assert found["summary"][name]["least"] == row[name]["speedup"]


def test_a_side_that_computes_something_else_is_not_timed(monkeypatch):
    peer = model.find_peer()
    build = peer.build

    def other(config, weights, variant):
        return build(dataclasses.replace(config, gate_scale=3.0), weights, variant)

    monkeypatch.setattr(peer, "build", other)
    problem = ours.problem(SMALLEST)
    with pytest.raises(AssertionError, match="differs from ours"):
        model.compare(peer, problem, compiled=False, budget_s=0.05, report=print)
