"""Replicas over pages, and work that steps aside or moves: every sample comes out as it would."""

import functools
import queue

import jax
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import PageConfig, SampleRequest
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import (
    GroupGenerated,
    GroupsMigrated,
    ReplicaFailed,
    SamplingSettings,
)
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_engine, fake_weights
from tests.rollout import engine_checks
from tests.rollout.engine_checks import num_compiled
from tests.rollout.written import tickets

SAMPLING = SamplingSettings(max_new_tokens=20)
WEIGHTS = [fake_weights(version) for version in range(2)]


@functools.cache
def engine_of(kind: str):
    if kind == "dense":
        return fake_engine()
    shape = {
        "roomy": PageConfig(num_pages=120, page_size=4),
        "short": PageConfig(num_pages=30, page_size=4),
        "unshared": PageConfig(num_pages=30, page_size=4, reuse_prefixes=False),
        "other": PageConfig(num_pages=30, page_size=8),
    }
    return fake_engine(pages=shape[kind])


def make_replica(kind, version=0):
    replica = Replica(engine_of(kind), group_size=3, sampling=SAMPLING, seed=1)
    replica.assign(version, WEIGHTS[version])
    return replica


def finish(*replicas):
    groups = {}
    for _ in range(1000):
        if all(replica.is_empty for replica in replicas):
            return groups
        for replica in replicas:
            groups |= {group.ticket.number: group for group in replica.step()[0]}
            engine_checks.check(replica)
    raise AssertionError("replicas do not come to an end")


def content(groups):
    return {
        (n, r.attempt): (r.tokens.tolist(), np.round(r.engine_logprob, 5).tolist(), r.finish_reason)
        for n, group in groups.items()
        for r in group.rollouts
    }


@functools.cache
def expected():
    replica = make_replica("dense")
    replica.submit(tickets(range(10)))
    return content(finish(replica))


@pytest.mark.parametrize("kind", ["roomy", "short", "unshared", "other"])
def test_pages_change_no_sample(kind):
    replica = make_replica(kind)
    replica.submit(tickets(range(10)))
    assert content(finish(replica)) == expected()
    counts = replica.statistics()
    assert (counts["num_preemptions"] > 0) == (kind in ("short", "unshared"))
    assert (counts["num_prefix_hits"] > 0) == (kind != "unshared")
    assert counts["num_pages_held"] == 0


def test_what_was_read_and_written_is_found_again():
    replica = make_replica("roomy")
    replica.submit(tickets([5]))
    first = finish(replica)
    before = replica.statistics()
    assert before["num_pages_shared"] > 0
    replica.submit(tickets([5]))
    assert content(finish(replica)) == content(first)
    after = replica.statistics()
    prompt = len(first[5].rollouts[0].prompt)
    assert after["num_prefix_tokens"] - before["num_prefix_tokens"] == (prompt - 1) // 4 * 4
    replica.assign(1, WEIGHTS[1])
    replica.submit(tickets([5]))
    other = finish(replica)
    assert replica.statistics()["num_prefix_hits"] == after["num_prefix_hits"]
    fresh = make_replica("dense", version=1)
    fresh.submit(tickets([5]))
    assert content(other) == content(finish(fresh))


@pytest.mark.parametrize(
    ("source", "target", "moves"),
    [
        ("roomy", "roomy", True),
        ("roomy", "short", True),
        ("short", "other", True),
        ("dense", "dense", True),
        ("dense", "roomy", False),
        ("roomy", "dense", False),
    ],
)
def test_running_groups_move_between_replicas(source, target, moves):
    one, two = make_replica(source), make_replica(target)
    one.submit(tickets(range(8)))
    two.submit(tickets([8, 9]))
    groups = {}
    for _ in range(2):
        groups |= {g.ticket.number: g for r in (one, two) for g in r.step()[0]}
    numbers = [0, 1, 2, 6, 77]
    payload = one.give(numbers)
    engine_checks.check(one)
    num_running = sum(attempt.prefix is not None for attempt in payload.attempts)
    moved = two.take(payload)
    assert set(moved.ticket_numbers) == {0, 1, 2, 6} - set(groups)
    assert (moved.num_tokens_moved > 0) == moves
    assert (moved.num_tokens_reprefilled > 0) == (not moves)
    assert two.statistics()["num_tickets_taken"] == len(moved.ticket_numbers)
    assert two.statistics()["num_restarts"] == (0 if moves else num_running)
    groups |= finish(one, two)
    assert content(groups) == expected()
    assert one.give([0]).jobs == ()


def test_a_pause_keeps_everything():
    replica = make_replica("short")
    replica.submit(tickets(range(10)))
    groups = {g.ticket.number: g for g in replica.step()[0]}
    active = replica.active_slots
    replica.pause()
    replica.submit([])
    assert replica.step()[1].num_tokens == 0
    assert replica.active_slots == active
    replica.resume()
    assert content(groups | finish(replica)) == expected()


def test_cancelling_twice_is_cancelling_once():
    replica = make_replica("short")
    replica.submit(tickets(range(6)))
    replica.step()
    for _ in range(2):
        replica.cancel([0, 3, 5])
        engine_checks.check(replica)
    assert sorted(finish(replica)) == [1, 2, 4]
    assert replica.statistics()["num_pages_held"] == 0


def test_each_request_has_its_own_settings():
    """In one batch: top-k, top-p, min-p, temperature and stop ids."""
    engine = fake_engine(
        truncation=True,
        max_stop_ids=2,
        pages=PageConfig(num_pages=96, page_size=4),
    )
    table = np.asarray(WEIGHTS[0]["table"], np.float64)
    settings = [
        SamplingSettings(max_new_tokens=16),
        SamplingSettings(max_new_tokens=16, temperature=0.5, top_k=3),
        SamplingSettings(max_new_tokens=16, temperature=2.0, top_p=0.5),
        SamplingSettings(max_new_tokens=16, min_p=0.4),
        SamplingSettings(max_new_tokens=16, stop_ids=tuple(range(20, 22))),
        SamplingSettings(max_new_tokens=16, greedy=True),
    ]
    requests = [
        SampleRequest(stream=(1, 2, 3, 4, i), sampling=sampling)
        for i, sampling in enumerate(settings)
    ]
    prompt = np.arange(40, 53, dtype=np.int32)
    prefix, first = engine.prefill_batch(
        params=WEIGHTS[0], prompts=[prompt], rows=[0] * 6, requests=requests
    )
    state = engine.bulk_insert(prefix, engine.init_decode_state(), range(6))
    results = [first.convert_to_numpy()]
    for _ in range(4):
        state, result = engine.generate(WEIGHTS[0], state)
        results.append(result.convert_to_numpy())
    num_cut = 0
    for i, sampling in enumerate(settings):
        tokens, log_probs = map(np.concatenate, zip(*(r.written(i) for r in results), strict=True))
        assert len(tokens) == 16 or tokens[-1] in (AsciiTokenizer.eos_id, *sampling.stop_ids)
        assert not set(tokens[:-1]) & set(sampling.stop_ids)
        total = int(prompt.sum())
        for token, log_prob in zip(tokens, log_probs, strict=True):
            row = table[total % len(table)]
            scaled = row / sampling.temperature
            share = np.exp(scaled - scaled.max())
            order = np.argsort(-share, kind="stable")
            kept = order[: sampling.top_k or None]
            before = np.cumsum(share[kept]) - share[kept]
            kept = kept[(before < sampling.top_p * share[kept].sum()) | (sampling.top_p == 1)]
            kept = kept[share[kept] >= sampling.min_p]
            assert token in kept
            num_cut += len(kept) < len(row)
            assert abs(log_prob - np.log(share[token] / share[kept].sum())) < 1e-5
            if sampling.greedy:
                assert token == row.argmax()
            total += int(token)
    assert num_cut > 10
    with pytest.raises(ConfigError, match="max_stop_ids"):
        engine.config.check_sampling(SamplingSettings(stop_ids=(1, 2, 3)))


@pytest.mark.slow
def test_warming_up_compiles_what_decoding_needs():
    engine = fake_engine(
        slots_per_replica=4,
        narrow_slots=(2,),
        pages=PageConfig(num_pages=60, page_size=4, view_lengths=(24,)),
    )
    engine.warm_up(WEIGHTS[0])
    compiled = num_compiled(engine)
    replica = Replica(engine, group_size=2, sampling=SAMPLING, seed=1)
    replica.assign(0, WEIGHTS[0])
    replica.submit(tickets(range(6)))
    finish(replica)
    replica.submit(tickets(range(3)))
    finish(replica)
    assert num_compiled(engine) == compiled


def test_threads_move_groups_and_say_so():
    store = VersionStore(1)
    store.put(0, WEIGHTS[0])
    group = LocalReplicaGroup(
        engine_of("roomy"), store, num_replicas=2, group_size=3, sampling=SAMPLING, seed=1
    )
    events: queue.Queue = queue.Queue()
    group.start(events.put)
    try:
        for replica in range(2):
            group.assign(replica, 0)
        group.pause(0)  # so that all of them are still there
        group.dispatch(0, tickets(range(10)), 0)
        group.migrate(0, 1, [2, 3, 4])
        group.resume(0)
        with pytest.raises(AssertionError, match="itself"):
            group.migrate(0, 0, [1])
        seen, groups = [], {}
        while len(groups) < 10:
            seen.append(events.get(timeout=60))
            assert not isinstance(seen[-1], ReplicaFailed), seen[-1]
            if isinstance(seen[-1], GroupGenerated):
                groups[seen[-1].group.ticket.number] = seen[-1].group
        assert content(groups) == expected()
        (event,) = (e for e in seen if isinstance(e, GroupsMigrated))
        assert event == GroupsMigrated(0, 1, (2, 3, 4), 0, 0)
    finally:
        group.close(30.0)
    assert group.statistics()["num_tickets_given"] == 3
    jax.block_until_ready(WEIGHTS[0])


def test_only_a_replica_of_the_same_version_takes_work():
    one, two = make_replica("roomy"), make_replica("roomy", version=1)
    one.submit(tickets([0]))
    one.step()
    payload = one.give([0])
    with pytest.raises(AssertionError, match="under 0, to 1"):
        two.take(payload)
    one.take(payload)
    with pytest.raises(AssertionError, match="here already"):
        one.take(payload)
