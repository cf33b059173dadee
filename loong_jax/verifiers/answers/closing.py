"""Answers where a response ends: after "the answer is", or as its last formula or number.

A number only mentioned is none: a label ("Page 12"), a premise, a bound ("at least 44"), a try.
"""

import functools
import itertools
import re
from collections.abc import Iterator

from loong_jax.verifiers.answers import prose, statements
from loong_jax.verifiers.answers.statements import Span
from loong_jax.verifiers.maths import names, wording
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


def announced(body: str) -> Iterator[Span]:
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
    joined = " \\text{ and } ".join(dict.fromkeys(run))
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
    position = len(body) - len(body[start:].lstrip())
    for match in _SAID.SENTENCE_END.finditer(body, position):
        goes_on = body[match.start() - 1] == "$" and _NEXT_FORMULA.match(body, match.start())
        if match["end"] is not None and not goes_on:
            return match.start()
    return len(body)


def sentence_before(body: str, start: int) -> str:
    """The sentence of what begins at `start`, up to it."""
    found = _SENTENCE_START.search(body, 0, start)
    return body[found.end() if found else 0 : start]


_LAST = names.patterns("last_maths")
_PIECE = re.compile(
    r"(?s)\$\$([^$]{1,2000})\$\$|\$([^$\n]{1,1000})\$|\\\((.{1,1000}?)\\\)|\\\[(.{1,2000}?)\\\]"
    rf"|({_LAST.NUMBER.pattern})"
)
IS_SUBJECT = re.compile(
    r"(?:\A\W*[a-zA-Z]\$)?(?<=\$) (?:is|are|has|have|was|must|can|itself|from|lies)\b(?! \$?[-\d])"
)
_LETTER = re.compile(r"[a-zA-Z](?:\s*\\in\s*\\(?:mathbb|Bbb)\s*\{?[RZNQC]\}?(?:\^?\+)?)?")
_DEFINES = re.compile(r"([fghFG])(?:\([a-z]\))?\s*(?:=|\\equiv)")
_APART = (".", ":")  # what a colon follows is explained by what comes next
_WRAPPERS = names.TEXT_WRAPPERS | names.WRAPPERS
_LAYOUT = (
    r"therefore|because|implies|Rightarrow|Longrightarrow|iff|to|rightarrow|approx|item|par|newline"
    r"|section|subsection|bullet|star|ldots|dots|colon"
)  # with wrappers and spaces commands that a number may follow and be no part of
_APART_FROM = "|".join(
    (_LAYOUT, *sorted(s[1:] for s in _WRAPPERS | names.SPACING if s[1:].isalpha()))
)
_STOP = re.compile(r"[.!?]\s|\n\n|=")
_WRAPPING = re.compile(  # \text{not } 5 is "not 5"
    rf"(?:{'|'.join(map(re.escape, sorted(_WRAPPERS)))})(?![A-Za-z])\s*"
    r"\{?|\\[ ,;:!()\[\]]|[{}$~]"
)
_PART_BEFORE = re.compile(  # {-}5, \frac{1}{2}, \phantom{5}, \neq 5
    rf"(?:[-+]\s*\}}|\}}\s*\{{|\\(?!(?:{_APART_FROM})(?![A-Za-z]))[A-Za-z]+\*?\s*\{{?|\\)\s*\Z"
)
_OPERATED = re.compile(
    rf"\b(?:{OPERATION}|divisible\s+by|(?:lies|is|falls|comes)\s+(?:near|close)(?:\s+to)?|"
    r"whose\s+\w+\s+(?:is|equals))\s+(?:the\s+(?:number\s+)?)?\Z",
    re.IGNORECASE,
)
_OPERATED_AFTER = re.compile(
    rf"\$?\s*(?:(?:{'|'.join(sorted(names.CHANGING_WORDS))})\b|"
    r"(?:\w+\s+){0,3}(?:(?:(?:do|does|is|are|would|will|can)\s*(?:not|n't)|cannot)\s+(?:be\s+)?(?:suffice|"
    r"enough|sufficient|work)\b|(?:is|are|was|were|would\s+be)\s+(?:too\s+(?:few|many|little|much)|more\s+than"
    r"\s+enough)\b)|"
    r"or\s+not\b|(?:times|(?:more|less|fewer|greater|larger|smaller)\s+than)\s+[\d$\\(]|"
    r"(?:is|are|was|does|do|did|would)(?:\s+not|n't)\b|"
    r"(?:is|are|was)\s+(?:wrong|incorrect|impossible|false|too|extraneous|invalid|rejected)\b|"
    r"[,;]?\s*(?:是?增根|不符?合题意|应?舍去)|\?\s*(?:no\b|nope|wrong|not\b|impossible))",
    re.IGNORECASE,
)
_A_NUMBERED_LINE = re.compile(r"^\s*\(?\d{1,2}[.)]\s+[A-Za-z]", re.MULTILINE)
RELATIVE = _LAST.RELATIVE  # a number that is a distance: "7 less than the total"
_WORD = re.compile(r"[A-Za-z]{2,}")


def last_maths(body: str) -> Iterator[Span]:
    """The last formula or number, with those before it that belong to one list."""
    matches = [
        m for m in _PIECE.finditer(body) if not _is_denied(body, m.start()) and not _is_any(body, m)
    ][-40:]
    if not matches:
        return
    last, (start, end) = matches[-1], matches[-1].span()
    if (
        _OPERATED.search(_words_before(body, start))  # half of 24
        or _LAST.TAKEN_BACK.search(body, end)
        or _OPERATED_AFTER.match(body[end:][:60])  # 24 factorial
        or _LAST.FROM.search(body, max(0, start - 60), start)  # from 60 to 66
        or _LAST.BOUND.search(body[max(0, start - 40) : start])
        or _LAST.PREMISE.match(sentence_before(body, start))
        or (last[5] and _is_part(body, last))
    ):
        return
    run = [last]
    for match in reversed(matches[:-1]):
        gap = body[match.end() : run[0].start()]
        is_choice = len(gap) < 30 and _LAST.OR_JOIN.search(gap) and not _STOP.search(gap)
        is_apart = "\n\n" in gap or gap.strip(" $()\n") in _APART
        is_joined = not is_apart and statements.SAID.JOIN.fullmatch(gap)
        if gap.strip(" $") == "," and _LAST.REASON.search(_words_before(body, match.start())):
            break
        if not is_choice and not is_joined and not _define_the_same(match, gap, run[0]):
            break
        run.insert(0, match)
    rule = "number" if last[5] else "formula"
    contents = [_content(match) for match in run]
    start = run[0].start()
    if (between := _LAST.BETWEEN.search(body, max(0, start - 20), start)) is not None:
        if between[1] and len(contents) == 2:
            yield Span(f"({', '.join(contents)})", rule)
        return
    contents = contents[:1] if len(set(contents)) == 1 else contents
    if len(contents) == 1:
        unit = re.match(r"\s*(?:percent\b|pct\b|\\?%|[\u2030\u2031])", body[end : end + 40])
        amount = contents[0] + unit[0] if unit else prose.with_unit_after(contents[0], body, end)
        yield Span(amount if unit else prose.with_larger_unit(amount, body[:start]), rule)
        _, is_chain, last = contents[0].rpartition("=")
        if rule == "formula" and is_chain and last.strip():  # where its other sides are not read
            yield Span(last, rule)
    else:
        gap = body[run[-2].end() : last.start()]
        bounds = any(sign in contents[-1] for sign in ("<", ">", "\\le", "\\ge"))
        join = " \\text{ or } " if bounds and _LAST.OR.search(gap) else " \\text{ and } "
        yield Span(join.join(contents), rule)
    for match in reversed(matches):  # prose between two amounts in dollars is no formula
        content = _content(match)
        if match[5] or len(statements.PROSE.findall(content)) > 1:
            numbers = _LAST.NUMBER.finditer(content)
            *_, last = (None, *(n for n in numbers if not _is_denied(content, n.start())))
            text, place = (body, match) if match[5] else (content, last)
            if last and place and not _is_operand(text, place):
                amount = last[0].rstrip(",")
                yield Span(prose.with_unit_after(amount, text, place.end()), "number")
            return


def _define_the_same(one: re.Match[str], gap: str, other: re.Match[str]) -> bool:
    """True if "and" sets two formulas for one function beside each other: f(x) = x and f = 0."""
    if len(gap) > 60 or _STOP.search(gap) or not re.search(r"\b(?:and|or)\b", gap):
        return False
    left = [_DEFINES.match(_content(match)) for match in (one, other) if not match[5]]
    return len(left) == 2 and None not in left and len({m[1] for m in left if m}) == 1


def _is_operand(body: str, number: re.Match[str]) -> bool:
    """True if signs beside a number make it a part of something that is not read."""
    start, end = number.span()
    return bool(
        _PART_BEFORE.search(body[max(0, start - 24) : start])
        or _LAST.SIGN_BEFORE.search(_words_before(body, start))
        or _LAST.SIGN_AFTER.match(body[end : end + 12])
    )


def _is_denied(body: str, position: int) -> bool:
    before = _words_before(body, position)
    return bool(_LAST.NEGATED.search(before) or _LAST.LEFT_OUT.match(before))


def _words_before(body: str, position: int) -> str:
    """The end of what stands before a position, without the commands around words."""
    return _WRAPPING.sub(" ", body[max(0, position - 40) : position])


def _is_any(body: str, match: re.Match[str]) -> bool:
    """True for the x of "for all $x$", and the M of "and $M$ is therefore invertible"."""
    if match[5] or _LETTER.fullmatch(_content(match)) is None:
        return False
    before = body[max(0, match.start() - 24) : match.start()]
    is_of_it = _LAST.ANY.search(before) or before.endswith((" of ", " from ", " about "))
    return bool(is_of_it) or IS_SUBJECT.match(body, match.end()) is not None


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).strip().rstrip(",")


def is_tried(sentence: str) -> bool:
    """True if a sentence asks, or supposes what it says: "How about 12?"."""
    asks = sentence.endswith("?") and re.search(r"\d", sentence)
    return bool(asks or _LAST.PREMISE.match(sentence))


def _is_part(body: str, number: re.Match[str]) -> bool:
    """True if a number is an operand, odds or code, or in a sentence that does not state it."""
    (start, end), is_odds = number.span(), ":" in number[0]
    if _is_operand(body, number) or (is_odds and "odds" in body[max(0, start - 80) : start]):
        return True
    before, after = sentence_before(body, start), body[end:]
    line = body[body.rfind("\n", 0, start) + 1 : start]
    if _LAST.LABEL.search(before) or (_LAST.CITED.search(before) and after.startswith("]")):
        return True
    numbered = None if line.strip(" (") else _A_NUMBERED_LINE.match(body, start - len(line))
    if numbered and len(_A_NUMBERED_LINE.findall(body, 0, numbered.end())) > 1:
        return True
    rest = re.split(r"[.!?](?=\s|\*|$)|\n\s*\n|\n(?=\W*[A-Z])", after, maxsplit=1)[0]
    is_neighbour = _LAST.NEIGHBOUR.search(before) and not _WORD.search(rest)
    if is_neighbour and not prose.unit_after(body, end):
        return True
    later = prose.sentences(after[len(rest) :].lstrip(".!?*`\n )$"))
    is_code = prose.SAID.CODE.search(prose.last_sentence(body)) is not None
    return is_code or any(_WORD.search(said) and not PLEASANT.match(said) for said in later)
