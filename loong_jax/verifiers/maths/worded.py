"""Verdicts on golds that are no numbers: words, letters of options, dates, formulas of logic."""

import re

from loong_jax.verifiers import verdict
from loong_jax.verifiers.maths import extract
from loong_jax.verifiers.maths.gold import Gold
from loong_jax.verifiers.maths.reading import words
from loong_jax.verifiers.maths.wording import chemistry, choices, dates, formulas, groups, phrases
from loong_jax.verifiers.verdict import Verdict

_OPTION_OR_NUMERAL = re.compile("[A-J]|[IVXivx]+")
_HALF_OF_DAY = re.compile(r"[ap]\.?\s?m\b", re.IGNORECASE)
MAX_CANDIDATES = 4  # spans of a response that are looked at
Clock = tuple[tuple[int, int, int], bool]


def by_letter(letter: str, text: str, answer_text: str) -> Verdict | str:
    """For the gold "(C) 12": a verdict on a letter alone, else the text that is to answer 12."""
    for span in list(extract.spans(answer_text))[:MAX_CANDIDATES]:
        evidence = f"letter ({span.rule}): {span.text}"
        other = choices.lettered(span.text)
        chosen = choices.choice(span.text) if other is None else other[0]
        if chosen is not None:
            if chosen != letter:
                return verdict.wrong("value", evidence)
            return verdict.correct(evidence) if other is None else other[1]
    return answer_text


def by_truth(formula: formulas.Formula, answer_text: str) -> Verdict | None:
    """Verdict on a formula of logic by its truth table; None where the answer is none."""
    for span in list(extract.spans(answer_text))[:MAX_CANDIDATES]:
        given = formulas.read(span.text)
        same = None if given is None else formulas.equivalent(formula, given)
        if same is not None:
            evidence = f"truth table ({span.rule}): {span.text}"
            return verdict.correct(evidence) if same else verdict.wrong("value", evidence)
    return None


def by_notation(reference: Gold, answer_text: str) -> Verdict | None:
    """Verdict on groups, formulas of chemistry and times of day; None where the gold is no such."""
    text = reference.text
    group = groups.read(text) if groups.is_named(text) else None
    chemical = chemistry.read(text) if group is None else None
    time_of_day = dates.clock(text) if reference.kind == "ratio" else None
    if group is None and chemical is None and time_of_day is None:
        return None
    for span in list(extract.spans(answer_text))[:MAX_CANDIDATES]:
        evidence = f"notation ({span.rule}): {span.text}"
        if group is not None and (other := groups.read(span.text)) is not None:
            return _verdict(group == other, evidence)
        if chemical is not None and (given := chemistry.read(span.text)) is not None:
            same = chemistry.equal(chemical, given)
            if same or (chemical.is_sure and given.is_sure):
                return _verdict(same, evidence)
        if time_of_day is not None and _HALF_OF_DAY.search(span.text):
            said = _by_clock(time_of_day, dates.clock(span.text), evidence)
            if said is not None:
                return said
    return None


def _verdict(same: bool | None, evidence: str) -> Verdict:
    if same is None:
        return verdict.ungradable("undecided", evidence)
    return verdict.correct(evidence) if same else verdict.wrong("value", evidence)


def by_words(reference: Gold, answer_text: str) -> Verdict | None:
    """Verdict on golds that are words; None where a reading as maths may still match."""
    wanted = phrases.normal(reference.text)
    numerals = choices.statements(reference.text) if len(reference.text.split()) > 1 else None
    spans = list(extract.spans(answer_text))[:MAX_CANDIDATES]
    if not spans or spans[0].rule in ("stated", "formula", "number"):
        spans.insert(0, extract.Span(extract.last_sentence(answer_text), "sentence"))
    for span in spans:
        given = phrases.normal(span.text)
        evidence = f"words ({span.rule}): {span.text}"
        if given == wanted:
            if _differ_in_case(phrases.bare(reference.text), phrases.bare(span.text)):
                return verdict.ungradable("undecided", f"{evidence}; symbols differ by case")
            return verdict.correct(evidence)
        if (letters := choices.choices(reference.text)) is not None:
            chosen = choices.choices(span.text)
            if chosen is not None:
                same = chosen == letters
                return verdict.correct(evidence) if same else verdict.wrong("value", evidence)
        if numerals is not None:
            stated = choices.statements(span.text)
            if stated is not None:
                return _verdict(stated == numerals, evidence)
        if reference.kind == "choice":
            letter = choices.choice(span.text)
            if letter is None and span.rule == "whole":
                letter = choices.chosen(extract.last_sentence(answer_text))
            if letter is not None:
                same = letter.casefold() == wanted
                return verdict.correct(evidence) if same else verdict.wrong("value", evidence)
            continue
        if reference.kind == "date":
            if span.rule != "number" and (said := _by_date(reference, span, evidence)) is not None:
                return said
            continue
        answer = phrases.yes_or_no(span.text)
        if phrases.yes_or_no(reference.text) is not None and wanted in (
            "yes",
            "no",
            "true",
            "false",
        ):
            if answer is not None:
                same = answer == phrases.yes_or_no(reference.text)
                return verdict.correct(evidence) if same else verdict.wrong("value", evidence)
            continue
        if phrases.parts(given) == phrases.parts(wanted) or given in phrases.synonyms_of(wanted):
            return verdict.correct(evidence)
        if span.rule == "boxed":
            continue
        if any(phrases.concludes(given, other) for other in phrases.synonyms_of(wanted)):
            return verdict.correct(evidence)
    is_marked = spans[0].rule in ("boxed", "letter", "label", "phrase")
    clause = spans[0].text if is_marked else extract.last_clause(answer_text)
    if is_marked and reference.kind != "date":
        return None
    evidence = f"words (clause): {clause}"
    if reference.kind == "choice":
        letter = choices.mentioned(clause)
        return None if letter is None else _verdict(letter.casefold() == wanted, evidence)
    if reference.kind == "date":
        return _by_date(reference, extract.Span(dates.last_mention(clause), "clause"), evidence)
    if wanted in ("yes", "no", "true", "false"):
        concluded = phrases.conclusion(clause)
        answer = phrases.yes_or_no(concluded) if len(concluded.split()) < 3 else None
        same = answer == phrases.yes_or_no(reference.text)
        return None if answer is None else _verdict(same, evidence)
    if phrases.is_said_of(phrases.bare(reference.text), clause) or any(
        phrases.is_told(other, clause) for other in phrases.synonyms_of(wanted)
    ):
        return verdict.correct(evidence)
    return None


def _differ_in_case(wanted: str, given: str) -> bool:
    """Whether two rows of letters are symbols, V and v or CO and Co, and no words or options."""
    is_option = choices.choices(wanted) is not None or _OPTION_OR_NUMERAL.fullmatch(wanted)
    if wanted == given or is_option or not (wanted.isalpha() and given.isalpha()):
        return False
    return wanted.casefold() == given.casefold() and None not in map(
        words.letters_of, (wanted, given)
    )


def _by_date(reference: Gold, span: extract.Span, evidence: str) -> Verdict | None:
    time_of_day = dates.clock(reference.text)
    if time_of_day is not None:
        return _by_clock(time_of_day, dates.clock(span.text), evidence)
    wanted, given = dates.date(reference.text), dates.date(span.text)
    if given is None or wanted is None:
        return None
    same = wanted[1:] == given[1:] and (
        wanted[0] is None or given[0] is None or wanted[0] == given[0]
    )
    if same and wanted[0] is not None and given[0] is None:
        return verdict.ungradable("undecided", f"{evidence}; the year is missing")
    return verdict.correct(evidence) if same else verdict.wrong("value", evidence)


def _by_clock(wanted: Clock, given: Clock | None, evidence: str) -> Verdict | None:
    if given is None:
        return None
    if wanted[0] == given[0] and (given[1] or not wanted[1]):
        return verdict.correct(evidence)
    if wanted[0][1:] == given[0][1:] and wanted[0][0] % 12 == given[0][0] % 12 and not given[1]:
        return verdict.ungradable("undecided", f"{evidence}; morning or evening is missing")
    return verdict.wrong("value", evidence)
