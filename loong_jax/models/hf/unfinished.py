"""An export that may be killed: its files lie aside until all are whole, and a mark says so.

The mark is in the directory before anything else and goes last. While files are written it is
empty; once all are whole it notes the size and time of each, and they are moved to their places. So
a file that a killed export moved is told from all others. The next export starts over, or goes on
after the files that are whole where it can say that its weights are the same. Loaders refuse a
directory with a mark. An export that goes on holds a lock on it.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from loong_jax.errors import CheckpointError
from loong_jax.models.hf import files

MARK = ".loong_export"
ASIDE = ".loong_export.files"  # a directory beside the mark
SOURCE = "source"  # a file there: what tells the weights of the export from all others


class Begun(NamedTuple):
    """An export to `directory`, whose files are written to `aside` first."""

    directory: Path
    aside: Path
    mark: IO[str]
    config_text: bytes  # of the config.json that will be written


def refuse_unfinished(directory: Path, *, but_of: str | None = None) -> None:
    """Raises CheckpointError where an export to `directory` goes on or was killed.

    With `but_of` one of that source, or of none, is let pass.
    """
    passes = but_of is not None and _content(directory / ASIDE / SOURCE) in (but_of.encode(), None)
    if os.path.exists(directory / MARK) and not passes:  # False where nothing can be read
        raise CheckpointError(
            f"{directory} holds an export that was not finished, as {MARK} in it says. Repeat the "
            f"export, name another directory, or delete {MARK} and {ASIDE} there to give it up."
        )


def refuse_others(directory: Path, config_text: bytes) -> None:
    """Raises CheckpointError on files in the way that no unfinished export put there.

    A config.json of the content that will be written is none, nor an index whose files are gone.
    """
    own = _own(directory)
    others = [name for name in files.unlisted(directory) if name not in own]
    config, index = directory / "config.json", directory / files.INDEX
    if os.path.lexists(config) and config.name not in own and _content(config) != config_text:
        others.append(config.name)
    if os.path.lexists(index) and index.name not in own and not files.is_dangling(index):
        others.append(index.name)
    if others:
        raise CheckpointError(
            f"{directory} already holds {others[0]}, and an export replaces no file but those of "
            "an export that was not finished. Name another directory, or delete such files."
        )


@contextlib.contextmanager
def begun(directory: Path, config_text: bytes, source: str | None = None) -> Iterator[Begun]:
    """An export of weights that `source` tells from all others, or that nothing does.

    What an unfinished one of the same `source` left is in `aside`, and deleted otherwise. It is
    unfinished until `finish`, whatever ends it. Raises CheckpointError where another process
    exports to `directory` or has ended one meanwhile, or where files cannot be written.
    """
    refuse_others(directory, config_text)
    with _told(directory):
        files.make_directory(directory)
        is_new = not os.path.lexists(directory / MARK)
        with (directory / MARK).open("a", encoding="utf-8") as mark:
            _lock(mark, directory)
            try:
                refuse_others(directory, config_text)  # put there while this one waited
            except CheckpointError:
                if is_new:
                    (directory / MARK).unlink()
                raise
            export = Begun(directory, directory / ASIDE, mark, config_text)
            _clear(export, source)
            yield export


def _clear(export: Begun, source: str | None) -> None:
    """Leaves in `aside` what an unfinished export of the same `source` wrote, and nothing else."""
    directory, aside = export.directory, export.aside
    goes_on = source is not None and _content(aside / SOURCE) == source.encode()
    for name in _own(directory):
        if goes_on:
            (directory / name).replace(aside / name)
        else:
            (directory / name).unlink()
    export.mark.truncate(0)
    if not goes_on:
        if os.path.lexists(aside):
            shutil.rmtree(aside)
        aside.mkdir()
        if source is not None:
            (aside / SOURCE).write_text(source, encoding="utf-8")


@contextlib.contextmanager
def _told(directory: Path) -> Iterator[None]:
    """Errors of the file system as a CheckpointError; what was written is kept."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the export to {directory} stopped: {error}. Correct that, and repeat it; delete "
            f"{MARK} and {ASIDE} there if they are not of an export of yours."
        ) from error


def finish(export: Begun, names: Sequence[str]) -> None:
    """Moves the files to their places, in this order, and removes all else and the mark.

    Raises CheckpointError where one is gone, or where others have put files in its place.
    """
    refuse_others(export.directory, export.config_text)
    if gone := [name for name in names if _seen(export.aside / name) is None]:
        raise CheckpointError(
            f"{export.aside / gone[0]} was deleted while the export went on. Repeat the export."
        )
    export.mark.write(json.dumps({name: _seen(export.aside / name) for name in names}))
    export.mark.flush()
    for name in names:
        (export.aside / name).replace(export.directory / name)
    shutil.rmtree(export.aside)
    (export.directory / MARK).unlink()


def _own(directory: Path) -> set[str]:
    """Names of the files in `directory` that an unfinished export moved there, unchanged since."""
    try:
        noted = json.loads((directory / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no mark, or one from before anything was moved
        return set()
    pairs = noted.items() if isinstance(noted, dict) else ()
    return {name for name, seen in pairs if seen and _seen(directory / name) == seen}


def _seen(file: Path) -> list[int] | None:
    """Size and modification time, which tell a file from another one of its name."""
    try:
        status = file.lstat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _lock(mark: IO[str], directory: Path) -> None:
    """Held until the file is closed, or its process dies."""
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_mine = os.fstat(mark.fileno()).st_nlink > 0  # not removed by one that just ended
    except BlockingIOError:
        is_mine = False
    except OSError:  # a file system without locks
        is_mine = True
    if not is_mine:
        raise CheckpointError(
            f"another process exports to {directory}. Wait for it, or name another directory."
        )
