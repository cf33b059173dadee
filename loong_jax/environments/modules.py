"""Environments written as one Python module each, run in the sandbox and nowhere else.

ReSyn's T = (S, A, R, O, rho0) under a fixed protocol. A module defines, in plain Python with the
imports of `ALLOWED_IMPORTS` only:

    levels() -> list[int]                  1, 2, ... up to 5, at least three; 1 is the easiest
    generate(level, seed) -> state         rho0: draws an element of S, a JSON value; seed >= 0
    question(state) -> str                 O: all that a solver is told, the answer's form included
    reward(state, answer: str) -> bool     R: judges any text; never raises, never evaluates it
    reference(state) -> str                one answer that `reward` accepts
    steps(state) -> list[str]              optional: a worked solution, for cold starts alone

All are pure: equal arguments give equal values, in any process and order. States travel as JSON,
so a tuple arrives as a list. A is text. No verdict depends on `reference` unless `reward` calls it.
"""

import ast
import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from loong_jax import syntax
from loong_jax.environments.environment import LEVELS, Solution, check_level
from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Domain, Problem
from loong_jax.problems.verdict import IsolationTier, Verdict
from loong_jax.sandbox import Limits, Program, Sandbox, SandboxLost

REQUIRED = {"levels": 0, "generate": 2, "question": 1, "reward": 2, "reference": 1}  # parameters
OPTIONAL = {"steps": 1}
RETURNS = {
    "levels": "a list of whole numbers",
    "generate": "a JSON value: numbers, texts, lists, and mappings whose keys are texts",
    "question": "a text", "reward": "True or False", "reference": "a text",
    "steps": "a list of texts",
}  # fmt: skip
ALLOWED_IMPORTS = frozenset(
    ["__future__", "bisect", "collections", "fractions", "functools", "heapq", "itertools",
     "math", "operator", "random", "re", "string", "typing"]
)  # fmt: skip
MAX_SOURCE_CHARS = 20_000
MAX_QUESTION_CHARS = 8_000
MAX_ANSWER_CHARS = 2_000
MAX_SPLITS = 24  # of one batch of calls that is too much for one process
LIMITS = Limits(cpu_s=2.0, wall_s=30.0, result_bytes=2**20)  # of a process with many calls

_DRIVER = """
import json as _json
_scope = {"__name__": "environment"}
exec(compile(_SOURCE, "<environment>", "exec"), _scope)
_scope.setdefault("steps", lambda state: [])
_dumps, _loads = _json.dumps, _json.loads
_KINDS = {
    "levels": lambda value: type(value) is list and all(type(one) is int for one in value),
    "generate": lambda value: value is not None,
    "question": lambda value: type(value) is str,
    "reward": lambda value: value in (0, 1),
    "reference": lambda value: type(value) is str,
    "steps": lambda value: type(value) is list and all(type(s) in (str, int, float) for s in value),
}
def _value(name, *arguments):
    value = _loads(_dumps(_scope[name](*arguments), allow_nan=False))
    if name in _KINDS and not _KINDS[name](value):
        raise TypeError(f"{name} gave {value!r:.40}, not {_RETURNS[name]}")
    return bool(value) if name == "reward" else value
def _pose(level, seed):
    state = _value("generate", level, seed)
    return [state, _value("question", state)]
def _call(name, arguments):
    try:
        arguments = _loads(arguments)
        return _dumps(["ok", _pose(*arguments) if name == "pose" else _value(name, *arguments)])
    except RecursionError:
        return _dumps(["raised", "RecursionError"])
    except Exception as error:
        return _dumps(["raised", f"{type(error).__name__}: {error}"[:200]])
"""

Status = Literal["ok", "raised", "timeout", "limit", "crash"]


class Outcome(NamedTuple):
    """The outcome of one call; `detail` says why there is no value."""

    status: Status
    value: Any = None
    detail: str = ""


Call = tuple[str, tuple[Any, ...]]
"""Function and arguments; beside the protocol's, `pose(level, seed)` gives [state, question]."""


@dataclasses.dataclass(frozen=True)
class Module:
    """The text of a module; what it is called by is its hash."""

    source: str

    def __post_init__(self):
        if not isinstance(self.source, str):
            raise ConfigError(
                f"source={self.source!r:.80} is not the text of a module. Give "
                'Path("FILE.py").read_text().'
            )

    @functools.cached_property
    def hash(self) -> str:
        """Sixteen hex digits of its source; part of every uid."""
        return hashlib.blake2b(self.source.encode("utf-8", "replace"), digest_size=8).hexdigest()


def canonical(module: Module, question: str) -> str:
    """The identity of a problem, which decides its side of the split: equal questions are equal."""
    return f"{module.hash}:{question}"


class ModuleRunner:
    """Runs calls of modules, each batch in a process of its own. Safe to share between threads.

    Without namespaces it refuses to be made: what authors write is foreign code.
    """

    def __init__(self, limits: Limits = LIMITS):
        self._sandbox = Sandbox(limits, min_tier="namespaces")

    @property
    def tier(self) -> IsolationTier:
        return self._sandbox.tier

    def run(self, module: Module, calls: Sequence[Call]) -> list[Outcome]:
        """One outcome per call, in order; raises SandboxLost.

        All are made in one process. Where they take too long together, or give too much, parts of
        them have processes of their own, so that no call is blamed for others. That ends after
        `MAX_SPLITS`, and where neither the first nor the last call gets through alone: all of them
        have then the first one's outcome, for which bound many meet at once depends on the machine.
        """
        return self._run_parts(module, list(calls), [MAX_SPLITS])

    def _run_parts(self, module: Module, calls: list[Call], left: list[int]) -> list[Outcome]:
        found = self._run_once(module, calls)
        if len(calls) < 2 or found[0].status not in ("timeout", "limit") or left[0] < 1:
            return found
        left[0] -= 1
        ends = [self._run_once(module, [call])[0] for call in (calls[0], calls[-1])]
        if not any(end.status in ("ok", "raised") for end in ends):
            return [ends[0]] * len(calls)
        half = len(calls) // 2
        parts = (calls[:half], calls[half:])
        return [one for part in parts for one in self._run_parts(module, part, left)]

    def _run_once(self, module: Module, calls: list[Call]) -> list[Outcome]:
        """A process that does not end by itself gives every call the same outcome."""
        if not calls:
            return []
        program = Program(
            source=f"_SOURCE, _RETURNS = {module.source!r}, {RETURNS!r}\n{_DRIVER}",
            arguments=[[name, json.dumps(arguments)] for name, arguments in calls],
            entry="_call",
        )
        (result,) = self._sandbox.judged([program])
        if result.status == "ok":
            return [_read(text) for text in result.values]
        ends: dict[str, Status] = {"error": "raised", "timeout": "timeout", "limit": "limit"}
        ended = Outcome(ends.get(result.status, "crash"), None, result.detail[:300])
        return [ended] * len(calls)

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> "ModuleRunner":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _read(text: Any) -> Outcome:
    """An outcome from what the process claims, which is untrusted."""
    try:
        status, value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return Outcome("crash", None, "a malformed reply")
    return Outcome("ok", value) if status == "ok" else Outcome("raised", None, str(value)[:300])


@functools.cache
def shared_runner() -> ModuleRunner:
    """One of this process for all environments that were given none; ends with the process."""
    return ModuleRunner()


def written(function: str, arguments: Sequence[Any]) -> str:
    """A call as it is written, for messages."""
    return f"{function}({', '.join(map(repr, arguments)):.200})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleEnvironment:
    """A module as an `Environment`: problems of its levels, judged through the same verifier.

    The module's text travels in each problem's arguments, so that a worker anywhere can judge it.
    """

    module: Module
    name: str
    domain: Domain = "logic"
    origin: str = "generated"
    licence: str = "Apache-2.0"
    runner: ModuleRunner | None = None
    is_marked: ClassVar[bool] = True

    @property
    def _runner(self) -> ModuleRunner:
        return self.runner or shared_runner()

    @property
    def levels(self) -> tuple[int, ...]:
        return self._levels

    @functools.cached_property
    def _levels(self) -> tuple[int, ...]:
        return tuple(self._value("levels"))

    def problem(self, level: int, seed: int) -> Problem:
        check_level(level, LEVELS)
        state, prompt = self._value("pose", level, seed)
        return Problem(
            uid=f"{self.name}-{self.module.hash}/{level}/{seed}",
            domain=self.domain,
            environment=self.name,
            level=level,
            seed=seed,
            canonical=canonical(self.module, prompt),
            prompt=prompt,
            verifier="environment",
            arguments={"module": self.module.source, "state": state},
            origin=self.origin,
            licence=self.licence,
        )

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """The module's verdict on one answer, from a process that has seen no other.

        An answer that is no short text is wrong without a run. A module that raises, or takes too
        long, has judged nothing: ungradable.
        """
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        if not answer.strip():
            return verdict.wrong("no answer", "the answer is empty")
        runner, state = self._runner, self._state(problem)
        try:
            (found,) = runner.run(self.module, [("reward", (state, answer))])
        except SandboxLost as error:
            return verdict.ungradable("sandbox", str(error), isolation=runner.tier)
        if found.status != "ok":
            why = f"`reward` of {self.name}-{self.module.hash} {found.status}: {found.detail}"
            return verdict.ungradable("module", why, isolation=runner.tier)
        if found.value is True:
            return verdict.correct(isolation=runner.tier)
        return verdict.wrong("value", "the environment rejects it", isolation=runner.tier)

    def solve(self, problem: Problem) -> Solution:
        """Worked steps, where the module has any, and its reference."""
        state = self._state(problem)
        (steps,) = self._runner.run(self.module, [("steps", (state,))])
        values = [str(step) for step in steps.value] if steps.status == "ok" else []
        return Solution(values, self._value("reference", state))

    def _state(self, problem: Problem) -> Any:
        if Module(problem.arguments["module"]).hash != self.module.hash:
            raise ValueError(
                f"problem {problem.uid} belongs to another module than {self.name}-"
                f"{self.module.hash}. Ask the environment that made it."
            )
        return problem.arguments["state"]

    def _value(self, function: str, *arguments: Any) -> Any:
        (found,) = self._runner.run(self.module, [(function, arguments)])
        if found.status != "ok":
            raise VerifierError(self.without_value((function, arguments), found))
        return found.value

    def without_value(self, call: Call, found: Outcome) -> str:
        """The message for a call that gave no value."""
        function, arguments = call
        if function == "pose":
            (drawn,) = self._runner.run(self.module, [("generate", arguments)])
            function, found = ("question", found) if drawn.status == "ok" else ("generate", drawn)
        return (
            f"{written(function, arguments)} of environment {self.name}-{self.module.hash} gave no "
            f"value ({': '.join(filter(None, (found.status, found.detail.rstrip(': '))))}). It is "
            f"to return {RETURNS[function]}, within {LIMITS.cpu_s:g} s of CPU and the sandbox's "
            "memory. Correct it and make the package again."
        )


# ---- rules that are read off a module's text; nothing runs. Each gives "" or what breaks it

# Names through which text becomes code, or code reaches its interpreter or the machine.
FORBIDDEN_NAMES = frozenset(
    {"eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "getattr", "setattr"}
    | {"delattr", "breakpoint", "exit", "quit", "help", "memoryview", "id", "hash", "print"}
)


def _size(source: str) -> str:
    """A module that cannot be read over is refused: nobody would."""
    if not source.strip():
        return "the module is empty"
    if len(source) > MAX_SOURCE_CHARS:
        return f"{len(source)} characters, more than {MAX_SOURCE_CHARS}"
    return ""


def _parses(source: str) -> str:
    """Source that Python cannot parse is refused: the rules after this one read its syntax tree."""
    try:
        syntax.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno} is not Python: {error.msg}"[:200]
    except syntax.UNREADABLE as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def _imports(source: str) -> str:
    """Files, network, clocks and processes are out of reach of the allowed imports."""
    for line, name in syntax.imported(syntax.parse(source)):
        if name not in ALLOWED_IMPORTS and name != "collections.abc":
            return f"line {line} imports {name}, none of {', '.join(sorted(ALLOWED_IMPORTS))}"
    return ""


def _names(source: str) -> str:
    """An answer must stay text: nothing here may turn text into code or reach the interpreter."""
    for node in ast.walk(syntax.parse(source)):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        is_inner = name.startswith("__") and name.endswith("__") and name != "__name__"
        is_forbidden = isinstance(node, ast.Name) and name in FORBIDDEN_NAMES
        if isinstance(node, ast.expr) and (is_inner or is_forbidden or name == "format_map"):
            return f"line {node.lineno} uses {name}"
    return ""


def _protocol(source: str) -> str:
    """Every function of the protocol is there, as a plain function with its parameters."""
    tree = syntax.parse(source)
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in REQUIRED:
        if name not in found:
            near = difflib.get_close_matches(name, set(found) - set(REQUIRED), 1)
            meant = "".join(f" but {other}()" for other in near)
            return f"it defines no {name}(){meant}; it needs {', '.join(REQUIRED)}"
    for name, count in (REQUIRED | OPTIONAL).items():
        if name in found:
            of = found[name].args
            if of.vararg or of.kwarg or len(of.args) != count:
                return f"{name}() must take {count} arguments by position"
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Global):
            return f"line {node.lineno} is async or global: the functions are pure"
    return ""


SOURCE_RULES: dict[str, Callable[[str], str]] = {
    "size": _size,
    "parses": _parses,
    "imports": _imports,
    "names": _names,
    "protocol": _protocol,
}
