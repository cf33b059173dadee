"""Files of weights come back as they were, or are laid out as safetensors lays them out."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from loong_jax.errors import CheckpointError
from loong_jax.models import hf, moe
from loong_jax.models.hf import files
from tests.models.moe.published import PUBLISHED, assert_same_bytes, published, tensors_of


def contents(directory) -> dict[str, bytes]:
    """Of config.json, the index and the files of weights, by name."""
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name != "expected.npz"
    }


def layout_of(directory) -> str | None:
    return hf.HfCheckpoint(directory).layout


def test_round_trip_gives_the_same_files(tmp_path):
    """Three and an index, with names that are not ours."""
    moe.save_hf(published(), tmp_path / "same")
    assert contents(tmp_path / "same") == contents(PUBLISHED)
    assert len(contents(PUBLISHED)) == 5


@pytest.mark.parametrize(
    "metadata", [None, {"format": "pt"}, {"format": "np", "by": '\u00fc, "me"'}]
)
def test_a_file_of_safetensors_comes_back_to_the_byte(copy, metadata):
    """Norms are wider than the rest, and none in the order of layers."""
    tensors, write = copy
    directory = write()
    mixed = {
        n: t if t.ndim == 1 or "router" in n else t.astype(ml_dtypes.bfloat16)
        for n, t in tensors.items()
    }
    safetensors.numpy.save_file(mixed, directory / "model.safetensors", metadata)
    moe.save_hf(moe.load_hf(directory), directory.parent / "saved")
    assert contents(directory.parent / "saved") == contents(directory)


def test_several_files_come_back_to_the_byte(copy):
    """Tensors that are dealt out, and an index with line ends of its own, or none."""
    tensors, write = copy
    directory = write()
    (directory / "model.safetensors").unlink()
    weight_map = {n: f"model-{i % 3}.safetensors" for i, n in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        held = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        safetensors.numpy.save_file(held, directory / file, {"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2).replace("\n", "\r\n")
    (directory / files.INDEX).write_bytes(index.encode())
    saved = directory.parent
    moe.save_hf(moe.load_hf(directory), saved / "one")
    assert contents(saved / "one") == contents(directory)
    (directory / files.INDEX).unlink()
    moe.save_hf(moe.load_hf(directory), saved / "two")
    assert contents(saved / "two") == contents(directory)


def test_changed_weights_stay_in_their_files(tmp_path):
    model = moe.load_hf(PUBLISHED)
    model.final_norm[...] = 2 * model.final_norm[...]
    moe.save_hf(model, tmp_path)
    assert contents(tmp_path).keys() == contents(PUBLISHED).keys()
    assert layout_of(tmp_path) == layout_of(PUBLISHED)
    assert (
        tensors_of(tmp_path)["model.norm.weight"] == 2 * tensors_of(PUBLISHED)["model.norm.weight"]
    ).all()


def test_other_tensors_get_files_of_our_own(tmp_path):
    """Of another dtype, without the drafting head, and where the size of files is asked for."""
    model = moe.load_hf(PUBLISHED, dtype="bfloat16")
    moe.save_hf(model, tmp_path / "narrow")
    config = dataclasses.replace(published().config, num_mtp_layers=0)
    weights = nnx.to_pure_dict(nnx.split(published(), graph=False)[1])
    without_head = {name: leaf for name, leaf in weights.items() if name != "mtp"}
    hf.save_weights_hf(
        config, without_head, tmp_path / "headless", stored_layout=layout_of(PUBLISHED)
    )
    moe.save_hf(published(), tmp_path / "sized", max_shard_bytes=10**9)
    for directory in tmp_path.iterdir():
        assert sorted(contents(directory)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace(b",", b", ", 1),
        lambda header: header.replace(b"{", b'{"__metadata__": null,', 1),
        lambda header: header + b" " * 8,
    ],
    ids=["space", "null", "padding"],
)
def test_a_header_that_safetensors_would_not_write_is_not_kept(copy, change):
    _, write = copy
    file = write() / "model.safetensors"
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = change(whole[8 : 8 + size])
    file.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + size :])
    assert layout_of(file.parent) is None
    moe.save_hf(moe.load_hf(file.parent), file.parent.parent / "saved")
    assert_same_bytes(tensors_of(file.parent.parent / "saved"), tensors_of(file.parent))


def test_files_of_our_own_are_as_safetensors_writes_them(tmp_path):
    """Whatever layout the weights came in: wide tensors first, then by name."""
    model = moe.load_hf(PUBLISHED, dtype="bfloat16")
    moe.save_hf(model, tmp_path / "one")
    moe.save_hf(model, tmp_path / "many", max_shard_bytes=20_000)
    assert not (tmp_path / "one" / files.INDEX).exists()
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    for file in tmp_path.glob("*/*.safetensors"):
        written = safetensors.numpy.save(safetensors.numpy.load_file(file), {"format": "pt"})
        assert file.read_bytes() == written, file


def test_every_dtype_is_laid_out_as_by_safetensors(tmp_path):
    tensors: dict[str, np.ndarray] = {
        f"{index % 3}.{code}": np.zeros(2, dtype)
        for index, (code, dtype) in enumerate(reversed(files.DTYPES.items()))
    }
    tensors["a"] = np.zeros((1, 2), np.float32)
    entries = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    files.write_file(tmp_path / "a", files.in_order(entries), tensors.__getitem__)
    assert (tmp_path / "a").read_bytes() == safetensors.numpy.save(tensors, {"format": "pt"})


def test_shards_of_a_size_come_back_too(tmp_path):
    moe.save_hf(published(), tmp_path / "many", max_shard_bytes=20_000)
    assert_same_bytes(tensors_of(tmp_path / "many"), tensors_of(PUBLISHED))
    again = moe.load_hf(tmp_path / "many")
    assert again.config == published().config
    moe.save_hf(again, tmp_path / "again")
    moe.save_hf(again, tmp_path / "sized", max_shard_bytes=20_000)
    assert contents(tmp_path / "many") == contents(tmp_path / "again")
    assert contents(tmp_path / "many") == contents(tmp_path / "sized")
    with pytest.raises(CheckpointError, match="already holds"):
        moe.save_hf(again, tmp_path / "again")


def test_one_file_takes_the_place_of_several(tmp_path):
    """Those of an earlier save, deleted as the message says but for its index."""
    moe.save_hf(published(), tmp_path, max_shard_bytes=20_000)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    moe.save_hf(published(), tmp_path, max_shard_bytes=10**9)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert_same_bytes(tensors_of(tmp_path), tensors_of(PUBLISHED))
