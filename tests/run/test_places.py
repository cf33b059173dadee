"""Whether a place can be written to, by trying; no file is left behind."""

import os
from pathlib import Path

import pytest

from loong_jax.errors import ConfigError
from loong_jax.run import places


def test_places_that_can_be_written_pass_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "old.json").write_text("old")
    for name in ("new.json", "old.json"):
        places.prepare_files(json=tmp_path / name, chart=None)
    monkeypatch.chdir(tmp_path)
    places.prepare_files(json=Path("x.json"))
    for directory in (tmp_path, tmp_path / "a" / "b", "runs/a", "gs://bucket/run", None):
        places.try_directories(checkpoints=directory)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    places.prepare_files(json=tmp_path / "runs" / "a" / "x.json")
    assert list((tmp_path / "runs" / "a").iterdir()) == []
    assert (tmp_path / "old.json").read_text() == "old"


def test_places_that_cannot_be_written_are_named_with_their_option(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    long, stdout = tmp_path / ("x" * 255), tmp_path / "stdout"
    stdout.touch()
    monkeypatch.setattr(places, "_STDOUT", stdout)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "file" / "x", long, stdout):
        with pytest.raises(ConfigError, match=r"--chart-file .*cannot be written: .* Name a file"):
            places.prepare_files(chart_file=path)
    for path in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / "dangling", "/proc/x/y"):
        with pytest.raises(ConfigError, match=r"--run-dir .*cannot be written to: .* Name a dir"):
            places.try_directories(run_dir=path)
