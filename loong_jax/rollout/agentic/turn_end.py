"""How the policy ended a turn: with calls of tools, with calls that cannot be read, or for good."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from loong_jax.verifiers import tool_calls
from loong_jax.verifiers.tool_calls import ToolCall


class TurnEnd(NamedTuple):
    """Calls to carry out, or why what was written cannot be carried out."""

    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def read(text: str, schemas: Mapping[str, Any]) -> TurnEnd | None:
    """What a turn asks of tools with these schemas; None where it asks for nothing.

    `text` is the turn without the token that ended it. Calls stand behind the thinking and end the
    turn; what is written while thinking calls nothing.
    """
    spoken = tool_calls.spoken(text)
    tags = None if spoken is None else tool_calls.tags_in(spoken)
    if spoken is None or tags is None:
        return None
    found = tool_calls.read(spoken, schemas)
    if found.problem:
        return TurnEnd(problem=found.problem)
    if spoken.rpartition(tags[1])[2].strip():
        return TurnEnd(problem="text follows the last call: calls end a turn")
    return TurnEnd(found.calls)
