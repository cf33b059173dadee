"""What every verifier pool must do: the same checks for each form of it."""

import os
import signal
import time

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers.pool import VerifierRequest
from loong_jax.verifiers.worker import WorkerConfig
from tests.doubles.problems import made_problem

CONFIG = WorkerConfig(table={"strange": "tests.doubles.strange_verifier:StrangeVerifier"})


def request(key: str, text: str, gold: str = "right", *, verifier="strange", **kwargs):
    problem = made_problem(verifier=verifier, gold=gold)
    return VerifierRequest(key=key, problem=problem, response_text=text, **kwargs)


def judge(pool, *requests, timeout_s: float = 60.0):
    return [future.result(timeout_s) for future in pool.submit(requests)]


def check_order_is_kept(pool, name: str):
    texts = [f"{'sleep 0.01' if i % 7 == 0 else i}" for i in range(150)]
    golds = [text if i % 3 else "other" for i, text in enumerate(texts)]
    requests = [
        request(f"{name}/{i}", text, gold)
        for i, (text, gold) in enumerate(zip(texts, golds, strict=True))
    ]
    assert [v.is_correct for v in judge(pool, *requests)] == [i % 3 != 0 for i in range(150)]


def check_judging_happens_elsewhere(pool, name: str):
    judged = judge(pool, *(request(f"{name}/{i}", "right") for i in range(20)))
    assert str(os.getpid()) not in {verdict.evidence for verdict in judged}
    assert all(verdict.is_correct for verdict in judged)
    assert pool.pids()
    assert os.getpid() not in pool.pids()


def check_same_key_is_the_same_future(pool, name: str):
    (first,) = pool.submit([request(name, "right")])
    again, twin = pool.submit([request(name, "right"), request(name, "right")])
    assert first is again is twin
    assert first.result(60).is_correct
    assert pool.submit([request(name, "right")])[0] is first
    with pytest.raises(VerifierError, match="stands for another request"):
        pool.submit([request(name, "left")])


def check_a_hanging_verifier_costs_its_own_request_only(pool, name: str):
    requests = [request(f"{name}/{i}", "right") for i in range(20)]
    requests.insert(3, request(f"{name}/hang", "hang", deadline_s=0.5))
    start = time.monotonic()
    judged = judge(pool, *requests)
    hung = judged.pop(3)
    assert (hung.outcome, hung.reason) == ("ungradable", "timeout")
    assert all(verdict.is_correct for verdict in judged)
    assert time.monotonic() - start < 30


def check_what_a_verifier_does_wrong_is_ungradable(pool, name: str):
    raised, printed, unknown, crashed, last = judge(
        pool,
        request(f"{name}/raise", "raise"),
        request(f"{name}/print", "print", "print"),
        request(f"{name}/unknown", "right", verifier="nothing"),
        request(f"{name}/crash", "crash"),
        request(f"{name}/last", "right"),
    )
    assert (raised.outcome, raised.reason) == ("ungradable", "verifier raised")
    assert raised.evidence.endswith(" raised RuntimeError: strange")
    assert printed.is_correct
    assert (unknown.outcome, unknown.reason) == ("ungradable", "verifier raised")
    assert (crashed.outcome, crashed.reason) == ("ungradable", "worker lost")
    assert last.is_correct


def check_a_lost_worker_is_retried(pool, name: str, path):
    (verdict,) = judge(pool, request(name, f"crash once {path}", f"crash once {path}"))
    assert verdict.is_correct


def check_it_survives_kill_9(pool, name: str):
    futures = pool.submit([request(f"{name}/{i}", "sleep 0.02", "sleep 0.02") for i in range(60)])
    futures[5].result(60)
    before = pool.pids()  # of one at least: workers start with their first request
    victim = before[0]
    os.kill(victim, signal.SIGKILL)
    assert all(future.result(60).is_correct for future in futures)
    assert pool.num_lost >= 1
    assert judge(pool, request(f"{name}/after", "right"))[0].is_correct
    deadline = time.monotonic() + 60
    while len(pool.pids()) < len(before) or victim in pool.pids():
        assert time.monotonic() < deadline, "the lost worker was not replaced"
        judge(pool, *(request(f"{name}/{time.monotonic()}", "right") for _ in range(4)))
        time.sleep(0.05)


def check_cancel_and_close(pool, name: str):
    """The last check: the pool is closed by it."""
    slow = [request(f"{name}/slow/{i}", "sleep 30", deadline_s=60.0) for i in range(200)]
    futures = pool.submit(slow)
    while not any(future.running() for future in futures):
        time.sleep(0.01)
    assert futures[-1].cancel()
    (again,) = pool.submit([slow[-1]])  # its key is free
    assert again is not futures[-1]
    start = time.monotonic()
    pool.close(timeout_s=0.3)
    assert time.monotonic() - start < 15
    for future in [again, *futures[:-1]]:
        assert future.result(1).reason == "pool closed"
    with pytest.raises(VerifierError, match="closed"):
        pool.submit([request(f"{name}/late", "right")])
    pool.close()


CHECKS = [
    check_order_is_kept,
    check_judging_happens_elsewhere,
    check_same_key_is_the_same_future,
    check_a_hanging_verifier_costs_its_own_request_only,
    check_what_a_verifier_does_wrong_is_ungradable,
    check_it_survives_kill_9,
]
