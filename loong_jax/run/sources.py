"""Directories of weights: their kind, and the files beside them: config, tokenizer, template.

Such a directory is a run (its last finished stage), a stage of one, what `loong import-hf` or
`loong merge` wrote, or a checkpoint in the layout of Hugging Face as it was published. A run keeps
what came with the weights that it began with in `RUN/model`, an import and a merge beside them.
A URL is of the last kind.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax import configs
from loong_jax.data import json_files
from loong_jax.data.tokenizer import TOKENIZER_FILES, AsciiTokenizer, Tokenizer, load_tokenizer
from loong_jax.errors import CheckpointError
from loong_jax.merge import published
from loong_jax.models.families import ModelConfig
from loong_jax.models.hf import HfCheckpoint
from loong_jax.remote import AnyPath, RemotePath
from loong_jax.run import pipeline

FORMAT_VERSION = 1  # of model.json
KEPT = "model"  # in the directory of a run, or of a merge


class Source(NamedTuple):
    """Weights and what is known of them."""

    weights: AnyPath  # read by `starting.load`
    config: ModelConfig
    hf_config: str | None  # the config.json that the weights came with
    files: AnyPath | None  # the directory of its tokenizer.json


def find(path: AnyPath) -> Source:
    """CheckpointError where `path` holds no weights or does not say of what model."""
    weights = find_weights(path)
    config, hf_config = read_model(weights)
    return Source(weights, config, hf_config, _files_of(path) or _files_of(weights))


def find_weights(path: AnyPath) -> AnyPath:
    """The last finished stage of a run; any other directory is taken as it is."""
    if isinstance(path, RemotePath):
        path.refuse_unreadable()
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory. Name a run or a checkpoint.")
    if not (path / "stages").is_dir():
        run_dir = path.parent.parent
        is_stage = path.parent.name == "stages" and (run_dir / "config.json").exists()
        if is_stage and not (path / "done.json").exists():
            raise CheckpointError(
                f"{path} is a stage that is not finished. Go on with it: loong train --run-dir "
                f"{run_dir}."
            )
        return path
    names = configs.load(path).stages
    for name in reversed(list(names)):
        stage = pipeline.stage_directory(path, name)
        if pipeline.is_done(path, name) and (stage / "weights").is_dir():
            return stage
    raise CheckpointError(
        f"{path} has no finished stage with weights yet, of {', '.join(names)}. Go on with it: "
        f"loong train --run-dir {path}; or name another run."
    )


def tokenizer_of(
    config: ModelConfig, hf_config: str | None, files: AnyPath | None, *, where: str
) -> Tokenizer:
    """The tokenizer of the files given; without any, the ASCII one for models of its 128 tokens.

    Raises CheckpointError where there is none that fits, which names `where` it was looked for.
    """
    if files is not None:
        return load_tokenizer(files, hf_config, config.vocab_size)
    if config.vocab_size != AsciiTokenizer.vocab_size:
        raise CheckpointError(
            f"{where} has no tokenizer.json, and its model has {config.vocab_size} tokens. Name "
            "one with --tokenizer."
        )
    return AsciiTokenizer()


def keep_files(source: Source, directory: Path) -> None:
    """Copies config.json and the files that travel with the weights, as they came."""
    if beside := source.files or files_beside(source.weights):
        copy_files(beside, directory)
    if source.hf_config is not None:
        directory.mkdir(parents=True, exist_ok=True)
        json_files.write_text(directory / "config.json", source.hf_config)


def is_published(directory: Path) -> bool:
    """True for a checkpoint in the layout of Hugging Face."""
    return (directory / "config.json").exists() and published.is_published(directory)


def _files_of(path: AnyPath) -> AnyPath | None:
    return next((p for p in _places(path) if (p / "tokenizer.json").exists()), None)


def copy_files(source: AnyPath, destination: Path) -> None:
    """Copies what lies beside the weights in `source` and is not in `destination`."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    names += sorted(path.name for path in source.glob("*.py"))  # that auto_map in config.json names
    for name in names:
        if not (destination / name).exists():
            destination.mkdir(parents=True, exist_ok=True)
            (destination / name).write_bytes((source / name).read_bytes())


def _places(path: AnyPath) -> list[AnyPath]:
    """Candidates for the directory of a model's files: beside its weights, or kept by their run."""
    path = path.resolve()
    top = path.parent if path.name in ("weights", "checkpoints") else path
    runs = [above for above in top.parents[1:2] if (above / "stages").is_dir()]
    return [path, top, top / KEPT, *(run / KEPT for run in runs)]


def files_beside(path: AnyPath) -> AnyPath | None:
    """The directory of the tokenizer's files for the weights in `path`; None without one."""
    places = _places(path)
    return next((at for at in places if any((at / n).is_file() for n in TOKENIZER_FILES)), None)


def read_model(source: AnyPath) -> tuple[ModelConfig, str | None]:
    """The config of the weights in `source`, and the config.json that they came with, if any."""
    if isinstance(source, RemotePath):
        return _read_remote(source)
    if record := model_record(source):
        return configs.from_json(record["config"]), record["hf_config"]
    if is_published(source):
        found = HfCheckpoint(source)
        return found.config, found.config_text
    for directory in source.resolve().parents:
        if (directory / "config.json").exists():
            config = getattr(configs.load(directory), "model", None)
            if config is not None:
                kept = (at / "config.json" for at in _places(source) if at.name == KEPT)
                return config, next((f.read_text("utf-8") for f in kept if f.is_file()), None)
    raise CheckpointError(
        f"{source} has no model.json, is no stage of a run and no checkpoint as it was published "
        "(config.json and safetensors files), so its config is unknown. Name one of these."
    )


@functools.lru_cache(maxsize=4)
def _read_remote(source: RemotePath) -> tuple[ModelConfig, str]:
    """Once in a process, for there every header is a request."""
    found = HfCheckpoint(source)
    return found.config, found.config_text


def model_record(source: AnyPath) -> dict[str, Any] | None:
    """The model.json of the weights in `source`, None where there is none."""
    paths = (source / "model.json", source.parent / "model.json")
    if (path := next((path for path in paths if path.exists()), None)) is None:
        return None
    record = json_files.read_json(path)
    is_whole = isinstance(record, dict) and record.keys() >= {"config", "hf_config"}
    version = record.get("format_version") if is_whole else None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format_version={version!r}, not {FORMAT_VERSION}. Use the version of "
            "loong_jax that wrote it."
        )
    return record
