"""Malformed and abusive requests leave the server healthy, and nothing held."""

import random
import threading
from collections import Counter

import pytest

from tests.processes import wait_until
from tests.rollout.serving import abuse

GOOD = {"prompt": "let x be", "max_tokens": 8, "temperature": 0}


def attack(server, count, *, seed, num_clients=4):
    """What came of `count` abusive requests, sent by several clients at a time."""
    rng = random.Random(seed)
    left = [abuse.draw(rng) for _ in range(count)]
    outcomes, strange = Counter(), []

    def work():
        while left:
            try:
                send = left.pop()
            except IndexError:
                return
            try:
                outcomes[send(server)] += 1
            except Exception as error:
                strange.append(repr(error))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    return outcomes, strange


def check(server, count, seed):
    wanted = server.post("/v1/completions", GOOD)[2]["choices"]
    num_threads = threading.active_count()
    outcomes, strange = attack(server, count, seed=seed)
    print(sorted(outcomes.items(), key=str))
    assert not strange
    assert sum(outcomes.values()) == count
    assert not {500, "INTERNAL", "UNKNOWN"} & set(outcomes)
    server.check_no_leak()
    assert server.http("GET", "/health")[0] == 200
    assert server.post("/v1/completions", GOOD)[2]["choices"] == wanted
    assert server.scheduler.metrics.engine_errors._value.get() == 0
    wait_until(lambda: threading.active_count() <= num_threads + 40)
    return outcomes


def test_sixty_abusive_requests(server):
    outcomes = check(server, 60, seed=0)
    assert {400, 401, "gone", "INVALID_ARGUMENT"} <= set(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_abusive_requests(server):
    outcomes = check(server, 1000, seed=1)
    assert {200, 400, 401, 404, 413, "gone", "OK", "INVALID_ARGUMENT"} <= set(outcomes)
