"""Partial groups: responses that are being written, kept outside the replica that writes them.

When a replica dies, its tickets go to another of their version together with their partials: ended
responses are used as they are, and unfinished ones are read again, prompt and partial, and go on.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from loong_jax.rollout.records import Rollout


class PartialRollout(NamedTuple):
    """An unfinished response: int32 tokens and float32 log-probabilities, [tokens so far]."""

    tokens: np.ndarray
    log_probs: np.ndarray
    started_s: float


class PartialGroup(NamedTuple):
    """The responses of one ticket by attempt, all written under `version`."""

    version: int
    ended: dict[int, Rollout]
    unfinished: dict[int, PartialRollout]

    @property
    def num_tokens(self) -> int:
        """Of unfinished responses, prompts apart."""
        return sum(len(unfinished.tokens) for unfinished in self.unfinished.values())


class PartialReport(NamedTuple):
    """What one attempt wrote since the last report: tokens from position `start` of the response
    on, which replace what was reported of that position and later.
    """

    ticket: int
    version: int
    attempt: int
    start: int
    new: PartialRollout


class PartialGroups:
    """Partial groups by ticket number. May be used from any thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._partials: dict[int, PartialGroup] = {}

    def keep(self, partials: Mapping[int, PartialGroup]) -> None:
        """Whole partials; each replaces what was known of its ticket."""
        with self._lock:
            self._partials.update(partials)

    def add(self, report: PartialReport | Rollout) -> None:
        """A part of a response, or one that has ended."""
        with self._lock:
            if isinstance(report, Rollout):
                partial = self._of(report.ticket, report.version)
                partial.unfinished.pop(report.attempt, None)
                partial.ended[report.attempt] = report
                return
            unfinished = self._of(report.ticket, report.version).unfinished
            known = unfinished.get(report.attempt)
            if report.start and (known is None or len(known.tokens) < report.start):
                return  # what lies between was lost: the partial stays as long as it is
            if report.start and known is not None:
                tokens, log_probs = (
                    np.concatenate([old[: report.start], new])
                    for old, new in zip(known[:2], report.new[:2], strict=True)
                )
                unfinished[report.attempt] = PartialRollout(tokens, log_probs, known.started_s)
            else:
                unfinished[report.attempt] = report.new

    def take(self, numbers: Iterable[int], version: int) -> dict[int, PartialGroup]:
        """Those of these tickets under `version`, by number; all of them are forgotten."""
        with self._lock:
            taken = {number: self._partials.pop(number, None) for number in numbers}
        return {
            n: partial for n, partial in taken.items() if partial and partial.version == version
        }

    def known(self, numbers: Iterable[int], version: int) -> dict[int, PartialGroup]:
        """As `take`, and nothing is forgotten."""
        with self._lock:
            found = {number: self._partials.get(number) for number in numbers}
        return {
            n: partial for n, partial in found.items() if partial and partial.version == version
        }

    def forget(self, numbers: Iterable[int]) -> None:
        self.take(numbers, -1)

    def forget_version(self, version: int) -> None:
        """Nobody goes on with what was written under a version that is gone."""
        with self._lock:
            for number in [
                n for n, partial in self._partials.items() if partial.version == version
            ]:
                del self._partials[number]

    def __len__(self) -> int:
        return len(self._partials)

    def _of(self, ticket: int, version: int) -> PartialGroup:
        partial = self._partials.get(ticket)
        if partial is None or partial.version != version:
            partial = self._partials[ticket] = PartialGroup(version, {}, {})
        return partial
