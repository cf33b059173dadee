"""Files that travel with a model's weights: config.json, tokenizer, template, how text ends.

An import, a merge and a run keep those that their weights came with in DIR or in DIR/model, and an
export writes them again.
"""

from pathlib import Path

from loong_jax.data import json_files
from loong_jax.data.tokenizer import TOKENIZER_FILES
from loong_jax.remote import AnyPath

KEPT = "model"  # in the directory of a run, or of a merge
_CODE = ("*.py",)  # that auto_map in config.json names


def keep(source: AnyPath, destination: Path, *, also: tuple[str, ...] = ()) -> list[str]:
    """Copies what lies beside the weights in `source` and is not in `destination`; their names."""
    names = [name for name in (*TOKENIZER_FILES, *also) if (source / name).is_file()]
    names += sorted(path.name for pattern in _CODE for path in source.glob(pattern))
    copied = [name for name in names if not (destination / name).exists()]
    for name in copied:
        destination.mkdir(parents=True, exist_ok=True)
        (destination / name).write_bytes((source / name).read_bytes())
    return copied


def places(path: AnyPath) -> list[AnyPath]:
    """Where the files of the weights in `path` may be: there, or kept by the run they are of."""
    path = path.resolve()
    top = path.parent if path.name in ("weights", "checkpoints") else path
    runs = [above for above in top.parents[1:2] if (above / "stages").is_dir()]
    return [path, top, top / KEPT, *(run / KEPT for run in runs)]


def found(path: AnyPath) -> AnyPath | None:
    """Where the files of the weights in `path` are."""
    return next(
        (place for place in places(path) if any((place / n).is_file() for n in TOKENIZER_FILES)),
        None,
    )


def config_text(path: AnyPath) -> str | None:
    """The config.json that the weights of a run came with, as it came."""
    kept = (place / "config.json" for place in places(path) if place.name == KEPT)
    return next((file.read_text("utf-8") for file in kept if file.is_file()), None)


def write_config(directory: Path, text: str) -> None:
    """Keeps a config.json, as it came, in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    json_files.write_text(directory / "config.json", text)
