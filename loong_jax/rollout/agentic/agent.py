"""Tools, and an agent: a toolbox, the template of its turns, and bounds of one sample.

The tool that is here is Python: a program runs in the verifiers' sandbox, and what it prints is the
answer.
"""

import dataclasses
import queue
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from loong_jax.data import tool_template
from loong_jax.data.tokenizer import Tokenizer
from loong_jax.data.tool_template import ChatTurns, ToolTemplate, ToolTurn
from loong_jax.errors import ConfigError, LoongError, refuse_below
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import IsolationTier
from loong_jax.sandbox import Limits, Program, Sandbox
from loong_jax.verifiers import tool_calls


class ToolError(LoongError):
    """A call failed; the policy is told the message, which is all that becomes of it."""


@runtime_checkable
class Tool(Protocol):
    """Called from several threads at once."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str:
        """The tool's description, for the policy."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object; see `loong_jax.verifiers.tool_calls`."""
        ...

    def call(self, arguments: Mapping[str, Any], *, problem: Problem, timeout_s: float) -> str:
        """The answer, as text. `arguments` fit the schema; `problem` is what the sample is about.

        Whatever it raises is told to the policy as an error, ToolError without its name.
        One that takes longer than `timeout_s` is not waited for.
        """
        ...


class PythonTool:
    """Each call is a process of its own, without network and files; see `loong_jax.sandbox`.

    `num_sandboxes` programs run at once; further calls wait for their turn. A tier below
    `min_tier` is refused: at the tier "process" a program that gets around an audit hook can read
    what we can read, so what a policy writes should not run there.
    """

    name = "python"
    description = "Runs a Python program and returns what it prints. Nothing is kept between calls."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program."}},
        "required": ["code"],
    }

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        num_sandboxes: int = 2,
        min_tier: IsolationTier = "namespaces",
    ):
        """Raises VerifierError where the sandbox cannot be had."""
        self.limits = limits or Limits(output_bytes=16 * 2**10)
        self._all = [Sandbox(self.limits, min_tier=min_tier) for _ in range(num_sandboxes)]
        self._idle = queue.LifoQueue[Sandbox]()
        for sandbox in self._all:
            self._idle.put(sandbox)

    def call(self, arguments: Mapping[str, Any], *, problem: Problem, timeout_s: float) -> str:
        """Raises ToolError for a program that fails, TimeoutError if no sandbox becomes free."""
        try:
            sandbox = self._idle.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no sandbox was free for {timeout_s:g} s") from None
        try:
            (result,) = sandbox.run([_program(arguments["code"])])
        finally:
            self._idle.put(sandbox)
        if result.status == "ok":
            return result.output
        said = [*result.output.splitlines(), f"{result.status}: {result.detail}"]
        raise ToolError("\n".join(said))

    def close(self) -> None:
        for sandbox in self._all:
            sandbox.close()


def _program(code: str) -> Program:
    """The code as a whole program, whose names are those of a module of its own."""
    source = (
        f"_code = compile({code!r}, '<program>', 'exec')\n"
        "def f():\n    exec(_code, {'__name__': '__main__'})\n    return True\n"
    )
    return Program(source=source, arguments=[[]])


class Toolbox(dict[str, Tool]):
    """Tools by name. Raises ConfigError for two of one name, or a schema nobody could check."""

    def __init__(self, tools: Iterable[Tool] = ()):
        super().__init__()
        for tool in tools:
            if tool.name in self:
                raise ConfigError(f"two tools are named {tool.name!r}. Rename one.")
            if tool.parameters.get("type", "object") != "object":
                raise ConfigError(
                    f"the parameters of tool {tool.name!r} are of type "
                    f"{tool.parameters['type']!r}. A tool takes an object of arguments."
                )
            tool_calls.check_schema(tool.parameters)
            self[tool.name] = tool

    def subset(self, names: Iterable[str]) -> "Toolbox":
        """The tools of these names. Raises ConfigError for a name that is not here."""
        names = list(names)
        unknown = [name for name in names if name not in self]
        if unknown:
            raise ConfigError(
                f"tools {unknown} are not in the toolbox, which has {sorted(self)}. Add "
                "them to the recipe's tools."
            )
        return Toolbox(self[name] for name in names)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {name: tool.parameters for name, tool in self.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnLimits:
    """Bounds of one sample. Its tokens, those of tools included, are bounded by max_new_tokens."""

    max_turns: int = 8  # of the policy; what the last one calls is not carried out
    max_calls: int = 16  # carried out in a sample; further ones are refused in words
    timeout_s: float = 30.0  # of all calls of one turn together, from the end of the turn
    max_answer_tokens: int = 1024  # of each answer; the rest is cut off
    max_answer_chars: int = 16_384  # looked at, before an answer becomes tokens

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value <= 0:
                raise ConfigError(f"{name}={value} is not above 0. Give a positive bound.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """Problems name their tools in `arguments["tools"]`; those that name none have one turn."""

    toolbox: Toolbox
    template: ToolTemplate | ChatTurns | None = None  # None: the tokenizer's, where it has one
    limits: TurnLimits = TurnLimits()
    max_paused: int = 256  # samples of a replica whose tools run; above it no prompt is begun
    max_calls_at_once: int = 16  # of a replica
    offers_all: bool = False  # to problems that name none

    def __post_init__(self):
        refuse_below(self, 1, "max_paused", "max_calls_at_once")

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError where the template takes no answers of these tools."""
        if self.toolbox:
            asked = [{"role": "user", "content": "1"}]
            turn = ToolTurn(answers=["1"], asked=asked, tools=tuple(self.toolbox.values()))
            self._template_for(tokenizer).turn_ids(tokenizer, turn)

    def tools_of(self, problem: Problem) -> Toolbox:
        """Raises ConfigError for a tool that is not in the toolbox."""
        return self.toolbox.subset(self.offered(problem))

    def offered(self, problem: Problem) -> tuple[str, ...]:
        """Names of the tools that a problem offers."""
        usual = tuple(self.toolbox) if self.offers_all else ()
        named = problem.arguments.get("tools")
        return usual if named is None else tuple(named)

    def answer_tokens(
        self, tokenizer: Tokenizer, problem: Problem, sampled: np.ndarray, answers: list[str]
    ) -> np.ndarray:
        """int32: the turn of tools behind one of the policy, each answer cut to its bounds."""
        messages = problem.messages or (("user", problem.prompt),)
        turn = ToolTurn(
            answers=[self._cut(tokenizer, answer) for answer in answers],
            asked=[{"role": role, "content": content} for role, content in messages],
            tools=tuple(self.tools_of(problem).values()),
            sampled=sampled,
        )
        return np.array(self._template_for(tokenizer).turn_ids(tokenizer, turn), np.int32)

    def _template_for(self, tokenizer: Tokenizer) -> ToolTemplate | ChatTurns:
        usual = ToolTemplate() if tokenizer.chat is None else ChatTurns()
        return self.template or usual

    def _cut(self, tokenizer: Tokenizer, answer: str) -> str:
        """The beginning of an answer, and how much is missing."""
        limits = self.limits
        text = tool_template.harmless(answer[: limits.max_answer_chars], tokenizer)
        tokens = tool_template.encode_outside(tokenizer, text)
        if len(tokens) <= limits.max_answer_tokens and len(answer) <= limits.max_answer_chars:
            return text
        kept = tokenizer.decode(tokens[: limits.max_answer_tokens])
        return f"{kept}...[cut, {len(answer)} characters in all]"
