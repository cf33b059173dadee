"""Responses that give up, ask back or break off, whose numbers are those of the question.

Only the writer's own words refuse. What is said of the problem ("cannot be determined") is an
answer, and so is what is stated after a refusal ("I could not see it, but then x = 12").
"""

import re

from loong_jax.data import response
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.extract import closing, prose, statements
from loong_jax.verifiers.maths.reading import number_words
from loong_jax.verifiers.maths.wording import phrases

MAX_CHARS = 6000  # from the end
_PATTERNS = names.patterns("refusals")
_CLAUSES = re.compile(_PATTERNS["CLAUSES"])
_REFUSES = re.compile(_PATTERNS["REFUSES"])
_MAY_REFUSE = re.compile(_PATTERNS["MAY_REFUSE"])
_ASKS = re.compile(_PATTERNS["ASKS"])
_ANNOUNCES = re.compile(_PATTERNS["ANNOUNCES"])
_TAKEN_BACK = re.compile(_PATTERNS["TAKEN_BACK"])
_UNDECIDED = re.compile(_PATTERNS["UNDECIDED"])
_HEDGED = re.compile(_PATTERNS["HEDGED"])
_BROKEN = re.compile(_PATTERNS["BROKEN"])
_SUPPOSES = re.compile(r"\b(?:perhaps|maybe|suppose|assume|excluded|ruled out)\b", re.IGNORECASE)
_MATHS = re.compile(_PATTERNS["MATHS"])
_CONCLUDES = re.compile(_PATTERNS["CONCLUDES"])
_STATES = re.compile(r"=|\b(?:is|are)\b", re.IGNORECASE)
_NOTHING = re.compile(_PATTERNS["NOTHING"])
_GIVEN = re.compile(r"\bthere (?:is|are)\b|\b(?:given|too|tried|trying|hard|if)\b", re.IGNORECASE)
_PROMISES = re.compile(r"\bI(?:'ll|'d| will| can| could| would)\b(?! (?:say|guess|answer)\b)")
_MAY_GIVE_UP = re.compile(_PATTERNS["MAY_GIVE_UP"])
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{3,}")


def gives_up(text: str) -> bool:
    """Whether it refuses, asks back, takes back or announces more, and states no answer."""
    if response.boxes(text):
        return False
    body = statements.statement(text)[-MAX_CHARS:]
    if not _MAY_GIVE_UP.search(body) and not _BROKEN.search(body[-80:].rstrip("* \n")):
        return False
    body = body.replace("\u2019", "'").replace("**", "")
    body = "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())
    if _HEDGED.search(prose.last_sentence(body)):
        return True
    if _TAKEN_BACK.search(body[-80:]) or _UNDECIDED.search(body):
        return True
    if _BROKEN.search(body[-80:]) and not any(
        _MATHS.search(span.text) for span in closing.spans(body)
    ):
        return True
    clauses = [clause for clause in _CLAUSES.split(body) if clause.strip()]
    refusing: list[int] = []
    if _MAY_REFUSE.search(body) is not None:
        refusing = [i for i, clause in enumerate(clauses) if _REFUSES.match(clause[:400])]
    asking = [i for i, clause in enumerate(clauses) if _ASKS.search(clause[:400])]
    announced = _ANNOUNCES.search(clauses[-1]) if clauses else None
    breaks_off = announced is not None and number_words.in_digits(announced[0]) == announced[0]
    if not refusing and not asking and not breaks_off:
        return False
    others = [c for i, c in enumerate(clauses) if i not in refusing and i not in asking]
    if any(_MATHS.search(span.text) for span in closing.spans(" ".join(others))):
        return False
    if phrases.is_nothing(prose.last_sentence(body)):
        return False
    last = max(refusing, default=-1)
    if refusing and not any(map(_settles, clauses[last + 1 :])):
        return True
    if breaks_off and others and (announced := _ANNOUNCES.search(others[-1])):
        before = others.pop()[: announced.start()]
        if _MATHS.search(before) and ("=" in before or _CONCLUDES.search(before)):
            return False
    return not refusing and not any(map(_settles, others))


def _settles(clause: str) -> bool:
    """Whether a clause states something: "so x = 12", "the sum is 5", a formula alone."""
    clause = clause.strip()
    if _NOTHING.search(clause) and not _REFUSES.match(clause[:400]):
        return True
    if clause.endswith("?") or not _MATHS.search(clause) or _REFUSES.match(clause[:400]):
        return False
    if any(rule.search(clause) for rule in (_ASKS, _PROMISES, _SUPPOSES)):
        return False
    if not _WORDS.search(clause):
        return any(character.isdigit() or character in "\\$=" for character in clause)
    if phrases.yes_or_no(clause) is not None or _CONCLUDES.search(clause):
        return True
    return _STATES.search(clause) is not None and not _GIVEN.search(clause)
