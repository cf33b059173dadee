"""One verdict: the candidates of a response against a gold, the most trusted first.

By the letter of an option, a truth table, a notation of its own, words, or the value.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.answers import extract, gold, notations
from loong_jax.verifiers.answers.extract import Candidates
from loong_jax.verifiers.answers.gold import Gold
from loong_jax.verifiers.answers.notations import Chemical
from loong_jax.verifiers.answers.statements import Span
from loong_jax.verifiers.maths import wording
from loong_jax.verifiers.maths.expression import BARE_LISTS, Node, ParseError, render, with_names
from loong_jax.verifiers.maths.matching import Matcher, equation, ladder
from loong_jax.verifiers.maths.reading import numerals, readings, words

_IN_BRACES = re.compile(r"[\s$]*\{[^{}]*\}[\s$.]*")
_MATHS = frozenset("\\=^<>+*/\u221a\u222a\u2264\u2265")
_OPTION_OR_NUMERAL = re.compile("[A-J]|[IVXivx]+")
_HALF_OF_DAY = re.compile(r"[ap]\.?\s?m\b", re.IGNORECASE)
_HEXADECIMAL = re.compile(r"\A((?=[A-F]*\d)[\dA-F]*[A-F][\dA-F]*)_\{16\}\Z")  # the gold 2F
_IN_ORDER = re.compile(r"依次|分别|两空|\brespectively\b")
_OF_ANOTHER = re.compile(r"\d\D*\b(?:and|et|und)\b\D{8,}\d")  # a pen costs 2 and a book costs 5
_ANY_ORDER = re.compile(r"根|解|零点|\b(?:roots?|solutions?|zeros?|zeroes)\b")
_ASIDE_END = re.compile(r"\s*\([^()]*\d[^()]*\)\Z")  # "Shop P ($84)"
_TRUTHS = ("yes", "no", "true", "false")
Outcome = bool | str | None  # a text says why it cannot be decided; None tells nothing
Clock = tuple[tuple[int, int, int], bool]


def verdict_of(
    reference: Gold, answer_text: str, kind: str | None, settings: Mapping[str, Any]
) -> Verdict:
    """The verdict on a response; `settings` are those of `Matcher`. Raises CostError."""
    if extract.gives_up(answer_text) and not extract.gives_up(reference.text):
        return verdict.wrong("no answer", "the response gives up or asks back")
    spans = Candidates(answer_text)
    if kind in (None, "choice") and (option := wording.lettered(reference.text)) is not None:
        said = _by_letter(option[0], spans)
        if isinstance(said, Verdict):
            return said
        return verdict_of(gold.read_gold(option[1], None), said or answer_text, None, settings)
    judged = None
    if (sign := wording.SIGN.fullmatch(reference.text.strip(" $(["))) is not None:
        said = next((s.text for s in spans if s.rule in ("boxed", "label")), None)
        given = wording.SIGN.search(said or extract.last_sentence(answer_text))
        if given is not None:
            return _verdict(given.lastgroup == sign.lastgroup, f"sign: {given[0]}")
    if kind is None:
        judged = _by_notation(reference, spans) or _by_proposition(reference, spans, settings)
    if judged is None and kind is None and reference.amounts:
        judged = _by_amounts(reference, spans, settings)
    if judged is None and reference.kind in ("choice", "text", "date"):
        judged = _by_words(reference, spans)
        if judged is None and not reference.readings:
            return verdict.wrong("value", f"not {reference.text!r} in words")
    if judged is None and reference.readings:
        judged = _by_value(reference, spans, settings)
    return judged or _as_text(reference, spans)


def _verdict(outcome: Outcome, evidence: str) -> Verdict:
    if outcome is None or isinstance(outcome, str):
        return verdict.ungradable("undecided", f"{evidence}; {outcome}" if outcome else evidence)
    return verdict.correct(evidence) if outcome else verdict.wrong("value", evidence)


def _by_letter(letter: str, spans: Candidates) -> Verdict | str:
    """A verdict on a letter alone, for the gold "(C) 12"; else the text beside C, if any."""
    for span in spans:
        other = wording.lettered(span.text)
        chosen = wording.choice(span.text) if other is None else other[0]
        if chosen is not None:
            if chosen == letter and other is not None:
                return other[1]
            return _verdict(chosen == letter, f"letter ({span.rule}): {span.text}")
    return ""


def _by_notation(reference: Gold, spans: Candidates) -> Verdict | None:
    """Verdict on formulas of logic, groups, formulas of chemistry and times of day."""
    text = reference.text
    ways: list[tuple[str, Any, Callable[[str], Any], Callable[[Any, Any], Outcome]]] = [
        ("truth table", notations.read_formula(text, is_gold=True),
         notations.read_formula, notations.equivalent),
        ("notation", notations.read_group(text) if notations.may_be_group(text) else None,
         notations.read_group, operator.eq),
        ("notation", notations.read_chemical(text), notations.read_chemical, _same_chemical),
        ("notation", wording.clock(text) if reference.kind == "ratio" else None,
         lambda said: wording.clock(said) if _HALF_OF_DAY.search(said) else None, _same_time),
    ]  # fmt: skip
    for how, wanted, read, compare in ways:
        for span in spans if wanted is not None else ():
            given = read(span.text)
            if given is not None and (outcome := compare(wanted, given)) is not None:
                return _verdict(outcome, f"{how} ({span.rule}): {span.text}")
    return None


def _same_chemical(wanted: Chemical, given: Chemical) -> Outcome:
    same = notations.same_chemical(wanted, given)
    is_told = same or (wanted.is_sure and given.is_sure)
    return ("" if same is None else same) if is_told else None


def _by_proposition(
    reference: Gold, spans: Candidates, settings: Mapping[str, Any]
) -> Verdict | None:
    wanted = notations.read_proposition(reference.text)
    if wanted is None:
        return None
    for text in (*(span.text for span in spans), extract.last_sentence(spans.text)):
        if (given := notations.read_proposition(text)) is not None:
            body = with_names(given.body, {given.name: wanted.name})
            same = wanted.quantifier == given.quantifier and equation(
                Matcher(**settings), wanted.body, body
            )
            return _verdict(same, f"proposition: {text}")
    return None


def _by_amounts(reference: Gold, spans: Candidates, settings: Mapping[str, Any]) -> Verdict | None:
    """Verdict on amounts that have names, in any order; None where one of them is not named."""
    texts = [span.text for span in spans if span.rule in ("boxed", "label", "phrase", "whole")]
    for text in (*texts, extract.last_clause(spans.text), extract.last_sentence(spans.text)):
        found = notations.paired(reference.amounts, notations.read_amounts(text))
        if found is not None:
            outcomes = [Matcher(**settings).match(wanted, given) for wanted, given in found]
            return _verdict(ladder.all_of(outcomes), f"amounts: {text}")
    return None


def _by_words(reference: Gold, candidates: Candidates) -> Verdict | None:
    """Verdict on golds that are words; None where a reading as maths may still match."""
    wanted = wording.normal(reference.text)
    numerals_ = wording.statements(reference.text) if len(reference.text.split()) > 1 else None
    letters, is_truth = wording.choices(reference.text), wanted in _TRUTHS or not wanted.isascii()
    truth = wording.yes_or_no(reference.text) if is_truth else None
    synonyms, divisor = wording.SYNONYMS.get(wanted, {wanted}), wording.multiples(reference.text)
    spans = list(candidates)
    if not spans or divisor is not None or spans[0].rule in ("stated", "formula", "number"):
        spans.insert(0, Span(extract.last_sentence(candidates.text), "sentence"))
    for span in spans:
        given = wording.normal(span.text)
        evidence = f"words ({span.rule}): {span.text}"
        outcome: Outcome = None
        if given == wanted and given:
            differ = _differ_in_case(wording.bare(reference.text), wording.bare(span.text))
            outcome = "symbols differ by case" if differ else True
        elif letters is not None and (chosen := wording.choices(span.text)) is not None:
            outcome = chosen == letters
        elif numerals_ is not None and (stated := wording.statements(span.text)) is not None:
            outcome = stated == numerals_
        elif reference.kind == "choice":
            letter = wording.choice(span.text)
            if letter is None and span.rule == "whole":
                letter = wording.chosen(extract.last_sentence(candidates.text))
            outcome = _same(wanted, letter and letter.casefold())
        elif reference.kind == "date":
            outcome = None if span.rule == "number" else _same_date(reference.text, span.text)
        elif divisor is not None and (other := wording.multiples(span.text)) is not None:
            outcome = other == divisor
        elif truth is not None:
            outcome = _same(truth, wording.yes_or_no(span.text))
        elif (
            wording.parts(given) == wording.parts(wanted)
            or _ASIDE_END.sub("", given) == wanted
            or given in synonyms
            or (span.rule != "boxed" and any(wording.concludes(given, other) for other in synonyms))
        ):
            outcome = True
        if outcome is not None:
            return _verdict(outcome, evidence)
    is_marked = spans[0].rule in ("boxed", "letter", "label", "phrase")
    if is_marked and reference.kind != "date":
        return None
    clause = spans[0].text if is_marked else extract.last_clause(candidates.text)
    if reference.kind == "choice" and letters is not None:
        outcome = _same(letters, wording.choices(wording.CONCLUDES_ONLY.split(clause)[-1]))
    elif reference.kind == "choice":
        letter = wording.mentioned(clause)
        outcome = _same(wanted, letter and letter.casefold())
    elif reference.kind == "date":
        outcome = _same_date(reference.text, wording.last_mention(clause))
    elif truth is not None:
        concluded = wording.conclusion(clause)
        paragraph = extract.statement(candidates.text).rpartition("\n\n")[2]
        answer = wording.yes_or_no(concluded) if len(concluded.split()) < 3 else None
        outcome = _same(truth, answer or wording.opened(paragraph) or wording.opened(concluded))
    else:
        is_told = any(wording.is_told(other, clause) for other in synonyms)
        outcome = is_told or wording.is_said_of(wording.bare(reference.text), clause) or None
    return None if outcome is None else _verdict(outcome, f"words (clause): {clause}")


def _same(wanted: Any, given: Any) -> bool | None:
    return None if given is None else given == wanted


def _differ_in_case(wanted: str, given: str) -> bool:
    """True if two rows of letters are symbols, V and v or CO and Co, and no words or options."""
    is_option = wording.choices(wanted) is not None or _OPTION_OR_NUMERAL.fullmatch(wanted)
    if wanted == given or is_option or not (wanted.isalpha() and given.isalpha()):
        return False
    are_symbols = None not in map(words.letters_of, (wanted, given))
    return wanted.casefold() == given.casefold() and are_symbols


def _same_date(wanted_text: str, given_text: str) -> Outcome:
    if (time_of_day := wording.clock(wanted_text)) is not None:
        return _same_time(time_of_day, wording.clock(given_text))
    wanted, given = wording.date(wanted_text), wording.date(given_text)
    if given is None or wanted is None:
        return None
    if wanted[1:] != given[1:] or (None not in (wanted[0], given[0]) and wanted[0] != given[0]):
        return False
    return "the year is missing" if wanted[0] is not None and given[0] is None else True


def _same_time(wanted: Clock, given: Clock | None) -> Outcome:
    if given is None:
        return None
    if wanted[0] == given[0] and (given[1] or not wanted[1]):
        return True
    may_be = wanted[0][1:] == given[0][1:] and wanted[0][0] % 12 == given[0][0] % 12
    return "morning or evening is missing" if may_be and not given[1] else False


def _by_value(reference: Gold, spans: Candidates, settings: Mapping[str, Any]) -> Verdict:
    unread: ParseError | None = None
    looked_like_maths, last = False, None  # of a list, all the boxes may hold one item each
    wanted = reference.readings[0]
    is_whole = wanted.head == "number" and isinstance(wanted.args[0], int)
    for count, span in enumerate(spans):
        is_list = reference.kind in ("list", "set") or (
            span.rule in ("count", "pair") and reference.kind == "tuple"
        )
        if span.rule == ("count" if is_list else "pair"):
            continue
        if span.rule == "letter" and wanted.head != "symbol":
            continue  # that of an option, whose value is asked for
        text = span.text
        digits = _HEXADECIMAL.sub(r"\1", text) if "_{16}" in text else text
        if " ".join(digits.split()) == " ".join(reference.text.split()):
            return verdict.correct(f"exact ({span.rule}): {span.text}")
        if reference.kind == "list" and "\\text" in text:
            text = wording.CONDITION.sub(", ", text)
        try:
            roman = numerals.roman(span.text) if is_whole else None  # XIV alone
            answers = readings.of(text if roman is None else str(roman))
        except ParseError as error:
            unread = unread or error
            is_first = count == 0 and span.rule != "whole"
            looked_like_maths |= is_first and not _MATHS.isdisjoint(span.text)
            if span.rule == "boxed":
                break
            continue
        if reference.kind == "choice" and all(node.head == "labelled" for node in answers):
            return verdict.wrong("value", f"a word begins with the letter: {span.text}")
        in_order = reference.kind == "list" and _is_in_order(reference, span, spans.text)
        judged = _match(reference, answers, span, settings, in_order)
        if span.rule == "boxed" and reference.kind in ("list", "set"):
            last = judged
        if judged.is_correct or span.rule != "boxed" or last is None:
            return last if last is not None and not judged.is_correct else judged
    if last is not None:
        return last
    if unread is None:
        return verdict.wrong("no answer", "the response states none")
    if looked_like_maths:
        return verdict.ungradable("unparsed", str(unread))
    return verdict.wrong("type", f"no maths where {reference.kind} belongs: {unread}")


def _as_text(reference: Gold, spans: Candidates) -> Verdict:
    """A gold that the parser does not know: only the same text answers it."""
    text, wanted = "".join(reference.text.split()), wording.normal(reference.text)
    for span in spans:
        if "".join(span.text.split()) == text or (wanted and wording.normal(span.text) == wanted):
            return verdict.correct(f"exact ({span.rule}): {span.text}")
    return verdict.ungradable("gold", f"the gold is not understood: {reference.problem}")


def _match(
    reference: Gold,
    answers: tuple[Node, ...],
    span: Span,
    settings: Mapping[str, Any],
    in_order: bool,
) -> Verdict:
    def evidence(matcher: Matcher, given: Node, wanted: Node) -> str:
        return f"{matcher.rung} ({span.rule}): {render(given)} for {render(wanted)}"

    outcomes: list[tuple[bool | None, Matcher, Node]] = []
    for wanted in reference.readings:
        for given in answers:
            if in_order and wanted.head == "list" and given.head in BARE_LISTS:
                wanted, given = (Node("tuple", node.args) for node in (wanted, given))
            matcher = Matcher(**settings)
            outcome = matcher.match(wanted, given)
            if outcome and _may_be_set(wanted, reference.text, given, span.text):
                outcome, matcher.note = None, "braces may hold a set, and the other is in order"
            if outcome:
                return verdict.correct(evidence(matcher, given, wanted))
            outcomes.append((outcome, matcher, given))
    outcome, matcher, given = next((o for o in outcomes if o[0] is None), outcomes[0])
    told = evidence(matcher, given, reference.readings[0])
    told += f"; {matcher.note}" if matcher.note else ""
    return _verdict(outcome, told)


def _is_in_order(reference: Gold, span: Span, text: str) -> bool:
    """True if several blanks are filled: "the values are 5 and -3, respectively"."""
    if reference.readings[0].head != "list" or "chain" in reference.readings[0].heads:
        return False
    if ";" in reference.text and ";" in span.text:
        return True
    sentence = text.rstrip().rpartition("\n")[2][-150:]
    has_subjects = not sentence.isascii() or _OF_ANOTHER.search(sentence) is not None
    if span.rule == "pair" and has_subjects:
        return True
    return bool(_IN_ORDER.search(sentence)) and not _ANY_ORDER.search(sentence)


def _may_be_set(wanted: Node, wanted_text: str, given: Node, given_text: str) -> bool:
    """True if one is a point and the other a list in plain braces, which LaTeX would not show."""
    if {wanted.head, given.head} != {"tuple", "list"}:
        return False
    items, text = (given, given_text) if given.head == "list" else (wanted, wanted_text)
    is_named = all(item.head == "chain" for item in items.args)  # {x: 1, y: 2}
    return not is_named and _IN_BRACES.fullmatch(text) is not None
