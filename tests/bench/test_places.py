"""Every bench refuses a place it cannot write to before it measures anything."""

import importlib
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.bench import BENCHES


def refused(name: str, option: str, place: Path, monkeypatch, capsys) -> str:
    """What is said where `loong bench NAME --OPTION PLACE` must not measure."""
    for measuring in ("measure", "read_cases"):
        monkeypatch.setattr(importlib.import_module(BENCHES[name]), measuring, None, raising=False)
    words = ["bench", name, f"--{option}", str(place)]
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"loong bench: --{option} {place} cannot be written")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("name", BENCHES)
def test_files_that_cannot_be_written_are_refused(name, tmp_path, monkeypatch, capsys):
    for place, why in ((tmp_path, "it is a directory"), (Path("/proc/x.json"), "")):
        assert why in refused(name, "json", place, monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    said = refused("fusion", "directory", tmp_path / "file", monkeypatch, capsys)
    assert "is no directory" in said
    refused("fusion", "directory", Path("/proc/x"), monkeypatch, capsys)
