"""A soak of the Ray verifier pool: a mixed load, workers killed meanwhile, all verdicts checked.

The mix is that of a reasoning run: 80 % logic and numbers, 15 % symbolic mathematics, 5 % programs.
Verdicts are compared with those of the same verifiers in this process.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from typing import Any

from loong_jax.bench import timing
from loong_jax.environments import get_environment
from loong_jax.environments.problem import Problem
from loong_jax.errors import VerifierError
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.pool import VerifierPool, VerifierRequest
from loong_jax.verifiers.verdict import Verdict
from loong_jax.verifiers.worker import WorkerConfig

SHARES = {"logic": 0.4, "numeric": 0.4, "symbolic": 0.15, "code": 0.05}
_TASKS = ("sequence", "propositional_entailment", "graph_colouring", "lights_out")
_TIMEOUT_S = 3600.0
_CODE = "import sys\nn = int(input())\nprint(sum(range(n + 1)){extra})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soak:
    """How many requests of each kind there are, and how much is broken meanwhile."""

    num_requests: int = 100_000
    num_kills: int = 100
    num_actors: int = 2
    num_distinct: int = 2_000  # requests repeat after so many, with keys of their own
    seed: int = 0

    def __post_init__(self):
        if self.num_requests < 100 or self.num_distinct < 20 or self.num_kills < 0:
            raise VerifierError(
                f"num_requests={self.num_requests}, num_distinct={self.num_distinct}, "
                f"num_kills={self.num_kills}: at least 100, 20 and 0."
            )


def measure(soak: Soak) -> dict[str, Any]:
    """Runs the soak on a Ray pool; raises VerifierError if a promise of the pool is broken."""
    from loong_jax.verifiers.ray_pool import RayVerifierPool

    kinds, distinct = _distinct(soak)
    wanted, alone_ms = _in_process(distinct)
    order = random.Random(soak.seed).choices(
        range(len(distinct)), _weights(kinds), k=soak.num_requests
    )
    config = WorkerConfig(options={"code": {"num_boxes": 1}})
    pool = RayVerifierPool(soak.num_actors, config, concurrency={"code": soak.num_actors})
    try:
        list(map(_result, pool.submit(_keyed(distinct, range(len(distinct)), "warm"))))
        requests = _keyed(distinct, order, "soak")
        start = time.perf_counter()
        futures = pool.submit(requests)
        submit_s = time.perf_counter() - start
        answers = collections.Counter()
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: answers.update((i,)))
        with _killer(pool, soak) as killed:
            judged = [_result(future) for future in futures]
        took_s = time.perf_counter() - start
        metrics = pool.metrics()
    finally:
        pool.close()
    return _report(soak, kinds, order, wanted, judged, answers) | {
        "killed": len(killed),
        "seconds": took_s,
        "requests_per_s": soak.num_requests / took_s,
        "submit_us_per_request": submit_s / soak.num_requests * 1e6,
        "in_process_ms": alone_ms,
        "metrics": metrics,
        "load": os.getloadavg()[0],
    }


def _distinct(soak: Soak) -> tuple[list[str], list[tuple[Problem, str]]]:
    """Kinds and requests; half of each kind is answered rightly."""
    kinds, requests = [], []
    for kind, make in _MAKERS.items():
        for number in range(max(4, round(SHARES[kind] * soak.num_distinct))):
            kinds.append(kind)
            requests.append(make(number, number % 2 == 0))
    return kinds, requests


def _weights(kinds: list[str]) -> list[float]:
    sizes = collections.Counter(kinds)
    return [SHARES[kind] / sizes[kind] for kind in kinds]


def _logic(number: int, is_right: bool) -> tuple[Problem, str]:
    puzzle = get_environment(_TASKS[number % len(_TASKS)])
    problem = puzzle.problem(1 + number % 3, number)
    return problem, puzzle.solve(problem).answer if is_right else "Answer: 17"


def _problem(verifier: str, uid: str, **fields: Any) -> Problem:
    return Problem(
        uid=f"soak/{uid}", domain="code" if verifier == "code" else "stem", environment="soak",
        level=1, seed=0, canonical=uid, prompt="", verifier=verifier, **fields,
    )  # fmt: skip


def _numeric(number: int, is_right: bool) -> tuple[Problem, str]:
    gold = 7 * number + 3
    said = gold if is_right else gold + 1
    text = f"Adding up gives $3 + 7 \\cdot {number}$, so the answer is \\boxed{{{said}}}."
    return _problem("math", f"numeric/{number}", gold=str(gold)), text


def _symbolic(number: int, is_right: bool) -> tuple[Problem, str]:
    gold = f"(x+{number + 1})(x-{number + 2})"
    middle = -1 if is_right else 1
    said = f"x^2 {middle:+d}x - {(number + 1) * (number + 2)}"
    return _problem("math", f"symbolic/{number}", gold=gold), f"So we get \\boxed{{{said}}}."


def _code(number: int, is_right: bool) -> tuple[Problem, str]:
    tests = [{"stdin": str(number + 9), "stdout": str((number + 9) * (number + 10) // 2)}]
    arguments = {"language": "python", "tests": tests}
    source = _CODE.format(extra="" if is_right else " + 1")
    return _problem("code", f"code/{number}", arguments=arguments), f"```python\n{source}\n```"


_MAKERS = {"logic": _logic, "numeric": _numeric, "symbolic": _symbolic, "code": _code}


def _in_process(distinct: list[tuple[Problem, str]]) -> tuple[list[Verdict], dict[str, float]]:
    """Verdicts without any pool, and milliseconds each verifier takes for one."""
    names = sorted({problem.verifier for problem, _ in distinct})
    verifiers = {name: get_verifier(name) for name in names}
    try:
        judged, seconds = [], collections.defaultdict(list)
        for problem, text in distinct:
            start = time.perf_counter()
            judged.append(verifiers[problem.verifier].verify(problem, text))
            seconds[problem.verifier].append(time.perf_counter() - start)
    finally:
        for verifier in verifiers.values():
            verifier.close()
    return judged, {name: 1e3 * sum(times) / len(times) for name, times in seconds.items()}


def _keyed(distinct: list[tuple[Problem, str]], order: Any, prefix: str) -> list[VerifierRequest]:
    return [
        VerifierRequest(
            key=f"{prefix}/{i}", problem=distinct[which][0], response_text=distinct[which][1],
            deadline_s=60.0,
        )
        for i, which in enumerate(order)
    ]  # fmt: skip


def _result(future: concurrent.futures.Future[Verdict]) -> Verdict:
    return future.result(_TIMEOUT_S)


@contextlib.contextmanager
def _killer(pool: VerifierPool, soak: Soak):
    """Kills actors and their workers at random while requests are answered, spread evenly."""
    killed: list[int] = []
    is_done = threading.Event()
    rng = random.Random(soak.seed)
    first = pool.counts()["answered"]

    def kill() -> None:
        while len(killed) < soak.num_kills and not is_done.wait(0.02):
            share = (pool.counts()["answered"] - first) / soak.num_requests
            if share * (soak.num_kills + 1) <= len(killed):
                continue
            pids = pool.pids()
            if rng.random() < 0.5:
                pids = [child for pid in pids for child in timing.children(pid)]
            if pids:
                pid = rng.choice(pids)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill, name="killer", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        is_done.set()
        thread.join(10.0)


def _report(
    soak: Soak,
    kinds: list[str],
    order: list[int],
    wanted: list[Verdict],
    judged: list[Verdict],
    answers: collections.Counter,
) -> dict[str, Any]:
    table: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in SHARES}
    for which, verdict in zip(order, judged, strict=True):
        row, right = table[kinds[which]], wanted[which]
        row["requests"] += 1
        row["ungradable"] += not verdict.is_graded
        row["as in process"] += verdict.outcome == right.outcome
        row["rewarded wrongly"] += verdict.is_correct and not right.is_correct
        row["refused wrongly"] += verdict.outcome == "wrong" and right.outcome != "wrong"
    if sorted(answers.elements()) != list(range(soak.num_requests)):
        raise VerifierError("a request was not answered exactly once")
    if any(row["rewarded wrongly"] or row["refused wrongly"] for row in table.values()):
        raise VerifierError(f"verdicts differ from those in process: {table}")
    return {"requests": soak.num_requests, "kinds": {k: dict(row) for k, row in table.items()}}
