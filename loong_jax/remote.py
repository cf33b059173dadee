"""Files and directories that fsspec reads, such as gs://bucket/model, beside those on this machine.

Small files are read whole and weights by ranges of bytes; nothing is copied to a disk.

Knows: errors.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from loong_jax.errors import CheckpointError


@dataclasses.dataclass(frozen=True, order=True)
class RemotePath:
    """A URL as it was given, under the few names of `pathlib.Path` that checkpoints are read by.

    It is opened when something is asked of it: CheckpointError then for a protocol that is unknown
    or whose package is missing.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.url.split("/"))

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.url.rpartition("/")[0])

    @property
    def parents(self) -> tuple["RemotePath", ...]:
        """None: what is above a URL is of no concern to it."""
        return ()

    def resolve(self) -> "RemotePath":
        return self

    def refuse_unreadable(self) -> None:
        """Raises CheckpointError where nothing is there, or it cannot be read."""
        try:
            self._ask("info")
        except CheckpointError:
            raise
        except FileNotFoundError:
            raise CheckpointError(f"{self} does not exist. Name what is there.") from None
        except Exception as error:  # a protocol's own: of credentials, of connections
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise CheckpointError(
                f"{self} cannot be read: {why:.300}. Correct that, or name a local directory."
            ) from error

    def exists(self) -> bool:
        return self._ask("exists")

    def is_file(self) -> bool:
        return self._ask("isfile")

    def is_dir(self) -> bool:
        return self._ask("isdir")

    def iterdir(self) -> Iterator["RemotePath"]:
        return self._children(self._ask("ls", detail=False))

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Paths in the directory itself that match `pattern`, a pattern of names."""
        files, path = self._opened()
        return self._children(files.glob(f"{path}/{pattern}"))

    def stamp(self) -> str:
        """Changes when the file is written to."""
        return str(self._ask("ukey"))

    def size(self) -> int:
        return int(self._ask("size") or 0)

    def read_bytes(self) -> bytes:
        return self._ask("cat_file")

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to before `stop`."""
        return b"" if start == stop else self._ask("cat_file", start=start, end=stop)

    def _ask(self, what: str, **named: Any) -> Any:
        """The answer of a method of fsspec's file system."""
        files, path = self._opened()
        return getattr(files, what)(path, **named)

    def _opened(self) -> tuple[Any, str]:
        """fsspec's file system, which it keeps, and the path there."""
        import fsspec  # which takes its time, and most runs have no URL

        try:
            return fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"{self} cannot be read: {error}. Install the package that fsspec reads "
                f"{self.url.partition('://')[0]}:// with, or name a local directory."
            ) from error

    def _children(self, paths: Any) -> Iterator["RemotePath"]:
        return (self / str(path).rstrip("/").rpartition("/")[2] for path in paths)


AnyPath: TypeAlias = Path | RemotePath


def located(place: AnyPath | str) -> AnyPath:
    """A path, of which one with a protocol, such as gs://bucket/model, is fsspec's."""
    if not isinstance(place, str):
        return place
    return RemotePath(place.rstrip("/")) if "://" in place else Path(place)
