"""`loong bench async`: its options, and figures from a run small enough for a test."""

import dataclasses

import pytest

from loong_jax.bench import asynchronous
from loong_jax.errors import ConfigError
from loong_jax.orchestrator.simulation.model import TRACES, CostModel

SMALL = asynchronous.Case(
    num_accelerators=16,
    groups_per_step=6,
    trace=dataclasses.replace(TRACES["dora-32b"], group_size=2),
    cost=CostModel(),
    slots_per_replica=8,
    num_steps=2,
    warm_up=2,
)


@pytest.mark.parametrize("name", asynchronous.SETUPS)
def test_every_policy_of_the_bench_trains_equal_batches(name):
    report = asynchronous.run(name, SMALL, 0.5)
    row = report.to_json()
    assert row["step_s"] > 0
    assert 0 <= row["idle_share"] < 1
    assert sum(sum(ages.values()) for ages in row["staleness"].values()) == 2 * 6
    assert name in asynchronous.policies_text({"sync": row, name: row})


def test_figures_are_means_over_seeds():
    both = asynchronous.run("sync", dataclasses.replace(SMALL, seeds=(3, 4)), 1.0)
    one, other = (
        asynchronous.run("sync", dataclasses.replace(SMALL, seeds=(seed,)), 1.0).mean("step_s")
        for seed in (3, 4)
    )
    row = both.to_json()
    assert row["step_s"] == pytest.approx((one + other) / 2)
    assert row["step_s_spread"] == pytest.approx(abs(one - other) / row["step_s"])
    assert row["num_seeds"] == 2


def test_the_ratio_is_one_of_consumed_tokens_per_device_second():
    row = asynchronous.compare(SMALL, (0.5,))
    per_s = [row[f"{name}_tokens_per_step"] / row[f"{name}_step_s"] for name in ("dora", "sync")]
    assert row["speedup_vs_sync"] == pytest.approx(per_s[0] / per_s[1])
    assert f"{row['speedup_vs_sync']:.2f}x" in asynchronous.comparison_text(row)


def test_a_replica_of_more_accelerators_costs_less_per_slot_and_as_much_per_step():
    small, large = CostModel(), asynchronous.large_model(CostModel(), width=128)
    assert large.decode_base_s == small.decode_base_s
    assert large.decode_slot_s == pytest.approx(small.decode_slot_s / 32)
    # 576 numbers of two bytes in 56 blocks, read at 128 times 3.35 TB/s
    assert large.decode_context_s == pytest.approx(64_512 / 428.8e12)


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ("num_accelerators", 100),
        ("seeds", 0),
        ("groups_per_step", 0),
        ("staleness", ()),
        ("staleness", (2, -1)),
    ],
)
def test_refuses_options_that_cannot_work(wrong, value):
    with pytest.raises(ConfigError, match=wrong):
        asynchronous.Options(**{wrong: value})
