"""Stages as a resumable graph over run directories, each of which one process at a time works in.

A stage reads what earlier stages left in their directories, writes into its own, and is done once
`done.json` stands there. Running the same command again skips what is done and resumes the rest.
"""

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.remote import AnyPath

LOCK = "lock"
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageDirectories:
    """The directory of a stage, and those of the stages before it."""

    own: Path
    inputs: dict[str, Path]
    given: Mapping[str, AnyPath] = dataclasses.field(default_factory=dict)  # from elsewhere


def stage_directory(run_dir: Path, name: str) -> Path:
    return run_dir / "stages" / name


def is_done(run_dir: Path, name: str) -> bool:
    return (stage_directory(run_dir, name) / "done.json").exists()


def run_stages(
    needed: Mapping[str, Sequence[str]],
    run: Callable[[str, StageDirectories], dict[str, Any]],
    run_dir: Path,
    *,
    only: str | None = None,
    source: Path | None = None,
    given: Mapping[str, AnyPath] | None = None,
    on_skip: Callable[[str], None] = lambda name: None,
) -> None:
    """Runs stages in order, each after those it needs; others must be done in `source`.

    `run(name, directories)` does the work and may be called again after an interruption. It returns
    what `done.json` shall hold, as JSON values; `earlier_s`, the seconds it had worked before it
    was interrupted, are part of the `wall_s` there.

    Args:
      needed: by stage, in order, those that it reads.
      only: run this stage alone; its inputs come from `run_dir`, else from `source`.
      source: another run directory to take finished stages from.
      given: directories with weights from elsewhere, by the names that stages have for them.
      on_skip: told the name of a stage that is done.

    Raises what `refuse_missing` does.
    """
    given = given or {}
    refuse_missing(needed, run_dir, only=only, source=source, given=given)
    for name in needed if only is None else [only]:
        if is_done(run_dir, name):
            on_skip(name)
            continue
        inputs = {
            other: _find_done(other, run_dir, source)
            for other in needed[name]
            if other not in given
        }
        own = stage_directory(run_dir, name)
        own.mkdir(parents=True, exist_ok=True)
        start_s = time.monotonic()
        result = run(name, StageDirectories(own=own, inputs=inputs, given=given))
        wall_s = time.monotonic() - start_s + result.get("earlier_s", 0.0)
        json_files.write_json(own / "done.json", {"wall_s": round(wall_s, 2), **result})


def refuse_missing(
    needed: Mapping[str, Sequence[str]],
    run_dir: Path,
    *,
    only: str | None = None,
    source: Path | None = None,
    given: Mapping[str, AnyPath] | None = None,
) -> None:
    """Tries the arguments of `run_stages` before any stage works; `needed` is `after` by stage.

    Raises:
      ConfigError: a stage is unknown or comes before one it needs.
      CheckpointError: `source` is no run, or what a stage needs is done in neither directory and
        no stage will make it.
    """
    names = list(needed)
    if only is not None and only not in names:
        raise ConfigError(f"stage {only!r} is unknown. Choose one of {names}.")
    for place, name in enumerate(names):
        later = set(needed[name]) & set(names[place:])
        if later:
            raise ConfigError(f"stage {name!r} comes before {sorted(later)}. Reorder them.")
    if source is not None and not (source / "stages").is_dir():
        raise CheckpointError(
            f"{source} holds no stages, so it is no run to take any from. Name a run with --from."
        )
    made = {*(given or {}), *(names if only is None else ())}
    for name in names if only is None else [only]:
        if not is_done(run_dir, name):
            for other in sorted(set(needed[name]) - made):
                _find_done(other, run_dir, source)


def _find_done(name: str, run_dir: Path, source: Path | None) -> Path:
    for directory in filter(None, (run_dir, source)):
        if is_done(directory, name):
            return stage_directory(directory, name)
    places = f"{run_dir}" + (f" or {source}" if source else "")
    raise CheckpointError(
        f"stage {name!r} is not done in {places}, and a later stage needs it. Run it first, or "
        "name a run that has it with --from."
    )


@contextlib.contextmanager
def holding(run_dir: Path) -> Iterator[None]:
    """Keeps `run_dir`, which is made where it is missing, to this process.

    The lock is advisory and of the process: no child inherits it, and the kernel releases it
    however the process ends. The file that carries it stays and says who took it last. Of a run of
    several processes only one may take it. A file system without locks is warned of and no more.

    Raises ConfigError where another process holds it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # EAGAIN, EACCES: systems differ
            file.seek(0)
            raise ConfigError(
                f"{run_dir} is in use: {_holder(file.read())} works in it. Wait until it has ended "
                "or end it, or name another --run-dir."
            ) from error
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): see to it that no second process works in it",
                run_dir,
                error.strerror,
            )
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n")
        file.flush()
        yield


def _holder(text: str) -> str:
    try:
        found = json.loads(text)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):  # it has not said so yet
        return "another process"
