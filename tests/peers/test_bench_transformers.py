"""`loong bench model` against transformers on the smallest setting: both compute the same."""

import dataclasses

import pytest

from loong_jax.bench import model, versus
from loong_jax.testing import tiny
from tests.bench.smallest import SMALLEST

pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def _needs_torch():
    pytest.importorskip("torch", reason="torch comes with the extra `peers`")
    pytest.importorskip("transformers", reason="transformers comes with the extra `peers`")


@pytest.mark.parametrize("num_zero_experts", [0, 2])
def test_both_sides_compute_the_same_in_every_variant(num_zero_experts):
    config = tiny.smallest_config(num_layers=2, num_zero_experts=num_zero_experts)
    setting = dataclasses.replace(SMALLEST, config=config)
    chosen = model.Options(parts=("transformers",), compiled=False, budget_s=0.05)
    found = model.measure(chosen, [setting])["transformers"]
    row = found["settings"]["smallest"]
    for name in ("forward", "train_step"):
        assert len(row[name]["variants_s"]) == 6
        assert not row[name]["variants_that_do_not_work"]
        assert row[name]["largest_difference"] < 2e-5
        assert row[name]["speedup"] > 0
        assert found["summary"][name]["least"] == row[name]["speedup"]
    assert "GFLOP" in row["bound"]["sentence"]


def test_a_side_that_computes_something_else_is_not_timed():
    peer = versus.peer()
    other = dataclasses.replace(
        SMALLEST, config=dataclasses.replace(SMALLEST.config, gate_scale=3.0)
    )
    problem = versus.ours.problem(SMALLEST)
    with pytest.raises(AssertionError, match="differs from ours"):
        versus.compare(
            _WithConfig(peer, other.config), problem, compiled=False, budget_s=0.05, report=print
        )


class _WithConfig:
    """The adapter, building another config than asked."""

    def __init__(self, peer, config):
        self.peer, self.config = peer, config

    def __getattr__(self, name):
        return getattr(self.peer, name)

    def build(self, _, weights, variant):
        return self.peer.build(self.config, weights, variant)
