"""`loong import-hf` and `loong export-hf`, killed and not."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from loong_jax import cli, configs, recipes
from loong_jax.errors import CheckpointError, DiskFullError
from loong_jax.merge import checkpoints
from loong_jax.models import moe, parameters
from loong_jax.models.hf import HfCheckpoint
from loong_jax.rl import checkpoint
from loong_jax.run import convert, sources, stages
from tests.doubles import crash_point, tiny
from tests.processes import run_python
from tests.sweeps import thinned

PUBLISHED = Path(__file__).parents[1] / "models" / "moe" / "fixtures" / "published"


def contents(directory):
    """Bytes of every tensor by its name, from headers and files."""
    found = HfCheckpoint(directory)
    return {name: tensor.view({}).tobytes() for name, tensor in found.found.items()}


def test_commands_there_and_back(tmp_path, capsys):
    assert cli.main(["import-hf", str(PUBLISHED), str(tmp_path / "ours")]) == 0
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == ["model.json", "weights"]
    weights = parameters.by_path(stages.load_weights(tmp_path / "ours"))
    config = HfCheckpoint(PUBLISHED).config
    assert weights["layers/experts/down"].shape == (2, config.num_experts, 10, 20)
    arguments = [str(tmp_path / "ours"), str(tmp_path / "back"), "--max-shard-gb", "5e-5"]
    assert cli.main(["export-hf", *arguments]) == 0
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    assert contents(tmp_path / "back") == contents(PUBLISHED)
    text = (tmp_path / "back" / "config.json").read_text()
    assert text == (PUBLISHED / "config.json").read_text()
    assert cli.main(["import-hf", str(PUBLISHED), str(tmp_path / "ours")]) == 1
    assert "already holds a model" in capsys.readouterr().err


def test_commands_give_the_same_files_back(tmp_path):
    """Unless a size is asked for, or the import was made before layouts were noted."""
    assert cli.main(["import-hf", str(PUBLISHED), str(tmp_path / "ours")]) == 0
    assert cli.main(["export-hf", str(tmp_path / "ours"), str(tmp_path / "back")]) == 0
    found = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
    assert found == {name: (PUBLISHED / name).read_bytes() for name in found}
    assert len(found) == 5
    path = tmp_path / "ours" / "model.json"
    record = json.loads(path.read_text())
    assert record.pop("hf_layout")
    path.write_text(json.dumps(record))
    convert.export_hf(tmp_path / "ours", tmp_path / "older")
    assert sorted(p.name for p in (tmp_path / "older").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_tokenizer_and_template_travel_with_the_weights(tmp_path):
    """Through an import, and from what a run keeps to the export of a stage of it."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(PUBLISHED, theirs)
    record = json.loads((theirs / "config.json").read_text())
    ids = {"bos_token_id": 1, "eos_token_id": [30, 31], "pad_token_id": 3, "auto_map": {"A": "m.B"}}
    (theirs / "config.json").write_text(json.dumps(record | ids))
    beside = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "m.py")
    for name in (*beside, "generation_config.json"):
        (theirs / name).write_text(f"of {name}")
    convert.import_hf(theirs, ours)
    convert.export_hf(ours, tmp_path / "back")
    config, weights = HfCheckpoint(theirs).config, stages.load_weights(ours)
    recipe = dataclasses.replace(recipes.get_recipe("quickstart")(), model=config)
    configs.open_run(recipe, tmp_path / "run")
    stage = tmp_path / "run" / "stages" / "sft"
    stages.save_weights(stage, 3, weights)
    sources.keep_files(sources.find(ours), tmp_path / "run" / "model")
    convert.export_hf(stage, tmp_path / "trained")
    for directory in (ours, tmp_path / "back", tmp_path / "trained"):
        for name in (*beside, "generation_config.json"):
            assert (directory / name).read_text() == f"of {name}"
    for directory in (tmp_path / "back", tmp_path / "trained"):
        assert json.loads((directory / "config.json").read_text()) == record | ids


@pytest.mark.parametrize("command", ["import-hf", "export-hf"])
def test_help_names_source_and_destination(capsys, command):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    usage = capsys.readouterr().out.split("\n")[0]
    assert " SRC DST" in usage


DTYPES = "Choose one of float32, bfloat16, float16"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("import-hf file out", ""),
        (f"import-hf {PUBLISHED} file", ""),
        (f"import-hf {PUBLISHED} file/out", ""),
        *((f"export-hf in out --max-shard-gb {size}", "") for size in ("nan", "inf", "0", "-1")),
        # they destroy weights
        *(
            (f"import-hf {PUBLISHED} out --dtype {dtype}", f"dtype='{dtype}' is none.*{DTYPES}")
            for dtype in ("int8", "nonsense", "bf16")
        ),
    ],
)
def test_commands_refuse_in_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main(words.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told, line)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_killed_import_goes_on(tmp_path, monkeypatch):
    """It reads no block twice, but for the one it was killed in, and ends with the same weights."""
    monkeypatch.setattr(convert, "BLOCK_BYTES", 3000)
    read, blocks = HfCheckpoint.read, []

    def dies_at(limit):
        def reader(self, leaf, region):
            if len(blocks) == limit:
                raise KeyboardInterrupt
            blocks.append((leaf, region))
            return read(self, leaf, region)

        return reader

    monkeypatch.setattr(HfCheckpoint, "read", dies_at(25))
    with pytest.raises(KeyboardInterrupt):
        convert.import_hf(PUBLISHED, tmp_path / "ours")
    assert len(blocks) == 25
    with pytest.raises(CheckpointError, match="part of another import"):
        convert.import_hf(PUBLISHED, tmp_path / "ours", dtype="bfloat16")
    monkeypatch.setattr(HfCheckpoint, "read", dies_at(None))
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    assert len(blocks) == len(set(blocks)) > 50
    whole = HfCheckpoint(PUBLISHED)
    for leaf, found in parameters.by_path(stages.load_weights(tmp_path / "ours")).items():
        expected = read(whole, leaf, tuple((0, size) for size in found.shape))
        np.testing.assert_array_equal(found, expected)


def test_a_full_disk_is_told_and_the_import_goes_on(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError, match=r"no room to write .*\.bin"):
            convert.import_hf(PUBLISHED, tmp_path / "ours")
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == ["model.json", "weights"]


@pytest.mark.parametrize("text", ["[]", '{"format_version": 1}', '{"config": 1, "hf_config": 2}'])
def test_a_damaged_record_of_a_model_is_named(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.json has format_version=None"):
        sources.read_model(tmp_path)


def test_an_import_killed_after_its_last_file_is_finished(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(convert.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert.import_hf(PUBLISHED, tmp_path)
    assert (tmp_path / "model.json").exists()
    with pytest.raises(CheckpointError, match="another import"):
        convert.import_hf(PUBLISHED, tmp_path, dtype="bfloat16")
    capsys.readouterr()
    convert.import_hf(PUBLISHED, tmp_path)
    said = capsys.readouterr().out
    assert said.startswith(f"{PUBLISHED}: 102 tensors were read before")
    assert str(tmp_path / "weights") in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "weights"]


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", [0, 3])
def test_an_import_replaces_no_weights(tmp_path, step):
    """Not those of a stage, whose directory has no model.json."""
    weights = {"head": np.ones((2, 3), np.float32)}
    stages.save_weights(tmp_path, step, weights)
    with pytest.raises(CheckpointError, match=f"already holds a checkpoint, of step {step}"):
        convert.import_hf(PUBLISHED, tmp_path)
    np.testing.assert_array_equal(stages.load_weights(tmp_path)["head"], weights["head"])
    assert [p.name for p in tmp_path.iterdir()] == ["weights"]


def test_an_import_goes_beside_no_other_published_weights(tmp_path):
    """They would be read instead of it."""
    shutil.copytree(PUBLISHED, tmp_path / "there")
    with pytest.raises(CheckpointError, match="there already holds a model"):
        convert.import_hf(PUBLISHED, tmp_path / "there")
    convert.import_hf(tmp_path / "there", tmp_path / "there")
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    convert.import_hf(PUBLISHED, tmp_path / "others")
    with pytest.raises(CheckpointError, match="others already holds a model"):
        convert.export_hf(tmp_path / "ours", tmp_path / "others")


def test_a_stage_of_a_run_is_exported_with_the_config_of_the_run(tmp_path):
    config = tiny.smallest_config()
    _, weights = moe.init_weights(config, jax.random.key(0))
    stage = tmp_path / "run" / "stages" / "general"
    stages.save_weights(stage, 3, weights)
    with pytest.raises(CheckpointError, match="its config is unknown"):
        convert.export_hf(stage, tmp_path / "out", max_shard_bytes=10**9)
    recipe = dataclasses.replace(recipes.get_recipe("quickstart")(), model=config)
    configs.open_run(recipe, tmp_path / "run")
    convert.export_hf(stage, tmp_path / "out", max_shard_bytes=10**9)
    model = moe.load_hf(tmp_path / "out")
    assert model.config == config
    stages.save_weights(stage, 4, weights | {"head": weights["head"][:, 1:]})
    with pytest.raises(CheckpointError, match=r"Put the model\.json beside it"):
        convert.export_hf(stage, tmp_path / "other", max_shard_bytes=10**9)


# --- exports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", thinned(["ShardWritten:2", "FileMoved:2"], 1))
def test_an_export_killed_by_a_signal_goes_on(tmp_path, capsys, point):
    assert cli.main(["import-hf", str(PUBLISHED), str(tmp_path / "ours")]) == 0
    arguments = ["export-hf", str(tmp_path / "ours"), str(tmp_path / "out"), "--max-shard-gb"]
    command = ("-m", "tests.doubles.crash_point", *arguments, "5e-5")
    done = run_python(*command, **{crash_point.VARIABLE: point})
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert cli.main(["import-hf", str(tmp_path / "out"), str(tmp_path / "other")]) == 1
    assert "an export that was not finished" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    capsys.readouterr()
    assert cli.main([*arguments, "5e-5"]) == 0
    num_whole = 2 if point == "ShardWritten:2" else 3
    assert f", {num_whole} of the files before" in capsys.readouterr().out
    arguments[2] = str(tmp_path / "whole")
    assert cli.main([*arguments, "5e-5"]) == 0
    assert "before" not in capsys.readouterr().out
    again, whole = (
        {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("out", "whole")
    )
    assert again == whole


def negated(source, destination):
    """A copy of an imported model with other weights of the same shapes."""
    shutil.copytree(source, destination)
    shutil.rmtree(destination / "weights")
    weights = stages.load_weights(source)
    stages.save_weights(destination, 0, jax.tree.map(lambda a: -a, weights))


def stopped_export(source, destination, point="ShardWritten"):
    """One that ended with its first file written, or moved."""
    with crash_point.stopped_at(point), pytest.raises(KeyboardInterrupt):
        convert.export_hf(source, destination, max_shard_bytes=50_000)


def exported(source, destination):
    convert.export_hf(source, destination, max_shard_bytes=50_000)
    return {path.name: path.read_bytes() for path in destination.iterdir()}


def test_weights_behind_a_link_that_was_changed_are_exported_anew(tmp_path, capsys):
    convert.import_hf(PUBLISHED, tmp_path / "one")
    negated(tmp_path / "one", tmp_path / "two")
    linked = tmp_path / "linked"
    (linked / "weights").mkdir(parents=True)
    shutil.copy(tmp_path / "one" / "model.json", linked)
    step = linked / "weights" / "0"
    step.symlink_to(tmp_path / "one" / "weights" / "0")
    stopped_export(linked, tmp_path / "out")
    step.unlink()
    step.symlink_to(tmp_path / "two" / "weights" / "0")
    capsys.readouterr()
    found = exported(linked, tmp_path / "out")
    assert "files before" not in capsys.readouterr().out
    assert found == exported(tmp_path / "two", tmp_path / "whole")


def test_weights_that_change_while_they_are_read_are_no_reason_to_go_on(tmp_path, monkeypatch):
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    negated(tmp_path / "ours", tmp_path / "two")
    load = checkpoints.load_weights

    def overtaken(source):
        weights = load(source)
        shutil.copytree(tmp_path / "two" / "weights" / "0", source / "weights" / "1")
        return weights

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "load_weights", overtaken)
        stopped_export(tmp_path / "ours", tmp_path / "out")
    assert exported(tmp_path / "ours", tmp_path / "out") == exported(
        tmp_path / "two", tmp_path / "whole"
    )


def test_a_merge_takes_no_half_export_and_writes_beside_none(tmp_path, capsys):
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    exported(tmp_path / "ours", tmp_path / "whole")
    stopped_export(tmp_path / "ours", tmp_path / "half", "FileMoved")
    for base, output in (("half", "new"), ("whole", "half")):
        arguments = ["--base", str(tmp_path / base), "--experts", str(tmp_path / "whole")]
        arguments += ["--output", str(tmp_path / output)]
        assert cli.main(["merge", "linear", *arguments]) == 1
        assert "export that was not finished" in capsys.readouterr().err


def test_a_merge_of_a_published_base_and_experts_of_ours(tmp_path):
    """As of one kind; the result is a checkpoint like any other, and exported as the base was."""
    convert.import_hf(PUBLISHED, tmp_path / "base")
    weights = checkpoints.load_weights(tmp_path / "base")
    for step, name in enumerate(("a", "b"), start=1):
        convert.import_hf(PUBLISHED, tmp_path / name)
        moved = jax.tree.map(lambda w, step=step: w + np.asarray(step, w.dtype), weights)
        checkpoint.save(tmp_path / name / "weights", 1, {"weights": moved})
    experts = [str(tmp_path / name) for name in ("a", "b")]
    for base, output in ((PUBLISHED, "mixed"), (tmp_path / "base", "ours")):
        words = ["--base", str(base), "--experts", *experts, "--output", str(tmp_path / output)]
        assert cli.main(["merge", "linear", *words]) == 0
    mixed, ours = (checkpoints.load_weights(tmp_path / name) for name in ("mixed", "ours"))
    jax.tree.map(np.testing.assert_array_equal, mixed, ours)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (mixed, weights)), strict=True))
    assert exported(tmp_path / "mixed", tmp_path / "one") == exported(
        tmp_path / "ours", tmp_path / "other"
    )


def test_an_export_of_a_run_is_of_its_last_finished_stage(tmp_path):
    recipe = dataclasses.replace(recipes.get_recipe("rl")(), model=HfCheckpoint(PUBLISHED).config)
    configs.open_run(recipe, tmp_path / "run")
    stage = tmp_path / "run" / "stages" / "rl"
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    shutil.copytree(tmp_path / "ours" / "weights", stage / "weights")
    assert cli.main(["export-hf", str(tmp_path / "run"), str(tmp_path / "out")]) == 1
    (stage / "done.json").write_text("{}")
    assert cli.main(["export-hf", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert contents(tmp_path / "out") == contents(PUBLISHED)


def test_a_merge_that_is_refused_leaves_no_directory(tmp_path):
    (tmp_path / "empty").mkdir()
    words = ["--base", str(PUBLISHED), "--experts", str(tmp_path / "empty")]
    assert cli.main(["merge", "linear", *words, "--output", str(tmp_path / "runs/m")]) == 1
    assert not (tmp_path / "runs/m").exists()


def test_an_export_refuses_a_config_of_others_in_one_line(tmp_path, capsys):
    assert cli.main(["import-hf", str(PUBLISHED), str(tmp_path / "ours")]) == 0
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    capsys.readouterr()
    assert cli.main(["export-hf", str(tmp_path / "ours"), str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "already holds config.json" in said
    assert {p.name: p.read_text() for p in (tmp_path / "out").iterdir()} == {"config.json": "{}"}


@pytest.mark.parametrize("value", ["bfloat16", "auto"])
def test_config_json_comes_back_to_the_byte(tmp_path, value):
    """Line ends of another system, and a dtype that the tensors do not have."""
    shutil.copytree(PUBLISHED, tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    text = path.read_text().replace('"dtype": null', f'"dtype": "{value}"').replace("\n", "\r\n")
    path.write_bytes(text.encode())
    for dtype, expected in ((None, value), ("float32", value), ("float16", "float16")):
        ours, back = tmp_path / f"ours-{dtype}", tmp_path / f"back-{dtype}"
        convert.import_hf(tmp_path / "theirs", ours, dtype=dtype)
        convert.export_hf(ours, back, max_shard_bytes=10**9)
        written = (back / "config.json").read_bytes()
        assert json.loads(written)["dtype"] == expected
        assert (written == text.encode()) == (expected == value)


def test_an_import_that_noted_no_dtype_is_exported_with_that_of_its_weights(tmp_path):
    """One of an earlier version."""
    shutil.copytree(PUBLISHED, tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(path.read_text().replace('"dtype": null', '"dtype": "bfloat16"'))
    convert.import_hf(tmp_path / "theirs", tmp_path / "ours")
    record = json.loads((tmp_path / "ours" / "model.json").read_text())
    record.pop("hf_dtype")
    (tmp_path / "ours" / "model.json").write_text(json.dumps(record))
    convert.export_hf(tmp_path / "ours", tmp_path / "back", max_shard_bytes=10**9)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "float32"
