import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from loong_jax.child import ChildLost
from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import FORMS, render
from loong_jax.verifiers import get_verifier, worker
from loong_jax.verifiers.pool import (
    FedPool,
    FormedPool,
    LocalVerifierPool,
    RequestTable,
    VerifierRequest,
)
from loong_jax.verifiers.worker import WorkerProcess
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
    futures, opened = table.open([pool_checks.request(str(i), "right") for i in range(4)])
    assert len(set(futures)) == 4  # open ones are never forgotten
    for request in opened[:3]:
        request.answer(verdict.correct())
    (again,), new = table.open([pool_checks.request("3", "right")])
    assert again is futures[3]
    assert not new
    _, new = table.open([pool_checks.request(key, "right") for key in ("0", "1", "2")])
    assert [request.key for request in new] == ["0", "1"]


def test_what_is_written_ahead_keeps_its_turn():
    """Each verdict is that of its request, whatever the ones before it did to the worker."""
    texts = ["right", "hang", "x" * 3000, "y" * 10**6, "crash", "right", "crash", "right", "right"]
    requests = [pool_checks.request(str(i), text) for i, text in enumerate(texts)]
    one = WorkerProcess(pool_checks.CONFIG)
    judged = one.judge([r.body for r in requests], [0.5 if t == "hang" else 60.0 for t in texts])
    reasons = {"hang": "timeout", "crash": "worker lost"}
    verdicts = [worker.decode(body) for body in judged]
    assert [v.reason for v in verdicts if v.outcome == "ungradable"] == [
        reasons[text] for text in texts if text in reasons
    ]
    assert [v.is_correct for v in verdicts] == [text == "right" for text in texts]
    assert one.num_lost == 4
    one.end()
    [last] = one.judge([requests[0].body], [1.0])
    assert worker.decode(last).reason == "pool closed"
    one.stop()


def test_settings_are_checked():
    with pytest.raises(VerifierError, match="num_workers=0 is below 1"):
        LocalVerifierPool(0)


# ---- the form of responses ----


class Starting:
    """A worker that starts at once, or not before it is ended."""

    pid, num_lost = None, 0

    def __init__(self, *, is_slow: bool):
        self.is_slow, self.ended, self.judging = is_slow, threading.Event(), threading.Event()

    def prepare(self):
        if self.is_slow and self.ended.wait(60):
            raise ChildLost("ended")

    def judge(self, bodies, deadlines_s):
        self.judging.set()
        time.sleep(0.5)
        return [worker.encode(verdict.correct()) for _ in bodies]

    def end(self):
        self.ended.set()

    def stop(self):
        pass


def test_closing_waits_for_verdicts_and_for_no_worker_that_starts():
    workers = [Starting(is_slow=False), Starting(is_slow=True)]
    pool = FedPool(workers, max_batch=1)
    (future,) = pool.submit([pool_checks.request("in hand", "right")])
    assert workers[0].judging.wait(60)
    start_s = time.monotonic()
    pool.close(30.0)
    assert time.monotonic() - start_s < 15
    assert future.result(0).is_correct


class AtOnce:
    """A pool that judges in the calling thread."""

    def __init__(self, verify):
        self.verify, self.seen = verify, []

    def submit(self, requests):
        found = []
        for request in requests:
            self.seen.append(request.response_text)
            found.append(Future())
            found[-1].set_result(self.verify(request.problem, request.response_text))
        return found


def problem(gold="12", verifier="math", **arguments):
    return Problem(uid="x", domain="stem", environment="file", level=1, seed=0, canonical="c",
                   prompt="p", verifier=verifier, arguments=arguments, gold=gold)  # fmt: skip


def request(key, text, posed=None):
    return VerifierRequest(key=key, problem=posed or problem(), response_text=text)


def test_malformed_responses_are_wrong_and_the_others_keep_their_order():
    pool = AtOnce(lambda _, text: verdict.correct(text))
    texts = ["<think>a</think><answer>1</answer>", "1", "<think>b</think><answer>2</answer>"]
    futures = FormedPool(pool, FORMS["think-answer"]).submit(
        [request(str(i), text) for i, text in enumerate(texts)]
    )
    first, malformed, last = [future.result() for future in futures]
    assert (malformed.outcome, malformed.reason) == ("wrong", "format")
    assert ["1" in first.evidence, "2" in last.evidence] == [True, True]
    assert len(pool.seen) == 2
    assert not any("<think>" in text or text == "a" for text in pool.seen)


def test_equal_answers_to_one_problem_are_judged_once():
    pool = AtOnce(lambda posed, text: verdict.correct(f"{posed.gold}: {text}"))
    ours, others = problem("1"), problem("2")
    asked = [(ours, "a", "1"), (ours, "b", "2"), (others, "a", "1"), (ours, "c", "1")]
    form = FORMS["think-answer"]
    futures = FormedPool(pool, form).submit(
        [request(str(i), render(form, t, a), p) for i, (p, t, a) in enumerate(asked)]
    )
    evidence = [future.result().evidence for future in futures]
    assert len(pool.seen) == 3
    assert evidence[0] == evidence[3]
    assert [e[0] for e in evidence] == ["1", "1", "2", "1"]
    assert ["2" in e[1:] for e in evidence] == [False, True, False, False]


@pytest.fixture(scope="module")
def maths():
    verifier = get_verifier("math")
    yield verifier
    verifier.close()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_judged_by_its_answer(maths, name):
    form = FORMS[name]
    pool = FormedPool(AtOnce(maths.verify), form)
    texts = [render(form, "41 or 12", answer) for answer in ("12", "13")]
    right, wrong = [f.result() for f in pool.submit([request(t, t) for t in texts])]
    assert right.is_correct
    assert (wrong.outcome, wrong.reason) == ("wrong", "value")


def test_programs_are_judged_in_every_form():
    code = get_verifier("code")
    tests = [{"stdin": "1 2\n", "stdout": "3\n"}]
    posed = problem(None, "code", language="python", tests=tests)
    program = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    for name in ("tagged", "longcat", "think", "think-answer", "plain"):
        pool = FormedPool(AtOnce(code.verify), FORMS[name])
        (judged,) = pool.submit([request(name, render(FORMS[name], "t", program), posed)])
        assert judged.result().is_correct, name
    code.close()
