"""Corpora on disk: cut into chunks that can be read by themselves, and as TFDS data sets.

JSON-lines files and `array_record` files whose records are JSON texts. A line that holds no JSON
object is kept as `None`, so that it is counted and lands in a bin of its own.

`build` writes records as a data set of TensorFlow Datasets, without TensorFlow; `read` opens it for
random access; `batches` reads it through grain, in an order that a seed decides, with an iterator
whose place can be saved and taken up again. What every record has (`id`, `prompt`, `domain`,
`origin`, `licence`) are features of their own, and `record` is the whole record as JSON, so nothing
is lost.

    corpus.build([Path("curated/kept.jsonl")], Path("datasets"), name="curated")
    source = corpus.read(Path("datasets/curated/1.0.0"))
    steps = corpus.batches(source, batch=8, seed=0)
    records = next(steps); place = steps.get_state()      # for JSON; steps.set_state(place) goes on
"""

import contextlib
import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.errors import ConfigError

JSONL, ARRAY_RECORD = (".jsonl", ".ndjson"), (".array_record",)
_MAX_DEPTH = 100  # of objects and arrays in one another, so that a record can be written again


class Chunk(NamedTuple):
    """A run of records of one file. `start` counts bytes in JSON lines, else records."""

    file: str
    start: int
    size: int  # bytes of JSON lines; as many as num_records otherwise
    num_records: int


class Source(NamedTuple):
    """A file as it was when it was cut."""

    file: str
    sha256: str
    num_bytes: int
    num_records: int


def find_files(inputs: Sequence[Path]) -> tuple[Path, ...]:
    """Files of corpora among files and directories, in the order given, those of a directory by
    name. ConfigError where there is none."""
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in JSONL or _is_array_record(p))
            if not inside:
                raise ConfigError(f"{path} holds no *.jsonl and no *.array_record. Name another.")
            files += inside
        elif not path.is_file():
            raise ConfigError(f"{path} does not exist. Name a file or directory of records.")
        elif path.suffix not in JSONL and not _is_array_record(path):
            raise ConfigError(f"{path} ends in none of {JSONL + ARRAY_RECORD}. Convert or rename.")
        else:
            files.append(path)
    if not files:
        raise ConfigError("no input was named. Give at least one file of records.")
    return tuple(files)


def cut(file: Path, chunk_records: int) -> tuple[Source, list[Chunk]]:
    """Reads the file once: its hash, and where its chunks start. Empty lines are no records."""
    if _is_array_record(file):
        return _cut_array_record(file, chunk_records)
    digest, chunks = hashlib.sha256(), []
    start = position = in_chunk = total = 0
    with open(file, "rb") as lines:
        for line in lines:
            digest.update(line)
            position += len(line)
            in_chunk += bool(line.strip())
            if in_chunk == chunk_records:
                chunks.append(Chunk(str(file), start, position - start, in_chunk))
                start, total, in_chunk = position, total + in_chunk, 0
    if in_chunk:
        chunks.append(Chunk(str(file), start, position - start, in_chunk))
    return Source(str(file), digest.hexdigest(), position, total + in_chunk), chunks


def read_lines(chunk: Chunk) -> list[bytes]:
    """The records of a chunk as JSON texts; as many as it says, or ConfigError."""
    if _is_array_record(Path(chunk.file)):
        with contextlib.closing(_reader(Path(chunk.file))) as reader:
            found = list(reader.read(chunk.start, chunk.start + chunk.size)) if chunk.size else []
    else:
        with open(chunk.file, "rb") as file:
            file.seek(chunk.start)
            found = [line for line in file.read(chunk.size).split(b"\n") if line.strip()]
    if len(found) != chunk.num_records:
        raise ConfigError(
            f"{chunk.file} had {chunk.num_records} records from {chunk.start} on and now has "
            f"{len(found)}. Do not change a corpus while it is read; start anew."
        )
    return found


def parse(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None where it holds none, or one that is nested too deep."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Few lines have so many brackets, and the others need no look at their depth.
    is_deep = line.count(b"{") + line.count(b"[") > _MAX_DEPTH and not _is_shallow(value)
    return value if isinstance(value, dict) and not is_deep else None


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        if not level:
            return True
    return False


def read_all(inputs: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Every readable record of the corpora, one after another."""
    for file in find_files(inputs):
        for chunk in cut(file, 10_000)[1]:
            for line in read_lines(chunk):
                record = parse(line)
                if record is not None:
                    yield record


def _is_array_record(path: Path) -> bool:
    return path.suffix in ARRAY_RECORD or ".array_record-" in path.name


def _cut_array_record(file: Path, chunk_records: int) -> tuple[Source, list[Chunk]]:
    with open(file, "rb") as data:
        digest = hashlib.file_digest(data, "sha256")
    with contextlib.closing(_reader(file)) as reader:
        total = reader.num_records()
    sizes = ((start, min(chunk_records, total - start)) for start in range(0, total, chunk_records))
    chunks = [Chunk(str(file), start, size, size) for start, size in sizes]
    return Source(str(file), digest.hexdigest(), file.stat().st_size, total), chunks


def _reader(file: Path) -> Any:
    # A compiled module without type stubs.
    module: Any = importlib.import_module("array_record.python.array_record_module")
    return module.ArrayRecordReader(str(file))


_TEXTS = ("id", "prompt", "domain", "origin", "licence")


def build(
    inputs: Sequence[Path],
    data_dir: Path,
    *,
    name: str,
    version: str = "1.0.0",
    split: str = "train",
) -> Path:
    """Writes the records of JSON-lines or array_record files as a data set; returns its directory.

    A record with a note `copies` (see `Mixture`) is written so often. A data set that is there
    already stays as it is. Raises ConfigError for a name or version that TFDS does not take.
    """
    tfds = _tfds()
    if not name.isidentifier() or name != name.lower():
        raise ConfigError(f"name={name!r} is no name of a data set. Use small letters, digits, _.")
    try:
        number = tfds.core.Version(version)
    except ValueError as error:
        raise ConfigError(f"version={version!r}: {error}. Write one such as 1.0.0.") from None
    find_files(inputs)
    features = {key: tfds.features.Text() for key in (*_TEXTS, "record")}

    base: Any = tfds.core.GeneratorBasedBuilder

    class Corpus(base, skip_registration=True):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
        """A corpus of loong_jax."""

        VERSION = number
        code_path = None  # there are no files beside the code of this builder

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"The corpus {name}, written by loong_jax.",
                features=tfds.features.FeaturesDict(features),
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            del dl_manager
            return {split: self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, str]]]:
            yield from enumerate(_examples(inputs))

    Corpus.name = name
    builder = Corpus(data_dir=str(data_dir), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)


def read(directory: Path, split: str = "train") -> Sequence[Any]:
    """A data set opened for random access: `source[i]` is a record as it was written.

    Raises ConfigError where the directory holds none, or not that split.
    """
    tfds = _tfds()
    try:
        builder = tfds.builder_from_directory(str(directory))
        source = builder.as_data_source(split=split)
    except (OSError, ValueError, KeyError, tfds.core.DatasetNotFoundError) as error:
        raise ConfigError(
            f"{directory} holds no data set with split {split!r}: {error}. Name the directory of a "
            "version, such as datasets/curated/1.0.0."
        ) from None
    return _Records(source)


def batches(
    source: Sequence[Any],
    *,
    batch: int,
    seed: int,
    num_epochs: int | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Any:
    """A grain iterator over lists of `batch` records, shuffled anew in each epoch; for ever unless
    `num_epochs` says otherwise.

    `shard` is (this process, processes in all). `get_state` and `set_state` save its place.
    """
    import grain

    if batch < 1 or not 0 <= shard[0] < shard[1]:
        raise ConfigError(f"batch={batch} is below 1, or shard={shard} is none of that many.")
    if len(source) < shard[1] * batch:
        raise ConfigError(
            f"{len(source)} records are fewer than a batch of {batch} on {shard[1]} processes."
        )
    data = grain.MapDataset.source(source)[shard[0] :: shard[1]].seed(seed).shuffle()
    data = data.repeat(num_epochs).batch(batch, drop_remainder=True, batch_fn=list)
    return iter(data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))


class _Records(Sequence[Any]):
    """The records of a data source, read when asked for."""

    def __init__(self, source: Any):
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Any:
        place = index.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(f"record {place} of {len(self)}")
        return json.loads(self._source[place % len(self)]["record"])


def _examples(inputs: Sequence[Path]) -> Iterator[dict[str, str]]:
    for record in read_all(inputs):
        notes = record.get("notes")
        copies = notes.get("copies", 1) if isinstance(notes, dict) else 1
        values = {key: record.get(key) for key in _TEXTS}
        texts = {key: "" if value is None else str(value) for key, value in values.items()}
        for _ in range(copies if isinstance(copies, int) else 1):
            yield texts | {"record": json.dumps(record, ensure_ascii=False)}


def _tfds() -> Any:
    import tensorflow_datasets as tfds

    return tfds
