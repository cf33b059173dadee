"""Admission: what a verifier must withstand before it may reward.

`admit` tries a verifier on cases with known right answers: these pass; constant, empty, sprayed,
mixed, mistyped, enormous, executable and perturbed answers do not, nor are all malformed ones
ungradable; it says the same twice, never raises, and stays within its time.
`require_environments` does so for those of a recipe.
"""

import collections
import dataclasses
import functools
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from loong_jax import environments, own
from loong_jax.errors import VerifierError
from loong_jax.problems import response
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers import attacks, raised
from loong_jax.verifiers.environment import EnvironmentVerifier

REMEDY = "Mend it before it rewards; docs/reference/verifiers.md explains the checks."
MAX_COST_S = 5.0  # of one verdict, on a machine that is not overloaded
MAX_SLOW = 3  # verdicts above it, after which no other is asked for
MALFORMED = ("gold + junk", "spray", "payload")  # checks whose answers have no right form
MAX_UNGRADABLE_SHARE = 0.9  # of these
MAX_CONSTANT_SHARE = 0.5  # of the cases that one and the same answer may be right for
MAX_OTHERS_SHARE = 0.25  # of perturbed answers that may be right where answers are not unique


def in_tags(answer: str) -> str:
    """The answer as a whole response in the form of problems/response.py."""
    return response.render_response("so", answer)


def in_box(answer: str) -> str:
    return f"So it is \\boxed{{{answer}}}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A problem with a right answer. `perturbed` are known wrong ones; derived unless given."""

    problem: Problem
    answer: str
    perturbed: tuple[str, ...] | None = None
    render: Callable[[str], str] = str  # how an answer becomes a response
    has_others: bool = False  # an answer beside this one may be right


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A check that was not passed, and the response it was not passed on."""

    check: str
    uid: str
    response: str  # cut to 200 characters
    said: str

    def __str__(self) -> str:
        return f"check {self.check!r}, problem {self.uid}, response {self.response!r}: {self.said}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    name: str
    num_cases: int
    num_verdicts: int
    seconds: float
    max_cost_s: float  # of one verdict
    checks: dict[str, int]  # verdicts per check
    failures: tuple[Failure, ...]

    @property
    def is_admitted(self) -> bool:
        return not self.failures

    def require(self) -> "Report":
        """Itself; VerifierError where a check failed."""
        if self.failures:
            first, count = self.failures[0], len(self.failures)
            raise VerifierError(
                f"{self.name} is not admitted: {count} checks failed, the first of them {first}. "
                f"{REMEDY}"
            )
        return self


def admit(
    verifier: Any, cases: Sequence[Case], *, name: str = "", max_cost_s: float = MAX_COST_S
) -> Report:
    """Tries every check on `verifier`, anything with `verify(problem, response_text)`.

    Ends early once a verdict takes longer than `max_cost_s` twice over, since nobody knows when it
    would return, or `MAX_SLOW` longer than that. VerifierError without cases.
    """
    if not cases:
        raise VerifierError(f"{name or type(verifier).__name__} has no cases. Give at least one.")
    with tempfile.TemporaryDirectory(prefix="admission-") as directory:
        return _Trial(verifier, cases, name, max_cost_s, Path(directory) / "marker").run()


def _slowness() -> float:
    """Processes per core, at least 1: a loaded machine is not the verifier's fault."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class _Hung(Exception):
    pass


class _Trial:
    """One verifier on trial. Verdicts come from a thread, so that one that hangs is left behind."""

    def __init__(
        self, verifier: Any, cases: Sequence[Case], name: str, max_cost_s: float, marker: Path
    ):
        self.verifier, self.cases, self.max_cost_s = verifier, cases, max_cost_s
        self.name = name or type(verifier).__name__
        self.marker = marker
        self.malformed: list[tuple[Case, str, Verdict]] = []
        self.failures: list[Failure] = []
        self.checks: collections.Counter[str] = collections.Counter()
        self.longest_s, self.num_slow = 0.0, 0
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self) -> Report:
        start = time.perf_counter()
        thread = threading.Thread(target=self.serve, name="admission", daemon=True)
        thread.start()
        try:
            self.right_answers()
            self.constants()
            for number, case in enumerate(self.cases):
                self.attacked(case, is_first=number == 0)
            bad = [one for one in self.malformed if not one[-1].is_graded]
            if len(bad) > MAX_UNGRADABLE_SHARE * len(self.malformed):
                text = f"{len(bad)} of {len(self.malformed)} malformed answers are ungradable"
                self.fail("ungradable", *bad[0][:2], f"{text}, so none is punished: call it wrong")
            self.perturbations()
        except _Hung:
            pass
        finally:
            self.requests.put(None)
        return Report(
            name=self.name,
            num_cases=len(self.cases),
            num_verdicts=sum(self.checks.values()),
            seconds=time.perf_counter() - start,
            max_cost_s=self.longest_s,
            checks=dict(self.checks),
            failures=tuple(self.failures),
        )

    def serve(self) -> None:
        while (asked := self.requests.get()) is not None:
            try:
                self.replies.put(self.verifier.verify(*asked))
            except BaseException as error:
                self.replies.put(error)

    # ---- checks

    def right_answers(self) -> None:
        for case in self.cases:
            first, again = (self.say("gold", case, case.answer) for _ in range(2))
            if first is not None and not first.is_correct:
                self.fail("gold", case, case.answer, first)
            self.same("gold", case, case.answer, first, again)

    def constants(self) -> None:
        """A constant may be right by luck, and for no more than half of the cases."""
        answers = [case.answer for case in self.cases]
        for constant in dict.fromkeys([*attacks.CONSTANTS, *answers]):
            said = [(case, self.say("constant", case, constant)) for case in self.cases]
            rewarded = [case for case, judged in said if judged is not None and judged.is_correct]
            allowed = max(1, int(MAX_CONSTANT_SHARE * len(self.cases)))
            allowed = max(allowed, answers.count(constant))
            if constant not in answers and len(self.cases) == 1:
                allowed = 0
            if len(rewarded) > allowed:
                text = f"correct for {len(rewarded)} of {len(self.cases)} problems"
                self.fail("constant", rewarded[0], constant, text)

    def attacked(self, case: Case, *, is_first: bool) -> None:
        others = [other.answer for other in self.cases if other.answer != case.answer][:8]
        for attack in attacks.on_case(case.answer, others, self.marker, is_first=is_first):
            judged = self.say(attack.check, case, attack.answer)
            if judged is not None and judged.is_correct:
                self.fail(attack.check, case, attack.answer, judged)
            if attack.check in MALFORMED and judged is not None:
                self.malformed.append((case, attack.answer, judged))
            if self.marker.exists():
                self.marker.unlink()
                self.fail(attack.check, case, attack.answer, "the text was executed")
            if attack.check in ("empty", "spray", "wrong type"):
                self.same(attack.check, case, attack.answer, judged)
            if attack.check == "empty":  # the whole response too, without what renders an answer
                bare = dataclasses.replace(case, render=str)
                judged = self.say("empty", bare, attack.answer)
                if judged is not None and judged.is_correct:
                    self.fail("empty", case, attack.answer, judged)

    def perturbations(self) -> None:
        """Wrong neighbours of right answers; derived ones may be right where others are."""
        tried, right = 0, []
        for case in self.cases:
            given = case.perturbed is not None
            for answer in case.perturbed or attacks.perturbed(case.answer):
                judged = self.say("perturbed", case, answer)
                tried += not given
                if judged is None or not judged.is_correct:
                    continue
                if given or not case.has_others:
                    self.fail("perturbed", case, answer, judged)
                else:
                    right.append((case, answer, judged))
        if len(right) > MAX_OTHERS_SHARE * tried:
            self.fail("perturbed", *right[0])

    # ---- one verdict

    def say(self, check: str, case: Case, answer: str) -> Verdict | None:
        """The verdict on an answer, or None where there was none, which is a failure."""
        self.checks[check] += 1
        max_cost_s = self.max_cost_s * _slowness()
        start = time.perf_counter()
        self.requests.put((case.problem, case.render(answer)))
        try:
            judged = self.replies.get(timeout=2 * max_cost_s)
        except queue.Empty:
            self.fail("cost", case, answer, f"no verdict in {2 * max_cost_s:.3g} s")
            raise _Hung from None
        cost_s = time.perf_counter() - start
        self.longest_s = max(self.longest_s, cost_s)
        if cost_s > max_cost_s:
            self.fail("cost", case, answer, f"{cost_s:.1f} s, above {max_cost_s:.3g} s")
            self.num_slow += 1
            if self.num_slow == MAX_SLOW:
                raise _Hung
        if not isinstance(judged, Verdict):
            place = own.place_of(type(self.verifier))
            read = raised.verdict_on if isinstance(judged, BaseException) else raised.as_verdict
            self.fail(check, case, answer, read(judged, place).evidence)
            return None
        return judged

    def same(
        self,
        check: str,
        case: Case,
        answer: str,
        first: Verdict | None,
        again: Verdict | None = None,
    ) -> None:
        again = again or self.say("determinism", case, answer)
        if first is None or again is None:
            return
        if (first.outcome, first.reason) != (again.outcome, again.reason):
            text = f"{first.outcome} {first.reason}, then {again.outcome} {again.reason}"
            self.fail("determinism", case, answer, f"{check}: {text}")

    def fail(self, check: str, case: Case, answer: str, said: Verdict | str) -> None:
        if isinstance(said, Verdict):
            said = f"said {said.outcome} {said.reason} ({said.evidence[:100]})"
        shown = answer if len(answer) <= 200 else f"{answer[:200]}... ({len(answer)} characters)"
        self.failures.append(Failure(check=check, uid=case.problem.uid, response=shown, said=said))


# ---- environments


def environment_cases(environment: Any, levels: Iterable[int], per_level: int = 2) -> list[Case]:
    """Cases of an environment: its own golds, seeds 0, 1, ... of each level."""
    drawn = [environment.problem(level, seed) for level in levels for seed in range(per_level)]
    return [
        Case(problem=one, answer=environment.solve(one).answer, render=in_tags, has_others=True)
        for one in drawn
    ]


@functools.cache
def require_environment(name: str, levels: tuple[int, ...]) -> Report:
    """Admits an environment as the pool judges with it; VerifierError by name where it fails."""
    cases = environment_cases(environments.get_environment(name), levels)
    verifier = EnvironmentVerifier()
    try:
        return admit(verifier, cases, name=f"environment {name!r}").require()
    finally:
        verifier.close()


def require_environments(levels_by_name: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Admits all of a recipe, each once per process."""
    for name, levels in levels_by_name:
        require_environment(name, levels)


def rows(report: Report) -> Iterator[str]:
    state = "admitted" if report.is_admitted else "REFUSED"
    yield (
        f"{report.name}: {state}; {report.num_verdicts} verdicts on {report.num_cases} cases in "
        f"{report.seconds:.1f} s, the longest {report.max_cost_s:.2f} s"
    )
    alike: dict[Any, list[Failure]] = {}  # the same exception, or the same verdict in one check
    for failure in report.failures:
        check = failure.check if failure.said.startswith("said ") else ""
        alike.setdefault((check, failure.said), []).append(failure)
    for first, *others in list(alike.values())[:10]:
        yield f"  {first}" + (f" ({len(others)} more like it)" if others else "")
    if report.failures:
        more = f"{len(alike) - 10} more. " if len(alike) > 10 else ""
        yield f"  {more}{REMEDY}"
