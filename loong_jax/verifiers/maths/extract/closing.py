"""Answers after a closing phrase: "the answer is 12"."""

import functools
import itertools
import re
from collections.abc import Iterator

from loong_jax.verifiers.maths import names, wording
from loong_jax.verifiers.maths.extract import statements
from loong_jax.verifiers.maths.extract.statements import Span
from loong_jax.verifiers.maths.reading import numerals

_SAID = names.patterns("closing")
PHRASE, PLEASANT, DERIVED = _SAID.PHRASE, _SAID.PLEASANT, _SAID.DERIVED
_OPTIONS = re.compile(r"^\W*B\W*:", re.MULTILINE)  # beside them A: is none of the answer
_NEXT_FORMULA = re.compile(r"\n\s*\$[^$\n]{1,300}\$[\s.]*(?:\n|\Z)")  # that of a list
OPERATION = _SAID.OPERATION.pattern
_SENTENCE_START = re.compile(r"(?:[.!?]\s+|\n+)(?=[^.!?\n]*\Z)")
_MATHS = re.compile(r"[\d$=]|\\(?!boxed)")
_HINTS = ("ans", "solution", "result", "option", "choice", "conclusion", "####", "\na", "\n*")


@functools.lru_cache(maxsize=8)  # one verdict asks for them twice
def phrases_of(body: str) -> tuple[re.Match[str], ...]:
    lowered = body.lower()  # every match has one of the hints
    may_announce = lowered[:1] in ("a", "*") or any(hint in lowered for hint in _HINTS)
    return tuple(PHRASE.finditer(body)) if may_announce else ()


def spans(body: str) -> Iterator[Span]:
    """The spans after "the answer is" and its like, from the last such phrase backwards.

    An earlier phrase counts only where the last one is in words alone, without doubt.
    """
    has_options = "A:" in body and _OPTIONS.search(body) is not None
    matches = [
        match
        for match in phrases_of(body)
        if not body[match.end() : match.end() + 8].lstrip().startswith(("correct", "as follows"))
        and not is_derived(body, match)
        and not (has_options and match[0].strip("* \n") in ("A:", "a:"))
    ]
    used: list[tuple[int, int, str]] = []  # start, end, what is said
    for match in reversed(matches[-16:]):
        if PLEASANT.match(sentence_before(body, match.start())):
            continue
        end = _sentence_end(body, match.end())
        if not used and (items := statements.whole_list(body[match.end() :])) is not None:
            yield Span(items, "phrase")
            return
        if used and match.end() <= used[-1][0] <= end:  # "the answer is 2 or the answer is 3"
            if (other := _SAID.OTHERWISE.search(body[match.end() : used[-1][0]])) is None:
                continue
            end = match.end() + other.start()
        said = body[match.end() : end].strip().strip("*").strip()
        is_supposed = "would be" in match[0] and re.search(r"\bif\b", said)
        if not said or _SAID.AFTERWARDS.match(said) or is_supposed:
            continue  # it would be 50 if the coin were fair
        used.append((match.start(), end, said))
    if not used:
        return
    start, run = used[0][0], [used[0][2]]
    is_worded = not says_value(run[0])
    is_mark = body.startswith("####", start)  # the last of them counts
    for later, earlier in itertools.pairwise(used):
        gap = body[earlier[1] : later[0]]
        if is_mark or len(gap) > 25 or _SAID.CORRECTED.search(gap):
            break
        said = earlier[2]
        if says_value(said) == is_worded and not re.search(r"\b(?:or|and)\b", gap):
            break
        if wording.choices(said) is None or wording.choices(said) != wording.choices(run[0]):
            run.insert(0, said)
    contents = list(dict.fromkeys(run))
    joined = contents[-1] if len(contents) == 1 else " \\text{ and } ".join(contents)
    is_label = is_mark or body[body.rfind("\n", 0, start) + 1 : start].strip(" *>-") == ""
    last = Span(joined, "label" if is_label else "phrase")
    if wording.is_choice(joined):
        last = Span(joined, "letter")
    elif not is_worded or wording.yes_or_no(joined) or _SAID.DOUBTED.search(joined):
        yield last
        return
    valued = [Span(said, "phrase") for *_, said in used[1:] if says_value(said)][:1]
    earlier = [] if _SAID.CORRECTED.search(body[used[-1][1] : start]) else valued
    yield from (last, *earlier) if last.rule == "letter" else (*earlier, last)


def says_value(text: str) -> bool:
    """True if a text has maths, or is a number in words."""
    return _MATHS.search(text) is not None or numerals.number_from_words(text) is not None


def without_comments(body: str) -> str:
    """The text without sentences at its end that praise the answer: "The result is confirmed."."""
    if (check := _SAID.CHECKS.search(body, max(0, len(body) - 1500))) is not None and check.start():
        body = body[: check.start()].rstrip()
    while (found := [m for m in phrases_of(body) if m.start() >= len(body) - 400]) and (
        _SAID.AFTERWARDS.match(body, found[-1].end()) is not None
    ):
        start = max(body.rfind(mark, 0, found[-1].start()) for mark in ("\n", ". ", "! ")) + 1
        end = _sentence_end(body, found[-1].end())
        if end < len(body.rstrip(" .!*")) or not body[:start].strip():
            break
        body = body[:start].rstrip()
    return body


def is_derived(body: str, match: re.Match[str]) -> bool:
    """True if a phrase is about another number than the answer, or about a wrong one."""
    before = body[max(0, match.start() - 60) : match.start()]
    return bool(_SAID.NOT_OF_ANSWER.search(before) or _SAID.CHANGED_ANSWER.search(match[0]))


def _sentence_end(body: str, start: int) -> int:
    position = start
    while position < len(body) and body[position].isspace():
        position += 1
    for match in _SAID.SENTENCE_END.finditer(body, position):
        goes_on = body[match.start() - 1] == "$" and _NEXT_FORMULA.match(body, match.start())
        if match["end"] is not None and not goes_on:
            return match.start()
    return len(body)


def sentence_before(body: str, start: int) -> str:
    """The sentence of what begins at `start`, up to it."""
    found = _SENTENCE_START.search(body, 0, start)
    return body[found.end() if found else 0 : start]
