"""Fuzzing of every registered verifier and environment: no crash, no hang, no verdict that flips.

`fuzz_all` judges as many inputs as it is told, each twice, and prints how many each target took.
Inputs are right answers, hostile texts,
pieces of mathematical notation and arbitrary characters, joined and cut at random.
"""

import contextlib
import faulthandler
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st

from loong_jax import verifiers
from loong_jax.environments import ENVIRONMENTS, get_environment
from loong_jax.errors import VerifierError
from loong_jax.verifiers import admission_cases, attacks
from tests.verifiers.formal import fake_lean
from tests.verifiers.judge import endpoint

Judge = Callable[[int, str], Any]  # which of its problems, the response -> the verdict

MAX_CPU_S = 10.0  # of one verdict
HANG_S = 300  # of one target's input, by the clock
# A target's share of all inputs. Those that start a process or ask a server get few.
SHARES = {"math": 40, "loongbench": 10, "logic": 20, "environment": 6, "constraints": 6,
          "metamath": 6, "judge": 1, "lean": 1, "resyn": 0.5,
          "code": 0.2, "coq": 0.1}  # fmt: skip
ENVIRONMENT_SHARE = 10  # of all environments together
_PIECES = (
    *"0123456789abcxyzefinpi+-*/^_=<>()[]{}|,.;:!%$&\"' \n",
    "\\frac", "\\sqrt", "\\boxed{", "\\text{", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\",
    "\\cup", "\\infty", "\\pm", "\\sum_{k=1}^{n}", "\\int_0^1", "<answer>", "</answer>", "<think>",
    "</think>", "the answer is ", " or ", " at least ", "wait, ", "because ", "Matrix([[",
    "Interval(", "2024-02-29", "3:45 pm", "2A_{16}", " out of ", " cm", "\u03bcm", "True", "null",
    "\x00", "\ud800", "\u202e", "\uff11", "\u5341", "9**9**9", "(10^9)!", '{"a": [1, {"b": 2}]}',
    "$= id $.", "Qed.", "by simp", "def f(x):\n    return x\n", "```python\n", "```",
)  # fmt: skip


def responses(seeds: list[str]) -> st.SearchStrategy[str]:
    """Texts around what a verifier knows: whole, cut, doubled, with pieces in between."""
    known = st.sampled_from([*seeds, *attacks.CONSTANTS, *attacks.WRONG_TYPES])
    cut = st.builds(lambda text, at: text[: at % (len(text) + 1)], known, st.integers(0, 400))
    piece = st.sampled_from(_PIECES) | known | cut | st.text(max_size=8)
    return st.lists(piece, max_size=12).map("".join) | known | st.text(max_size=60)


class Target(NamedTuple):
    """Something that judges: its part of all inputs, answers it knows, and what ends it."""

    name: str
    share: float
    seeds: list[str]
    judge: Judge
    close: Callable[[], None]


def targets(lean_url: str) -> Iterator[Target]:
    """All that can be built here; what cannot is named on standard output."""
    for name in verifiers.VERIFIERS:
        try:
            one = verifiers.get_verifier(name, **({"url": lean_url} if name == "lean" else {}))
        except VerifierError as error:
            print(f"{name}: left out, {error}")
            continue
        cases = admission_cases.cases_of(name)
        problems = [case.problem for case in cases]
        seeds = [text for case in cases for text in (case.answer, case.render(case.answer))]

        def judge(index: int, text: str, one=one, problems=problems) -> Any:
            return one.verify(problems[index % len(problems)], text)

        yield Target(name, SHARES[name], seeds, judge, one.close)
    for name in ENVIRONMENTS:
        environment = get_environment(name)
        problems = [environment.problem(level, 0) for level in (1, 3)]

        def judge_answer(index: int, text: str, environment=environment, problems=problems) -> Any:
            return environment.verify(problems[index % len(problems)], text)

        seeds = [str(problem.gold) for problem in problems if problem.gold]
        share = ENVIRONMENT_SHARE / len(ENVIRONMENTS)
        yield Target(f"environment {name}", share, seeds or ["1"], judge_answer, lambda: None)


def fuzz(judge: Judge, seeds: list[str], num_inputs: int) -> int:
    """Judges `num_inputs` inputs, each twice; raises for the first that breaks a rule."""
    count = 0

    @hypothesis.settings(
        max_examples=num_inputs,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(index=st.integers(0, 63), text=responses(seeds))
    def run(index: int, text: str) -> None:
        nonlocal count
        count += 1
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        start_s = time.process_time()
        first, again = _said(judge, index, text), _said(judge, index, text)
        assert time.process_time() - start_s < 2 * MAX_CPU_S, f"too slow: {text[:200]!r}"
        assert first == again, f"{first} and then {again}: {text[:200]!r}"

    try:
        run()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return count


def _said(judge: Judge, index: int, text: str) -> tuple[str, str]:
    judged = judge(index, text)
    json.dumps(judged.evidence)
    if hasattr(judged, "outcome"):
        assert judged.outcome in ("correct", "wrong", "ungradable")
        return judged.outcome, judged.reason
    return str(judged.value), judged.reason


@contextlib.contextmanager
def servers() -> Iterator[str]:
    """An endpoint for "judge", and the URL of a Lean."""
    with endpoint.in_environment(), fake_lean.running() as lean:
        yield f"http://127.0.0.1:{lean.server_address[1]}"


def fuzz_all(num_inputs: int) -> dict[str, int]:
    """Inputs judged, by target; raises for the first that breaks a rule."""
    with servers() as lean_url:
        found = list(targets(lean_url))
        total = sum(target.share for target in found)
        counts = {}
        for target in found:
            start = time.monotonic()
            try:
                wanted = max(20, math.ceil(num_inputs * target.share / total))
                counts[target.name] = fuzz(target.judge, target.seeds, wanted)
            finally:
                target.close()
            took_s = time.monotonic() - start
            print(f"{target.name}: {counts[target.name]} inputs, {took_s:.0f} s", flush=True)
    return counts
