"""Exceptions of verifiers: ungradable verdicts, told of once per kind, and counted."""

import collections
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.errors import LoongError, raised, shown
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers import verdict

REASON = "verifier raised"
REASONS = (REASON, "module")  # the latter where an environment's own function did
_MAX_CHARS = 500
REMEDY = (
    "Correct it there: whatever the answer, `verify` returns verdict.correct(), verdict.wrong(...) "
    "or verdict.ungradable(...), and `reward` of an environment True or False."
)


class Kind(NamedTuple):
    """Exceptions of one type from one line, or what is returned and is no verdict."""

    first: str  # FILE.py:CLASS, line N, raised TYPE: text
    count: int


def verdict_on(error: BaseException, place: str) -> Verdict:
    """The verdict on an answer where `place` raised: FILE.py:CLASS, or the name of one of ours."""
    file = str(Path(place.rpartition(":")[0]).resolve())
    text = str(error) if isinstance(error, LoongError) else f"{place}{raised(error, file)}"
    return verdict.ungradable(REASON, text[:_MAX_CHARS])


def as_verdict(judged: Any, place: str) -> Verdict:
    """The verdict that `verify` of `place` returned; ungradable where it returned none."""
    if isinstance(judged, Verdict):
        return judged
    text = f"{place}: `verify` returned {shown(judged)}, which is no Verdict"
    return verdict.ungradable(REASON, text[:_MAX_CHARS])


def kinds(verdicts: Iterable[Verdict]) -> list[Kind]:
    """The kinds among verdicts, in the order in which they came first."""
    found: dict[str, list[str]] = {}
    for judged in verdicts:
        if judged.reason in REASONS:
            found.setdefault(_kind(judged.evidence), []).append(judged.evidence)
    return [Kind(texts[0], len(texts)) for texts in found.values()]


class RaisedWatch:
    """Warns of every kind when it comes first, and again whenever its count has grown tenfold."""

    def __init__(self, warn: Callable[[str], None]):
        self._warn, self._num_judged = warn, 0
        self._counts, self._told = collections.Counter[str](), collections.Counter[str]()
        self._first = dict[str, str]()

    def seen(self, verdicts: Iterable[Verdict]) -> None:
        verdicts = list(verdicts)
        self._num_judged += len(verdicts)
        for first, count in kinds(verdicts):
            kind = _kind(first)
            self._counts[kind] += count
            self._first.setdefault(kind, first)
            if self._counts[kind] >= max(1, 10 * self._told[kind]):
                self._told[kind] = self._counts[kind]
                self._tell(kind, "So far")

    def ended(self) -> None:
        """Warns of every kind once more, with its count at the end."""
        for kind in self._counts:
            self._tell(kind, "In all")

    def _tell(self, kind: str, when: str) -> None:
        self._warn(
            f"{self._first[kind]}. {when} {self._counts[kind]} of {self._num_judged} answers could "
            f"not be judged, and count for nothing. {REMEDY}"
        )


def _kind(evidence: str) -> str:
    found = re.match(r".*?( raised:? \w+|: `verify` returned )", evidence)
    return found[0] if found else evidence
