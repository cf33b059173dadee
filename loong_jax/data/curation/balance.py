"""Proportions: how many answers of a prompt, how much of each difficulty, how much of each source.

Draws are hashes of the seed and the record, so that they depend on nothing else: the same record
has the same luck in every run and every order. LongCat-Flash-Thinking 2.1, 2.2.1, A.1.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from loong_jax.data.curation import duplicates
from loong_jax.data.curation.stages import Outcome, Record, Sketch, note_of, prompt_of, text_of
from loong_jax.errors import ConfigError, refuse_below

_NAME_CHARS = 48  # of a source's name; longer ones are cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSources:
    """Limits the answers of one prompt, taking from its sources in turn (A.1).

    Prompts are equal when their words are. Of each prompt at most `per_prompt` answers stay, at
    most `per_source` of one source (the field `source`), chosen by lot within a source. Reason:
    `too many answers`, `too many of a source`.
    """

    name: str = "answer_sources"
    per_prompt: int = 4
    per_source: int = 2
    source_key: str = "source"
    seed: int = 0

    def __post_init__(self):
        refuse_below(self, 1, "per_prompt", "per_source")

    def sketch(self, records: Sequence[Record]) -> Sketch:
        return {
            "prompt": duplicates.fingerprints([prompt_of(record) for record in records]),
            "source": duplicates.fingerprints(
                [str(note_of(record, self.source_key)) for record in records]
            ),
            "luck": luck(records, self.seed),
        }

    def decide(self, sketch: Sketch) -> Outcome:
        prompt, source, lot = sketch["prompt"], sketch["source"], sketch["luck"]
        # Within a prompt and source by lot; the rank there is the round in which it is taken.
        turn = _rank_within((prompt, source), lot)
        place = _rank_within((prompt,), turn + lot)  # the turn first, then the lot
        reasons = {}
        for index in np.flatnonzero((turn >= self.per_source) | (place >= self.per_prompt)):
            is_source = turn[index] >= self.per_source
            reasons[int(index)] = "too many of a source" if is_source else "too many answers"
        return Outcome(reasons)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stratified:
    """Keeps a share of every stratum of difficulty, by lot; easy records are thinned, not removed.

    A record with the noted value v is in the stratum of the last of `edges` that is at most v, and
    stays with the probability in `keep` for it; one value more of `keep` than of edges, the first
    for what lies below all. Records without a value stay. Reason: `thinned`. A.1.
    """

    name: str = "stratified"
    key: str = "difficulty"
    edges: tuple[float, ...] = (0.25, 0.5)
    keep: tuple[float, ...] = (0.2, 0.6, 1.0)
    seed: int = 0

    def __post_init__(self):
        if list(self.edges) != sorted(set(self.edges)) or len(self.keep) != len(self.edges) + 1:
            raise ConfigError(
                f"edges={self.edges}, keep={self.keep}: edges rise, and keep has one value more."
            )
        if not all(0 <= share <= 1 for share in self.keep):
            raise ConfigError(f"keep={self.keep} are no shares in [0, 1].")

    def judge(self, records: Sequence[Record]) -> Outcome:
        values = [note_of(record, self.key) for record in records]
        lot = luck(records, self.seed)
        reasons = {}
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            stratum = int(np.searchsorted(self.edges, value, side="right"))
            if lot[index] >= self.keep[stratum]:
                reasons[index] = f"thinned: stratum {stratum}"
        return Outcome(reasons)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Gives every source the share of the corpus that it is to have: few copies, or fewer records.

    `shares` are weights by the value of `key`; a source that has none is dropped (`not mixed`). The
    total is `num_records`, else as many as there are. A source that must shrink loses records by
    lot (`over its share`); one that must grow notes `copies`, which readers of the corpus repeat:
    whole copies for all and one more for as many as it takes, at most `max_copies` each.
    """

    shares: Mapping[str, float]
    name: str = "mixture"
    key: str = "domain"
    num_records: int | None = None
    max_copies: int = 4
    seed: int = 0

    def __post_init__(self):
        if not self.shares or any(share <= 0 for share in self.shares.values()):
            raise ConfigError(f"shares={dict(self.shares)} are not all above 0, or none is given.")
        refuse_below(
            self, 1, "max_copies", *(["num_records"] if self.num_records is not None else [])
        )

    def sketch(self, records: Sequence[Record]) -> Sketch:
        names = [str(note_of(record, self.key))[:_NAME_CHARS] for record in records]
        return {"source": np.array(names, f"U{_NAME_CHARS}"), "luck": luck(records, self.seed)}

    def decide(self, sketch: Sketch) -> Outcome:
        source, lot = sketch["source"], sketch["luck"]
        total_share = sum(self.shares.values())
        mixed = np.isin(source, list(self.shares))
        total = self.num_records or int(mixed.sum())
        reasons = {int(i): f"not mixed: {source[i]}" for i in np.flatnonzero(~mixed)}
        notes = {}
        for name, share in self.shares.items():
            members = np.flatnonzero(source == name)
            members = members[np.argsort(lot[members], kind="stable")]
            wanted = round(total * share / total_share)
            if wanted <= len(members):
                reasons |= {int(i): "over its share" for i in members[wanted:]}
                continue
            whole, more = divmod(min(wanted, self.max_copies * len(members)), max(1, len(members)))
            for place, index in enumerate(members):
                notes[int(index)] = {"copies": whole + (place < more)}
        return Outcome(reasons, notes)


def luck(records: Sequence[Record], seed: int) -> np.ndarray:
    """float64 [N] in [0, 1): a hash of the seed and of what the record asks and answers."""
    texts = [
        f"{seed} {record.get('id', '')} {prompt_of(record)} {text_of(record, 'response')}"
        for record in records
    ]
    return (duplicates.fingerprints(texts) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _rank_within(groups: tuple[np.ndarray, ...], value: np.ndarray) -> np.ndarray:
    """The rank of each value among those of its group, from 0."""
    order = np.lexsort((value, *groups))
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for group in groups:
        ordered = group[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(is_new, place, 0))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = place - first
    return ranks
