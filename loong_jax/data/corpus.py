"""Corpora as data sets of TensorFlow Datasets, in `array_record` files and without TensorFlow.

`build` writes records as a data set with one split; `read` opens it for random access; `batches`
reads it through grain, in an order that a seed decides, with an iterator whose place can be saved
and taken up again. What every record has (`id`, `prompt`, `domain`, `origin`, `licence`) are
features of their own, and `record` is the whole record as JSON, so nothing is lost.

    corpus.build([Path("curated/kept.jsonl")], Path("datasets"), name="curated")
    source = corpus.read(Path("datasets/curated/1.0.0"))
    steps = corpus.batches(source, batch=8, seed=0)
    records = next(steps); place = steps.get_state()      # bytes; steps.set_state(place) goes on
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data.curation import records as corpora
from loong_jax.errors import ConfigError

_TEXTS = ("id", "prompt", "domain", "origin", "licence")


def build(
    inputs: Sequence[Path],
    data_dir: Path,
    *,
    name: str,
    version: str = "1.0.0",
    split: str = "train",
    description: str = "",
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
    corpora.find_files(inputs)
    features = {key: tfds.features.Text() for key in (*_TEXTS, "record")}

    base: Any = tfds.core.GeneratorBasedBuilder

    class Corpus(base, skip_registration=True):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
        """A corpus of loong_jax."""

        VERSION = number
        code_path = None  # there are no files beside the code of this builder

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description=description or f"The corpus {name}, written by loong_jax.",
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
    for record in corpora.read_all(inputs):
        notes = record.get("notes")
        copies = notes.get("copies", 1) if isinstance(notes, dict) else 1
        values = {key: record.get(key) for key in _TEXTS}
        texts = {key: "" if value is None else str(value) for key, value in values.items()}
        for _ in range(copies if isinstance(copies, int) else 1):
            yield texts | {"record": json.dumps(record, ensure_ascii=False)}


def _tfds() -> Any:
    import tensorflow_datasets as tfds

    return tfds
