"""Merging from disk to disk: equal to `fuse` bit for bit, in the memory of three leaves."""

import dataclasses
import json
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from loong_jax import merge
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import checkpoints, pieces, streaming
from loong_jax.merge.checkpoints import MergeConfig
from loong_jax.merge.fusion import merge_leaf, prepare
from loong_jax.models.hf import files, unfinished
from tests.doubles import crash_point
from tests.merge import examples
from tests.merge.examples import METHODS
from tests.sweeps import thinned


def tensors(flat):
    """As they are named and typed in a file: bfloat16, but for one."""
    return {
        path.replace("/", ".") + ".weight": leaf.astype(
            np.float32 if path == "layers/norm" else ml_dtypes.bfloat16
        )
        for path, leaf in flat.items()
    }


def named(stored):
    return {name.replace(".", "/"): leaf for name, leaf in stored.items()}


@pytest.fixture
def disk(tmp_path):
    """A base in two files with an index, and three experts in one file each."""
    base, experts = examples.models()
    base, experts = tensors(base), {name: tensors(expert) for name, expert in experts.items()}
    for name, stored in experts.items():
        save(tmp_path / name, stored)
    half, weight_map = sorted(base)[:3], {}
    for number, names in enumerate((half, set(base) - set(half)), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save(tmp_path / "base", {n: base[n] for n in names}, file)
        weight_map |= dict.fromkeys(names, file)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (tmp_path / "base" / "model.safetensors.index.json").write_text(index)
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "modeling.py").touch()
    return tmp_path, base, experts


def save(directory, stored, file="model.safetensors"):
    directory.mkdir(exist_ok=True)
    safetensors.save_file(stored, directory / file)


def config(disk, method, num_experts=3, **changes):
    run_dir, *_ = disk
    experts = tuple(run_dir / f"expert{index}" for index in range(num_experts))
    settings = {"base": run_dir / "base", "experts": experts, "output": run_dir / "out"}
    return MergeConfig(**settings | {"method": method} | changes)


@pytest.mark.parametrize("name", METHODS)
def test_from_disk_to_disk_as_in_memory(name, disk, monkeypatch):
    run_dir, base, experts = disk
    method, changes, settings = METHODS[name], {}, {}
    num_experts = 2 if name == "nuslerp" else 3
    names = [f"expert{index}" for index in range(num_experts)]
    if name == "fisher_deltas":
        changes["importances"] = tuple(run_dir / name for name in names)
        settings["importances"] = {name: named(experts[name]) for name in names}
    elif name not in ("sce", "ram"):
        changes["weights"] = (0.5, 1.5, 1.0)[:num_experts]
        settings["weights"] = dict(zip(names, changes["weights"], strict=True))
    monkeypatch.setattr(pieces, "LENGTH", 64)  # several pieces of most matrices
    report = checkpoints.merge_checkpoints(config(disk, method, num_experts, **changes))
    monkeypatch.undo()
    expected, wanted = merge.fuse_with_report(
        named(base), {n: named(experts[n]) for n in names}, method=method, **settings
    )
    found = {}
    for file in sorted((run_dir / "out").glob("*.safetensors")):
        assert set(safetensors.load_file(file)) == set(
            safetensors.load_file(run_dir / "base" / file.name)
        )
        found |= named(safetensors.load_file(file))
    assert found.keys() == expected.keys()
    exact = name not in ("longcat_l1", "nuslerp", "karcher", "sce", "ram")
    for path, leaf in expected.items():
        assert found[path].dtype == leaf.dtype
        if exact:
            np.testing.assert_array_equal(found[path], leaf, err_msg=path)
        else:  # sums over a matrix are added up in other portions
            np.testing.assert_allclose(
                found[path].astype(float), leaf.astype(float), rtol=0, atol=1e-2
            )
    assert report["global"]["gain"] == pytest.approx(wanted["global"]["gain"], abs=1e-3)
    for name in ("config.json", "modeling.py"):
        assert (run_dir / "out" / name).exists()
    assert (run_dir / "out" / "model.safetensors.index.json").exists()
    assert json.loads((run_dir / "out" / "fusion.json").read_text()) == report


def test_bit_for_bit_with_the_same_pieces(disk):
    """What sums over pieces decide is equal too where the pieces are."""
    run_dir, base, experts = disk
    for name in ("longcat_l1", "karcher", "sce", "ram"):
        output = run_dir / name
        checkpoints.merge_checkpoints(config(disk, METHODS[name], output=output))
        expected = merge.fuse(
            named(base), {n: named(e) for n, e in experts.items()}, method=METHODS[name]
        )
        for file in output.glob("*.safetensors"):
            for path, leaf in named(safetensors.load_file(file)).items():
                np.testing.assert_array_equal(leaf, expected[path], err_msg=f"{name} {path}")


class CountedLeaf:
    """A stored leaf that knows how many of its entries are alive in arrays that it handed out."""

    live = peak = 0

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start, stop, into=None):
        if into is not None:  # memory that whoever reads keeps, and that tracemalloc sees
            into[:] = self.array.reshape(-1)[start:stop]
            return into
        handed = self.array.reshape(-1)[start:stop].copy()
        cls, size = type(self), handed.size
        cls.live += size
        cls.peak = max(cls.peak, cls.live)
        weakref.finalize(handed, lambda: setattr(cls, "live", cls.live - size))
        return handed


@pytest.mark.parametrize("name", thinned(METHODS, 1, 5, 8, 9, 12))
def test_three_leaves_at_most(name, monkeypatch):
    """Of five experts: entries read and not yet let go, and all that NumPy holds besides.

    XLA's own buffers are as long as a piece and as many as what is read of one; see `streaming`.
    """
    monkeypatch.setattr(pieces, "LENGTH", 1 << 13)
    monkeypatch.setattr(streaming, "num_threads", lambda: 2)
    draw = np.random.default_rng(0)
    shape = (512, 512)
    base = draw.normal(size=shape).astype(np.float32)
    num_experts = 2 if name == "nuslerp" else 5
    experts = {
        f"e{i}": {"w": CountedLeaf((base + 0.1 * draw.normal(size=shape)).astype(np.float32))}
        for i in range(num_experts)
    }
    settings = {"importances": experts} if name == "fisher_deltas" else {}
    CountedLeaf.live = CountedLeaf.peak = 0

    def run():
        plan = prepare({"w": CountedLeaf(base)}, experts, method=METHODS[name], **settings)
        return merge_leaf(plan, "w", count=False).value

    run()  # compiles
    assert CountedLeaf.peak < 3 * base.size
    tracemalloc.start()
    run()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held / base.nbytes < 3


@pytest.mark.parametrize("code", ["F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_tells_what_is_finite(code):
    dtype = files.DTYPES[code]
    values = np.array([0, -0.0, 1, -1, *(s * ml_dtypes.finfo(dtype).max for s in (1, -1))], dtype)
    assert streaming.is_finite(values)
    for other in (np.inf, -np.inf, np.nan, -np.nan):
        assert not streaming.is_finite(np.append(values, dtype.type(other)))


def test_refuses(disk, tmp_path):
    run_dir, _, experts = disk
    save(run_dir / "out", {"w": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"already holds model\.safetensors"):
        checkpoints.merge_checkpoints(config(disk, merge.Linear()))
    other = {"method": merge.TaskArithmetic(), "output": run_dir / "other"}
    with pytest.raises(CheckpointError, match=r"config\.json describes num_layers=28"):
        checkpoints.merge_checkpoints(config(disk, **other, experts=(tmp_path,)))
    nan = {n: np.full(x.shape, np.nan, x.dtype) for n, x in experts["expert0"].items()}
    save(run_dir / "nan", nan)
    with pytest.raises(ConfigError, match="not finite"):
        checkpoints.merge_checkpoints(config(disk, **other, experts=(run_dir / "nan",)))
    assert not list((run_dir / "other").glob("*.safetensors"))  # no half of a merge


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    "point",
    [("ExportBegun", 1), ("ExportWhole", 1), *(("FileMoved", n) for n in range(1, 6))],
    ids=str,
)
def test_the_command_of_a_merge_that_was_killed_merges(point, disk):
    run_dir, *_ = disk
    settings = config(disk, merge.Linear())
    checkpoints.merge_checkpoints(dataclasses.replace(settings, output=run_dir / "whole"))
    with crash_point.stopped_at(*point), pytest.raises(KeyboardInterrupt):
        checkpoints.merge_checkpoints(settings)
    with pytest.raises(CheckpointError, match="not finished"):
        unfinished.refuse_unfinished(run_dir / "out")
    checkpoints.merge_checkpoints(settings)
    assert contents(run_dir / "out") == contents(run_dir / "whole")
    assert [path for path in (run_dir / "out").iterdir() if path.is_dir()] == []


def test_a_merge_that_failed_is_repeated_once_its_input_is_mended(disk):
    run_dir, _, experts = disk
    settings = config(disk, merge.TaskArithmetic())
    last = max(experts["expert0"])  # in the second of two files
    file = next((run_dir / "expert0").glob("*.safetensors"))
    sound = experts["expert0"]
    safetensors.save_file(sound | {last: np.full_like(sound[last], np.nan)}, file)
    with pytest.raises(ConfigError, match="not finite"):
        checkpoints.merge_checkpoints(settings)
    safetensors.save_file(sound, file)
    checkpoints.merge_checkpoints(settings)
    assert len(list((run_dir / "out").glob("*.safetensors"))) == 2


def test_float64_files(tmp_path):
    base, *experts = np.random.default_rng(0).normal(size=(3, 6, 4))
    for name, leaf in {"base": base, "a": experts[0], "b": experts[1]}.items():
        save(tmp_path / name, {"w": leaf})
    checkpoints.merge_checkpoints(
        MergeConfig(
            base=tmp_path / "base",
            experts=(tmp_path / "a", tmp_path / "b"),
            output=tmp_path / "out",
            method=merge.Linear(),
        )
    )
    found = safetensors.load_file(tmp_path / "out" / "model.safetensors")["w"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, (experts[0] + experts[1]) / 2, rtol=1e-5)


@pytest.mark.parametrize("code", ["BF16", "F16"])
def test_every_bit_pattern_of_16_bits(code):
    every = np.arange(1 << 16, dtype=np.uint16).view(files.DTYPES[code])
    found = [streaming.is_finite(one) for one in every[:, None]]
    np.testing.assert_array_equal(found, np.isfinite(every.astype(np.float32)))
