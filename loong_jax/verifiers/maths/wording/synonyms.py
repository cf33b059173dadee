"""Words of mathematics that mean the same, and sentences that begin with the name asked for."""

import re

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.wording import phrases

_SYNONYMS = {
    phrases.normal(word): frozenset(map(phrases.normal, group.split("|")))
    for group in names.TABLES["synonyms"]
    for word in group.split("|")
}
_NAMED = re.compile(  # of Emma: "has the largest share", "is the tallest of all", "won the race"
    r"(?:(?:is|was|has|had|gets|got|have|owns|scored|received|receives|needs|ran|sold|bought|ate)"
    r" the (?:most|least|fewest|[a-z]{2,9}est|winner|best|worst)|won|wins)"
    r"(?: (?!not\b|but\b|except|after\b|than\b|apart\b|no\b|if\b|unless\b|or\b|nor\b)[a-z]+){0,6}"
)
_NAME = re.compile(r"[A-Z][a-z]{1,14}")


def of(wanted: str) -> frozenset[str]:
    """Normal forms that say the same as one, itself among them."""
    return _SYNONYMS.get(wanted, frozenset((wanted,)))


def is_said_of(name: str, sentence: str) -> bool:
    """Whether a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    subject, _, rest = sentence.strip(" .!*").partition(" ")
    return (
        _NAME.fullmatch(name) is not None
        and subject.strip("*") == name
        and _NAMED.fullmatch(rest) is not None
    )
