"""Files that a kill leaves readable."""

import json
import math

import numpy as np
import pytest

from loong_jax.data import json_files
from loong_jax.errors import LoongError


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
