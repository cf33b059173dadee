"""Strict reading of code records: a record that is unclear is ungradable, not wrong.

The program of a response is read out of its tags, and out of its fences.
"""

import ast
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from loong_jax import syntax
from loong_jax.errors import VerifierError
from loong_jax.problems import response
from loong_jax.problems.response import Block
from loong_jax.sandbox import languages

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
    source = source_of(_text(record, "answer"), language, called)
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


# ---- the program of a response

MAX_PARSED_CHARS = 100_000
_INLINE = re.compile(r"\s*(`{3,})(?!`)([^\n]*[^`\n])\1\s*\Z")
_NAME = re.compile(r"[{.\s]*([\w+#-]+)")
_DEFINING = "class|struct|enum|impl|fn|func|function|def|const|let|var"
_NO_TYPES = ("return", "else", "new", "throw", "case", "if", "while", "for", "//", "*")
_MARKS = re.compile(  # of languages that we do not parse
    r";[ \t]*$|\w\(|"
    r"^[ \t]*(?:#include|import|package|using|use|fn|func|def|class|public|var|let)\b",
    re.MULTILINE,
)


def source_of(text: str, language: str, called: Collection[str] = ()) -> str:
    """The program of a whole response, or of what holds a program alone; "" where there is none.

    That is what the answer's tags hold, or follows the thinking; of it the last fenced block in
    the language, or the last without a name that can be a program. Where names are `called`, a
    block that defines one of them goes before those that only use it, and a block of Python that
    can be a program before one that cannot. A block need not be closed, nor opened where a prompt
    did so. Without a block it is all of the text.
    """
    names = _own_names(language)
    text = response.without_end(text)
    if (
        "python" in names
        and any(mark in text for mark in ("```", "~~~", "<"))
        and _statements(text)
    ):
        return text  # what looks like a fence or a tag is in its strings
    text = response.read(text).answer
    found = [
        inner
        for block in response.blocks(text)
        for inner in (_name(block) in ("markdown", "md") and response.blocks(block.body)) or [block]
    ]
    if not found:
        if (inline := _INLINE.match(text)) is None:
            return text
        first, _, rest = inline[2].partition(" ")
        return rest if first.lower() in names and rest else inline[2]
    own = [block for block in found if _name(block) in names]
    bare = [block for block in found if not block.info]
    before = text[: found[0].start]
    if not own and not found[0].info and not found[-1].is_closed and _is_program(before, names):
        return before
    if own:
        later = [block for block in bare if block.start > own[-1].start]
        programs = [block.body for block in own]
        programs += [block.body for block in later if _is_program(block.body, names)]
        return _best(programs, names, called)
    return _best([block.body for block in bare or found], names, called)


def _best(blocks: list[str], names: set[str], called: Collection[str]) -> str:
    """The last that defines what is called, else the last that can be a program, else the last."""
    for block in reversed(blocks if len(blocks) > 1 else ()):
        if any(_defines(block, name, names) for name in called):
            return block
    if "python" in names and len(blocks) > 1:
        return next((block for block in reversed(blocks) if _is_program(block, names)), blocks[-1])
    return blocks[-1]


def _is_signature(text: str, name: re.Match[str]) -> bool:
    """True if a type stands before a name and a body behind its parameters."""
    before = text[max(0, name.start() - 200) : name.start()].rpartition("\n")[2].split()
    is_type = bool(before) and before[-1][-1] not in "=(.+-!," and before[0] not in _NO_TYPES
    return is_type and re.match(r"[^;{}]*\{", text[name.end() :][:300]) is not None


def _defines(text: str, name: str, names: set[str]) -> bool:
    """True if a block defines a function or class of this name, as far as its text says."""
    if "python" not in names:
        if re.search(rf"\b(?:{_DEFINING})\s+{re.escape(name)}\b", text):
            return True
        places = re.finditer(rf"\b{re.escape(name)}\s*\(", text)
        return any(_is_signature(text, one) for one in itertools.islice(places, 100))
    for node in _statements(text):
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if name in [getattr(one, "name", getattr(one, "id", None)) for one in targets]:
            return True
    return False


def _own_names(language: str) -> set[str]:
    """The language's own and other names, in lower case."""
    found = languages.names_of(language) or [language.strip().lower()]
    return {*found} | ({"python", "py"} if found[0] == "pypy" else set())


def _name(block: Block) -> str:
    named = _NAME.match(block.info)
    return named[1].lower() if named else ""


def _is_program(text: str, names: set[str]) -> bool:
    """True if a text can be a program of the language, and is not prose or a program's output."""
    if "python" not in names:
        return _MARKS.search(text) is not None
    return any(
        isinstance(node.value, ast.Call)
        if isinstance(node, ast.Expr)
        else getattr(node, "value", node) is not None  # `input: 3` says a type and sets nothing
        for node in _statements(text)
    )


def _statements(text: str) -> list[ast.stmt]:
    """The statements of a Python program; none where it is not one."""
    if len(text) > MAX_PARSED_CHARS:
        return []
    try:
        return syntax.parse(text).body
    except syntax.UNREADABLE:
        return []
