"""Verifier "constraints": whether an answer has the form it was asked to have.

Counts, keywords, beginnings and ends, case, script, JSON, and calls of tools in LongCat's form
(LongCat-Flash-Thinking 3.3: a tool-call format reward). Content is judged by others.
"""

import dataclasses
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import response, verdict
from loong_jax.problems.verdict import Score, Verdict
from loong_jax.verifiers import OfRecords, tool_calls

MAX_CHARS = 200_000
MAX_CONSTRAINTS = 50

# Scripts without spaces between words, of which each character counts as a word; and Korean, whose
# particles stand right behind a word.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_IS_KOREAN = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W_])+")
# Words whose point ends no sentence; those of the second kind end one before a capital.
_ABBREVIATIONS = frozenset(
    ("dr", "mr", "mrs", "ms", "prof", "st", "vs", "cf", "e.g", "i.e", "approx", "fig", "figs", "eq",
     "eqs", "vol", "pp")
)  # fmt: skip
_LAST_WORDS = frozenset(("etc", "inc", "ltd", "jr", "sr", "al", "a.m", "p.m"))
_INITIALS = re.compile(r"\b[A-Z]\.[ ]?[A-Z]\.")
_SENTENCE_END = re.compile(
    r"[.!?]+(?=[\"'\u201d\u2019\u00bb)\]*_`]*(?:\s|\Z|[\u3040-\u9fff]))|[\u3002\uff01\uff1f\u061f\u0964]+"
)
_RULE = r"(?![ \t]*([-*_])(?:[ \t]*\1){2,}[ \t]*$)"  # a line across the page is no bullet
_COUNTED: dict[str, Callable[[str], int]] = {
    "characters": len,
    "words": lambda text: len(_WORD.findall(re.sub(r"(?<=\w)['\u2019-](?=\w)", "", _bare(text)))),
    "sentences": lambda text: _num_sentences(text),
    "lines": lambda text: sum(1 for line in text.split("\n") if line.strip()),
    "paragraphs": lambda text: sum(1 for p in re.split(r"\n[ \t]*\n", text) if p.strip()),
    "bullets": lambda text: _num_lines(text, _RULE + r"[ \t]*[-*+\u2022][ \t]+\S"),
    "numbered_items": lambda text: _num_lines(text, r"[ \t]*\d{1,3}[.)][ \t]+\S"),
    "headings": lambda text: _num_lines(text, r" {0,3}#{1,6}[ \t]+\S"),
    "code_blocks": lambda text: sum(block.is_closed for block in response.blocks(text)),
    "placeholders": lambda text: len(re.findall(r"\[[^\[\]\n]{1,80}\]", text)),
}


def _num_sentences(text: str) -> int:
    number = at = 0
    for end in _SENTENCE_END.finditer(text):
        if not _is_abbreviated(text, end.start()) and _WORD.search(text, at, end.start()):
            number, at = number + 1, end.end()
    return number + (_WORD.search(text, at) is not None)


def _is_abbreviated(text: str, point: int) -> bool:
    """True if the point belongs to a word, to initials, or to the number of a list's item."""
    start = point - 8 if point > 8 else 0
    word = text[start:point].split()[-1:]
    if not word or text[point] != ".":
        return False
    last, after = word[0].strip("(\"'").lower(), text[point + 1 : point + 3].strip()
    if last in _ABBREVIATIONS or (last in ("no", "nos") and after.isdigit()):
        return True
    if last.isdigit() and len(last) <= 3:
        return not text[text.rfind("\n", 0, point) + 1 : point - len(last)].strip()
    if last in _LAST_WORDS:
        return after.islower()
    return len(last.rpartition(".")[2]) == 1 and any(
        found.start() <= point - start < found.end()
        for found in _INITIALS.finditer(text[start : point + 4])
    )


def _num_lines(text: str, pattern: str) -> int:
    """Lines outside blocks of code that begin so."""
    for block in reversed(response.blocks(text)):
        text = f"{text[: block.start]}\n{text[block.end :]}"
    begins = re.compile(pattern).match
    return sum(1 for line in text.split("\n") if begins(line))


def _bare(text: str) -> str:
    """Without the marks on letters, and what is not seen between them."""
    if text.isascii():
        return text
    return text.translate({ord(c): None for c in set(text) if unicodedata.category(c)[0] in "MC"
                           and not c.isspace()})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Checked:
    rule: str
    is_kept: bool
    found: str = ""


class ConstraintsVerifier(OfRecords):
    """Checks `constraints`, a list of objects with a `kind` each; see `check`.

    Deterministic, in linear time; nothing is evaluated. An answer without a word keeps nothing,
    whatever it leaves out. Known false classes: sentences are counted by their marks before a
    space, so an abbreviation that is not listed ends one; words of scripts without spaces are
    counted by characters. All constraints together are only a form: never the sole reward of a
    task with content.
    """

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        """Correct if every one of `constraints` is kept."""
        if not isinstance(answer := record.get("answer"), str):
            return verdict.ungradable("record", "answer is missing or no text")
        try:
            checked = check(record.get("constraints"), answer)
        except VerifierError as error:
            return verdict.ungradable("constraints", str(error))
        if broken := [one for one in checked if not one.is_kept]:
            evidence = "; ".join(f"{one.rule}: {one.found}" for one in broken)
            return verdict.wrong("constraint", evidence)
        return verdict.correct(f"{len(checked)} kept")

    def score(self, constraints: Any, response_text: str) -> Score:
        """Share of the constraints that are kept."""
        try:
            checked = check(constraints, response_text)
        except VerifierError as error:
            return Score(value=None, reason="constraints", evidence=str(error)[:300])
        num_kept = sum(one.is_kept for one in checked)
        return Score(value=num_kept / len(checked), evidence=f"{num_kept} of {len(checked)} kept")


def check(constraints: Any, response_text: str) -> list[Checked]:
    """Every constraint, in order; VerifierError for one that is malformed.

    - `{"kind": "count", "of": "words", "at_least": 50, "at_most": 80}`, or `exactly`; of
      characters, words, sentences, lines, paragraphs, bullets, numbered_items, headings,
      code_blocks, placeholders; `of` may also be `{"text": "because"}`.
    - `{"kind": "include", "texts": [...]}`, `{"kind": "exclude", "texts": [...]}`: case is ignored
      and words are whole where a script has spaces, unless `"exact": true`.
    - `{"kind": "starts_with", "text": ...}`, `{"kind": "ends_with", "text": ...}`.
    - `{"kind": "case", "is": "upper" | "lower"}`; `{"kind": "script", "is": "LATIN"}`: of letters.
    - `{"kind": "json", "keys": [...]}`: the whole answer, perhaps in a fence; keys of its object.
    - `{"kind": "tool_calls", "tools": {...}, "at_least": 1}`: see tool_calls.py.
    """
    if not isinstance(constraints, Sequence) or isinstance(constraints, str):
        raise VerifierError(f"constraints={constraints!r:.80} is no list. Give one of objects.")
    if not 0 < len(constraints) <= MAX_CONSTRAINTS:
        raise VerifierError(f"{len(constraints)} constraints are not 1 to {MAX_CONSTRAINTS}.")
    is_read = len(response_text) <= MAX_CHARS
    text = _written(response_text) if is_read else ""
    has_content = any(character.isalnum() for character in text)
    checked = []
    for constraint in constraints:
        kind = constraint.get("kind") if isinstance(constraint, Mapping) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise VerifierError(f"kind={kind!r:.80} is unknown. Choose one of {', '.join(_KINDS)}.")
        one = _KINDS[kind](constraint, text)
        if not has_content:
            one = dataclasses.replace(one, is_kept=False, found="no content")
        checked.append(one)
    return checked


def _written(response_text: str) -> str:
    """The text after the thinking, as written, without the answer's tags where they hold it all."""
    said = (tool_calls.spoken(response.without_end(response_text)) or "").strip()
    for opening, closing in response.ANSWERS:
        if said.startswith(opening) and said.endswith(closing):
            said = said.removeprefix(opening).removesuffix(closing).strip()
    return _normal(said)


def _normal(text: str) -> str:
    """Ends of lines as of one system, and one coding of each character."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))


# ---- kinds


def _count(constraint: Mapping[str, Any], text: str) -> Checked:
    of = constraint.get("of")
    if isinstance(of, Mapping):
        wanted = _text(of, "text")
        number = sum(1 for _ in _occurrences(text, wanted, exact=bool(constraint.get("exact"))))
        name = repr(wanted)
    elif isinstance(of, str) and of in _COUNTED:
        number, name = _COUNTED[of](text), of
    else:
        raise VerifierError(f"of={of!r:.80} is unknown. Choose one of {', '.join(_COUNTED)}.")
    return _within(constraint, name, number)


def _within(constraint: Mapping[str, Any], name: str, number: int) -> Checked:
    given = {
        key: constraint[key]
        for key in ("exactly", "at_least", "at_most")
        if constraint.get(key) is not None
    }
    if not given or any(type(value) is not int or value < 0 for value in given.values()):
        raise VerifierError(f"limits {given!r:.80} of {name} are no counts. Give `at_least`.")
    is_kept = (
        number == given.get("exactly", number)
        and number >= given.get("at_least", number)
        and number <= given.get("at_most", number)
    )
    rule = " and ".join(f"{key} {value}" for key, value in given.items())
    return Checked(f"{name} {rule}", is_kept, str(number))


def _texts(constraint: Mapping[str, Any], text: str) -> Checked:
    """Of kinds `include` and `exclude`."""
    kind, texts, exact = constraint["kind"], constraint.get("texts"), bool(constraint.get("exact"))
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise VerifierError(f"texts={texts!r:.80} is no list of texts. Give one.")
    includes = kind == "include"
    wrong = [t for t in map(_normal, texts) if _is_there(text, t, exact) != includes]
    return Checked(kind, not wrong, f"{'missing' if includes else 'present'} {wrong!r:.100}")


def _end(constraint: Mapping[str, Any], text: str) -> Checked:
    """Of kinds `starts_with` and `ends_with`."""
    kind, wanted = constraint["kind"], _text(constraint, "text")
    is_start = kind == "starts_with"
    is_kept = text.startswith(wanted) if is_start else text.endswith(wanted)
    rule = f"{kind.replace('_', ' ')} {wanted!r:.80}"
    return Checked(rule, is_kept, repr(text[:40] if is_start else text[-40:]))


def _case(constraint: Mapping[str, Any], text: str) -> Checked:
    wanted = constraint.get("is")
    if wanted not in ("upper", "lower"):
        raise VerifierError(f"is={wanted!r:.80} of case is neither 'upper' nor 'lower'.")
    return Checked(f"{wanted} case", text.isupper() if wanted == "upper" else text.islower())


def _script(constraint: Mapping[str, Any], text: str) -> Checked:
    """Letters are named by their script in Unicode, such as LATIN, CYRILLIC, CJK, ARABIC."""
    wanted = _text(constraint, "is").upper()
    others = [
        c for c in set(text) if c.isalpha() and not unicodedata.name(c, "").startswith(wanted)
    ]
    return Checked(f"script {wanted}", not others, f"others {sorted(others)[:5]}")


def _json(constraint: Mapping[str, Any], text: str) -> Checked:
    keys = constraint.get("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise VerifierError(f"keys={keys!r:.80} of json is no list of texts.")
    try:
        value = json.loads(response.unframed(text, "json"), parse_constant=tool_calls.refuse)
    except (ValueError, RecursionError) as error:
        return Checked("json", False, f"{error}"[:80])
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    return Checked("json", not missing, f"missing keys {missing}")


def _tool_calls(constraint: Mapping[str, Any], text: str) -> Checked:
    found = tool_calls.read(text, constraint.get("tools"))
    if found.problem:
        return Checked("tool calls", False, found.problem)
    return _within({"at_least": 1} | dict(constraint), "tool calls", len(found.calls))


_KINDS: dict[str, Callable[[Mapping[str, Any], str], Checked]] = {
    "count": _count,
    "include": _texts,
    "exclude": _texts,
    "starts_with": _end,
    "ends_with": _end,
    "case": _case,
    "script": _script,
    "json": _json,
    "tool_calls": _tool_calls,
}


def _text(constraint: Mapping[str, Any], key: str) -> str:
    text = constraint.get(key)
    if not isinstance(text, str) or not text.strip():
        raise VerifierError(f"{key}={text!r:.80} is no text. Give one.")
    return _normal(text)


def _occurrences(text: str, wanted: str, *, exact: bool) -> Iterator[int]:
    """The offsets at which a text stands as words of its own, or anywhere if `exact`."""
    for found in re.finditer(re.escape(wanted), text, 0 if exact else re.IGNORECASE):
        start, end = found.span()
        if exact or not (_goes_on(text, start, is_end=False) or _goes_on(text, end, is_end=True)):
            yield start


def _is_there(text: str, wanted: str, exact: bool) -> bool:
    return next(_occurrences(text, wanted, exact=exact), None) is not None


def _goes_on(text: str, place: int, *, is_end: bool) -> bool:
    """True if a word goes on over this place between two characters."""
    if not 0 < place < len(text):
        return False
    one, other = text[place - 1], text[place]
    if one.isascii() and other.isascii():
        return (one.isalnum() or one == "_") and (other.isalnum() or other == "_")
    if any(_IS_UNSPACED.match(c) for c in (one, other)):
        return False
    korean = [_IS_KOREAN.match(c) is not None for c in (one, other)]
    if any(korean):
        return all(korean) and not is_end
    return _is_of_word(one) and (_is_of_word(other) or unicodedata.category(other)[0] == "M")


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"
