"""`loong bench async`: its options, and tables and chart from a run small enough for a test."""

import dataclasses

import pytest

from loong_jax.bench import asynchronous
from loong_jax.bench.rollouts import agreement, scale, setups, tables
from loong_jax.errors import ConfigError
from loong_jax.orchestrator.simulation.cost import CostModel
from loong_jax.orchestrator.simulation.trace import TRACES
from tests.sweeps import thinned

SMALL = setups.Case(
    num_accelerators=16,
    groups_per_step=6,
    trace=dataclasses.replace(TRACES["dora-32b"], group_size=2),
    cost=CostModel(),
    slots_per_replica=8,
    num_steps=2,
    warm_up=2,
)


@pytest.mark.parametrize("name", setups.SETUPS)
def test_every_policy_of_the_bench_trains_equal_batches(name):
    report = setups.run(name, SMALL, 0.5)
    row = report.to_json()
    assert row["step_s"] > 0
    assert 0 <= row["idle_share"] < 1
    assert sum(sum(ages.values()) for ages in row["staleness"].values()) == 2 * 6


def test_figures_are_means_over_seeds():
    both = setups.run("sync", dataclasses.replace(SMALL, seeds=(3, 4)), 1.0)
    one, other = (
        setups.run("sync", dataclasses.replace(SMALL, seeds=(seed,)), 1.0).mean("step_s")
        for seed in (3, 4)
    )
    row = both.to_json()
    assert row["step_s"] == pytest.approx((one + other) / 2)
    assert row["step_s_spread"] == pytest.approx(abs(one - other) / row["step_s"])
    assert row["num_seeds"] == 2


def test_the_ratio_is_one_of_consumed_tokens_per_device_second():
    row = scale.compare(SMALL, (0.5,))
    tokens = row["tokens_per_step"]
    per_s = tokens["dora"] / row["dora_step_s"], tokens["sync"] / row["sync_step_s"]
    assert row["speedup_vs_sync"] == pytest.approx(per_s[0] / per_s[1])
    even = {"rows": [], "sigma_at_even": {"8": None, "16": 0.5}}
    simulated = {**row, "by_staleness": [row], "larger": [row], "break_even": even}
    assert f"{row['speedup_vs_sync']:.2f}x" in tables.simulated(simulated)


def test_the_headline_is_the_smallest_bound_that_reaches_the_goal():
    rows = [
        {"max_staleness": bound, "speedup_vs_sync": ratio}
        for bound, ratio in ((1, 1.9), (4, 4.2), (3, 3.1), (2, 2.8))
    ]
    assert asynchronous.headline(rows)["max_staleness"] == 3
    assert asynchronous.headline(rows[:1])["max_staleness"] == 1
    assert asynchronous.headline([rows[0], rows[3]])["max_staleness"] == 2


def test_a_replica_of_more_accelerators_costs_less_per_slot_and_as_much_per_step():
    small, large = CostModel(), scale.large_model(CostModel(), width=128)
    assert large.decode_base_s == small.decode_base_s
    assert large.decode_slot_s == pytest.approx(small.decode_slot_s / 32)
    # 576 numbers of two bytes in 56 blocks, read at 128 times 3.35 TB/s
    assert large.decode_context_s == pytest.approx(64_512 / 428.8e12)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", thinned(agreement.POLICIES, -1))
def test_sleeping_replicas_take_as_long_as_the_virtual_clock_says(name):
    errors = []
    while not errors or (min(errors) > 0.1 and len(errors) < 3):  # others may be at work beside
        row = agreement.measure(name)
        assert row["virtual_s"] > 10
        errors.append(abs(row["error"]))
    assert min(errors) < 0.1, errors  # on an idle machine 0.02 and less (docs/rollout.md)


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        *(("parts", "simulated,nonsense"), ("accelerators", 100), ("seeds", 0)),
        *(("staleness", ()), ("staleness", (2, -1)), ("large_batch", 0)),
    ],
)
def test_refuses_options_that_cannot_work(wrong, value):
    with pytest.raises(ConfigError, match=wrong):
        asynchronous.Options(**{wrong: value})
