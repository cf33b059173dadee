"""Decontamination: records that pose what a benchmark poses, whole, embedded or reworded a little.

A record is contaminated where it has the same words as an item, or where it holds at least
`min_share` of the item's runs of `ngram` words, or `long_run` words of it in a row. The measure is
one-sided on purpose: an item inside a long record is found, and a short record that shares a phrase
with a long item is not. Numbers may differ or not: they are words like others.

A run that n items have counts 1 / n, so that the frame of a template, which all its items have,
tells little, and one that more than `max_items` have is not looked up at all. A long run that four
items have is a frame.
The index is exact: no hash is sampled. LongCat-Flash-Thinking 2.1, 3.4.1, A.1.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loong_jax.data import corpus
from loong_jax.data.curation import duplicates
from loong_jax.data.curation.stages import Outcome, Record, prompt_of, text_of
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share

_FRAME_ITEMS = 4  # a long run that so many items have is the frame of a template


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
    """The share of an item that a contaminated record contains."""

    ngram: int = 3
    min_share: float = 0.5  # of the item's runs
    long_run: int = 13  # words in a row that are proof by themselves
    max_items: int = 50  # a run that more items have does not count

    def __post_init__(self):
        refuse_no_share(self, "min_share")
        refuse_below(self, 1, "ngram", "max_items")
        refuse_below(self, self.ngram, "long_run")


class Match(NamedTuple):
    """The item that a text matches best."""

    item: int
    kind: str  # exact, overlap, long run
    share: float  # of the item's runs that the text has


class Index:
    """The items of benchmarks, ready to be looked for in texts."""

    def __init__(self, items: Sequence[str], overlap: Overlap | None = None):
        self.overlap = overlap or Overlap()
        self.num_items = len(items)
        prints = duplicates.fingerprints(items) if len(items) else np.zeros(0, np.uint64)
        words = duplicates.words(items)
        self._has_words = words.counts > 0
        order = np.argsort(prints, kind="stable")
        order = order[self._has_words[order]]
        self._prints, self._print_items = prints[order], order
        self._grams, self._gram_items, self._weights, self._sizes = _inverted(
            duplicates.ngrams(words, self.overlap.ngram), self.overlap.max_items
        )
        is_long = words.counts >= self.overlap.long_run
        runs = duplicates.ngrams(words, self.overlap.long_run)
        grams, owners = runs.values, runs.owners
        grams, owners = grams[is_long[owners]], owners[is_long[owners]]
        self._runs, self._run_items, weights, _ = _inverted(
            duplicates.Ragged(grams, np.searchsorted(owners, np.arange(self.num_items + 1))),
            self.overlap.max_items,
        )
        rare = weights > 1 / _FRAME_ITEMS
        self._runs, self._run_items = self._runs[rare], self._run_items[rare]

    def matches(self, texts: Sequence[str]) -> dict[int, Match]:
        """The best match of each text that has one, by the text's place."""
        if not len(texts) or not self.num_items:
            return {}
        words = duplicates.words(texts)
        found = self._by_overlap(duplicates.ngrams(words, self.overlap.ngram))
        runs = duplicates.ngrams(words, self.overlap.long_run)
        at, items = _look_up(self._runs, self._run_items, runs.values)
        for text, item in zip(runs.owners[at].tolist(), items.tolist(), strict=True):
            found.setdefault(text, Match(item, "long run", 0.0))
        prints = duplicates.fingerprints(texts)
        at, items = _look_up(self._prints, self._print_items, prints)
        for text, item in zip(at[::-1].tolist(), items[::-1].tolist(), strict=True):
            found[text] = Match(item, "exact", 1.0)
        return found

    def _by_overlap(self, grams: duplicates.Ragged) -> dict[int, Match]:
        num = len(self._grams)
        at, entries = _look_up(self._grams, np.arange(num), grams.values)
        hits = np.unique(grams.owners[at] * num + entries)  # each run of a text once
        owners, entries = hits // max(1, num), hits % max(1, num)
        pairs, which = np.unique(
            owners * self.num_items + self._gram_items[entries], return_inverse=True
        )
        texts, items = pairs // self.num_items, pairs % self.num_items
        shares = np.bincount(which, self._weights[entries], len(pairs)) / self._sizes[items]
        enough = shares >= self.overlap.min_share
        best: dict[int, Match] = {}
        for text, item, share in zip(
            texts[enough].tolist(), items[enough].tolist(), shares[enough].tolist(), strict=True
        ):
            if text not in best or share > best[text].share:
                best[text] = Match(item, "overlap", share)
        return best


def _inverted(
    grams: duplicates.Ragged, max_items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Runs in order with item and weight of each, once per item, and the weight of each item."""
    pairs = np.stack([grams.values, grams.owners.astype(np.uint64)])
    pairs = np.unique(pairs, axis=1) if pairs.size else pairs
    values, owners = pairs[0], pairs[1].astype(np.int64)
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    telling = counts[which] <= max_items
    weights = 1 / counts[which]
    sizes = np.bincount(owners, weights, len(grams.starts) - 1)
    return values[telling], owners[telling], weights[telling], np.maximum(sizes, 1e-9)


def _look_up(
    keys: np.ndarray, items: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every (place in `wanted`, item) with that key; `keys` are sorted."""
    left = np.searchsorted(keys, wanted, "left")
    counts = np.searchsorted(keys, wanted, "right") - left
    at = np.repeat(np.arange(len(wanted)), counts)
    offset = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    return at, items[left[at] + offset]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contamination:
    """Drops records that pose what a file of `against` poses. Reasons: `exact`, `overlap`,
    `long run`, each with the item and the share found.

    Items are the prompts of the files, and the texts under `keys` of the records are searched.
    """

    against: tuple[Path, ...]
    name: str = "contamination"
    keys: tuple[str, ...] = ("prompt",)
    overlap: Overlap = Overlap()

    def judge(self, records: Sequence[Record]) -> Outcome:
        index, names = _index_of(self.against, self.overlap)
        texts = ["\n".join(text_of(record, key) for key in self.keys) for record in records]
        return Outcome(
            {
                text: f"{match.kind}: {match.share:.2f} of {names[match.item]}"
                for text, match in index.matches(texts).items()
            }
        )


@functools.lru_cache(maxsize=4)
def _index_of(files: tuple[Path, ...], overlap: Overlap) -> tuple[Index, list[str]]:
    prompts, names = [], []
    for file in files:
        for number, record in enumerate(corpus.read_all([file]), 1):
            if prompt := prompt_of(record):
                prompts.append(prompt)
                names.append(f"{file.name} {record.get('id', number)}")
    if not prompts:
        raise ConfigError(f"{[str(f) for f in files]} hold no prompts, so nothing can be compared.")
    return Index(prompts, overlap), names
