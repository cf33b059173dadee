import dataclasses
import json

import numpy as np

from loong_jax.problems.verdict import Verdict
from loong_jax.rollout import records
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from tests.doubles.fake_model import fake_problem


def make_group(number: int = 3, version: int = 5, size: int = 2) -> Group:
    """Every field of its rollouts differs from the default."""
    generator = np.random.default_rng(number)
    ticket = Ticket(number=number, problem=fake_problem(number), issue=2)
    rollouts = tuple(
        Rollout(
            ticket=number,
            attempt=attempt,
            prompt=np.array([1, 40, 41], np.int32),
            tokens=generator.integers(3, 128, 4 + attempt, dtype=np.int32),
            loss_mask=np.array([True] * (3 + attempt) + [False]),
            engine_logprob=generator.normal(size=4 + attempt).astype(np.float32),
            behavior_logprob=generator.normal(size=4 + attempt).astype(np.float32),
            sampling=SamplingSettings(
                temperature=0.7, max_new_tokens=9, greedy=True, top_k=4, min_p=0.1, stop_ids=(5, 6)
            ),
            versions=((0, version),),
            finish_reason="length",
            routing=generator.integers(-1, 6, (7 + attempt, 2, 3), dtype=np.int16),
            text="a",
            started_s=1.5,
            ended_s=2.5,
            verdict=Verdict(outcome="wrong", reason="value", cost_s=0.25, isolation="process"),
            reward=0.5,
            failure="none",
        )
        for attempt in range(size)
    )
    return Group(ticket=ticket, version=version, rollouts=rollouts)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def test_records_come_back_from_bytes():
    groups = [make_group(3), make_group(4, size=1)]
    bare = dataclasses.replace(
        groups[1].rollouts[0], behavior_logprob=None, verdict=None, reward=None
    )
    groups.append(groups[1].replace_rollouts((bare,)))
    nest = {"groups": [records.group_to_plain(group) for group in groups], "n": np.int64(4)}
    blob = records.encode(nest | {"empty": np.zeros(0, np.float16), "pair": (1.5, None)})
    header = json.loads(blob.splitlines()[0])
    assert sorted(header) == ["bool", "float16", "float32", "int16", "int32", "json"]
    back = records.decode(blob)
    assert (back["n"], back["pair"]) == (4, [1.5, None])
    assert_same(back["empty"], np.zeros(0, np.float16))
    for record, group in zip(back["groups"], groups, strict=True):
        assert_same(records.group_from_plain(record), group)


def test_arrays_travel_by_reference():
    group = make_group()
    record = records.group_to_plain(group)
    assert record["rollouts"][0]["tokens"] is group.rollouts[0].tokens
    assert records.group_from_plain(record).rollouts[1].tokens is group.rollouts[1].tokens
