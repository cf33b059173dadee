"""Admission: registered verifiers pass it, sloppy ones are refused by the check they fail."""

import dataclasses
import itertools
import re
import time
from types import SimpleNamespace

import pytest

from loong_jax import cli
from loong_jax.environments import ENVIRONMENTS
from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.verifiers import admission, admission_cases, attacks
from loong_jax.verifiers.admission import Case, admit
from loong_jax.verifiers.admission_cases import cases_of
from tests.bounds import EXPLODES_S
from tests.verifiers import registered
from tests.verifiers.judge.endpoint import ScriptedEndpoint


@pytest.fixture(scope="module")
def judge_endpoint():
    server = ScriptedEndpoint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOONG_JUDGE_URL", server.url)
        patch.setenv("LOONG_JUDGE_MODEL", "scripted")
        yield server
    server.close()


MAX_COST_S = {"code": 30.0, "coq": 30.0, "lean": 60.0}  # they run programs, within their limits


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", registered.NAMES)  # some of them mark.slow or mark.release
def test_every_registered_verifier_is_admitted(name, judge_endpoint):
    cases = cases_of(name)
    one = registered.build(name)
    try:
        report = admit(one, cases, name=name, max_cost_s=MAX_COST_S.get(name, 5.0))
    finally:
        one.close()
    assert report.is_admitted, "\n".join(admission.rows(report))
    assert report.num_cases == len(cases)
    expected = {"gold", "constant", "empty", "spray", "gold + junk", "wrong type", "1 MB",
                "payload", "perturbed", "determinism"}  # fmt: skip
    assert set(report.checks) == expected


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_is_admitted_in_little_time(name):
    start = time.process_time()
    assert admission.require_environment(name, (1, 3)).is_admitted
    assert time.process_time() - start < EXPLODES_S


def problem(gold, number=0):
    asked = cases_of("math")[0].problem
    return dataclasses.replace(asked, uid=f"admission-math/1/{number}", gold=gold)


GOLDS = ("42", "x + 1", "Tuesday", "[1, 2]")


class Exact:
    def verify(self, problem, response_text):
        return self.said(self.is_right(problem.gold, response_text))

    def said(self, is_right):
        return verdict.correct() if is_right else verdict.wrong("value")

    def is_right(self, gold, text):
        return text == gold


# What a sloppy verifier accepts: functions of gold and text.
RULES = {
    "AcceptsNothing": lambda gold, text: False,
    "FindsTheGold": lambda gold, text: gold in text,
    "AcceptsPrefixes": lambda gold, text: gold.startswith(text.strip()),
    "AcceptsAnything": lambda gold, text: bool(text.strip()),
    "ComparesLengths": lambda gold, text: len(text) == len(gold),
    "Raises": lambda gold, text: text == gold or float(text) == 0.5,
    "IsQuadratic": lambda gold, text: slept(0.3, text) or text == gold,
    "Hangs": lambda gold, text: slept(5, text) or text == gold,
}


def slept(seconds, text):
    time.sleep(seconds if len(text) > 10**5 else 0)


def by_rule(name):
    return type(name, (Exact,), {"is_right": staticmethod(RULES[name])})


class Evaluates(Exact):
    def is_right(self, gold, text):
        try:
            return str(eval(text, {})) == gold
        except BaseException:
            return text == gold


class GradesFormsAlone(Exact):
    def verify(self, problem, response_text):
        if len(response_text) > 7:
            return verdict.ungradable("format")
        return super().verify(problem, response_text)


class ReturnsBools(Exact):
    def verify(self, problem, response_text):
        return response_text == problem.gold


class ChangesItsMind(Exact):
    count = 0

    def verify(self, problem, response_text):
        self.count += 1
        if response_text != problem.gold and self.count % 3 == 0:
            return verdict.ungradable("mood")
        return super().verify(problem, response_text)


SLOPPY = [
    (by_rule("AcceptsNothing"), "gold"),
    (by_rule("FindsTheGold"), "gold + junk"),
    (by_rule("FindsTheGold"), "spray"),
    (by_rule("AcceptsPrefixes"), "empty"),
    (by_rule("AcceptsAnything"), "constant"),
    (by_rule("AcceptsAnything"), "wrong type"),
    (by_rule("AcceptsAnything"), "1 MB"),
    (by_rule("AcceptsAnything"), "payload"),
    (by_rule("ComparesLengths"), "perturbed"),
    (GradesFormsAlone, "ungradable"),
    (by_rule("Raises"), "wrong type"),
    (ReturnsBools, "gold"),
    (ChangesItsMind, "determinism"),
    (by_rule("IsQuadratic"), "cost"),
    (by_rule("Hangs"), "cost"),
]


def cases():
    return [Case(problem=problem(gold, n), answer=gold) for n, gold in enumerate(GOLDS)]


@pytest.mark.parametrize(("kind", "check"), SLOPPY)
def test_a_sloppy_verifier_is_refused_by_name_and_case(kind, check, monkeypatch):
    monkeypatch.setattr(admission, "_slowness", lambda: 1.0)  # whatever else runs here
    report = admit(kind(), cases(), max_cost_s=0.2)
    assert check in {failure.check for failure in report.failures}
    with pytest.raises(VerifierError, match=f"{kind.__name__} is not admitted.*admission-math/1/"):
        report.require()


def test_one_fault_is_one_row():
    first, true, false, remedy = admission.rows(admit(ReturnsBools(), cases()))
    assert "REFUSED" in first
    assert re.fullmatch(r"  check 'gold'.*returned True, .* \(\d+ more like it\)", true)
    assert re.fullmatch(r"  check 'constant'.*returned False, .* \(\d+ more like it\)", false)
    assert remedy == f"  {admission.REMEDY}"


def test_a_slow_verifier_is_asked_no_more_than_a_few_times(monkeypatch):
    monkeypatch.setattr(admission, "_slowness", lambda: 1.0)
    clock = itertools.count(step=100.0)  # seconds between any two looks at it
    monkeypatch.setattr(admission, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    report = admit(Exact(), cases(), max_cost_s=60.0)
    assert (report.num_verdicts, len(report.failures)) == (3, 3)


def test_an_empty_response_is_tried_where_answers_stand_in_a_box():
    class AcceptsSilence(Exact):
        def verify(self, problem, response_text):
            if not response_text:
                return verdict.correct()
            return super().verify(problem, response_text.removeprefix("\\boxed{").removesuffix("}"))

    boxed = [dataclasses.replace(case, render="\\boxed{{{}}}".format) for case in cases()]
    assert admit(Exact(), cases()).is_admitted
    report = admit(AcceptsSilence(), boxed)
    assert {failure.check for failure in report.failures} == {"empty"}


def test_text_that_is_executed_is_noticed():
    with pytest.MonkeyPatch.context() as patch:  # the bombs among the payloads would end us
        patch.setattr(attacks, "payloads", lambda marker: [f"open({str(marker)!r}, 'w').close()"])
        patch.setattr(attacks, "_long", lambda answer: iter(["x"]))
        report = admit(Evaluates(), cases())
    found = {(failure.check, failure.said) for failure in report.failures}
    assert ("payload", "the text was executed") in found


def test_the_exact_verifier_is_admitted_and_explicit_cases_are_strict():
    assert admit(Exact(), cases()).require().num_verdicts > 400
    alike = Case(problem=problem("42"), answer="42", perturbed=("42",))
    assert not admit(Exact(), [alike]).is_admitted
    others = [Case(problem=problem("42"), answer="42", perturbed=("43",), has_others=True)]
    assert admit(Exact(), others).is_admitted
    with pytest.raises(VerifierError, match="no cases"):
        admit(Exact(), [])


def test_answers_that_are_not_unique_may_have_right_neighbours():
    class Parity(Exact):
        def is_right(self, gold, text):
            return text.isdigit() and len(text) == 8 and (text == gold or text.startswith("3"))

    golds = ("21436587", "14325768")
    listed = [Case(problem=problem(g, n), answer=g) for n, g in enumerate(golds)]
    assert {f.check for f in admit(Parity(), listed).failures} == {"perturbed"}
    loose = [Case(problem=c.problem, answer=c.answer, has_others=True) for c in listed]
    assert admit(Parity(), loose).is_admitted


def test_perturbed_answers_differ_and_are_many():
    for gold in ("42", "-1/3", "Tuesday", "[1, 2]", "x^2", "0.5", "p -> q"):
        found = attacks.perturbed(gold)
        assert gold not in found
        assert len(found) == len(set(found)) >= 2


def test_the_command_line(judge_endpoint, monkeypatch, capsys):
    assert cli.main(["verify", "admission", "math", "environment"]) == 0
    assert "verifier 'math': admitted" in capsys.readouterr().out
    assert cli.main(["verify", "admission", "nonsense"]) == 1
    assert "nonsense" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        cli.main(["verify", "admission", "--help"])
    assert "which are admitted" in capsys.readouterr().out
    monkeypatch.delitem(admission_cases._table(), "math")
    assert cli.main(["verify", "admission", "math"]) == 1
    assert "admission_cases" in capsys.readouterr().out
    monkeypatch.delenv("LOONG_JUDGE_URL")
    assert cli.main(["verify", "admission", "judge"]) == 1
    assert "LOONG_JUDGE_URL" in capsys.readouterr().out
