"""Selection of queries that need tools; trajectories with tools, normalised and sorted.

LongCat-Flash-Thinking 2.2.3: v_x is the pass rate with tools minus that without, and a query stays
where v_x > tau_1, the rate with tools > tau_2 and the rate without < tau_3.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from loong_jax.data.curation.outcomes import passed_of
from loong_jax.data.curation.stages import Record, Said, list_of
from loong_jax.errors import ConfigError
from loong_jax.verifiers import tool_calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolNecessity:
    """Keeps queries that are solved with tools and not without, and notes `tool_necessity`.

    Attempts are `outcomes_with_tools` and `outcomes_without_tools` of the record, or those of two
    files. Reasons: `solved without` (rate without >= tau_3), `unsolved with` (rate with <= tau_2),
    `little gain` (v_x <= tau_1), `too few attempts`.
    """

    name: str = "tool_necessity"
    with_tools: Path | None = None
    without_tools: Path | None = None
    tau_1: float = 0.3  # v_x lies above
    tau_2: float = 0.4  # the rate with tools lies above
    tau_3: float = 0.3  # the rate without lies below
    min_attempts: int = 4

    def __post_init__(self):
        if not -1 <= self.tau_1 < 1 or not 0 <= self.tau_2 < 1 or not 0 < self.tau_3 <= 1:
            raise ConfigError(
                f"tau_1={self.tau_1}, tau_2={self.tau_2}, tau_3={self.tau_3} are not in [-1, 1), "
                "[0, 1) and (0, 1], so that no query could stay. Choose others."
            )
        if (self.with_tools is None) != (self.without_tools is None):
            raise ConfigError("one of with_tools and without_tools is missing. Give both or none.")

    def reason(self, record: Record) -> Said:
        using = passed_of(record, self.with_tools, "outcomes_with_tools")
        alone = passed_of(record, self.without_tools, "outcomes_without_tools")
        if min(using.num_graded, alone.num_graded) < self.min_attempts:
            return f"too few attempts: {using.num_graded}, {alone.num_graded}"
        s_with, s_without = using.rate or 0.0, alone.rate or 0.0
        gain = s_with - s_without
        if s_without >= self.tau_3:
            return f"solved without: {s_without:.2f}"
        if s_with <= self.tau_2:
            return f"unsolved with: {s_with:.2f}"
        return f"little gain: {gain:.2f}" if gain <= self.tau_1 else {"tool_necessity": gain}


Depth = Literal["answer", "lookup", "multi-hop", "planning"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complexity:
    num_calls: int
    num_turns: int  # turns of the policy that call
    is_parallel: bool  # some turn makes several calls
    num_dependent: int  # calls that use what an earlier call returned
    depth: Depth

    @property
    def stratum(self) -> str:
        turns = "single" if self.num_turns <= 1 else "multi"
        structure = "parallel" if self.is_parallel else "sequential"
        return f"{turns}-turn/{structure}/{self.depth}"


def complexity(messages: Sequence[Mapping[str, Any]]) -> Complexity:
    """Reads messages in the form of `normalised`.

    A call depends on an earlier answer where a value of its arguments (of four characters or more,
    or a number of three digits) stands in that answer and in nothing said before it. Depth:
    `lookup` is calls that depend on none, `multi-hop` at least one that does, `planning` at least
    three turns with two that do.
    """
    said, answered = "", ""
    num_calls = num_turns = num_dependent = 0
    is_parallel = False
    for message in messages:
        if message.get("role") == "tool":
            answered += " " + str(message.get("content", ""))
            continue
        calls = message.get("tool_calls") or ()
        if not calls:
            said += " " + str(message.get("content", ""))
        num_calls += len(calls)
        num_turns += bool(calls)
        is_parallel |= len(calls) > 1
        for call in calls:
            values = [v for v in _values(call.get("arguments", {})) if v not in said]
            num_dependent += any(value in answered for value in values)
    if not num_calls:
        depth: Depth = "answer"
    elif num_turns >= 3 and num_dependent >= 2:
        depth = "planning"
    else:
        depth = "multi-hop" if num_dependent else "lookup"
    return Complexity(
        num_calls=num_calls,
        num_turns=num_turns,
        is_parallel=is_parallel,
        num_dependent=num_dependent,
        depth=depth,
    )


def normalised(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | str:
    """Messages in one form, or why they have none.

    Calls may come as OpenAI's `tool_calls` (arguments as JSON text) or in LongCat's tags inside the
    content. Out come roles `system`, `user`, `assistant`, `tool`; calls as name and arguments, each
    with an id; every call answered once, right after, in the order of the calls; a last word of the
    assistant without calls.
    """
    found: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            return f"message {number} is no object"
        role, content = message.get("role"), message.get("content") or ""
        if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
            return f"message {number} has role {role!r:.20} or no text"
        if role == "tool":
            if not open_calls:
                return f"message {number} answers no call"
            name = message.get("tool_call_id")
            if name is not None and str(name) in open_calls:
                open_calls.remove(str(name))
                found.append({"role": role, "tool_call_id": str(name), "content": content})
            elif name is None:
                found.append({"role": role, "tool_call_id": open_calls.pop(0), "content": content})
            else:
                return f"message {number} answers {name!r:.30}, which is not open"
            continue
        if open_calls:
            return f"message {number} comes before the answers of {len(open_calls)} calls"
        if role != "assistant":
            found.append({"role": role, "content": content.strip()})
            continue
        calls = _calls_of(message, number)
        if isinstance(calls, str):
            return calls
        text = _TAGGED.sub("", content).strip()
        own: dict[str, Any] = {"role": role, "content": text}
        if calls:
            own["tool_calls"] = calls
            open_calls = [call["id"] for call in calls]
        found.append(own)
    if open_calls:
        return f"{len(open_calls)} calls are not answered"
    if not found or found[-1]["role"] != "assistant" or not found[-1]["content"]:
        return "the assistant has not the last word"
    return _in_order(found)


_TAGGED = re.compile(f"{re.escape(tool_calls.OPEN)}.*?{re.escape(tool_calls.CLOSE)}", re.DOTALL)


def _calls_of(message: Mapping[str, Any], number: int) -> list[dict[str, Any]] | str:
    given = message.get("tool_calls")
    calls: list[dict[str, Any]] = []
    if given:
        if not isinstance(given, list):
            return f"message {number}: tool_calls is no list"
        for place, call in enumerate(given):
            body = call.get("function", call) if isinstance(call, Mapping) else {}
            arguments = body.get("arguments", {})
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments)
                except (ValueError, RecursionError):
                    return f"message {number}: arguments of a call are no JSON"
            if not isinstance(body.get("name"), str) or not isinstance(arguments, dict):
                return f"message {number}: a call has no name or no object of arguments"
            name = str(call.get("id") or f"call_{number}_{place}")
            calls.append({"id": name, "name": body["name"], "arguments": arguments})
        return calls
    content = message.get("content") or ""
    if tool_calls.OPEN not in content:
        return []
    read = tool_calls.read(content)
    if read.problem:
        return f"message {number}: {read.problem}"
    return [
        {"id": f"call_{number}_{place}", "name": call.name, "arguments": dict(call.arguments)}
        for place, call in enumerate(read.calls)
    ]


def _in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers in the order of their calls, which the message before them made."""
    keys, turn, order = [], 0, {}
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            turn, calls = place, message.get("tool_calls", ())
            order = {call["id"]: number for number, call in enumerate(calls, 1)}
        keys.append((turn, order.get(message.get("tool_call_id"), 0), place))
    return [messages[place] for *_, place in sorted(keys)]


def _values(arguments: Any) -> list[str]:
    if isinstance(arguments, Mapping):
        return [value for item in arguments.values() for value in _values(item)]
    if isinstance(arguments, list):
        return [value for item in arguments for value in _values(item)]
    if isinstance(arguments, bool) or arguments is None:
        return []
    text = str(arguments)
    is_telling = len(text) >= (3 if isinstance(arguments, int | float) else 4)
    return [text] if is_telling else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Keeps trajectories of one form that a panel of judges passed; notes messages and stratum.

    A record's `messages` are brought into one form (reason `form`). `judgements` map a criterion
    (correctness, consistency, completeness, whatever the judges were asked) to a list of scores in
    [0, 1], null for a judge that failed: each criterion's mean must reach `min_score`, of at least
    `min_judges` scores (reasons `judged`, `too few judges`).
    """

    name: str = "trajectories"
    criteria: tuple[str, ...] = ("correctness", "consistency", "completeness")
    min_score: float = 0.6
    min_judges: int = 1

    def reason(self, record: Record) -> Said:
        messages = record.get("messages")
        shaped = normalised(messages) if isinstance(messages, list) else "no messages"
        if isinstance(shaped, str):
            return f"form: {shaped}"
        of = complexity(shaped)
        told = {"messages": shaped, "stratum": of.stratum, "complexity": dataclasses.asdict(of)}
        return self._panel(record.get("judgements")) or told

    def _panel(self, judgements: Any) -> str | None:
        given = judgements if isinstance(judgements, Mapping) else {}
        for criterion in self.criteria:
            scores = [s for s in list_of(given, criterion) if isinstance(s, int | float)]
            if len(scores) < self.min_judges:
                return f"too few judges: {criterion}"
            if sum(scores) < self.min_score * len(scores):
                return f"judged: {criterion} {sum(scores) / len(scores):.2f}"
        return None
