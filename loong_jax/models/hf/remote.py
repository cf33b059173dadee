"""Files that fsspec reads, under the few names of `pathlib.Path` that checkpoints are read by."""

import dataclasses

import fsspec

from loong_jax.errors import CheckpointError


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """A file or a directory such as gs://bucket/model."""

    files: fsspec.AbstractFileSystem
    path: str

    @classmethod
    def of(cls, url: str) -> "RemotePath":
        """Raises CheckpointError for a protocol that is unknown or whose package is missing."""
        try:
            files, path = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"{url} cannot be read: {error}. Install the package that fsspec reads "
                f"{url.partition('://')[0]}:// with, or name a local directory."
            ) from error
        return cls(files, path.rstrip("/"))

    def __str__(self) -> str:
        return str(self.files.unstrip_protocol(self.path))

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.files, f"{self.path}/{name}")

    def __lt__(self, other: "RemotePath") -> bool:
        return self.path < other.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.files, self.path.rpartition("/")[0])

    def exists(self) -> bool:
        return self.files.exists(self.path)

    def is_file(self) -> bool:
        return self.files.isfile(self.path)

    def is_dir(self) -> bool:
        return self.files.isdir(self.path)

    def iterdir(self) -> list["RemotePath"]:
        return [RemotePath(self.files, path) for path in self.files.ls(self.path, detail=False)]

    def glob(self, pattern: str) -> list["RemotePath"]:
        return [RemotePath(self.files, str(p)) for p in self.files.glob(f"{self.path}/{pattern}")]

    def stamp(self) -> str:
        """Changes when the file is written to."""
        return str(self.files.ukey(self.path))

    def size(self) -> int:
        return int(self.files.size(self.path) or 0)

    def read_bytes(self) -> bytes:
        return self.files.cat_file(self.path)  # type: ignore[return-value]

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to before `stop`."""
        if start == stop:
            return b""
        return self.files.cat_file(self.path, start=start, end=stop)  # type: ignore[return-value]
