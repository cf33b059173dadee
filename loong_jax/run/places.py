"""Places on a disk that a command is to write, tried before it works for long."""

import os
import tempfile
from pathlib import Path

from loong_jax.errors import ConfigError

_STDOUT = "/dev/stdout"


def prepare_files(**files: Path | None) -> None:
    """Makes the directory of each and tries a file beside it, which is removed; None is left alone.

    Their names are those of options. Raises ConfigError for a file that could not be written.
    """
    for option, path in files.items():
        if path is not None and (reason := _no_file(path)):
            raise ConfigError(
                f"{_flag(option)} {path} cannot be written: {reason}. Name a file in a directory "
                "that may be written to."
            )


def try_directories(**directories: Path | str | None) -> None:
    """Checks directories that are written to, which could be made; URLs are left alone."""
    for option, path in directories.items():
        if path is not None and "://" not in str(path) and (reason := _no_directory(Path(path))):
            raise ConfigError(
                f"{_flag(option)} {path} cannot be written to: {reason}. Name a directory that "
                "is there, or can be made, and may be written to."
            )


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def is_stdout(path: Path) -> bool:
    """True for /dev/stdout, and for the file that it is; a file that replaced it would be lost."""
    return os.path.exists(path) and os.path.exists(_STDOUT) and os.path.samefile(path, _STDOUT)


def _no_file(path: Path) -> str | None:
    """The reason why nothing can be written to `path`; None where it can."""
    if os.path.isdir(path):
        return "it is a directory"
    if os.path.exists(path) and not os.path.isfile(path):
        return "it is no regular file"
    if is_stdout(path):
        return "what this command prints goes there"
    there, _ = _what_there_is(path.parent)
    if not os.path.isdir(there):
        return f"{there} is no directory"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}."):
            pass
        if os.path.exists(path):
            with path.open("ab"):
                pass
    except OSError as error:
        return error.strerror or str(error)
    return None


def _no_directory(path: Path) -> str | None:
    there, name = _what_there_is(path)
    if not os.path.isdir(there):
        return f"{there} is no directory"
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=f"{name}."):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _what_there_is(path: Path) -> tuple[Path, str]:
    """The nearest of `path` and what it lies in that exists, and the next name on the way down."""
    there, name = path.absolute(), "loong"
    while not os.path.lexists(there):
        there, name = there.parent, there.name
    return there, name
