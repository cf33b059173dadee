"""Duplicate questions: equal texts, or nearly equal ones by word n-grams.

Exact and quadratic in the worst case, which serves some ten thousand questions; an index with the
same two methods, such as one by MinHash, can take its place.
"""

import re
from collections import Counter

N = 3  # words in a gram
SAME_NUMBERS_SHARE = 0.6  # Jaccard similarity from which equal numbers make a duplicate
ANY_NUMBERS_SHARE = 0.95
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+")


class Duplicates:
    """Questions by name. `find` names the nearest earlier one that is too near."""

    def __init__(self):
        self._exact: dict[tuple[str, ...], str] = {}
        self._grams: dict[str, frozenset[tuple[str, ...]]] = {}
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._holders: dict[tuple[str, ...], list[str]] = {}  # gram -> names

    def __len__(self) -> int:
        return len(self._grams)

    def add(self, name: str, question: str) -> None:
        words = words_of(question)
        self._exact.setdefault(tuple(words), name)
        self._grams[name] = grams(words)
        self._numbers[name] = _numbers(words)
        for gram in self._grams[name]:
            self._holders.setdefault(gram, []).append(name)

    def find(self, question: str) -> tuple[str, float] | None:
        """The earlier question that this one repeats, and their similarity; None for a new one."""
        words = words_of(question)
        if (name := self._exact.get(tuple(words))) is not None:
            return name, 1.0
        name, similarity = self.nearest(question)
        is_same = similarity >= ANY_NUMBERS_SHARE or (
            similarity >= SAME_NUMBERS_SHARE and self._numbers[name] == _numbers(words)
        )
        return (name, similarity) if is_same else None

    def nearest(self, question: str, besides: str = "") -> tuple[str, float]:
        """The most similar question, and the Jaccard similarity of their n-grams."""
        own = grams(words_of(question))
        shared: Counter[str] = Counter()
        for gram in own:
            shared.update(self._holders.get(gram, ()))
        scored = (
            (count / (len(own) + len(self._grams[name]) - count), name)
            for name, count in shared.items()
            if name != besides
        )
        similarity, name = max(scored, default=(0.0, ""))
        return name, similarity


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def grams(words: list[str]) -> frozenset[tuple[str, ...]]:
    """All runs of N words; the whole text where it is shorter."""
    if len(words) <= N:
        return frozenset({tuple(words)})
    return frozenset(tuple(words[n : n + N]) for n in range(len(words) - N + 1))


def shape(question: str) -> tuple[str, ...]:
    """The words of a question with every number as #: equal for questions of one template."""
    return tuple("#" if word[-1].isdigit() else word for word in words_of(question))


def _numbers(words: list[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in words if word[-1].isdigit()))
