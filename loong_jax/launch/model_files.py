"""Files that travel with a model's weights: config.json, tokenizer, template, how text ends.

An import, a merge and a run keep those that their weights came with in DIR or in DIR/model, and an
export writes them again.
"""

from pathlib import Path

from loong_jax.data import json_files
from loong_jax.data.tokenizer import TOKENIZER_FILES
from loong_jax.models.hf.files import AnyPath

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


def found(path: Path) -> Path | None:
    """Where the files of the weights in `path` are: there, or kept by the run that they are of."""
    path = path.resolve()
    run = path.parent.parent
    places = (path, path / KEPT, path.parent, path.parent / KEPT, run / KEPT, run.parent / KEPT)
    return next((p for p in places if any((p / name).is_file() for name in TOKENIZER_FILES)), None)


def config_text(path: Path) -> str | None:
    """The config.json that the weights of a run came with, as it came."""
    path = path.resolve()
    run = path.parent.parent
    for place in (path / KEPT, path.parent / KEPT, run / KEPT, run.parent / KEPT):
        if (place / "config.json").is_file():
            return (place / "config.json").read_text("utf-8")
    return None


def write_config(directory: Path, text: str) -> None:
    """Keeps a config.json, as it came, in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    json_files.write_text(directory / "config.json", text)
