"""Compiled programs on disk, named by what they were made of, so that each is compiled once.

An entry is written aside and renamed into place, so that a reader sees all of it or nothing. Runs
see one entry alone, mounted read-only.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from loong_jax.errors import VerifierError

_PREFIX = "loong-artefacts-"
_MAKING_S = 60.0  # between a directory's making and its lock, at the very most
_NOTE = ".note.json"  # beside the entry: what the compiler said


class ArtefactCache:
    """Entries below one directory, at most `max_bytes`; the longest unused go first.

    Without a directory it makes one and removes it on close. Any user must be able to reach it,
    because programs run as another user than root.
    """

    def __init__(self, directory: Path | None = None, max_bytes: int = 2 * 2**30):
        self._is_ours = directory is None
        self._owned_fd = -1
        if directory is None:
            _remove_stale()
        self.directory = directory or Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._is_ours:
                self._owned_fd = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._owned_fd, fcntl.LOCK_EX)
                self.directory.chmod(0o755)
        except OSError as error:
            raise VerifierError(
                f"the artefact cache {self.directory} cannot be used: {error}. Name a directory "
                "that can be written."
            ) from error
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def note(self, key: str) -> dict | None:
        """The note that `put` was given beside the files; None without such an entry."""
        try:
            note = json.loads((self.directory / (key + _NOTE)).read_text())
        except (OSError, ValueError):
            return None
        if not (self.directory / key).is_dir():
            return None
        with contextlib.suppress(OSError):
            os.utime(self.directory / (key + _NOTE))
        return note

    def put(self, key: str, files: Mapping[str, tuple[bytes, bool]], note: dict) -> None:
        """Stores the files of an artefact, and what is to be remembered about its making."""
        with self._lock:
            aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self.directory))
            try:
                for name, (content, is_executable) in files.items():
                    path = aside / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    path.chmod(0o555 if is_executable else 0o444)
                aside.chmod(0o755)
                note = note | {"num_bytes": sum(len(content) for content, _ in files.values())}
                (aside.with_suffix(".note")).write_text(json.dumps(note))
                with contextlib.suppress(OSError):  # another process was faster: the same content
                    os.rename(aside, self.directory / key)
                os.replace(aside.with_suffix(".note"), self.directory / (key + _NOTE))
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            self._evict(key)

    def _evict(self, newest: str) -> None:
        notes = sorted(self.directory.glob("*" + _NOTE), key=lambda path: path.stat().st_mtime)
        sizes = {}
        for path in notes:
            with contextlib.suppress(OSError, ValueError, KeyError):
                sizes[path] = json.loads(path.read_text())["num_bytes"]
        excess = sum(sizes.values()) - self._max_bytes
        for path, size in sizes.items():
            key = path.name.removesuffix(_NOTE)
            if excess <= 0 or key == newest:
                break
            path.unlink(missing_ok=True)
            shutil.rmtree(self.directory / key, ignore_errors=True)
            excess -= size

    def close(self) -> None:
        if self._is_ours:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._owned_fd >= 0:
            os.close(self._owned_fd)
            self._owned_fd = -1


def _remove_stale() -> None:
    """Directories whose owner was killed: nobody holds their lock, and they are not being made."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(fd).st_ctime > _MAKING_S:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(fd)


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
