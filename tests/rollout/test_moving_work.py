"""Replicas over pages, and work that steps aside or moves: every sample comes out as it would."""

import functools

import jax
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import (
    GroupGenerated,
    GroupsMigrated,
    SamplingSettings,
)
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_engine, fake_weights
from tests.rollout import engine_checks
from tests.rollout.engine_checks import num_compiled
from tests.rollout.engine_runs import Run, request
from tests.rollout.written import Watched, groups_of, tickets

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


def write(kind, numbers, version=0):
    """What a replica of its own writes, and its counters."""
    replica = make_replica(kind, version)
    replica.submit(tickets(numbers))
    return content(finish(replica)), replica.statistics()


@functools.cache
def expected():
    return write("dense", range(10))[0]


@pytest.mark.parametrize("kind", ["roomy", "short", "unshared", "other"])
def test_pages_change_no_sample(kind):
    found, counts = write(kind, range(10))
    assert found == expected()
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
    assert content(other) == write("dense", [5], version=1)[0]


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
    settings = (
        {},
        {"temperature": 0.5, "top_k": 3},
        {"temperature": 2.0, "top_p": 0.5},
        {"min_p": 0.4},
        {"stop_ids": (20, 21)},
        {"greedy": True},
    )
    requests = [request(i, max_new_tokens=16, **one) for i, one in enumerate(settings)]
    prompt = np.arange(40, 53, dtype=np.int32)
    run = Run(engine, WEIGHTS[0]).fill([prompt], range(6), requests, rows=[0] * 6).decode(4)
    num_cut = 0
    for i, sampling in enumerate(one.sampling for one in requests):
        tokens, log_probs = run.tokens[i], run.log_probs[i]
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
    how = dict(num_replicas=2, group_size=3, sampling=SAMPLING, seed=1)
    with Watched(LocalReplicaGroup(engine_of("roomy"), store, **how), store) as h:
        for replica in range(2):
            h.group.assign(replica, 0)
        h.group.pause(0)  # so that all of them are still there
        h.dispatch(0, range(10), 0)
        h.group.migrate(0, 1, [2, 3, 4])
        h.group.resume(0)
        with pytest.raises(AssertionError, match="itself"):
            h.group.migrate(0, 0, [1])
        seen = h.until(GroupGenerated, 10)
    assert content(groups_of(seen)) == expected()
    (event,) = (e for e in seen if isinstance(e, GroupsMigrated))
    assert event == GroupsMigrated(0, 1, (2, 3, 4), 0, 0)
    assert h.group.statistics()["num_tickets_given"] == 3
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
