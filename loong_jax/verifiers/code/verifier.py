"""Verifier "code": runs a program against tests and decides, outside the sandbox, by its output."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.verdict import IsolationTier, Verdict
from loong_jax.sandbox import BoxLost, Built, Ended, Executor, ToolchainMissing, languages
from loong_jax.sandbox.box import PROGRAM
from loong_jax.sandbox.executor import ArtefactCache
from loong_jax.sandbox.languages import LANGUAGES, MB
from loong_jax.verifiers import OfRecords
from loong_jax.verifiers.code import cases, compare
from loong_jax.verifiers.code.cases import Call, Case, CodeTest

Status = Literal["OK", "WA", "TLE", "MLE", "OLE", "RE", "CE", "IE"]
MAX_CAPTURED_BYTES = 4096
_WORDS = {
    "WA": "wrong answer", "TLE": "time limit", "MLE": "memory limit", "OLE": "output limit",
    "RE": "run-time error", "CE": "compile error", "IE": "sandbox",
}  # fmt: skip
_OUT_OF_MEMORY = (
    b"MemoryError", b"bad_alloc", b"OutOfMemoryError", b"out of memory", b"Out of memory",
    b"Cannot allocate memory", b"heap exhausted", b"memory allocation of", b"NoMemoryError",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestResult:
    """The result of one test. Sizes in bytes; `stdout` and `stderr` are cut to what people read."""

    status: Status
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    time_s: float = 0.0  # CPU of all processes
    wall_s: float = 0.0
    memory_bytes: int = 0
    exit_status: int | None = None


_NO_PROGRAM = verdict.wrong("no answer", "the response holds no program")


class CodeVerifier(OfRecords):
    """Judges programs by tests: standard input and output, or calls of a Python function.

    Isolated per run: namespaces, an unprivileged user, no network, no capability, a system-call
    filter, limits on time, memory, processes, output and disk. Expected outputs and values never
    enter the sandbox. Deterministic as far as the program is.

    Known false classes. Accepts: a program that passes the given tests and errs elsewhere. Rejects:
    outputs that differ in more than white space where several are right and only one was given
    (list them, give a tolerance or a checker). A memory error that a program catches and reports as
    its own failure is a run-time error. Ungradable: records it cannot read, no tests, languages
    that are not installed, failures of the sandbox.
    """

    def __init__(
        self,
        *,
        min_tier: IsolationTier = "namespaces",
        num_boxes: int | None = None,
        cache_dir: str | Path | None = None,
        uses_fork: bool = True,
    ):
        """`uses_fork` runs Python without starting an interpreter each time; verdicts are the same.

        Programs run in namespaces or not at all, so every `min_tier` is met. `cache_dir` keeps
        compiled programs beyond this verifier's life.
        """
        cache = ArtefactCache(Path(cache_dir)) if cache_dir is not None else None
        self.executor = Executor(
            num_boxes=num_boxes or len(os.sched_getaffinity(0)), cache=cache, uses_fork=uses_fork
        )
        self.tier: IsolationTier = self.executor.mechanism.tier

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        try:
            case = cases.read_case(record)
            return self.judge(case) if case.source.strip() else _NO_PROGRAM
        except ToolchainMissing as error:
            return verdict.ungradable("toolchain", str(error))
        except BoxLost as error:
            return verdict.ungradable("sandbox", str(error), isolation=self.tier)
        except VerifierError as error:
            return verdict.ungradable("record", str(error))

    def judge(self, case: Case) -> Verdict:
        """Verdict of one case; raises VerifierError for an unknown or missing language."""
        calls = [test.call for test in case.tests if test.call]
        self._require_calls(case.language, calls)
        names = dict.fromkeys(test.call.function if test.call else "" for test in case.tests)
        builds = {name: self.executor.build(case.language, case.source, name) for name in names}
        built = next((one for one in builds.values() if one.lost or one.failure), None)
        built = built or next(iter(builds.values()))
        if built.lost:
            return verdict.ungradable("sandbox", built.lost, isolation=self.tier)
        compiled = {"cached": built.was_cached, "time_s": built.compile_s}
        if built.failure:
            results = [TestResult(status="CE", detail="not compiled")] * len(case.tests)
            return self._verdict(results, compiled | {"output": built.failure})
        checker = None
        if case.checker is not None:
            checker = self.executor.build(case.checker.language, case.checker.source)
            if said := checker.failure or checker.lost:
                return _no_checker(said)

        def judge(test: CodeTest) -> TestResult:
            one = builds[test.call.function if test.call else ""]
            return self._test(case, one, checker, test)

        results = list(self.executor.threads.map(judge, case.tests))
        rejects = any(result.status == "WA" for result in results)
        if checker is not None and rejects and (said := self.executor.check(checker)):
            return _no_checker(said)  # an interpreter ends with status 1 for that too
        fails = any(result.status == "RE" for result in results)
        if fails and (said := self.executor.check(built)):
            changes = {"RE": {"status": "CE", "detail": "not compiled"}}
            results = [dataclasses.replace(r, **changes.get(r.status, {})) for r in results]
            compiled["output"] = said
        return self._verdict(
            results, compiled if built.language.compile or "output" in compiled else {}
        )

    def close(self) -> None:
        self.executor.close()

    # ---- tests

    def _require_calls(self, language: str, calls: Sequence[Call]) -> None:
        """Raises VerifierError where a language's functions cannot be called so."""
        name, found = languages.find(language)
        if calls and not found.driver:
            known = ", ".join(name for name, one in LANGUAGES.items() if one.driver)
            raise VerifierError(
                f"calls are tested in {known}, not in {name}. Use one of these, or have the "
                "program read stdin and write stdout."
            )
        if any(call.kwargs for call in calls) and name != "python":
            raise VerifierError(f"calls in {name} have no kwargs. Use args alone.")

    def _test(self, case: Case, built: Built, checker: Built | None, test: CodeTest) -> TestResult:
        limits = dataclasses.replace(
            PROGRAM,
            cpu_s=case.time_limit_s,
            wall_s=2 * case.time_limit_s + 1.0,
            memory_bytes=case.memory_mb * MB,
        )
        if test.call is not None:
            ended = self.executor.call(built, cases.encoded(test.call, built.name), limits)
        else:
            ended = self.executor.execute(
                built, limits, stdin=test.stdin.encode("utf-8", "surrogatepass")
            )
        status, detail = status_of(ended)
        if status == "OK" and test.call is not None:
            status, detail = _compare_value(ended.result, test, case.tolerance)
        elif status == "OK" and checker is not None:
            status, detail = self._check(checker, test, ended.stdout)
        elif status == "OK" and not compare.matches_output(
            ended.stdout, test.expected, case.tolerance
        ):
            status, detail = "WA", "the output is another"
        return TestResult(
            status=status,
            detail=detail,
            stdout=ended.stdout[:MAX_CAPTURED_BYTES].decode(errors="replace"),
            stderr=ended.stderr[:MAX_CAPTURED_BYTES].decode(errors="replace"),
            stdout_truncated=len(ended.stdout) > MAX_CAPTURED_BYTES,
            stderr_truncated=len(ended.stderr) > MAX_CAPTURED_BYTES,
            time_s=round(ended.cpu_s, 6),
            wall_s=round(ended.wall_s, 6),
            memory_bytes=ended.memory_bytes,
            exit_status=ended.status,
        )

    def _check(self, checker: Built, test: CodeTest, stdout: bytes) -> tuple[Status, str]:
        answer = test.expected[0] if test.expected else ""
        files = {
            "input.txt": test.stdin.encode("utf-8", "surrogatepass"),
            "output.txt": stdout,
            "answer.txt": answer.encode("utf-8", "surrogatepass"),
        }
        ended = self.executor.execute(
            checker,
            dataclasses.replace(PROGRAM, wall_s=30.0),
            files=files,
            arguments=tuple(f"/tmp/{name}" for name in files),
        )
        said = (ended.stderr or ended.stdout)[:300].decode(errors="replace")
        if ended.end == "exited" and ended.status == 0:
            return "OK", said
        if ended.end == "exited" and ended.status in (1, 2):
            return "WA", f"the checker rejects it: {said}"
        how = ended.detail or f"{ended.end}, status {ended.status}"
        return "IE", f"the checker failed ({how}): {said}"

    def _verdict(self, results: list[TestResult], compiled: Mapping[str, Any]) -> Verdict:
        """Correct if every test passed; wrong if one failed by the answer's fault."""
        passed = sum(result.status == "OK" for result in results)
        details: dict[str, Any] = {"passed": passed, "total": len(results)}
        details["tests"] = [dataclasses.asdict(result) for result in results]
        if compiled:
            details["compile"] = dict(compiled)
        common = {"isolation": self.tier, "details": details}
        evidence = f"{passed} of {len(results)} tests passed"
        faults = [(i, r) for i, r in enumerate(results) if r.status not in ("OK", "IE")]
        if faults:
            index, first = faults[0]
            evidence += f"; test {index}: {first.status}"
            evidence += f" ({first.detail})" if first.detail else ""
            return verdict.wrong(_WORDS[first.status], evidence[:500], **common)
        if passed < len(results):
            lost = next(result for result in results if result.status != "OK")
            return verdict.ungradable("sandbox", f"{evidence}; {lost.detail}"[:500], **common)
        return verdict.correct(evidence, **common)


def _no_checker(said: str) -> Verdict:
    return verdict.ungradable("checker", f"it cannot be compiled: {said}"[:500])


def status_of(ended: Ended) -> tuple[Status, str]:
    """The status of a run by its end, before its output is looked at; "OK" if it ended well."""
    if ended.end == "lost":
        return "IE", ended.detail
    if ended.end == "cpu":
        return "TLE", f"{ended.cpu_s:.2f} s of CPU time"
    if ended.end == "wall":
        if ended.waited_s > ended.wall_s / 2:
            return "IE", f"the machine is overloaded: it waited {ended.waited_s:.1f} s to run"
        return "TLE", f"{ended.wall_s:.2f} s passed"
    if ended.end == "memory":
        return "MLE", f"{ended.memory_bytes // MB} MB"
    if ended.end in ("output", "artefact"):
        return "OLE", "more output than is kept"
    if ended.status == 0:
        return "OK", ""
    if any(words in ended.stderr[-8192:] for words in _OUT_OF_MEMORY):
        return "MLE", "it reports that memory ran out"
    if ended.status is not None and ended.status < 0:
        return "RE", f"signal {-ended.status}"
    return "RE", f"exit status {ended.status}"


def _compare_value(result: bytes, test: CodeTest, tolerance: float | None) -> tuple[Status, str]:
    if not result:
        return "WA", "it ended before the function returned"
    try:
        value = json.loads(result)  # untrusted: only compared
        is_right = any(compare.matches_value(value, e, tolerance) for e in test.expected)
    except (ValueError, RecursionError):
        return "WA", "what it reported is no value"
    shown = json.dumps(value.get("v") if isinstance(value, dict) else value)[:200]
    return ("OK", "") if is_right else ("WA", f"it returned another value: {shown}")
