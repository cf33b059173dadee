"""Tools: a name, a JSON schema of the arguments, and a call with a time limit."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from loong_jax.environments.environment import Problem
from loong_jax.errors import ConfigError, LoongError
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
        """For the policy."""
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


class Toolbox(Mapping[str, Tool]):
    """Tools by name. Raises ConfigError for two of one name, or a schema nobody could check."""

    def __init__(self, tools: Iterable[Tool] = ()):
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are named {tool.name!r}. Rename one.")
            if tool.parameters.get("type", "object") != "object":
                raise ConfigError(
                    f"the parameters of tool {tool.name!r} are of type "
                    f"{tool.parameters['type']!r}. A tool takes an object of arguments."
                )
            tool_calls.check_schema(tool.parameters)
            self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def subset(self, names: Iterable[str]) -> "Toolbox":
        """The tools of these names. Raises ConfigError for a name that is not here."""
        names = list(names)
        unknown = [name for name in names if name not in self._tools]
        if unknown:
            raise ConfigError(
                f"tools {unknown} are not in the toolbox, which has {sorted(self._tools)}. Add "
                "them to the recipe's tools."
            )
        return Toolbox(self._tools[name] for name in names)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {name: tool.parameters for name, tool in self._tools.items()}
