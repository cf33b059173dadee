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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageGraph:
    """The stages of a run in order, and where what they read is found."""

    needed: Mapping[str, Sequence[str]]  # by stage, in order, those that it reads
    run_dir: Path
    only: str | None = None  # run this stage alone; its inputs come from `run_dir` or `source`
    source: Path | None = None  # another run directory to take finished stages from
    # directories with weights from elsewhere, by the names that stages have for them
    given: Mapping[str, AnyPath] = dataclasses.field(default_factory=dict)

    @property
    def asked(self) -> list[str]:
        return list(self.needed) if self.only is None else [self.only]

    def run(
        self,
        work: Callable[[str, StageDirectories], dict[str, Any]],
        *,
        on_skip: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Runs stages in order, each after those it needs; others must be done in `source`.

        `work(name, directories)` may be called again after an interruption. It returns what
        `done.json` shall hold, as JSON values; `earlier_s`, the seconds it had worked before it was
        interrupted, are part of the `wall_s` there. `on_skip` is told the name of a stage that is
        done. Raises what `refuse_missing` does.
        """
        self.refuse_missing()
        for name in self.asked:
            if is_done(self.run_dir, name):
                on_skip(name)
                continue
            named = [other for other in self.needed[name] if other not in self.given]
            own, inputs = stage_directory(self.run_dir, name), {n: self._find(n) for n in named}
            own.mkdir(parents=True, exist_ok=True)
            start_s = time.monotonic()
            result = work(name, StageDirectories(own=own, inputs=inputs, given=self.given))
            wall_s = time.monotonic() - start_s + result.get("earlier_s", 0.0)
            json_files.write_json(own / "done.json", {"wall_s": round(wall_s, 2), **result})

    def refuse_missing(self) -> None:
        """Tries everything before any stage works.

        Raises:
          ConfigError: a stage is unknown or comes before one it needs.
          CheckpointError: `source` is no run, or what a stage needs is done in neither directory
            and no stage will make it.
        """
        names = list(self.needed)
        if self.only is not None and self.only not in names:
            raise ConfigError(f"stage {self.only!r} is unknown. Choose one of {names}.")
        for place, name in enumerate(names):
            if later := set(self.needed[name]) & set(names[place:]):
                raise ConfigError(f"stage {name!r} comes before {sorted(later)}. Reorder them.")
        if self.source is not None and not (self.source / "stages").is_dir():
            raise CheckpointError(
                f"{self.source} holds no stages, so it is no run to take any from. Name a run with "
                "--from."
            )
        made = {*self.given, *(names if self.only is None else ())}
        for name in self.asked:
            if not is_done(self.run_dir, name):
                for other in sorted(set(self.needed[name]) - made):
                    self._find(other)

    def refuse_unused(self) -> None:
        """ConfigError where no stage that runs starts from a finished one of `source`."""
        made = {*self.given, *(self.needed if self.only is None else ())}
        used = {other for name in self.asked for other in self.needed[name]}
        if self.source is not None and used <= made:
            what = f"stage {self.only!r} starts"
            if self.only is None:
                what = "the stages of this recipe start"
            raise ConfigError(
                f"--from {self.source} would go unused: {what} from nothing that is made "
                "elsewhere. Leave it out, or name with --only a stage that is to start from "
                "finished ones."
            )

    def _find(self, name: str) -> Path:
        """The directory of a finished stage."""
        places = [place for place in (self.run_dir, self.source) if place is not None]
        for directory in places:
            if is_done(directory, name):
                return stage_directory(directory, name)
        raise CheckpointError(
            f"stage {name!r} is not done in {' or '.join(map(str, places))}, and a later stage "
            "needs it. Run it first, or name a run that has it with --from."
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


def refuse_other(run_dir: Path, given: object, *, began: Any, found: Any, remedy: str) -> None:
    """ConfigError where what is `given` is not what the run began with; None: it begins now."""
    if began not in (None, found):
        raise ConfigError(
            f"{given} is not what {run_dir} began with: that was {began}, this is {found}. "
            f"{remedy}, or name another --run-dir."
        )
