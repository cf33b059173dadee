"""Overlap figures on timelines small enough to check by eye, and against a fine grid."""

import math

import numpy as np
import pytest

from loong_jax.report import overlap


def event(kind, start, end, **more):
    return {"kind": kind, "start_s": start, "end_s": end, **more}


def decode(replica, version, start, end):
    return event("decode", start, end, replica=replica, version=version, num_tokens=8)


# replica 0: |--v0--|--v1--|      0-4, 4-8
# replica 1:    |--v0--|--v1--|   2-6, 6-10
# trainer:      |train|  |train|  3-5, 7-12
TIMELINE = [
    decode(0, 0, 0.0, 4.0),
    decode(1, 0, 2.0, 6.0),
    decode(0, 1, 4.0, 8.0),
    decode(1, 1, 6.0, 10.0),
    event("train", 3.0, 5.0),
    event("train", 7.0, 12.0),
    event("verify", 6.0, 6.5),
]


def test_two_versions_at_once():
    assert overlap.two_versions_decoding(TIMELINE) == overlap.Share(2.0, 12.0)  # 4 to 6


def test_two_versions_within_an_interval():
    # Ends: 4 (v0), 6 (v0), 8 (v1), 10 (v1). Intervals of 5 s: {v0}, {v0, v1}, {v1}.
    assert overlap.two_versions_within(TIMELINE, 5.0) == overlap.Share(5.0, 12.0)


def test_training_covered_by_blocks_that_end_inside():
    # Step 3-5: block 0-4 covers 3-4. Step 7-12: blocks 4-8 and 6-10 cover 7-10.
    assert overlap.training_covered_by_decoding(TIMELINE) == overlap.Share(4.0, 7.0)
    assert overlap.training_steps_with_decoding(TIMELINE).value == 1.0


def test_a_block_that_spans_a_whole_step_does_not_end_inside():
    events = [decode(0, 0, 0.0, 9.0), event("train", 2.0, 4.0)]
    assert overlap.training_covered_by_decoding(events).part_s == 0
    assert overlap.training_steps_with_decoding(events).part_s == 0


def test_strictly_alternating_run_shows_no_overlap():
    events = [
        decode(0, 0, 0.0, 1.0), event("train", 1.1, 2.0),
        decode(0, 1, 2.1, 3.0), event("train", 3.1, 4.0),
    ]  # fmt: skip
    figures = overlap.describe({"rl": events}, {"0": 64})
    assert figures["two_versions_decoding"] == 0
    assert figures["training_covered_by_decoding"] == 0
    assert figures["trained_at_staleness_1_or_more"] == 0


def test_idle_shares():
    idle = overlap.idle(TIMELINE)
    assert set(idle) == {"trainer", "verifiers", "replica 0", "replica 1"}
    assert idle["trainer"].value == pytest.approx(5 / 12)
    assert idle["replica 0"].value == pytest.approx(4 / 12)
    assert idle["verifiers"].part_s == 11.5


def test_stages_are_added_in_seconds_not_in_shares():
    short = [decode(0, 0, 0.0, 1.0), decode(1, 1, 0.0, 1.0)]
    figures = overlap.describe({"rl_stem": TIMELINE, "rl_code": short}, {"0": 1, "1": 2, "2": 1})
    assert figures["two_versions_decoding"] == pytest.approx(3 / 13)
    assert figures["trained_at_staleness_1_or_more"] == 0.75
    assert figures["rl_s"] == 13


def test_nothing_is_nan_not_zero():
    figures = overlap.describe({}, {})
    assert math.isnan(figures["two_versions_decoding"])
    assert math.isnan(figures["trained_at_staleness_1_or_more"])


@pytest.mark.parametrize("seed", range(5))
def test_against_a_grid(seed):
    rng = np.random.default_rng(seed)
    events = []
    for _ in range(30):
        start = int(rng.integers(0, 200))
        end = start + int(rng.integers(1, 30))
        kind = rng.choice(["decode", "decode", "train"])
        if kind == "decode":
            events.append(decode(int(rng.integers(3)), int(rng.integers(4)), start, end))
        else:
            events.append(event("train", start, end))
    versions = [set() for _ in range(260)]
    for e in events:
        if e["kind"] == "decode":
            for second in range(e["start_s"], e["end_s"]):
                versions[second].add(e["version"])
    assert overlap.two_versions_decoding(events).part_s == sum(len(v) >= 2 for v in versions)
    covered = 0
    for step in (e for e in events if e["kind"] == "train"):
        inside = [
            e for e in events
            if e["kind"] == "decode" and step["start_s"] <= e["end_s"] <= step["end_s"]
        ]  # fmt: skip
        covered += sum(
            any(e["start_s"] <= second < e["end_s"] for e in inside)
            for second in range(step["start_s"], step["end_s"])
        )
    assert overlap.training_covered_by_decoding(events).part_s == covered
