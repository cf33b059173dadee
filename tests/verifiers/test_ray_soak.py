"""A soak of the Ray verifier pool: a mixed load, workers killed meanwhile, all verdicts checked.

The mix is that of a reasoning run: logic and numbers most of all, symbolic mathematics, programs.
Verdicts are compared with those of the same verifiers in this process.
"""

import collections
import contextlib
import os
import random
import signal
import threading

import pytest

from loong_jax.bench import timing
from loong_jax.environments import get_environment
from loong_jax.problems.problem import Problem
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.pool import VerifierRequest
from loong_jax.verifiers.worker import WorkerConfig
from tests.doubles.problems import made_problem

NUM_REQUESTS, NUM_KILLS, NUM_DISTINCT = 2000, 5, 100  # of each kind as many are distinct
SHARES = {"logic": 0.4, "numeric": 0.4, "symbolic": 0.15, "code": 0.05}
_TASKS = ("sequence", "propositional_entailment", "graph_colouring", "lights_out")


def asked(kind: str, number: int, is_right: bool) -> tuple[Problem, str]:
    """A problem of this kind, and a response to it."""
    if kind == "logic":
        puzzle = get_environment(_TASKS[number % len(_TASKS)])
        problem = puzzle.problem(1 + number % 3, number)
        return problem, puzzle.solve(problem).answer if is_right else "Answer: 17"
    fields = {"gold": str(7 * number + 3)}
    text = f"So the answer is \\boxed{{{7 * number + 3 + (not is_right)}}}."
    if kind == "symbolic":
        fields = {"gold": f"(x+{number + 1})(x-{number + 2})"}
        middle = -1 if is_right else 1
        text = f"\\boxed{{x^2 {middle:+d}x - {(number + 1) * (number + 2)}}}"
    if kind == "code":
        tests = [{"stdin": str(number + 9), "stdout": str((number + 9) * (number + 10) // 2)}]
        fields = {"arguments": {"language": "python", "tests": tests}}
        text = f"n = int(input())\nprint(sum(range(n + 1)){'' if is_right else ' + 1'})"
    fields |= {"uid": f"soak/{kind}/{number}", "verifier": "code" if kind == "code" else "math"}
    return made_problem(number, **fields), text


@contextlib.contextmanager
def killer(pool, answers):
    """Kills actors and their workers at random while requests are answered, spread evenly."""
    killed, is_done, rng = [], threading.Event(), random.Random(0)

    def kill() -> None:
        while len(killed) < NUM_KILLS and not is_done.wait(0.02):
            share = len(answers) / NUM_REQUESTS
            if share * (NUM_KILLS + 1) <= len(killed):
                continue
            pids = pool.pids()
            if rng.random() < 0.5:
                pids = [child for pid in pids for child in timing.children(pid)]
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    killed.append(1)

    thread = threading.Thread(target=kill, name="killer", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        is_done.set()
        thread.join(10.0)


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.ray
@pytest.mark.bubblewrap
def test_a_small_soak():
    from loong_jax.verifiers.ray_pool import RayVerifierPool

    distinct = [(kind, *asked(kind, n, n % 2 == 0)) for kind in SHARES for n in range(NUM_DISTINCT)]
    alone = {name: get_verifier(name) for name in ("environment", "math", "code")}
    wanted = [alone[one.verifier].verify(one, text).outcome for _, one, text in distinct]
    assert wanted[::2] == ["correct"] * len(wanted[::2])
    assert set(wanted[1::2]) == {"wrong"}
    for verifier in alone.values():
        verifier.close()
    weights = [SHARES[kind] for kind, _, _ in distinct]
    order = random.Random(0).choices(range(len(distinct)), weights, k=NUM_REQUESTS)
    requests = [
        VerifierRequest(
            key=f"soak/{i}", problem=distinct[at][1], response_text=distinct[at][2], deadline_s=60.0
        )
        for i, at in enumerate(order)
    ]
    answers = collections.Counter()
    pool = RayVerifierPool(2, WorkerConfig(options={"code": {"num_boxes": 1}}))
    try:
        futures = pool.submit(requests)
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: answers.update((i,)))
        with killer(pool, answers) as killed:
            judged = [future.result(3600) for future in futures]
    finally:
        pool.close()
    assert answers == collections.Counter(range(NUM_REQUESTS)), "each is answered exactly once"
    assert len(killed) == NUM_KILLS
    assert pool.num_lost >= 1
    ungradable = [one for one in judged if not one.is_graded]
    assert len(ungradable) <= NUM_KILLS
    for at, one in zip(order, judged, strict=True):
        assert not one.is_graded or one.outcome == wanted[at], (distinct[at], one)
