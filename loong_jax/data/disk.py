"""Writing where no room may be left: an error that says where, how much is free, what to do."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from loong_jax.errors import DiskFullError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("no space left on device", "disk quota exceeded", "resource_exhausted: no space")


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Whatever fails inside because no room is left raises DiskFullError; all else passes by."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:  # OSError, and what TensorStore and Orbax make of one
        if is_full(error):
            raise DiskFullError(_message(Path(path))) from error
        raise


def is_full(error: BaseException | None) -> bool:
    """True if an error, or one that led to it, says that a disk or a quota is full."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        if any(words in str(error).lower() for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _message(path: Path) -> str:
    there = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    return (
        f"no room to write {path}: {free} bytes are free where it lives, or a quota is used up. "
        "Make room there. What was written before is whole, and the same command goes on from it."
    )
