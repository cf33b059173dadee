"""Problems of one's own: a JSON-lines file, one problem a line.

    {"prompt": "What is 7 * 8?", "gold": "56", "solution": "7 * 8 = 56"}
    {"uid": "sum-1", "messages": [{"role": "user", "content": "..."}], "verifier": "code",
     "arguments": {"language": "python"}, "tests": [{"stdin": "1", "stdout": "2"}], "level": 3}

`prompt` or `messages` is required; without `gold` a verifier must be named that needs none.
`arguments` are the verifier's own (docs/reference/verifiers.md); `tests` are those of a code
verifier. A line may name a verifier of your own, FILE.py:CLASS, where the reader's `own` has it. A
`solution` is a worked one: thinking and answer in their tags (problems/response.py), or the
thinking alone where `gold` is the answer.
"""

import dataclasses
import difflib
import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.data import json_files
from loong_jax.data.json_files import BadLine
from loong_jax.errors import ConfigError
from loong_jax.problems import response
from loong_jax.problems.problem import Domain, Problem
from loong_jax.verifiers import VERIFIERS, own_table

DOMAIN_OF_VERIFIER: dict[str, Domain] = {"code": "code", "logic": "logic"}  # of others: stem
ROLES = ("system", "user", "assistant")


class Posed(NamedTuple):
    problem: Problem
    line: int  # of the file, from 1
    messages: tuple[tuple[str, str], ...] = ()  # (role, content), where the line has them
    solution: str | None = None  # a whole response

    @property
    def answer(self) -> str | None:
        """A right one: that of the solution, else the gold; None where neither is known."""
        if self.solution is None:
            return self.problem.gold
        return response.read(self.solution, response.FORMS["tagged"]).answer


@dataclasses.dataclass(frozen=True)
class ProblemFile:
    posed: tuple[Posed, ...]
    num_repeated: int  # lines that pose a problem again, and were left out

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(posed.problem for posed in self.posed)

    def by_domain(self) -> dict[str, list[Problem]]:
        found: dict[str, list[Problem]] = {}
        for problem in self.problems:
            found.setdefault(problem.domain, []).append(problem)
        return found


def read(path: Path, own: Sequence[str] = ()) -> ProblemFile:
    """All problems in the order of the file, each once.

    `own` are verifiers of your own, DIR/FILE.py:CLASS. Lines may name those alone, by the end of
    the path, and a line that names none is for the first of them: no program runs because a file
    of data says so.

    Raises ConfigError, which names the first lines that are no problems and what is wrong with
    each.
    """
    found: dict[str, Posed] = {}
    line_of: dict[str, int] = {}

    def read_line(record: dict[str, Any], number: int) -> None:
        _check_keys(record)
        digest, posed = _posed(record, number, own)
        first = line_of.setdefault(posed.problem.uid, number)
        if first != number and digest not in found:
            raise BadLine(
                f"gives the id {posed.problem.uid!r}, which another problem has in line {first}. "
                "Give each its own"
            )
        found.setdefault(digest, posed)

    try:
        num_lines = len(json_files.read_lines(path, read_line, noun="problem"))
    except _ProgramNamed as error:  # said once: all lines may name it
        given = f"; given is {', '.join(own)}" if own else ""
        raise ConfigError(
            f"{path} names the verifier {error.args[0]!r}, a program, which no file of data may "
            f"start{given}. If you know what it does, name it to the command too, in a file of "
            f"this very name: --verifier {error.args[0]}"
        ) from None
    return ProblemFile(tuple(found.values()), num_lines - len(found))


def _check_keys(record: Mapping[str, Any]) -> None:
    unknown = sorted(set(record) - set(_KINDS))
    if unknown:
        meant = difflib.get_close_matches(unknown[0], _KINDS, 1)
        hint = f" Write {meant[0]}." if meant else ""
        raise BadLine(
            f"has the keys {unknown}, which no problem has.{hint} Known: {sorted(_KINDS)}"
        )
    for key, kind in _KINDS.items():
        value = record.get(key, kind())
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            example = json.dumps(str(value)) if kind is str else _EXAMPLES[kind]
            raise BadLine(
                f"has {key}={value!r:.80}, which must be of type {kind.__name__}. Write "
                f"{example:.80}"
            )


_EXAMPLES = {int: "a whole number", list: "a list: [...]", dict: "an object: {...}"}
_KINDS: dict[str, type] = {  # id is another name of uid, as response and rationale of solution
    "uid": str, "id": str, "prompt": str, "messages": list, "gold": str, "solution": str,
    "response": str, "rationale": str, "verifier": str, "arguments": dict, "tests": list,
    "domain": str, "level": int, "rubric": str, "origin": str, "licence": str,
}  # fmt: skip
# Corpora use these in other ways.
_OF_LINES_ALONE = {"uid", "messages", "tests", "solution", "response", "rationale"}


def from_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keys of a record that a problem has; None where it poses none that can be checked."""
    kinds = {key: kind for key, kind in _KINDS.items() if key not in _OF_LINES_ALONE}
    found = {key: record[key] for key, kind in kinds.items() if isinstance(record.get(key), kind)}
    try:
        _posed(found, 0)
    except (BadLine, _ProgramNamed):
        return None
    return found


def _posed(record: Mapping[str, Any], line: int, own: Sequence[str] = ()) -> tuple[str, Posed]:
    """The problem of a line, and a digest that is equal for lines that say the same."""
    try:
        json.dumps(dict(record), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.start + 1]
        raise BadLine(
            f"has {half!r}, half of a surrogate pair, which is no text. Mend or remove it"
        ) from None
    messages = _messages(record)
    prompt = "\n".join(content for _, content in messages) or record.get("prompt", "")
    gold, arguments = record.get("gold"), dict(record.get("arguments", {}))
    verifier = _verifier(record, own)
    domain = record.get("domain", DOMAIN_OF_VERIFIER.get(verifier, "stem"))
    if not prompt.strip():
        raise BadLine("has no prompt. Say what the model is asked, in prompt or in messages")
    if "tests" in record:
        if verifier != "code" or "tests" in arguments:
            raise BadLine(
                f"has tests beside verifier={verifier!r} and the arguments {sorted(arguments)}. "
                "Tests are for verifier 'code', and stand in one place"
            )
        arguments = {"language": "python"} | arguments | {"tests": record["tests"]}
    if verifier == "code" and not arguments.get("tests"):
        raise BadLine("has no tests, by which the code verifier judges. Give at least one")
    if verifier == "math" and gold is None:
        raise BadLine(
            "has no gold, which the math verifier compares with. Give the right answer, or name "
            "another verifier"
        )
    if not domain.strip():
        raise BadLine(f"has domain={domain!r}, which is no word. Name what the problem is about")
    level = record.get("level", 1)
    if level < 0:
        raise BadLine(f"has level={level}, which must be at least 0")
    if "id" in record and "uid" in record:
        raise BadLine("has both uid and id, which mean the same. Leave one out")
    said = json.dumps([prompt, gold, verifier, arguments], sort_keys=True)
    digest = hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
    problem = Problem(
        uid=record.get("uid", record.get("id", f"file-{digest}")),
        domain=domain,
        environment="file",
        level=level,
        seed=0,
        canonical=canonical(prompt),
        prompt=prompt,
        verifier=verifier,
        arguments=arguments,
        gold=gold,
        rubric=record.get("rubric"),
        origin=record.get("origin", "file"),
        licence=record.get("licence", "unknown"),
        messages=messages,
    )
    return digest, Posed(problem, line, messages, _solution(_worked(record), gold))


class _ProgramNamed(Exception):
    """A line names a verifier of somebody's own that the reader does not."""


def _verifier(record: Mapping[str, Any], own: Sequence[str]) -> str:
    usual = "code" if "tests" in record else next(iter(own_table(own)), "math")
    written = record.get("verifier", usual)
    if written in VERIFIERS:
        return written
    if ".py:" not in written:
        raise BadLine(f"has verifier={written!r}, which is unknown. Choose one of "
                       f"{sorted(VERIFIERS)}, or one of your own: FILE.py:CLASS")  # fmt: skip
    file, _, kind = written.rpartition(":")
    parts = [part for part in Path(file).parts if part not in (".", "..")]
    for name, whole in own_table(own).items():
        place, _, known = whole.rpartition(":")
        if known == kind and list(Path(place).parts[-len(parts) :]) == parts:
            return name
    raise _ProgramNamed(written)


def _worked(record: Mapping[str, Any]) -> str | None:
    named = [name for name in ("solution", "response", "rationale") if name in record]
    if len(named) > 1:
        raise BadLine(f"has {named}, which mean the same. Leave all but one out")
    return record[named[0]] if named else None


def canonical(prompt: str) -> str:
    """Equal for prompts that differ in case, white space or the coding of a character alone."""
    text = " ".join(unicodedata.normalize("NFKC", prompt).casefold().split())
    return f"file:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _messages(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = record.get("messages", [])
    if found and "prompt" in record:
        raise BadLine("has both prompt and messages. Leave one out")
    for number, message in enumerate(found):
        is_message = isinstance(message, dict) and set(message) == {"role", "content"}
        if not is_message or not all(isinstance(value, str) for value in message.values()):
            raise BadLine(
                f"has messages[{number}]={message!r:.80}, which must be an object of two texts, "
                "role and content"
            )
        if message["role"] not in ROLES:
            raise BadLine(f"has messages[{number}] of role {message['role']!r}. Use one of "
                           f"{ROLES}")  # fmt: skip
    if found and found[-1]["role"] != "user":
        raise BadLine(
            f"ends with a message of role {found[-1]['role']!r}. The last one is what the model "
            "answers: the user's"
        )
    return tuple((message["role"], message["content"]) for message in found)


def _solution(text: str | None, gold: str | None) -> str | None:
    """A solution as a whole response, whatever form of problems/response.py it is written in."""
    if text is None:
        return None
    found = response.read(text)
    if found.answer != response.without_end(text):
        if not found.is_well_formed:
            raise BadLine(
                f"has solution={text!r:.80}, whose form is broken. Write {response.THINK_OPEN}..."
                f"{response.THINK_CLOSE}{response.ANSWER_OPEN}...{response.ANSWER_CLOSE}, or no "
                "tag at all"
            )
        return response.render_response(found.thinking, found.answer)
    if gold is None:
        raise BadLine(
            "has a solution without an answer. Give gold, or write the answer into the solution, "
            f"in {response.ANSWER_OPEN} after {response.THINK_OPEN}"
        )
    return response.render_response(text, gold)
