"""A full disk is told from other errors, and its error says what to do."""

import errno
import os

import pytest

from loong_jax.data import disk, json_files
from loong_jax.errors import DiskFullError


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def no_room():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        no_room(),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [OS error 28]"),
        caused(RuntimeError("writing failed"), no_room()),
    ],
)
def test_no_room_is_named_with_path_bytes_and_remedy(tmp_path, error):
    path = tmp_path / "not" / "yet" / "there"
    message = r"no room to write .*there: \d+ bytes"
    with pytest.raises(DiskFullError, match=message) as caught, disk.writing(path):
        raise error
    assert "the same command goes on" in str(caught.value)
    assert caught.value.__cause__ is error


def test_other_errors_pass_by(tmp_path):
    for error in (OSError(errno.EACCES, "denied"), ValueError("no space for doubt"), KeyError("x")):
        with pytest.raises(type(error)), disk.writing(tmp_path):
            raise error


def test_what_was_written_before_stays(tmp_path, monkeypatch):
    path = json_files.write_json(tmp_path / "record.json", {"a": 1})
    monkeypatch.setattr(type(path), "write_text", failing(no_room()))
    with pytest.raises(DiskFullError, match=r"record\.json"):
        json_files.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert json_files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
