"""Files that a kill leaves readable."""

import errno
import json
import math
import os

import numpy as np
import pytest

from loong_jax.data import disk, json_files
from loong_jax.errors import DiskFullError, LoongError


def test_nan_and_arrays_become_plain_json(tmp_path):
    path = json_files.write_json(
        tmp_path / "a" / "b.json",
        {"x": math.nan, "y": [math.inf, 1.5], 3: np.float32(0.5), "z": np.arange(2)},
    )
    assert json.loads(path.read_text()) == {"x": None, "y": [None, 1.5], "3": 0.5, "z": [0, 1]}
    assert not list(path.parent.glob("*.partial"))
    assert json_files.read_json(tmp_path / "none.json", default=7) == 7


@pytest.mark.parametrize("tail", [b'{"step": 3', b'{"step": 3}', b"\x00\x00\x00\n", b"", b"17\n"])
def test_a_damaged_last_line_is_dropped_at_every_byte(tmp_path, tail):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + tail)
    assert [r["step"] for r in json_files.read_jsonl(path)] == [1, 2]


def test_damage_further_up_is_an_error(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(LoongError, match="line 2"):
        json_files.read_jsonl(path)


def test_damaged_json_is_an_error(tmp_path):
    for text in ("{", "[" * 100_000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(LoongError, match="not JSON"):
            json_files.read_json(tmp_path / "x.json")


def test_jsonl_round_trip(tmp_path):
    records = [{"a": 1}, {"b": "x\ny"}]
    assert json_files.read_jsonl(json_files.write_jsonl(tmp_path / "r.jsonl", records)) == records
    assert json_files.read_jsonl(tmp_path / "absent.jsonl") == []


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
