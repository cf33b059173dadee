"""The JSON file of a bench: whole after every part, so that a stopped bench leaves what it has."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loong_jax import configs, process
from loong_jax.data import json_files

Save = Callable[[Mapping[str, Any]], None]  # gets all figures there are so far


def saver(path: Path | None, chosen: Any) -> Save:
    """A function that writes figures and their `setup` to `path`; it does nothing without a path.

    `chosen` are the options of the bench, a dataclass.
    """
    if path is None:
        return lambda _: None
    known = setup(chosen)

    def save(figures: Mapping[str, Any]) -> None:
        json_files.write_json(path, {"setup": known, **figures})

    return save


def setup(chosen: Any) -> dict[str, Any]:
    """Options, versions and machine."""
    return {
        "options": {name: _plain(value) for name, value in dataclasses.asdict(chosen).items()},
        "versions": configs.versions(),
        "machine": {
            "processor": process.processor(),
            "cores": process.num_cores(),
            "load": os.getloadavg()[0],  # at the start
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
