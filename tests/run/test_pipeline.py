"""Stages run once, in order, and go on where they were interrupted."""

import pytest

from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.run.pipeline import refuse_missing, run_stages, stage_directory

NEEDED = {"a": (), "b": ("a",), "c": ("a", "b")}


def recording(log, fail_in=None):
    def run(name, directories):
        log.append((name, sorted(directories.inputs)))
        if name == fail_in:
            raise RuntimeError("interrupted")
        return {"name": name}

    return run


def test_runs_in_order_and_skips_what_is_done(tmp_path):
    log = []
    with pytest.raises(RuntimeError, match="interrupted"):
        run_stages(NEEDED, recording(log, fail_in="b"), tmp_path)
    run_stages(NEEDED, recording(log), tmp_path)
    assert log == [("a", []), ("b", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]
    assert json_files.read_json(stage_directory(tmp_path, "c") / "done.json")["name"] == "c"
    skipped = []
    run_stages(NEEDED, recording(log), tmp_path, on_skip=skipped.append)
    assert (len(log), skipped) == (4, list(NEEDED))


def test_only_one_stage_takes_its_inputs_from_another_run(tmp_path):
    log = []
    with pytest.raises(CheckpointError, match="'a' is not done"):
        run_stages(NEEDED, recording(log), tmp_path / "new", only="b")
    run_stages(NEEDED, recording(log), tmp_path / "old")
    run_stages(NEEDED, recording(log), tmp_path / "new", only="b", source=tmp_path / "old")
    assert log[-1] == ("b", ["a"])


def test_refuses_unknown_and_misordered_stages(tmp_path):
    with pytest.raises(ConfigError, match="'z' is unknown"):
        run_stages(NEEDED, recording([]), tmp_path, only="z")
    with pytest.raises(ConfigError, match="comes before"):
        run_stages(dict(reversed(NEEDED.items())), recording([]), tmp_path)


def test_what_is_missing_is_said_before_any_stage_works(tmp_path):
    log = []
    lost = NEEDED | {"d": ("c", "elsewhere")}
    with pytest.raises(CheckpointError, match="'elsewhere' is not done"):
        run_stages(lost, recording(log), tmp_path / "new")
    assert log == []
    needed = {"a": (), "b": ("a",)}
    with pytest.raises(CheckpointError, match=r"old holds no stages.*--from"):
        refuse_missing(needed, tmp_path / "new", source=tmp_path / "old")
    with pytest.raises(CheckpointError, match="'a' is not done"):
        refuse_missing(needed, tmp_path / "new", only="b")
    refuse_missing(needed, tmp_path / "new", only="b", given={"a": tmp_path})
    refuse_missing(needed, tmp_path / "new")


def test_the_time_of_a_stage_adds_up_over_its_interruptions(tmp_path):
    run_stages({"a": ()}, lambda name, directories: {"earlier_s": 70.0}, tmp_path)
    assert json_files.read_json(stage_directory(tmp_path, "a") / "done.json")["wall_s"] >= 70
