"""The experiment of the real engine at its smallest: what weight updates do under a policy."""

import dataclasses
import types

import pytest

from experiments.real_engine import real, real_process, regimes
from loong_jax.orchestrator.simulation.model import LengthTrace
from loong_jax.rollout.records import BlockDecoded
from tests.doubles import tiny

# Two slots write one token each per call and most responses have tens of them. So a batch takes
# longer to write than to train, and responses are running when new weights arrive.
SETTING = regimes.Setting(
    model=tiny.smallest_config(num_layers=1, chunk_tokens=None),
    trace=LengthTrace(
        median_tokens=40, sigma=0.5, cap_tokens=56, group_size=2, prompt_tokens=8, seed=1
    ),
    decode_steps=1,
    groups_per_step=2,
    max_staleness=2,
    slots_per_replica=2,
    prefill_lengths=(8, 64),
    num_steps=4,
    warm_up=3,
    rounds=2,
)


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_every_policy_has_the_batches_and_the_staleness_it_says(regime):
    setting = regimes.REGIMES[regime]
    for name, placement in regimes.placements(setting).items():
        assert placement.policy.groups_per_step == setting.groups_per_step, name
        assert placement.policy.max_staleness <= setting.max_staleness, name
        in_reach = placement.num_replicas * placement.groups * setting.trace.group_size
        assert in_reach >= min(setting.slots_per_replica, setting.groups_per_step), name


def test_full_blocks_are_told_apart_by_whether_the_trainer_works():
    log = real.Log()
    log.steps = [{"end_s": 1.0}, {"end_s": 10.0}]
    log.events = [
        {"kind": "train", "start_s": 6.0, "end_s": 7.0},
        {"kind": "generate", "start_s": 0.0, "end_s": 10.0},
        {"kind": "score", "start_s": 4.0, "end_s": 4.5},
    ]
    full, times = (
        SETTING.slots_per_replica,
        [(0.5, 0.9), (2.0, 2.1), (4.4, 4.6), (5.9, 6.2), (7.0, 7.4)],
    )
    blocks = [BlockDecoded(0, 0, start_s, end_s, 1, full) for start_s, end_s in times]
    blocks.append(BlockDecoded(0, 0, 8.0, 9.0, 1, full - 1))
    replicas = types.SimpleNamespace(blocks=blocks)
    apart, beside = real.Record(log, replicas, 1, SETTING).block_seconds()  # pyright: ignore[reportArgumentType]
    assert apart == pytest.approx([0.1, 0.4])
    assert beside == pytest.approx([0.2, 0.3])


@pytest.fixture(scope="module")
def made():
    narrow = dataclasses.replace(SETTING, slots_per_replica=4, narrow_slots=(1, 2), rounds=1)
    return real_process.run({"wide": SETTING, "narrow": narrow}, say=lambda text: None)


@pytest.mark.release
@pytest.mark.timeout(600)
def test_no_weight_update_drains_a_slot_or_reads_a_token_again_under_dora(made):
    policies = made.result["policies"]
    for name in ("DORA", "DORA, two replicas", "DORA, several versions"):
        row = policies[name]
        assert row["versions_taken_up"] > 1
        assert (row["drained_slots"], row["reprefilled_tokens"]) == (0, 0), name
        assert row["versions_per_response"] == 1
        assert max(row["staleness"]) <= SETTING.max_staleness
    assert (made.result["drained_slots"], made.result["reprefilled_tokens"]) == (0, 0)
    again = policies["partial, prefilled again"]
    assert again["drained_slots"] > 0
    assert again["reprefilled_tokens"] > 0
    stale = policies["partial, stale cache"]
    assert (stale["drained_slots"], stale["reprefilled_tokens"]) == (0, 0)
    assert stale["versions_per_response"] > 1


@pytest.mark.release
@pytest.mark.timeout(600)
def test_every_policy_trains_equal_batches_of_the_age_it_may_have(made):
    for name, row in made.result["policies"].items():
        assert sum(row["staleness"].values()) == 2 * 4 * SETTING.groups_per_step, name
        assert row["consumed_tokens"] > 0
    assert set(made.result["policies"]["sync"]["staleness"]) == {0}
    assert set(made.result["policies"]["one step off"]["staleness"]) == {1}
    points = made.result["step_time_vs_active_slots"]
    assert [point["active_slots"] for point in points] == [1, 2]
    assert {point["width"] for point in points} == {2}
    narrow = made.result["regimes"]["narrow"]["step_time_vs_active_slots"]
    assert [point["width"] for point in narrow] == [1, 2, 4]


@pytest.mark.release
@pytest.mark.timeout(600)
def test_the_table_and_the_timeline_show_every_policy(made):
    text = real_process.table(made.result)
    for name in regimes.placements(SETTING):
        assert name in text
    assert made.picture.startswith(b"\x89PNG")
