"""One process at a time works in a run directory."""

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from loong_jax.errors import ConfigError

LOCK = "lock"
_HELD_ELSEWHERE = (BlockingIOError, PermissionError)  # EAGAIN and EACCES, as systems differ

logger = logging.getLogger(__name__)


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
        except _HELD_ELSEWHERE as error:
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
