"""What stages decide by themselves: when time ends one."""

from loong_jax.data import json_files
from loong_jax.launch import stages
from loong_jax.orchestrator.pipeline import StageDirectories


def test_time_before_an_interruption_counts_towards_the_end_of_a_stage(tmp_path):
    for name in ("a", "b"):
        json_files.write_json(tmp_path / name / "done.json", {"wall_s": 60.0, "evaluation_s": 10.0})
    directories = StageDirectories(
        own=tmp_path / "c", inputs={name: tmp_path / name for name in ("a", "b")}
    )
    assert stages._until(("a", "b"), directories, 90.0)()
    assert not stages._until(("a", "b"), directories, 100.0)()
    assert stages._until((), directories, 100.0)()
