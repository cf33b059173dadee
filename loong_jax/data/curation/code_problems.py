"""Code problems: enough tests, a full statement, and tests that agree with programs that solve it.

Records carry `tests` (see verifiers/code/cases.py) themselves or in their `arguments`, perhaps a
reference `solution`, and `candidates`: programs of several models. All run in the sandbox of the
verifiers.
LongCat-Flash-Thinking 2.2.1 (at least five tests), 3.4.1 (ambiguous problems and mismatched test
cases by execution), A.2.1 (what no model solves).
"""

import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.data.curation.stages import Record, Said, list_of, prompt_of
from loong_jax.errors import refuse_below

_LIMITS = re.compile(
    r"\b(?:time limit|memory limit|constraints?|seconds?|\d+\s?(?:ms|mb|mib|kb)|o\([^)]+\))\b"
    r"|\\le(?:q|qslant)?\b|<=|\u2264",
    re.IGNORECASE,
)
_EXAMPLES = re.compile(r"\b(?:sample|example)s?\b|\binput\b.*\boutput\b", re.I | re.S)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeStatement:
    """Drops code problems that cannot be judged well, by their text and tests alone.

    Reasons: `too few tests` (equal ones count once), `contradictory tests` (one input, two
    outputs), `no expected output`, `no examples`, `no limits`. Records without `tests` pass: they
    are no code problems.
    """

    name: str = "code_statement"
    min_tests: int = 5
    needs_examples: bool = True
    needs_limits: bool = False  # bounds on input, time or memory in the statement

    def __post_init__(self):
        refuse_below(self, 1, "min_tests")

    def reason(self, record: Record) -> str | None:
        tests = tests_of(record)
        if tests is None:
            return None
        outputs: dict[str, set[str]] = {}
        for test in tests:
            given, expected = _sides(test)
            if expected is None:
                return "no expected output"
            outputs.setdefault(given, set()).add(expected)
        if any(len(of_input) > 1 for of_input in outputs.values()):
            return "contradictory tests"
        if len(outputs) < self.min_tests:
            return f"too few tests: {len(outputs)}"
        text = prompt_of(record)
        if self.needs_examples and not _EXAMPLES.search(text):
            return "no examples"
        return "no limits" if self.needs_limits and not _LIMITS.search(text) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeExecution:
    """Drops code problems whose tests disagree with the programs that should pass them.

    Every candidate runs on every test. A test is *mismatched* where at least `min_agreeing`
    candidates that pass all other tests give one and the same other output: two programs seldom
    err alike. It is *ambiguous* where as many such candidates give at least two outputs besides
    each other and at least one of them matches: several answers are right and one is expected.

    Reasons: `reference fails` (the record's own solution), `mismatched tests`, `ambiguous`,
    `unsolved` (no candidate passes all tests), `no candidates`, `cannot run`. Kept records note
    `code_pass_rate`. With `repairs`, mismatched tests are noted as `bad_tests` and the record stays
    while it has `min_tests` others.
    """

    name: str = "code_execution"
    language: str = "python"
    min_agreeing: int = 2
    min_tests: int = 5
    repairs: bool = False
    time_limit_s: float = 4.0
    min_tier: str = "namespaces"

    def reason(self, record: Record) -> Said:
        if tests_of(record) is None:
            return None
        solution = record.get("solution")
        programs = [p for p in list_of(record, "candidates") if isinstance(p, str)]
        if isinstance(solution, str):
            programs = [solution, *programs]
        if not programs:
            return "no candidates"
        ran = [self._run(record, program) for program in programs]
        lost = next((one for one in ran if isinstance(one, str)), None)
        if lost is not None:
            return f"cannot run: {lost[:80]}"
        table = [one for one in ran if not isinstance(one, str)]
        faults = faults_of(table, self.min_agreeing)
        note = {"code_pass_rate": sum(all(t.passed for t in row) for row in table) / len(table)}
        if faults.mismatched:
            left = len(table[0]) - len(faults.mismatched)
            if not self.repairs or left < self.min_tests:
                return f"mismatched tests: {list(faults.mismatched)}"
            return note | {"bad_tests": list(faults.mismatched)}
        if faults.ambiguous:
            return f"ambiguous: tests {list(faults.ambiguous)}"
        if isinstance(solution, str) and not all(t.passed for t in table[0]):
            failed = [i for i, t in enumerate(table[0]) if not t.passed]
            return f"reference fails: tests {failed}"
        return note if note["code_pass_rate"] else "unsolved"

    def _run(self, record: Record, program: str) -> "list[Ran] | str":
        """The result of the program in every test, or the reason why it is not known."""
        own = ("language", "tests", "time_limit_s", "tolerance", "checker", "memory_mb")
        given = {name: value for name in own if (value := _setting(record, name)) is not None}
        asked = {"language": self.language, "time_limit_s": self.time_limit_s, "answer": program}
        asked |= given
        judged = _verifier(self.min_tier).verify_record(asked)
        if "tests" not in judged.details:
            return f"{judged.reason}: {judged.evidence}"
        found = judged.details["tests"]
        if any(test["status"] == "IE" for test in found):
            return judged.evidence
        return [_ran(test) for test in found]


class Ran(NamedTuple):
    """The result of a program in one test; `output` is None where it crashed or ran out of time."""

    passed: bool
    output: str | None


class Faults(NamedTuple):
    """Numbers of tests at fault."""

    mismatched: tuple[int, ...]
    ambiguous: tuple[int, ...]


def faults_of(table: Sequence[Sequence[Ran]], min_agreeing: int) -> Faults:
    """The tests that the programs (rows) speak against; see `CodeExecution`.

    A program is heard about the tests it fails if it passes at least as many as it fails.
    """
    heard = [row for row in table if 2 * sum(t.passed for t in row) >= len(row)]
    mismatched, ambiguous = [], []
    for number in range(len(table[0]) if table else 0):
        others = Counter(
            row[number].output
            for row in heard
            if not row[number].passed and row[number].output is not None
        )
        num_passed = sum(row[number].passed for row in heard)
        if not others:
            continue
        top = max(others.values())
        if top >= min_agreeing and top > num_passed:
            mismatched.append(number)
        elif sum(others.values()) >= min_agreeing and len(others) + (num_passed > 0) >= 3:
            ambiguous.append(number)
    return Faults(tuple(mismatched), tuple(ambiguous))


def tests_of(record: Record) -> list[Mapping[str, Any]] | None:
    """The tests of a code problem, its own or its arguments'; None where it has none."""
    tests = _setting(record, "tests")
    if not isinstance(tests, list):
        return None
    return [test for test in tests if isinstance(test, Mapping)]


def _setting(record: Record, name: str) -> Any:
    """The value under a name in a record, else in its verifier's arguments."""
    value, arguments = record.get(name), record.get("arguments")
    if value is None and isinstance(arguments, Mapping):
        return arguments.get(name)
    return value


def _ran(test: Mapping[str, Any]) -> Ran:
    if test["status"] == "OK":
        return Ran(True, None)
    if test["status"] != "WA" or test["stdout_truncated"]:
        return Ran(False, None)
    # A function reports its value in the detail, a program its output.
    said = test["detail"].partition("it returned another value: ")[2]
    return Ran(False, said or " ".join(test["stdout"].split()))


def _sides(test: Mapping[str, Any]) -> tuple[str, str | None]:
    """Input and expected output of a test, as texts; the output is None where none is stated."""
    names = ("stdin", "input", "call", "function", "args", "kwargs")
    inside = {name: test[name] for name in names if name in test}
    expected = ("stdout", "output", "expected_output", "returns", "expected", "returns_any")
    outside = [test[key] for key in expected if key in test]
    if not outside:
        return json.dumps(inside, sort_keys=True), None
    value = outside[0].strip() if isinstance(outside[0], str) else outside[0]
    return json.dumps(inside, sort_keys=True), json.dumps(value, sort_keys=True)


@functools.cache
def _verifier(min_tier: Any) -> Any:
    from loong_jax.verifiers.code.verifier import CodeVerifier

    return CodeVerifier(min_tier=min_tier)
