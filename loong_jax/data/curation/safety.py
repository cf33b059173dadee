"""A content-safety policy as data: categories of requests, and how each is to be answered.

LongCat-Flash-Thinking A.2.1 sorts queries into more than forty categories with five kinds of
responses. Its list is not published; `safety_policy.json` is ours and meant to be replaced by an
organisation's own. A tagger (`scorer.train`, its tags the ids of categories) sorts queries.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from loong_jax.data.curation import scorer
from loong_jax.data.curation.stages import Outcome, Record, note_of, prompt_of
from loong_jax.errors import ConfigError

ResponseKind = Literal[
    "comply", "comply_with_guideline", "soft_refuse", "soft_refuse_with_guideline", "hard_refuse"
]
KINDS: tuple[ResponseKind, ...] = get_args(ResponseKind)
POLICY_FILE = Path(__file__).with_name("safety_policy.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category:
    """One kind of request. `guideline` says what a response heeds; kinds with one need it."""

    id: str
    title: str
    description: str
    response: ResponseKind
    guideline: str = ""

    def __post_init__(self):
        if self.response not in KINDS:
            raise ConfigError(f"{self.id}: response={self.response!r} is not one of {KINDS}.")
        if self.response.endswith("guideline") != bool(self.guideline):
            raise ConfigError(
                f"{self.id}: response={self.response!r} and guideline={self.guideline!r:.40} do "
                "not fit. Kinds that end in guideline have one, others have none."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """All categories; the one with the id `benign` is that of harmless requests."""

    version: str
    categories: tuple[Category, ...]

    def __post_init__(self):
        ids = [category.id for category in self.categories]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice or "benign" not in ids:
            raise ConfigError(f"categories repeat {twice}, or 'benign' is missing. Name each once.")

    def category(self, name: Any) -> Category | None:
        """The category with that id, or None."""
        return next((category for category in self.categories if category.id == name), None)


@functools.lru_cache(maxsize=4)
def load(path: Path = POLICY_FILE) -> Policy:
    """Reads a policy; ConfigError where the file is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        categories = tuple(Category(**one) for one in record["categories"])
        return Policy(version=record["version"], categories=categories)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is no safety policy ({error!r}). See {POLICY_FILE}.") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SafetyKind:
    """Notes `safety`, the category of a prompt, and `response_kind`, how it is to be answered.

    The category is the record's own `safety` where it has one, else what the tagger finds most
    likely; below `min_probability` for all, the prompt is `unsure`, a reason, and should be read by
    a person. What the policy does not name is an `unknown category`. `responses` are the kinds to
    keep; others go as `response kind`.
    """

    tagger: Path | None = None
    policy: Path = POLICY_FILE
    name: str = "safety"
    min_probability: float = 0.5
    responses: tuple[ResponseKind, ...] = KINDS

    def judge(self, records: Sequence[Record]) -> Outcome:
        policy = load(self.policy)
        reasons, notes = {}, {}
        tagged = self._tagged(records)
        for index, record in enumerate(records):
            name = note_of(record, "safety") or tagged.get(index)
            if name is None:
                reasons[index] = "unsure"
                continue
            category = policy.category(name)
            if category is None:
                said = str(name)[:40]
                reasons[index] = f"unknown category: {said!r} is not in {self.policy.name}"
                continue
            note: dict[str, Any] = {"safety": category.id, "response_kind": category.response}
            if category.guideline:
                note["guideline"] = category.guideline
            if category.response not in self.responses:
                reasons[index] = f"response kind: {category.response}"
            notes[index] = note
        return Outcome(reasons, notes)

    def _tagged(self, records: Sequence[Record]) -> Mapping[int, str]:
        if self.tagger is None or not records:
            return {}
        tagger = scorer.loaded(self.tagger)
        _, probability = tagger.score([prompt_of(record) for record in records])
        if not tagger.tags:
            raise ConfigError(f"{self.tagger} has learnt no tags. Train it on tagged prompts.")
        best = np.argmax(probability, axis=1)
        return {
            index: tagger.tags[place]
            for index, place in enumerate(best)
            if probability[index, place] >= self.min_probability
        }
