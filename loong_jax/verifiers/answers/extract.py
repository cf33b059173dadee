"""The answer of a response: the last box, a closing phrase, the last formula or number.

What is joined by "or", "and" or mere punctuation is one candidate: a response that names several
answers has given a list of them. Every search is bounded: at most `MAX_TAIL` characters from the
end are looked at, boxes apart. `statements` gives the text without marks, and its boxes; `closing`
what follows a closing phrase, `prose` what sentences say. `gives_up`: only the writer's own words
refuse. What is said of the problem ("cannot be determined") is an answer, and so is what is stated
after a refusal.
"""

import itertools
import re
from collections.abc import Iterator

from loong_jax.problems import response
from loong_jax.verifiers.answers import closing, prose, statements
from loong_jax.verifiers.answers.statements import Span, statement
from loong_jax.verifiers.maths import languages, names, reading, wording
from loong_jax.verifiers.maths.reading import numerals

MAX_CANDIDATES = 4
MAX_TAIL = 6000  # characters from the end where phrases and formulas are looked for
MAX_WHOLE = 400  # a response up to here may be an answer as it stands
_PROSE_OR_MARK = re.compile(rf"{statements.PROSE.pattern}|[\u4e00-\u9fff$]")
_TEXT = re.compile(r"\\text\w*\s*\{([^{}]*)\}")
_HAS_DIGITS = re.compile(r"[\d$\\=]")


class Candidates:
    """The first candidates of a response, found when they are asked for, and once."""

    def __init__(self, text: str):
        self.text = text
        self._found: list[Span] = []
        self._rest = itertools.islice(spans(text), MAX_CANDIDATES)

    def __iter__(self) -> Iterator[Span]:
        yield from self._found
        for span in self._rest:
            self._found.append(span)
            yield span


def spans(text: str) -> Iterator[Span]:
    """Candidates of a response, the most trusted first."""
    text = statement(text)
    found = response.boxes(text)
    if found:
        tail = statements.undecorated(text[found[-1].end : found[-1].end + MAX_TAIL])
        said = next(closing.announced(tail), None)
        if said is not None and (kept := _after_box(said)) is not None:
            yield kept
            if kept.rule == "label" and not closing.says_value(kept.text):
                return
        yield from _given(prose.second_thought(tail), "phrase")
        if not statements.is_denied(text, found[-1]):
            boxed = statements.joined(text, found)
            is_said = " is" in boxed and "\\text" in boxed and "\\begin" not in boxed
            words = _TEXT.sub(r" \1 ", boxed)  # \boxed{\text{The largest one is } 17}
            yield from _given(next(prose.stated(words), None) if is_said else None, "boxed")
            parts = prose.labelled_parts(boxed)
            yield from _given("; ".join(parts) if parts else None, "boxed")
            yield Span(boxed, "boxed")
            if 1 < len(contents := dict.fromkeys(box.content for box in found)) < statements.SPRAY:
                yield Span(" \\text{ and } ".join(contents), "boxes")
        return
    body, domain = statements.undecorated(text[-MAX_TAIL:]), ""
    if (apart := statements.set_apart(body)) is not None:
        body = "\n".join(apart)
    if (clause := reading.at_end(body)) is not None:
        body, domain = clause
    for span in _unboxed(body, body.rpartition("\n")[2].strip() if apart else ""):
        yield Span(span.text.rstrip(" $.") + domain, span.rule) if domain else span


def _given(text: str | None, rule: str, *, shorter: bool = False) -> Iterator[Span]:
    """A candidate, if there is one; before it, if it may be `shorter`, what its remarks leave."""
    if text is not None:
        if shorter and (bare := prose.without_remarks(text)) != text:
            yield Span(bare.strip(" *"), rule)
        yield Span(text, rule)


def _after_box(said: Span) -> Span | None:
    """The answer that a text states after a box, if it may take the place of the boxed one."""
    text = statements.without_bold(said.text).strip(" $.")
    is_one = said.rule == "label" or statements.PROSE.search(text) is None
    if wording.is_choice(text):
        return Span(text, "letter")
    if closing.says_value(text):
        return said if is_one else None
    is_one = is_one or text[:1].isupper() or wording.yes_or_no(text)
    return Span(text, "label") if is_one and len(text.split()) <= 4 else None


def _unboxed(body: str, line: str) -> Iterator[Span]:
    """Candidates of a response without boxes; `line` is the last one where it stands apart."""
    if "hope" in body or "[Note" in body:
        body = _SAID.POLITENESS.sub("", body)
    body = closing.without_comments(_SAID.EXPLAINED.sub(r"\1", body))
    found = list(closing.announced(body))
    if not found and any(closing.is_derived(body, match) for match in closing.phrases_of(body)):
        return  # twice the answer is 48
    last = max((m.start() for m in closing.phrases_of(body)), default=0) if found else 0
    if (other := prose.second_thought(body[last:])) is not None:
        found = [Span(other, "phrase")]
    elif found:
        _, is_one, after = body.rpartition(found[0].text)
        if is_one and prose.SAID.DISOWNED.search(after) and prose.second_thought(after) is None:
            return
    for span in found:
        yield from _given(prose.two_stated(span.text), "pair")
        yield from _numbered(span.text)
        yield from _given(prose.bold_inside(span.text), span.rule)
        apposed = _SAID.APPOSED.match(span.text)
        yield from _given(apposed and apposed[1], span.rule)
        yield from _given(statements.without_bold(span.text), span.rule, shorter=True)
        if closing.RELATIVE.match(span.text):
            return
        yield from closing.last_maths(prose.without_remarks(span.text))
    said = found[0].text if found and found[0].rule == "label" else ""
    if len(said) > 3 and not said.endswith(":") and not closing.says_value(said):
        return  # Answer: it has no maximum
    if not found:
        sentence = prose.last_sentence(body)[-MAX_WHOLE:]
        if closing.is_tried(sentence):
            return
        yield from _given(prose.end_of_sequence(sentence), "count")
        if (count := prose.count_before(sentence)) is not None:
            yield from (Span(said.text, "count") for said in closing.last_maths(count))
        body = prose.without_remarks(body)
        yield from _numbered(body)
        yield from _given(prose.two_stated(sentence), "pair")
        last_said = prose.last_sentence(body)
        concluded = wording.conclusion(last_said)
        if wording.is_nothing(concluded):
            yield Span("empty set" if concluded.endswith("empty") else concluded, "stated")
            return
        yield from _given(prose.bold_inside(last_said), "bold")
        yield from _given(prose.last_inequality(body), "formula")
        yield from _given(line or None, "bold", shorter=True)
        yield from _given(statements.last_list(body), "listed")
        if len(body) <= MAX_WHOLE and not statements.ends_on_bullet(body):
            derived = closing.DERIVED.fullmatch(body) if "=" in body else None
            said = "" if derived is None else derived[1]
            is_value = _HAS_DIGITS.search(said) and not closing.IS_SUBJECT.search(said)
            if is_value and len(prose.sentences(said)) == 1:
                yield from _given(said, "stated", shorter=True)
            is_bold = body.count("**") == 2 and " **" in f" {body}"
            yield from _given(body.replace("**", " ") if is_bold else body, "whole", shorter=True)
        yield from _given(statements.last_bold(body), "bold", shorter=True)
        for said in prose.stated(body):
            yield from _given(said, "stated", shorter=True)
        yield from _given(prose.after_last_equals(body), "stated")
        clause = wording.CONCLUDES_ONLY.split(last_said[-MAX_WHOLE:])[-1]
        is_worded = not _HAS_DIGITS.search(clause) and not _SAID.SAYS_NO_MORE.match(clause)
        if is_worded and (counted := numerals.in_digits(clause)) != clause:
            yield from closing.last_maths(languages.translated(counted))
    body = body.replace("**", "  ") if "**" in body and " **" in body else body
    yield from closing.last_maths(body)


def _numbered(text: str) -> Iterator[Span]:
    """2; 3 of "(1) f(0) = 2; (2) the minimum is 3", for who asks for both."""
    if (parts := prose.labelled_parts(text)) is not None:
        spans = (closing.last_maths(part) if _PROSE_OR_MARK.search(part) else () for part in parts)
        said = (next(iter(found), Span(part, "")) for part, found in zip(parts, spans, strict=True))
        yield Span("; ".join(span.text for span in said), "pair")


def last_clause(text: str) -> str:
    """The last sentence without the remarks that end it."""
    body = statements.undecorated(statement(text)[-MAX_TAIL:]).replace("**", "")
    clause = prose.last_sentence(prose.without_remarks(closing.without_comments(body)))
    return clause if len(clause) <= MAX_WHOLE else ""


def last_sentence(text: str) -> str:
    return prose.last_sentence(statement(text)[-MAX_TAIL:])


_SAID = names.patterns("refusals")


def gives_up(text: str) -> bool:
    """True if a text refuses, asks back, takes back or announces more, and states no answer."""
    if response.boxes(text):
        return False
    body = statement(text)[-MAX_TAIL:]
    end = body[-80:].rstrip("* \n")
    may_break_off = end[-1:].isalpha() or end.endswith(",")
    if not _SAID.MAY_GIVE_UP.search(body) and not (may_break_off and _SAID.BROKEN.search(end)):
        return False
    body = body.replace("\u2019", "'").replace("**", "")
    body = "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())
    is_hedged = _SAID.HEDGED.search(prose.last_sentence(body)) or _SAID.UNDECIDED.search(body)
    if is_hedged or _SAID.TAKEN_BACK.search(body[-80:]):
        return True
    is_broken = _SAID.BROKEN.search(body[-80:])
    if is_broken and not any(_SAID.MATHS.search(span.text) for span in closing.announced(body)):
        return True
    clauses = [clause for clause in _SAID.CLAUSES.split(body) if clause.strip()]
    refusing = [i for i, clause in enumerate(clauses) if _refuses(clause)]
    asking = [i for i, clause in enumerate(clauses) if _SAID.ASKS.search(clause[:400])]
    announced = _SAID.ANNOUNCES.search(clauses[-1]) if clauses else None
    breaks_off = announced is not None and numerals.in_digits(announced[0]) == announced[0]
    if not refusing and not asking and not breaks_off:
        return False
    others = [c for i, c in enumerate(clauses) if i not in refusing and i not in asking]
    if refusing and not any(map(_settles, clauses[refusing[-1] + 1 :])):
        return True
    if breaks_off and others and (announced := _SAID.ANNOUNCES.search(others[-1])):
        before = others.pop()[: announced.start()]
        if _SAID.MATHS.search(before) and ("=" in before or _SAID.CONCLUDES.search(before)):
            return False
    return not refusing and not any(map(_settles, others))


def _refuses(clause: str) -> bool:
    start = clause[:400]
    return _SAID.MAY_REFUSE.search(start) is not None and _SAID.REFUSES.match(start) is not None


def _settles(clause: str) -> bool:
    """True if a clause states something: "so x = 12", "the sum is 5", a formula alone."""
    clause = clause.strip()
    if (refuses := _refuses(clause)) or _SAID.NOTHING.search(clause):
        return not refuses
    if clause.endswith("?") or not _SAID.MATHS.search(clause):
        return False
    if any(rule.search(clause) for rule in (_SAID.ASKS, _SAID.PROMISES, _SAID.SUPPOSES)):
        return False
    if not re.search(r"(?<!\\)\b[A-Za-z]{3,}", clause):
        return any(character.isdigit() or character in "\\$=" for character in clause)
    if wording.yes_or_no(clause) is not None or _SAID.CONCLUDES.search(clause):
        return True
    return _SAID.STATES.search(clause) is not None and not _SAID.GIVEN.search(clause)


__all__ = ["Candidates", "Span", "gives_up", "last_clause", "last_sentence", "spans", "statement"]
