"""A stop of anything for a while, as machines do to each other, ends in a verdict."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from loong_jax.sandbox import PROGRAM, Run, box
from loong_jax.verifiers import get_verifier
from tests.verifiers.code.conftest import zygote_pids

pytestmark = pytest.mark.bubblewrap
RECORD = {
    "language": "python",
    "answer": "import time\ntime.sleep(0.3)\nprint(1)",
    "tests": [{"stdout": "1"}] * 3,
    "time_limit_s": 0.3,  # 1.6 s of wall time
}


@pytest.fixture
def one(needs_isolation):
    verifier = get_verifier("code", num_boxes=1)
    assert isinstance(verifier.executor.group_counts, tuple)  # its box has started
    yield verifier
    verifier.close()


@pytest.mark.parametrize(
    ("who", "stop_s"),
    [("launcher", 2.0), ("zygote", 2.0), pytest.param("zygote", 24.0, marks=pytest.mark.release)],
)
def test_a_stopped_sandbox_goes_on(one, who, stop_s):
    pids = zygote_pids(one) if who == "zygote" else one.executor.pids()
    judged = []
    thread = threading.Thread(target=lambda: judged.append(one.verify_record(RECORD)))
    thread.start()
    time.sleep(0.15)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(stop_s)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it was given up, and another took over
            os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert [verdict.outcome for verdict in judged] == ["correct"], judged


def test_a_stopped_host_goes_on(needs_isolation):
    script = (
        "import sys\n"
        "from loong_jax.verifiers import get_verifier\n"
        "one = get_verifier('code', num_boxes=1)\n"
        "one.executor.group_counts\n"
        "print('ready', flush=True)\n"
        f"judged = one.verify_record({RECORD!r})\n"
        "print(judged.outcome, one.executor._boxes[0].num_lost)\n"
        "one.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == "ready\n"
        time.sleep(0.15)
        os.kill(p.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(p.pid, signal.SIGCONT)
        said, _ = p.communicate(timeout=60)
    assert said == "correct 0\n"


def test_a_sandbox_that_stays_stopped_is_ungradable(one, monkeypatch):

    monkeypatch.setattr(box, "_GRACE_S", 0.5)
    real = box.Box._running

    def stopped(self):
        zygote = real(self)
        for pid in zygote_pids(one):
            os.kill(pid, signal.SIGSTOP)
        return zygote

    monkeypatch.setattr(box.Box, "_running", stopped)
    for pid in zygote_pids(one):
        os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    limits = dataclasses.replace(PROGRAM, cpu_s=0.2, wall_s=0.2)
    ended = one.executor.run(Run(argv=["/bin/true"], limits=limits))
    assert ended.end == "lost"
    assert time.monotonic() - start < 20
