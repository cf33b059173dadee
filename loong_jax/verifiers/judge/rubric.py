"""Rubrics: numbered criteria with weights, and the score of an answer by them."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loong_jax.errors import VerifierError

MAX_CRITERIA = 50
_LINE = re.compile(
    r"\s*(?:[-*]|\d{1,2}[.)])?\s*(?:\[(?P<weight>\d+(?:\.\d+)?)\])?\s*(?P<text>\S.*)"
)


class Criterion(NamedTuple):
    text: str
    weight: float


def read(text: str) -> tuple[Criterion, ...]:
    """One criterion a line: `- [2] names the theorem`; the weight in brackets is 1 if left out."""
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        weight = float(match["weight"] or 1)
        if not 0 < weight <= 1000:
            raise VerifierError(f"weight {match['weight']} of {line!r:.80} is not in (0, 1000].")
        found.append(Criterion(match["text"].strip(), weight))
    if not 0 < len(found) <= MAX_CRITERIA:
        raise VerifierError(
            f"the rubric has {len(found)} criteria, not 1 to {MAX_CRITERIA}. Write one a line."
        )
    return tuple(found)


class Sheet(NamedTuple):
    """Criteria as they are asked: shuffled, with two canaries among them."""

    criteria: tuple[Criterion, ...]
    texts: dict[str, str]  # by number
    places: tuple[str, ...]  # the number of each criterion
    known: dict[str, bool]  # canaries: whether they are met

    def failed_canary(self, met: Mapping[str, bool]) -> str | None:
        """A sentence on the first canary that the judge got wrong; None where all are right."""
        for number, is_met in self.known.items():
            if met[number] != is_met:
                return f"{self.texts[number]!r} is {'' if is_met else 'not '}met"
        return None

    def missed(self, met: Mapping[str, bool]) -> list[int]:
        """Criteria that are not met, counted from 1 as the rubric lists them."""
        return [n for n, place in enumerate(self.places, 1) if not met[place]]

    def value(self, met: Mapping[str, bool]) -> float:
        """Share of the weight that is met, in [0, 1]."""
        pairs = list(zip(self.criteria, self.places, strict=True))
        return sum(c.weight for c, place in pairs if met[place]) / sum(c.weight for c, _ in pairs)


def sheet(criteria: Sequence[Criterion], answer: str) -> Sheet:
    """The sheet for this answer: a pure function, so that its reply can be cached.

    One canary quotes a word of the answer, one a code that is not in it: a judge that calls
    everything met, or nothing, fails.
    """
    digest = hashlib.blake2b(answer.encode("utf-8", "replace"), digest_size=8).hexdigest()
    word = max(re.findall(r"\w{1,40}", answer)[:50], key=len, default=answer.strip()[:40])
    known = {
        f"The answer contains the text {word}": True,
        f"The answer contains the text {digest}": digest in answer,
    }
    texts = [criterion.text for criterion in criteria] + list(known)
    order = random.Random(digest).sample(range(len(texts)), len(texts))
    number_of = {index: str(number) for number, index in enumerate(order, 1)}
    return Sheet(
        criteria=tuple(criteria),
        texts={str(number): texts[index] for number, index in enumerate(order, 1)},
        places=tuple(number_of[index] for index in range(len(criteria))),
        known={number_of[len(criteria) + n]: is_met for n, is_met in enumerate(known.values())},
    )
