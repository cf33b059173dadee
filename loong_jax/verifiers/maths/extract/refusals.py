"""Responses that give up, ask back or break off, whose numbers are those of the question.

Only the writer's own words refuse. What is said of the problem ("cannot be determined") is an
answer, and so is what is stated after a refusal ("I could not see it, but then x = 12").
"""

import re

from loong_jax.data import response
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.extract import closing, prose, statements
from loong_jax.verifiers.maths.reading import numerals
from loong_jax.verifiers.maths.wording import phrases

MAX_CHARS = 6000  # from the end
_SAID = names.patterns("refusals")
_SUPPOSES = re.compile(r"\b(?:perhaps|maybe|suppose|assume|excluded|ruled out)\b", re.IGNORECASE)
_STATES = re.compile(r"=|\b(?:is|are)\b", re.IGNORECASE)
_GIVEN = re.compile(r"\bthere (?:is|are)\b|\b(?:given|too|tried|trying|hard|if)\b", re.IGNORECASE)
_PROMISES = re.compile(r"\bI(?:'ll|'d| will| can| could| would)\b(?! (?:say|guess|answer)\b)")
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{3,}")


def gives_up(text: str) -> bool:
    """Whether it refuses, asks back, takes back or announces more, and states no answer."""
    if response.boxes(text):
        return False
    body = statements.statement(text)[-MAX_CHARS:]
    if not _SAID.MAY_GIVE_UP.search(body) and not _SAID.BROKEN.search(body[-80:].rstrip("* \n")):
        return False
    body = body.replace("\u2019", "'").replace("**", "")
    body = "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())
    if _SAID.HEDGED.search(prose.last_sentence(body)):
        return True
    if _SAID.TAKEN_BACK.search(body[-80:]) or _SAID.UNDECIDED.search(body):
        return True
    if _SAID.BROKEN.search(body[-80:]) and not any(
        _SAID.MATHS.search(span.text) for span in closing.spans(body)
    ):
        return True
    clauses = [clause for clause in _SAID.CLAUSES.split(body) if clause.strip()]
    refusing: list[int] = []
    if _SAID.MAY_REFUSE.search(body) is not None:
        refusing = [i for i, clause in enumerate(clauses) if _SAID.REFUSES.match(clause[:400])]
    asking = [i for i, clause in enumerate(clauses) if _SAID.ASKS.search(clause[:400])]
    announced = _SAID.ANNOUNCES.search(clauses[-1]) if clauses else None
    breaks_off = announced is not None and numerals.in_digits(announced[0]) == announced[0]
    if not refusing and not asking and not breaks_off:
        return False
    others = [c for i, c in enumerate(clauses) if i not in refusing and i not in asking]
    if any(_SAID.MATHS.search(span.text) for span in closing.spans(" ".join(others))):
        return False
    if phrases.is_nothing(prose.last_sentence(body)):
        return False
    last = max(refusing, default=-1)
    if refusing and not any(map(_settles, clauses[last + 1 :])):
        return True
    if breaks_off and others and (announced := _SAID.ANNOUNCES.search(others[-1])):
        before = others.pop()[: announced.start()]
        if _SAID.MATHS.search(before) and ("=" in before or _SAID.CONCLUDES.search(before)):
            return False
    return not refusing and not any(map(_settles, others))


def _settles(clause: str) -> bool:
    """Whether a clause states something: "so x = 12", "the sum is 5", a formula alone."""
    clause = clause.strip()
    if _SAID.NOTHING.search(clause) and not _SAID.REFUSES.match(clause[:400]):
        return True
    if clause.endswith("?") or not _SAID.MATHS.search(clause) or _SAID.REFUSES.match(clause[:400]):
        return False
    if any(rule.search(clause) for rule in (_SAID.ASKS, _PROMISES, _SUPPOSES)):
        return False
    if not _WORDS.search(clause):
        return any(character.isdigit() or character in "\\$=" for character in clause)
    if phrases.yes_or_no(clause) is not None or _SAID.CONCLUDES.search(clause):
        return True
    return _STATES.search(clause) is not None and not _GIVEN.search(clause)
