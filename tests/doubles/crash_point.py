"""Points at which a process kills itself: where `LOONG_DIE_AT` says so.

`LOONG_DIE_AT=Trained:2` is SIGKILL at the second time that `reach("Trained")` is called, which is
after the record of that name is in the journal and before its effect; `Trained:2:torn` leaves half
of the record. Unset, `reach` looks at one variable and returns.

`python -m tests.doubles.crash_point ARGS` is `loong ARGS` with the points of exports and of stored
calls in it.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from loong_jax.models.hf import files, unfinished
from loong_jax.orchestrator import changes, journal
from loong_jax.synth.calls import CallStore

VARIABLE = "LOONG_DIE_AT"

_reached: dict[str, int] = {}


def reach(name: str) -> None:
    """SIGKILL if this is the point, and the time, that the variable names."""
    if is_here(name):
        kill()


def is_here(name: str, how: str = "") -> bool:
    """Counts one more arrival at `name`; `how` is what follows the count in the variable."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return False
    point, count, *rest = wanted.split(":")
    if point != name or (rest[0] if rest else "") != how:
        return False
    _reached[name] = _reached.get(name, 0) + 1
    return _reached[name] == int(count)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalJournal(journal.Journal):
    """Every record is a point of its name, whole or torn."""

    def write(self, change: changes.Change) -> None:
        name = type(change).__name__
        if is_here(name, "torn"):
            line = journal._encode_line(journal.to_json(change))
            journal._write(self._log, line[: len(line) // 2], self.directory)
            kill()
        super().write(change)
        reach(name)


@contextlib.contextmanager
def watched(reach: Callable[[str], None] = reach) -> Iterator[None]:
    """Calls `reach` at the points of exports and of stored calls.

    ExportBegun: the mark lies there, nothing is written. ShardWritten: one file lies aside.
    ExportWhole: all do, and the mark says so. FileMoved: one is in its place. Stored: a call is.
    """
    clear, write_file, finish = unfinished._clear, files.write_file, unfinished.finish
    replace, put = Path.replace, CallStore.put

    def clear_and_reach(*args):
        clear(*args)
        reach("ExportBegun")

    def write_file_and_reach(*args):
        write_file(*args)
        reach("ShardWritten")

    def finish_and_reach(export, names):
        def replace_and_reach(path, target):
            if path == export.aside / names[0]:
                reach("ExportWhole")
            replace(path, target)
            reach("FileMoved")

        with mock.patch.object(Path, "replace", replace_and_reach):
            finish(export, names)

    def put_and_reach(store, key, record):
        is_new = key not in store
        put(store, key, record)
        if is_new:
            reach("Stored")

    with (
        mock.patch.object(unfinished, "_clear", clear_and_reach),
        mock.patch.object(files, "write_file", write_file_and_reach),
        mock.patch.object(unfinished, "finish", finish_and_reach),
        mock.patch.object(CallStore, "put", put_and_reach),
    ):
        yield


@contextlib.contextmanager
def stopped_at(name: str, count: int = 1) -> Iterator[None]:
    """Raises KeyboardInterrupt at that point of an export, for that SIGKILL ends the test too."""
    num_reached = 0

    def stop(reached: str) -> None:
        nonlocal num_reached
        num_reached += reached == name
        if reached == name and num_reached == count:
            raise KeyboardInterrupt

    with watched(stop):
        yield


if __name__ == "__main__":
    from loong_jax import cli

    with watched():
        sys.exit(cli.main(sys.argv[1:]))
