"""What a directory of weights is, and what lies beside them: config, tokenizer, template.

Such a directory is a run (its last finished stage), a stage of one, what `loong import-hf` or
`loong merge` wrote, or a checkpoint in the layout of Hugging Face as it was published. A run keeps
what came with the weights that it began with in `RUN/model`. A URL is of the last kind.
"""

from pathlib import Path
from typing import NamedTuple

from loong_jax import configs
from loong_jax.data.tokenizer import AsciiTokenizer, Tokenizer, load_tokenizer
from loong_jax.errors import CheckpointError
from loong_jax.merge import published
from loong_jax.models.families import ModelConfig
from loong_jax.remote import AnyPath, RemotePath
from loong_jax.run import convert, model_files, pipeline


class Source(NamedTuple):
    """Weights and what is known of them."""

    weights: AnyPath  # what `starting.load` reads
    config: ModelConfig
    hf_config: str | None  # the config.json that the weights came with
    files: AnyPath | None  # the directory of its tokenizer.json


def find(path: AnyPath) -> Source:
    """CheckpointError where `path` holds no weights or does not say of what model."""
    weights = find_weights(path)
    config, hf_config = convert.read_model(weights)
    return Source(weights, config, hf_config, _files_of(path) or _files_of(weights))


def find_weights(path: AnyPath) -> AnyPath:
    """The last finished stage of a run; any other directory is taken as it is."""
    if isinstance(path, RemotePath):
        path.refuse_unreadable()
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory. Name a run or a checkpoint.")
    if not (path / "stages").is_dir():
        return path
    names = configs.load(path).stages
    finished = [
        name
        for name in names
        if pipeline.is_done(path, name)
        and (pipeline.stage_directory(path, name) / "weights").is_dir()
    ]
    if not finished:
        raise CheckpointError(f"{path} has no finished stage of {', '.join(names)} yet.")
    return pipeline.stage_directory(path, finished[-1])


def tokenizer_of(
    config: ModelConfig, hf_config: str | None, files: AnyPath | None, *, where: str
) -> Tokenizer:
    """Of the files given; the ASCII one for models of its 128 tokens without any.

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
    if beside := source.files or model_files.found(source.weights):
        model_files.keep(beside, directory)
    if source.hf_config is not None:
        model_files.write_config(directory, source.hf_config)


def is_published(directory: Path) -> bool:
    """True for a checkpoint in the layout of Hugging Face."""
    return (directory / "config.json").exists() and published.is_published(directory)


def _files_of(path: AnyPath) -> AnyPath | None:
    return next((p for p in model_files.places(path) if (p / "tokenizer.json").exists()), None)
