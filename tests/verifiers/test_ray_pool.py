"""The pool on a local Ray: one for all tests of this module."""

import os
import signal

import pytest

from loong_jax.errors import VerifierError
from tests.processes import wait_until
from tests.verifiers import pool_checks

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ray_pool():
    from loong_jax.verifiers import pool, ray_pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "MAX_BATCH", 16)  # so that requests wait
        made = ray_pool.RayVerifierPool(2, pool_checks.CONFIG)
        yield made
        made.close()
    assert not ray_pool.ray.is_initialized()


@pytest.mark.parametrize("check", pool_checks.CHECKS, ids=lambda check: check.__name__)
def test_ray_pool(ray_pool, check):
    check(ray_pool, check.__name__)


def test_a_lost_worker_is_retried(ray_pool, tmp_path):
    pool_checks.check_a_lost_worker_is_retried(ray_pool, "retried", tmp_path / "once")


def test_actors_are_small_and_never_load_jax(ray_pool):
    for pid in ray_pool.pids():
        with open(f"/proc/{pid}/maps") as maps:
            assert "jaxlib" not in maps.read()
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            (pss_kb,) = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
        assert pss_kb < 150 * 1024


def test_a_frozen_actor_is_replaced(ray_pool, monkeypatch):
    from loong_jax.verifiers import ray_pool as module

    wait_until(lambda: len(ray_pool.pids()) == 2, 300)
    pool_checks.judge(ray_pool, *(pool_checks.request(f"warm/{i}", "right") for i in range(32)))
    monkeypatch.setattr(module, "_GRACE_S", 2.0)  # for the replacement on a busy machine
    before = ray_pool.pids()
    os.kill(before[0], signal.SIGSTOP)
    requests = [pool_checks.request(f"frozen/{i}", "right", deadline_s=0.2) for i in range(32)]
    assert all(verdict.is_correct for verdict in pool_checks.judge(ray_pool, *requests))
    wait_until(lambda: len(ray_pool.pids()) == 2 and before[0] not in ray_pool.pids(), 300)


def test_a_second_pool_shares_ray_and_leaves_it(ray_pool):
    from loong_jax.verifiers import ray_pool as module

    second = module.RayVerifierPool(1, pool_checks.CONFIG)
    assert not set(second.pids()) & set(ray_pool.pids())
    pool_checks.check_cancel_and_close(second, "second")
    assert module.ray.is_initialized()
    assert pool_checks.judge(ray_pool, pool_checks.request("still", "right"))[0].is_correct


def test_a_pool_that_cannot_start_says_so(ray_pool, monkeypatch):
    from loong_jax.verifiers import ray_pool as module

    monkeypatch.setattr(module, "_START_S", 0.5)
    monkeypatch.setattr(module, "_NUM_CPUS", 1000.0)
    with pytest.raises(VerifierError, match="no verifier actor started: waited 0 s"):
        module.RayVerifierPool(1, pool_checks.CONFIG)
    with pytest.raises(VerifierError, match="num_workers=0"):
        module.RayVerifierPool(0)
