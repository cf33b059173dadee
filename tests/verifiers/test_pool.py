import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import pool as pool_module
from loong_jax.verifiers.pool import LocalVerifierPool, RequestTable
from tests.verifiers import pool_checks


@pytest.fixture(scope="module")
def pool():
    pool = LocalVerifierPool(2, pool_checks.CONFIG)
    yield pool
    pool.close()


@pytest.mark.parametrize("check", pool_checks.CHECKS, ids=lambda check: check.__name__)
def test_local_pool(pool, check):
    check(pool, check.__name__)


def test_a_lost_worker_is_retried(pool, tmp_path):
    pool_checks.check_a_lost_worker_is_retried(pool, "retried", tmp_path / "once")


def test_cancel_and_close():
    pool = LocalVerifierPool(2, pool_checks.CONFIG)
    pool.submit([pool_checks.request("first", "right")])[0].result(60)
    pids = pool.pids()
    pool_checks.check_cancel_and_close(pool, "close")
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_does_not_load_jax(pool):
    pool_checks.judge(pool, pool_checks.request("jax", "right"))
    for pid in pool.pids():
        with open(f"/proc/{pid}/maps") as maps:
            assert "jaxlib" not in maps.read()


def test_workers_end_with_their_thread(pool, tmp_path):
    """A process that is killed takes its workers along, even one that hangs."""
    script = (
        "import sys\n"
        "from tests.verifiers import pool_checks\n"
        "from loong_jax.verifiers.pool import LocalVerifierPool\n"
        "pool = LocalVerifierPool(1, pool_checks.CONFIG)\n"
        "pool.submit([pool_checks.request('a', 'right')])[0].result(60)\n"
        "pool.submit([pool_checks.request('b', 'hang', deadline_s=600.0)])\n"
        "print(pool.pids()[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    cmdline = Path(f"/proc/{pid}/cmdline")
    while cmdline.exists() and cmdline.read_text():  # that of a zombie is empty
        assert time.monotonic() < deadline, "the worker outlived its pool"
        time.sleep(0.02)


def test_answered_keys_are_forgotten_in_order():
    table = RequestTable(max_answered=2)
    futures, entries = table.open([pool_checks.request(str(i), "right") for i in range(4)])
    assert len(set(futures)) == 4  # open ones are never forgotten
    for entry in entries[:3]:
        entry.answer(pool_module.verdict.correct())
    (again,), new = table.open([pool_checks.request("3", "right")])
    assert again is futures[3]
    assert not new
    _, new = table.open([pool_checks.request(key, "right") for key in ("0", "1", "2")])
    assert [entry.key for entry in new] == ["0", "1"]
    assert table.counts() == {"submitted": 6, "answered": 3, "ungradable": 0}


def test_settings_are_checked():
    with pytest.raises(VerifierError, match="num_workers=0 is below 1"):
        LocalVerifierPool(0)
    with pytest.raises(VerifierError, match=r"deadline_s=0\.0 of request 'a'"):
        pool_checks.request("a", "right", deadline_s=0.0)
