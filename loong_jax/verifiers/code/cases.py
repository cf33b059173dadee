"""Strict reading of code records: a record that is unclear is ungradable, not wrong."""

import ast
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from loong_jax import syntax
from loong_jax.errors import VerifierError
from loong_jax.verifiers.code import programs

MAX_SOURCE_BYTES = 2**20
MAX_TESTS = 2000
_STDIN, _STDOUT = ("stdin", "input"), ("stdout", "output", "expected_output")
_FUNCTION, _RETURNS = ("call", "function"), ("returns", "expected")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a function of the answer; `Class.method` makes the object first."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeTest:
    """One test: what goes in, and what may come out (any one of `expected`)."""

    stdin: str = ""
    call: Call | None = None
    expected: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checker:
    """A program that judges an output: `checker INPUT OUTPUT ANSWER`, three files.

    Exit status 0 accepts, 1 and 2 reject, anything else is the checker's own failure.
    """

    language: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One answer and its tests; limits are per test."""

    language: str
    source: str
    tests: tuple[CodeTest, ...]
    time_limit_s: float = 10.0
    memory_mb: int = 512
    tolerance: float | None = None
    checker: Checker | None = None


def encoded(call: Call, language: str) -> bytes:
    """A call as the driver of a language reads it; VerifierError for a literal it has not.

    Python gets what JSON has not in tags, as it reports its own values; others get lists for
    tuples and sets, and texts for the numbers that are keys.
    """
    known: dict[str, Any] = {"function": call.function, "args": call.args, "kwargs": call.kwargs}
    if not _is_json([*call.args, *call.kwargs.values()]):
        made = _tagged if language == "python" else functools.partial(_as_json, language=language)
        known["args"] = [made(argument) for argument in call.args]
        known["kwargs"] = {name: made(argument) for name, argument in call.kwargs.items()}
        known["tagged"] = True
    return json.dumps(known).encode()


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


def _tagged(value: Any) -> Any:
    if isinstance(value, dict):
        return {"t": "dict", "v": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple | set):
        return {"t": type(value).__name__, "v": [_tagged(item) for item in value]}
    if isinstance(value, bytes):
        return {"t": "bytes", "v": value.decode("latin-1")}
    if isinstance(value, complex):
        return {"t": "complex", "v": [value.real, value.imag]}
    return value


def _as_json(value: Any, language: str) -> Any:
    if isinstance(value, list | tuple | set):
        return [_as_json(item, language) for item in value]
    if isinstance(value, dict) and all(isinstance(k, str | int | float | None) for k in value):
        return {key: _as_json(item, language) for key, item in value.items()}
    if not _is_json(value):
        raise VerifierError(f"{value!r:.80} is no argument in {language}. Use values of JSON.")
    return value


def read_case(record: Mapping[str, Any]) -> Case:
    """The case of a record; VerifierError names what is missing or unclear."""
    tolerance = _number(record, "tolerance", None, 0.0, 1.0)
    checker = record.get("checker")
    if checker is not None:
        if not isinstance(checker, Mapping):
            raise VerifierError('checker is no object. Give {"language": ..., "source": ...}.')
        checker = Checker(language=_text(checker, "language"), source=_text(checker, "source"))
    tests = record.get("tests")
    if not isinstance(tests, list) or not 0 < len(tests) <= MAX_TESTS:
        raise VerifierError(f"tests is missing or no list of 1 to {MAX_TESTS} tests. Give one.")
    language = _text(record, "language")
    read = tuple(_test(test, index, checker) for index, test in enumerate(tests))
    called = {test.call.function.partition(".")[0] for test in read if test.call}
    source = programs.source_of(_text(record, "answer"), language, called)
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        raise VerifierError(f"the answer is above {MAX_SOURCE_BYTES} bytes. Cut it.")
    return Case(
        language=language,
        source=source,
        tests=read,
        time_limit_s=_number(record, "time_limit_s", 10.0, 0.01, 300.0) or 10.0,
        memory_mb=int(_number(record, "memory_mb", 512, 1, 65536) or 512),
        tolerance=tolerance,
        checker=checker,
    )


def _test(test: Any, index: int, checker: Checker | None) -> CodeTest:
    where = f"test {index}"
    if not isinstance(test, Mapping):
        raise VerifierError(f"{where} is no object. Give stdin and stdout, or call and returns.")
    function = _first(test, _FUNCTION, where)
    if function is None:
        return _stdio_test(test, where, checker)
    if checker is not None:
        raise VerifierError(f"{where} is a call; a checker judges stdout only.")
    if "stdin" in test or "stdout" in test:
        raise VerifierError(f"{where} has both a call and stdin or stdout. Make them two tests.")
    expected = test.get("returns_any", [test[name] for name in _RETURNS if name in test])
    is_one = "returns_any" in test or len(expected) == 1
    if not is_one or not isinstance(expected, list) or not expected:
        raise VerifierError(f"{where} has no single `returns`, nor values in `returns_any`.")
    return CodeTest(call=_call(function, test, where), expected=tuple(expected))


def _stdio_test(test: Mapping[str, Any], where: str, checker: Checker | None) -> CodeTest:
    stdin, stdout = _first(test, _STDIN, where), _first(test, _STDOUT, where)
    stdin = "" if stdin is None else stdin
    stdout = "" if stdout is None and checker is not None else stdout
    if not isinstance(stdin, str):
        raise VerifierError(f"{where}: stdin is no text.")
    expected = stdout if isinstance(stdout, list) else [stdout]
    if not expected or not all(isinstance(text, str) for text in expected):
        raise VerifierError(f"{where}: stdout is no text and no list of texts. Say what is right.")
    return CodeTest(stdin=stdin, expected=tuple(expected))


def _call(function: Any, test: Mapping[str, Any], where: str) -> Call:
    args, kwargs = test.get("args", []), test.get("kwargs", {})
    if not isinstance(function, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise VerifierError(f"{where}: a call is a name, args a list and kwargs an object.")
    if "(" in function:
        if args or kwargs:
            raise VerifierError(f"{where}: {function!r} has arguments already. Leave args out.")
        function, args, kwargs = _literal_call(function, where)
    if not all(name.isidentifier() for name in function.split(".")):
        raise VerifierError(f"{where}: {function!r} is no name of a function.")
    return Call(function=function, args=tuple(args), kwargs=kwargs)


def _literal_call(text: str, where: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Reads `f(1, [2], k="x")` without evaluating it: literals only."""
    try:
        node = syntax.parse_expression(text.strip())
        if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
            raise ValueError("no plain call")
        args = [ast.literal_eval(argument) for argument in node.args]
        kwargs = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (*syntax.UNREADABLE, TypeError) as error:
        raise VerifierError(f"{where}: {text[:80]!r} is no call with literal arguments.") from error
    return ast.unparse(node.func), args, kwargs


def _first(record: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    found = [name for name in names if name in record]
    if len(found) > 1:
        raise VerifierError(f"{where} has {' and '.join(found)}, which mean the same. Keep one.")
    return record[found[0]] if found else None


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise VerifierError(f"{name} is missing or no text.")
    return value


def _number(
    record: Mapping[str, Any], name: str, default: float | None, least: float, most: float
) -> float | None:
    value = record.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise VerifierError(f"{name}={value!r} is no number in [{least}, {most}].")
    return float(value)
