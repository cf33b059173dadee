"""Instructions that a response keeps for certain, because they are read off it.

Reverse prompts (LongCat-Flash-Thinking A.2.1): from a prompt and a good response, find constraints
that a program can check and that the response happens to keep, and ask for them in the prompt. The
result is checked by the verifier "constraints", so it serves SFT (prompt and response) and RL
(prompt and verifier) alike.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from loong_jax.data.curation.stages import Record, Said, prompt_of, text_of
from loong_jax.verifiers import constraints as checks

Constraint = Mapping[str, Any]
_WORD = re.compile(r"[A-Za-z]{5,}")
_MAX_PHRASE_WORDS = 4


class Asked(NamedTuple):
    constraint: Constraint
    sentence: str


def kept_constraints(response: str, rng: random.Random) -> list[Asked]:
    """Constraints of every kind that the response keeps, in the order of the kinds.

    Bounds are drawn around what is counted, so that they differ between records and seldom pin a
    number down.
    """
    made = [make(response, rng) for make in _MAKERS]
    asked = [one for one in made if one is not None]
    return [one for one in asked if checks.check([one.constraint], response)[0].is_kept]


def reverse_prompt(
    record: Record,
    *,
    num_constraints: int,
    seed: int = 0,
    turns: Literal["single", "multi"] = "single",
) -> dict[str, Any] | None:
    """The record with a prompt that asks for constraints its response keeps; None where too few do.

    In `multi`, the last constraint comes in a second turn, after an answer that need not keep it:
    the record's `first_response`, or else the response itself.
    """
    response, prompt = text_of(record, "response"), prompt_of(record)
    if not response.strip() or not prompt.strip():
        return None
    rng = random.Random(f"{seed}/{prompt}/{response}")
    found = kept_constraints(response, rng)
    if len(found) < num_constraints:
        return None
    chosen = rng.sample(found, num_constraints)
    made = {key: value for key, value in record.items() if key not in ("prompt", "messages")}
    made |= {
        "response": response,
        "verifier": "constraints",
        "arguments": {"constraints": [dict(one.constraint) for one in chosen]},
    }
    sentences = [one.sentence for one in chosen]
    if turns == "single":
        return made | {"prompt": prompt + "\n\n" + " ".join(sentences)}
    first = prompt if len(sentences) == 1 else prompt + "\n\n" + " ".join(sentences[:-1])
    messages = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": record.get("first_response", response)},
        {"role": "user", "content": "Please answer again. " + sentences[-1]},
    ]
    return made | {"messages": messages}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepsConstraints:
    """Drops responses that break a constraint they were asked to keep; notes `num_constraints`.

    Reasons: `breaks`, `malformed`. Records without constraints in `arguments` pass.
    """

    name: str = "keeps_constraints"

    def reason(self, record: Record) -> Said:
        arguments = record.get("arguments")
        asked = arguments.get("constraints") if isinstance(arguments, Mapping) else None
        if asked is None:
            return None
        try:
            checked = checks.check(asked, text_of(record, "response"))
        except checks.VerifierError as error:
            return f"malformed: {error}"[:100]
        broken = next((one.rule for one in checked if not one.is_kept), None)
        told = {"num_constraints": len(checked)}
        return told if broken is None else f"breaks: {broken}"[:100]


# ---- kinds


def _num_words(response: str, rng: random.Random) -> Asked | None:
    number = _count(response, "words")
    if number < 20:
        return None
    low = max(1, (number - rng.randint(0, number // 5)) // 10 * 10)
    high = -(-(number + rng.randint(1, number // 5 + 1)) // 10) * 10
    ways = (
        ({"at_least": low}, f"at least {low}"),
        ({"at_most": high}, f"at most {high}"),
        ({"at_least": low, "at_most": high}, f"between {low} and {high}"),
    )
    limits, said = rng.choice(ways)
    return Asked({"kind": "count", "of": "words", **limits}, f"Use {said} words.")


def _num_parts(response: str, rng: random.Random) -> Asked | None:
    parts = {
        "paragraphs": "paragraphs, separated by blank lines",
        "bullets": "bullet points",
        "numbered_items": "numbered items",
        "headings": "headings",
        "sentences": "sentences",
    }
    for of, words in parts.items():
        number = _count(response, of)
        if number >= 2 and (of != "sentences" or number <= 12):
            asked = {"kind": "count", "of": of, "exactly": number}
            return Asked(asked, f"Write exactly {number} {words}.")
    return None


def _keywords(response: str, rng: random.Random) -> Asked | None:
    words = sorted({word.lower() for word in _WORD.findall(response)})
    if len(words) < 6:
        return None
    chosen = sorted(rng.sample(words, rng.randint(1, 3)))
    quoted = ", ".join(f'"{word}"' for word in chosen)
    noun = "word" if len(chosen) == 1 else "words"
    return Asked({"kind": "include", "texts": chosen}, f"Include the {noun} {quoted}.")


def _forbidden(response: str, rng: random.Random) -> Asked | None:
    present = {word.lower() for word in _WORD.findall(response)}
    absent = [word for word in _COMMON if word not in present]
    if not absent:
        return None
    word = rng.choice(absent)
    return Asked({"kind": "exclude", "texts": [word]}, f'Do not use the word "{word}".')


def _edge_words(response: str, rng: random.Random, *, are_first: bool) -> Asked | None:
    text, count = response.strip(), rng.randint(2, _MAX_PHRASE_WORDS)
    first, last = text.split("\n")[0].split()[:count], text.split("\n")[-1].split()[-count:]
    words = first if are_first else last
    phrase = " ".join(words)
    if len(words) < 2 or not (text.startswith if are_first else text.endswith)(phrase):
        return None
    kind, verb = ("starts_with", "Begin") if are_first else ("ends_with", "End")
    return Asked({"kind": kind, "text": phrase}, f'{verb} with "{phrase}".')


def _case(response: str, rng: random.Random) -> Asked | None:
    if response.islower():
        return Asked({"kind": "case", "is": "lower"}, "Write everything in lower case.")
    if response.isupper():
        return Asked({"kind": "case", "is": "upper"}, "Write everything in capital letters.")
    return None


def _json(response: str, rng: random.Random) -> Asked | None:
    if not response.strip().startswith(("{", "```json")):
        return None
    return Asked({"kind": "json", "keys": []}, "Answer with one JSON object and nothing else.")


_MAKERS: tuple[Callable[[str, random.Random], Asked | None], ...] = (
    _num_words, _num_parts, _keywords, _forbidden,
    functools.partial(_edge_words, are_first=True), functools.partial(_edge_words, are_first=False),
    _case, _json,
)  # fmt: skip
_COMMON = (
    "actually", "basically", "certainly", "however", "important", "simply", "overall", "therefore",
    "because", "various", "several", "together", "without", "another", "perhaps",
)  # fmt: skip


def _count(response: str, of: str) -> int:
    found = checks.check([{"kind": "count", "of": of, "at_least": 0}], response)[0].found
    return int(found) if found.isdigit() else 0
