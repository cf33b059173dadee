"""Merging checkpoints on disk: what is written, refused, and taken up again."""

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from loong_jax import merge
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import checkpoints, tree
from loong_jax.merge.checkpoints import MergeConfig
from loong_jax.rl import checkpoint
from tests.merge import examples


@pytest.fixture
def run(tmp_path):
    base, experts = examples.models()
    for name, weights in ({"sft": base} | experts).items():
        checkpoints.save_weights(tmp_path / name, examples.nest(weights), {})
    return tmp_path, base, experts


def config(run_dir, **changes):
    experts = tuple(run_dir / f"expert{index}" for index in range(3))
    settings = {"base": run_dir / "sft", "experts": experts, "output": run_dir / "fused"}
    return MergeConfig(**settings | changes)


def test_writes_what_fuse_returns_and_its_report(run):
    run_dir, base, experts = run
    settings = config(run_dir, weights=(1.0, 2.0, 1.0), method=merge.Ties(density=0.5))
    report = checkpoints.merge_checkpoints(settings)
    expected = merge.fuse(
        examples.nest(base),
        {name: examples.nest(expert) for name, expert in experts.items()},
        method=merge.Ties(density=0.5),
        weights={"expert0": 1.0, "expert1": 2.0, "expert2": 1.0},
        batch_axes=examples.STACKS,
    )
    found = tree.flatten(checkpoints.load_weights(run_dir / "fused"))[0]
    for path, leaf in tree.flatten(expected)[0].items():
        assert np.array_equal(found[path], leaf), path
    assert json.loads((run_dir / "fused" / "fusion.json").read_text()) == report
    assert (
        checkpoint.restore(run_dir / "fused" / "checkpoints").metadata["method"]["kind"] == "Ties"
    )
    text = checkpoints.summarise(report)
    assert "expert2" in text
    assert "gain" in text
    with pytest.raises(CheckpointError, match="exists"):
        checkpoints.merge_checkpoints(settings)


def test_our_own_checkpoints(run):
    run_dir, base, _ = run
    checkpoints.save_weights(run_dir / "stage", examples.nest(base), {"method": "none"})
    for path in (run_dir / "stage", run_dir / "stage" / "checkpoints"):
        found = tree.flatten(checkpoints.load_weights(path))[0]
        assert found.keys() == base.keys()
        assert all(np.array_equal(found[name], base[name]) for name in base)
    with pytest.raises(CheckpointError):
        checkpoints.load_weights(run_dir / "nowhere")


def test_masters_are_merged_and_cast_once(tmp_path):
    """From bfloat16 weights alone small updates are lost; from their masters they are not."""
    draw = np.random.default_rng(0)
    start = draw.normal(size=(64, 64)).astype(np.float32)
    masters = {"sft": start}
    masters |= {
        name: (start + 2e-3 * draw.normal(size=start.shape)).astype(np.float32) for name in "ab"
    }
    for name, master in masters.items():
        low = {"weights": {"up": master.astype(ml_dtypes.bfloat16)}}
        kept = {"masters": {"up": master}}  # beside the weights, or in an optimizer's state
        if name == "b":
            checkpoint.save(tmp_path / name / "weights", 7, low)
            kept = {"optimizer": {"0.masters.up": master, "0.moments.up": master * 0}}
        checkpoint.save(tmp_path / name / "checkpoints", 7, low | kept)

    def merged(output, **changes):
        checkpoints.merge_checkpoints(config_of_two(tmp_path, output=tmp_path / output, **changes))
        return checkpoints.load_weights(tmp_path / output)["up"]

    exact = masters["a"].astype(np.float64) + masters["b"] - start
    found = merged("wide")
    assert found.dtype == ml_dtypes.bfloat16
    assert np.mean(found == exact.astype(np.float32).astype(ml_dtypes.bfloat16)) > 0.999
    narrow = merged("narrow", masters=False)
    assert np.mean(narrow == found) < 0.8


def config_of_two(directory, **changes):
    experts = (directory / "a", directory / "b")
    settings = {"base": directory / "sft", "experts": experts, "output": directory / "fused"}
    return MergeConfig(**settings | {"method": merge.TaskArithmetic()} | changes)


def own_checkpoints(tmp_path):
    for number, name in enumerate(("sft", "a", "b")):
        weights = {"up": np.full((4, 4), number, np.float32)}
        checkpoints.save_weights(tmp_path / name, weights, {})
    return config_of_two(tmp_path)


@pytest.mark.parametrize("output", ["sft", "b", "a/checkpoints"])
def test_no_checkpoint_is_replaced(tmp_path, output):
    settings = dataclasses.replace(own_checkpoints(tmp_path), output=tmp_path / output)
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        checkpoints.merge_checkpoints(settings)
    (tmp_path / "run" / "stages" / "rl").mkdir(parents=True)
    (tmp_path / "run" / "config.json").touch()
    for part in ("", "stages", "stages/new"):
        settings = dataclasses.replace(settings, output=tmp_path / "run" / part)
        with pytest.raises(CheckpointError, match="is a run or lies among its stages"):
            checkpoints.merge_checkpoints(settings)
    assert np.all(checkpoints.load_weights(tmp_path / "sft")["up"] == 0)
    assert np.all(checkpoints.load_weights(tmp_path / "b")["up"] == 2)


def test_a_merge_of_our_own_goes_beside_no_published_weights(tmp_path):
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="already holds safetensors files"):
        checkpoints.merge_checkpoints(own_checkpoints(tmp_path))


def test_a_killed_merge_of_our_own_checkpoints_is_repeated(tmp_path, monkeypatch):
    settings = own_checkpoints(tmp_path)
    write = checkpoints.save_weights

    def die(*args):
        write(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save_weights", die)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.merge_checkpoints(settings)
    monkeypatch.undo()
    assert not (tmp_path / "fused" / "fusion.json").exists()
    checkpoints.merge_checkpoints(settings)
    assert (tmp_path / "fused" / "fusion.json").exists()
    assert np.all(checkpoints.load_weights(tmp_path / "fused")["up"] == 3)


def test_an_output_that_is_a_file_is_refused(run):
    run_dir, *_ = run
    (run_dir / "file").write_text("")
    for output in (run_dir / "file", run_dir / "file" / "below"):
        with pytest.raises(CheckpointError, match="cannot be written to"):
            checkpoints.merge_checkpoints(config(run_dir, output=output))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": ()}, "empty"),
        ({"weights": (1.0,)}, "weights"),
        ({"importances": ("a",)}, "importances"),
        ({"names": ("a", "b")}, "names"),
        ({"names": ("a", "b", "a")}, "named"),
    ],
)
def test_refuses(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("runs/maths", "runs/code"), ("maths", "code")),
        (("runs/maths/stages/rl", "runs/code/stages/rl"), ("maths", "code")),
        (("a/rl/checkpoints", "b/rl/checkpoints"), ("a", "b")),
        (("run/one", "run/one_b", "run/two"), ("one", "one_b", "two")),
    ],
)
def test_experts_are_named_by_what_differs_in_their_paths(tmp_path, paths, names):
    found = config(tmp_path, experts=tuple(map(Path, paths)), names=(), weights=(), importances=())
    assert found.expert_names() == names
