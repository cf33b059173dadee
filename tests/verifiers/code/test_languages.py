"""Every installed language: greeting, compile error, run-time error, time limit."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from loong_jax.errors import VerifierError
from loong_jax.sandbox import languages

pytestmark = pytest.mark.bubblewrap
_TEXTS = tomllib.loads(Path(__file__).with_name("greeters.toml").read_text(encoding="utf-8"))
GREETERS: dict[str, str] = _TEXTS["greeters"]
BROKEN: dict[str, str] = _TEXTS["broken"]

# Their toolchains answer quickly. Of the others a landing tries one with a compiler, one with a
# machine of its own and one that is interpreted; a release tries them all.
QUICK = ("python", "c", "cpp", "javascript", "bash", "perl", "lua")
SOME = ("rust", "java", "ruby")
SLOW_STARTERS = ("elixir", "erlang", "julia", "kotlin", "scala", "typescript")
ALL = [
    pytest.param(name, marks=pytest.mark.slow if name in SOME else pytest.mark.release)
    if name not in QUICK
    else name
    for name in languages.LANGUAGES
    if name != "sql"
]


def need(code, language: str) -> None:
    try:
        code.executor.version(language)
    except VerifierError as error:
        pytest.skip(str(error))


def test_there_are_at_least_24_and_each_is_tested():
    assert len(languages.LANGUAGES) >= 24
    assert set(GREETERS) | {"sql"} == set(languages.LANGUAGES)


@pytest.mark.parametrize("language", ALL)
def test_language(code, language):
    need(code, language)
    names = ["world", "fail", "hang"]
    inputs = dict(zip(names, ("0", "1", "2") if language == "bc" else names, strict=True))
    end = ".\n" if language == "prolog" else "\n"
    tests = [
        {"stdin": inputs[name] + end, "stdout": f"hello {inputs[name]}\n"}
        for name in ("world", "world", "fail", "hang")
    ]
    record = {"language": language, "answer": GREETERS[language], "tests": tests}
    limit_s = 4.0 if language in SLOW_STARTERS else 1.0
    judged = code.verify_record(record | {"time_limit_s": limit_s})
    assert judged.outcome == "wrong", judged
    results = judged.details["tests"]
    assert [r["status"] for r in results[:2]] == ["OK", "OK"], judged.details
    if language != "bc":  # which goes on after an error
        assert results[2]["status"] == "RE", results[2]
    assert results[3]["status"] == "TLE", results[3]
    assert code.verify_record(record | {"tests": tests[:2], "time_limit_s": 5.0}).is_correct


@pytest.mark.parametrize("language", ALL)
def test_broken_source(code, language):
    need(code, language)
    source = BROKEN.get(language, ")(")
    judged = code.verify_record(
        {"language": language, "answer": source, "tests": [{"stdin": "", "stdout": "hello"}]}
    )
    assert judged.outcome == "wrong"
    (result,) = judged.details["tests"]
    known = languages.LANGUAGES[language]
    wanted = ("CE",) if known.compile or known.check else ("RE", "WA")
    assert result["status"] in wanted, judged


def test_sql_reads_its_script(code):
    need(code, "sql")
    record = {"language": "sql", "answer": "select 'hello ' || 'world';"}
    record["tests"] = [{"stdin": "", "stdout": "hello world"}]
    assert code.verify_record(record).is_correct
    assert code.verify_record(record | {"answer": "select nonsense;"}).reason == "run-time error"


def test_absent_languages_are_ungradable_with_the_package(code, monkeypatch):
    missing = {**languages.LANGUAGES}
    changed = {"run": "no-such-ruby {source}", "version": "no-such-ruby"}
    missing["absent"] = dataclasses.replace(missing["ruby"], **changed)
    monkeypatch.setattr(languages, "LANGUAGES", missing)
    record = {"language": "absent", "answer": "1", "tests": [{"stdout": ""}]}
    judged = code.verify_record(record)
    assert (judged.outcome, judged.reason) == ("ungradable", "toolchain")
    assert "apt-get install ruby" in judged.evidence
    judged = code.verify_record(record | {"language": "klingon"})
    assert (judged.outcome, judged.reason) == ("ungradable", "record")
