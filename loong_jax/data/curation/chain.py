"""A chain of stages over a corpus: streaming, resumable, every record in exactly one bin.

The corpus is only read. What a stage says of a chunk is one small file under `work/`, written by
one rename, so whatever kills the process costs the chunk in hand: the same command goes on from
there. Neighbouring stages that need no whole corpus share one pass over it. At the end the records
are written once: `kept.jsonl` with the notes of all stages, `dropped.jsonl` with stage and reason.
"""

import dataclasses
import functools
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loong_jax import configs
from loong_jax.data import corpus, json_files
from loong_jax.data.corpus import Chunk, Source
from loong_jax.data.curation import stages
from loong_jax.data.curation.stages import CorpusFilter, Outcome, Sketch, Stage
from loong_jax.errors import ConfigError, refuse_below

READ, UNREADABLE = "read", "no JSON object"  # the stage before the first, and its one reason
_MAX_REASONS = 3  # of a stage, in the table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages in their order, and how many records are held at a time."""

    stages: tuple[Stage, ...]
    chunk_records: int = 10_000

    def __post_init__(self):
        names = [stage.name for stage in self.stages]
        twice = {name for name in names if names.count(name) > 1 or name == READ}
        if twice:
            raise ConfigError(f"stages share the name {sorted(twice)}. Give each its own.")
        refuse_below(self, 1, "chunk_records")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCount:
    """Counts of the records that reached one stage. `cpu_s` is that of the stage alone."""

    name: str
    num_seen: int
    num_kept: int
    reasons: Mapping[str, int]
    cpu_s: float

    def __post_init__(self):
        assert self.num_seen == self.num_kept + sum(self.reasons.values()), self

    @property
    def shown_reasons(self) -> str:
        """The most frequent reasons with their counts."""
        shown = list(self.reasons.items())[:_MAX_REASONS]
        others = sum(self.reasons.values()) - sum(count for _, count in shown)
        parts = [f"{reason} {count:,}" for reason, count in shown]
        return ", ".join([*parts, f"others {others:,}"] if others else parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Funnel:
    """Counts of all stages; each sees what the one before it kept."""

    stages: tuple[StageCount, ...]
    sources: tuple[Source, ...]

    @property
    def num_records(self) -> int:
        return self.stages[0].num_seen

    @property
    def num_kept(self) -> int:
        return self.stages[-1].num_kept

    def to_json(self) -> dict[str, Any]:
        return {
            "num_records": self.num_records,
            "num_kept": self.num_kept,
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "sources": [source._asdict() for source in self.sources],
        }

    def as_text(self) -> str:
        """The table for people; the last column is records per CPU second."""
        lines = [f"{'stage':22}{'seen':>10}{'dropped':>10}{'kept':>10}{'per s':>10}  reasons"]
        for stage in self.stages:
            dropped = stage.num_seen - stage.num_kept
            speed = f"{stage.num_seen / stage.cpu_s:,.0f}" if stage.cpu_s > 0 else "-"
            counts = f"{stage.num_seen:>10,}{dropped:>10,}{stage.num_kept:>10,}{speed:>10}"
            lines.append(f"{stage.name:22}{counts}  {stage.shown_reasons}".rstrip())
        return "\n".join(lines)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Funnel":
        return cls(
            stages=tuple(StageCount(**stage) for stage in record["stages"]),
            sources=tuple(Source(**source) for source in record["sources"]),
        )


Progress = Callable[[str, int, int], None]  # stages, chunks done, chunks in all


def run(
    chain: Chain,
    inputs: Sequence[Path],
    output: Path,
    *,
    progress: Progress = lambda _names, _done, _total: None,
) -> Funnel:
    """Carries the chain out, or goes on with it; leaves kept.jsonl, dropped.jsonl, funnel.json.

    Raises ConfigError where `output` was begun with another chain or another corpus.
    """
    files = corpus.find_files(inputs)
    config = _Run(chain=chain, inputs=tuple(str(path) for path in inputs))
    configs.open_run(config, output, recipe="curation", free=())
    work = output / "work"
    finished = json_files.read_json(output / "funnel.json")
    if finished is not None:
        funnel = Funnel.from_json(finished)
        given = [corpus.cut(file, chain.chunk_records)[0] for file in files]
        _refuse_other_sources(funnel.sources, given, output)
        return funnel
    sources, chunks = _cut(files, chain.chunk_records, work)
    passes = _passes(chain.stages)
    for number, members in enumerate(passes):
        names = ", ".join(stage.name for stage in members)
        progress(names, 0, len(chunks))
        if isinstance(members[0], CorpusFilter):
            advance = functools.partial(progress, names)
            _corpus_pass(members[0], number, chunks, work, advance)
            continue
        for index, chunk in enumerate(chunks):
            if not _said_path(work, number, index).exists():
                _chunk_pass(members, number, index, chunk, work)
            progress(names, index + 1, len(chunks))
    funnel = Funnel(stages=tuple(_count(chain, passes, chunks, work)), sources=tuple(sources))
    _write(output, chunks, len(passes), work)
    json_files.write_json(output / "funnel.json", funnel.to_json())
    return funnel


def clean(output: Path) -> None:
    """Removes what only a resumed run needs."""
    shutil.rmtree(output / "work", ignore_errors=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    chain: Chain
    inputs: tuple[str, ...]


# ---- passes


def _passes(all_stages: Sequence[Stage]) -> list[list[Any]]:
    """Runs of stages that judge chunks, and single stages that need the whole corpus."""
    found: list[list[Any]] = [[]]
    for stage in all_stages:
        if isinstance(stage, CorpusFilter):
            found += [[stage], []]
        else:
            found[-1].append(stage)
    return [members for members in found if members]


def _chunk_pass(members: Sequence[Any], number: int, index: int, chunk: Chunk, work: Path) -> None:
    alive, said = _alive(chunk, index, number, work), {}
    for stage in members:
        start, places = time.thread_time(), list(alive)
        outcome = stages.judge(stage, list(alive.values()))
        said[stage.name] = _said(places, outcome, time.thread_time() - start)
        for i, place in enumerate(places):
            if i in outcome.reasons:
                del alive[place]
            else:
                _note(alive[place], outcome.notes.get(i))
    json_files.write_text(_said_path(work, number, index), json_files.json_line(said))


def _corpus_pass(
    stage: CorpusFilter,
    number: int,
    chunks: Sequence[Chunk],
    work: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Sketches chunk by chunk, one decision, then what it says of each chunk."""
    if all(_said_path(work, number, index).exists() for index in range(len(chunks))):
        return
    for index, chunk in enumerate(chunks):
        path = work / f"sketch-{number:02d}" / f"{index:06d}.npz"
        if not path.exists():
            alive = _alive(chunk, index, number, work)
            start = time.thread_time()
            sketch = stage.sketch(list(alive.values()))
            sketch["_cpu_s"] = np.array(time.thread_time() - start)
            sketch["_index"] = np.array(list(alive), np.int64)
            stages.write_arrays(path, sketch)
        progress(index + 1, len(chunks))
    sketch, places, sketch_s = _read_sketches(work / f"sketch-{number:02d}", len(chunks))
    start = time.process_time()
    outcome = stage.decide(sketch) if any(map(len, places)) else Outcome()
    decide_s = time.process_time() - start
    del sketch
    first = 0
    for index, place in enumerate(places):
        here = range(first, first + len(place))
        part = Outcome(
            {i - first: outcome.reasons[i] for i in here if i in outcome.reasons},
            {i - first: outcome.notes[i] for i in here if i in outcome.notes},
        )
        first += len(place)
        share = len(place) / max(1, sum(map(len, places)))
        said = {stage.name: _said(place.tolist(), part, sketch_s[index] + decide_s * share)}
        json_files.write_text(_said_path(work, number, index), json_files.json_line(said))
    shutil.rmtree(work / f"sketch-{number:02d}")


def _alive(chunk: Chunk, index: int, number: int, work: Path) -> dict[int, dict[str, Any]]:
    """The records of a chunk that all passes before this one kept, with their notes, by place."""
    dropped, notes = _so_far(work, index, number)
    found = {}
    for place, line in enumerate(corpus.read_lines(chunk)):
        if place not in dropped and (record := corpus.parse(line)) is not None:
            _note(record, notes.get(place))
            found[place] = record
    return found


def _note(record: dict[str, Any], more: Mapping[str, Any] | None) -> None:
    if more is not None:
        own = record.get("notes")
        record["notes"] = {**(own if isinstance(own, dict) else {}), **more}


# ---- what was said of a chunk


def _said(places: Sequence[int], outcome: Outcome, cpu_s: float) -> dict[str, Any]:
    """The verdict of a stage on the records at these places of a chunk, as its file has it."""
    return {
        "seen": len(places),
        "cpu_s": cpu_s,
        "reasons": {str(places[i]): reason for i, reason in outcome.reasons.items()},
        "notes": {str(places[i]): dict(note) for i, note in outcome.notes.items()},
    }


def _said_path(work: Path, number: int, index: int) -> Path:
    return work / f"pass-{number:02d}" / f"{index:06d}.json"


def _so_far(
    work: Path, index: int, number: int
) -> tuple[dict[int, tuple[str, str]], dict[int, dict[str, Any]]]:
    """(stage, reason) of each dropped place, and the notes, after the first `number` passes."""
    dropped: dict[int, tuple[str, str]] = {}
    notes: dict[int, dict[str, Any]] = {}
    for earlier in range(number):
        for name, said in json_files.read_json(_said_path(work, earlier, index)).items():
            dropped |= {int(place): (name, reason) for place, reason in said["reasons"].items()}
            for place, note in said["notes"].items():
                notes.setdefault(int(place), {}).update(note)
    return dropped, notes


def _read_sketches(directory: Path, count: int) -> tuple[Sketch, list[np.ndarray], list[float]]:
    """All rows of all chunks in order, the places of each chunk's rows, and what each cost.

    Arrays are filled one file at a time, so that memory holds the sketch once.
    """
    places, cpu_s, whole = [], [], {}
    for index in range(count):
        with np.load(directory / f"{index:06d}.npz") as part:
            places.append(part["_index"])
            cpu_s.append(float(part["_cpu_s"]))
    total, first = sum(map(len, places)), 0
    for index in range(count):
        with np.load(directory / f"{index:06d}.npz") as part:
            for name in set(part.files) - {"_index", "_cpu_s"}:
                rows = part[name]
                if name not in whole:
                    whole[name] = np.zeros((total, *rows.shape[1:]), rows.dtype)
                if rows.dtype.itemsize > whole[name].dtype.itemsize:  # longer texts
                    whole[name] = whole[name].astype(rows.dtype)
                whole[name][first : first + len(rows)] = rows
            first += len(places[index])
    return whole, places, cpu_s


# ---- beginning and end


def _cut(files: Sequence[Path], chunk_records: int, work: Path) -> tuple[list[Source], list[Chunk]]:
    """Cuts the files, or checks that they are those that were cut when the run began."""
    sources, chunks = [], []
    for file in files:
        source, of_file = corpus.cut(file, chunk_records)
        sources.append(source)
        chunks += of_file
    saved = json_files.read_json(work / "sources.json")
    if saved is not None:
        _refuse_other_sources([Source(**one) for one in saved], sources, work.parent)
    json_files.write_json(work / "sources.json", [one._asdict() for one in sources])
    return sources, chunks


def _refuse_other_sources(saved: Sequence[Source], given: Sequence[Source], output: Path) -> None:
    if list(saved) != list(given):
        raise ConfigError(
            f"the corpus has changed since {output} was begun. Restore it or name another --output."
        )


def _count(
    chain: Chain, passes: Sequence[Sequence[Any]], chunks: Sequence[Chunk], work: Path
) -> Iterator[StageCount]:
    seen = {stage.name: 0 for stage in chain.stages}
    cpu_s = {stage.name: 0.0 for stage in chain.stages}
    reasons: dict[str, dict[str, int]] = {stage.name: {} for stage in chain.stages}
    total = sum(chunk.num_records for chunk in chunks)
    for number, index in itertools.product(range(len(passes)), range(len(chunks))):
        for name, said in json_files.read_json(_said_path(work, number, index)).items():
            seen[name] += said["seen"]
            cpu_s[name] += said["cpu_s"]
            for reason in said["reasons"].values():
                word = stages.counted(reason)
                reasons[name][word] = reasons[name].get(word, 0) + 1
    if chain.stages and chunks:
        left = seen[chain.stages[0].name]
    else:
        lines = (line for chunk in chunks for line in corpus.read_lines(chunk))
        left = sum(corpus.parse(line) is not None for line in lines)
    unread = {UNREADABLE: total - left} if total > left else {}
    yield StageCount(name=READ, num_seen=total, num_kept=left, reasons=unread, cpu_s=0.0)
    for stage in chain.stages:
        name = stage.name
        assert seen[name] == left, f"{name} saw {seen[name]} records, and {left} reached it"
        left -= sum(reasons[name].values())
        yield StageCount(
            name=name,
            num_seen=seen[name],
            num_kept=left,
            reasons=dict(sorted(reasons[name].items(), key=lambda item: -item[1])),
            cpu_s=cpu_s[name],
        )


def _write(output: Path, chunks: Sequence[Chunk], num_passes: int, work: Path) -> None:
    """The two files of records, each in place by one rename when all of it is written."""
    kept, dropped = output / "kept.jsonl", output / "dropped.jsonl"
    with (
        open(kept.with_suffix(".partial"), "w", encoding="utf-8") as kept_file,
        open(dropped.with_suffix(".partial"), "w", encoding="utf-8") as dropped_file,
    ):
        for index, chunk in enumerate(chunks):
            reasons, notes = _so_far(work, index, num_passes)
            for place, line in enumerate(corpus.read_lines(chunk)):
                record = corpus.parse(line)
                if record is None:
                    text = line.decode(errors="replace").strip()
                    bad = {"line": text, "dropped_by": READ, "reason": UNREADABLE}
                    dropped_file.write(json_files.json_line(bad))
                    continue
                _note(record, notes.get(place))
                if place in reasons:
                    stage, reason = reasons[place]
                    record |= {"dropped_by": stage, "reason": reason}
                    dropped_file.write(json_files.json_line(record))
                else:
                    kept_file.write(json_files.json_line(record))
    kept.with_suffix(".partial").replace(kept)
    dropped.with_suffix(".partial").replace(dropped)
