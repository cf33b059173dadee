"""Checkpoints in float8 with scales beside the weights, imported and merged as what they mean."""

import json

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from loong_jax import cli
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import published
from loong_jax.models import moe
from loong_jax.models.hf import files
from tests.models.moe.published import PUBLISHED, leaves_of, tensors_of

FLOAT8 = ml_dtypes.float8_e4m3fn
EXPERT = "model.layers.0.mlp.experts.4.up_proj.weight"
BLOCK = {"quant_method": "fp8", "weight_block_size": [4, 8]}


def write(directory, tensors, **changes):
    """Files that `safetensors.numpy` could not read back."""
    directory.mkdir()
    entries = files.in_order([(name, a.dtype, a.shape) for name, a in tensors.items()])
    files.write_file(directory / "model.safetensors", entries, tensors.__getitem__)
    record = json.loads((PUBLISHED / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(record))
    return directory


def quantised(weight, block):
    """A float8 matrix, and the scale of each block: its largest entry becomes 448."""
    rows, columns = (-(-n // size) for n, size in zip(weight.shape, block, strict=True))
    scale, held = np.zeros((rows, columns), np.float32), np.zeros(weight.shape, FLOAT8)
    for i in range(rows):
        for j in range(columns):
            at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            scale[i, j] = np.abs(weight[at]).max() / 448
            held[at] = (weight[at] / scale[i, j]).astype(FLOAT8)
    return held, scale


def checkpoint(block=(4, 8), ending="_scale_inv", shaped=lambda scale: scale):
    """The fixture with the matrices of layers in float8, as published ones have them."""
    found = {}
    for name, tensor in tensors_of(PUBLISHED).items():
        if ".layers." in name and tensor.ndim == 2 and "router" not in name:
            size = [n if b is None else b for n, b in zip(tensor.shape, block, strict=True)]
            found[name], scale = quantised(tensor, size)
            found[name + ending] = shaped(scale)
        else:
            found[name] = tensor
    return found


@pytest.mark.parametrize(
    ("block", "ending", "shaped", "config"),
    [
        ((4, 8), "_scale_inv", lambda scale: scale, BLOCK),
        ((1, None), "_scale", lambda scale: scale, {"quant_method": "compressed-tensors"}),
        ((1, None), "_scale", lambda scale: scale[:, 0], {"quant_method": "fbgemm_fp8"}),
        ((None, None), "_scale", lambda scale: scale.reshape(()), {"quant_method": "fp8"}),
    ],
    ids=["blocks", "rows", "rows, flat", "whole"],
)
def test_weights_are_read_to_within_their_quantisation(tmp_path, block, ending, shaped, config):
    """Half a step of 3 bits of mantissa, 1/16, or of the smallest numbers of a block."""
    directory = write(
        tmp_path / "fp8",
        checkpoint(block, ending, shaped),
        quantization_config=config,
        torch_dtype="float32",
    )
    model = moe.load_hf(directory, dtype=jnp.float32)
    published = leaves_of(moe.load_hf(PUBLISHED))
    for path, leaf in leaves_of(model).items():
        wanted = np.asarray(published[path])
        if np.array_equal(leaf, wanted):
            continue  # not quantised
        step = np.abs(wanted).max() / 448 * 2.0**-9
        assert (np.abs(leaf - wanted) <= np.abs(wanted) / 16 + step).all(), path
    moe.save_hf(model, tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "quantization_config" not in saved
    moe.load_hf(tmp_path / "saved")


def test_every_entry_is_its_number_times_the_scale_of_its_block(tmp_path):
    """Against a loop, exactly; without a dtype in config.json it is bfloat16, rounded once."""
    tensors = checkpoint()
    plain = {n: a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 and "scale" not in n
             and "router" not in n else a for n, a in tensors.items()}  # fmt: skip
    directory = write(tmp_path / "fp8", plain, quantization_config=BLOCK, torch_dtype=None)
    (expert,) = (leaf for p, leaf in leaves_of(moe.load_hf(directory)).items() if "gate_up" in p)
    held, scale = tensors[EXPERT], tensors[EXPERT + "_scale_inv"]
    for (row, column), number in np.ndenumerate(held):
        exact = np.float32(number) * scale[row // 4, column // 8]
        assert expert[0, 4, column, 1, row] == exact.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({EXPERT + "_scale_inv": None}, f"{EXPERT} is F8_E4M3 without a scale"),
        ({EXPERT: None}, f"{EXPERT}_scale_inv is the scale of a weight that is not there"),
        ({EXPERT + "_scale_inv": np.ones((9, 9), np.float32)}, "has scales of shape .9, 9."),
        ({EXPERT.replace("weight", "qweight"): np.ones((2, 2), np.int32)}, "packed to a few bits"),
        (
            {EXPERT.replace("weight", "weight_packed"): np.ones((2, 2), np.int32)},
            r"up_proj.weight_packed belongs .*\(quant_method: fp8\)",
        ),
        ({EXPERT: np.ones((10, 20), np.int8)}, f"{EXPERT} is I8 and has"),
    ],
)
def test_other_quantisations_are_refused_by_name(tmp_path, change, message):
    tensors = {n: a for n, a in (checkpoint() | change).items() if a is not None}
    with pytest.raises(CheckpointError, match=message):
        moe.load_hf(write(tmp_path / "fp8", tensors, quantization_config=BLOCK))


def test_a_config_that_says_so_without_such_tensors_is_refused(tmp_path):
    tensors, config = tensors_of(PUBLISHED), {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ConfigError, match="quant_method: gptq"):
        moe.load_hf(write(tmp_path / "a", tensors, quantization_config=config))


def test_merges_are_of_what_they_mean(tmp_path):
    """Two quantised experts with scales of their own; the result is not quantised."""
    plain, wanted = tensors_of(PUBLISHED), 0
    for name, factor in (("base", 1.0), ("x", 3.0), ("y", -1.5)):
        held, scale = quantised(plain[EXPERT] * factor, (4, 8))
        tensors = {EXPERT: held, EXPERT + "_scale_inv": scale, "norm": np.ones(4, np.float32)}
        changes = {"quantization_config": BLOCK, "torch_dtype": "float32"}
        write(tmp_path / name, tensors, **changes)
        wide = np.repeat(np.repeat(scale, 4, axis=0), 8, axis=1)[:10, :20]
        wanted = wanted + (name != "base") * held.astype(np.float32) * wide / 2
    arguments = ["--base", str(tmp_path / "base"), "--output", str(tmp_path / "out")]
    arguments += ["--experts", str(tmp_path / "x"), str(tmp_path / "y")]
    assert cli.main(["merge", "linear", *arguments]) == 0
    merged = tensors_of(tmp_path / "out")
    assert merged.keys() == {EXPERT, "norm"}
    np.testing.assert_allclose(merged[EXPERT], wanted, rtol=1e-5, atol=1e-7)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config


def test_a_merge_reads_any_run_of_entries(tmp_path):
    """Pieces begin and end within rows."""
    directory = write(tmp_path / "a", checkpoint(), quantization_config=BLOCK)
    opened = published.PublishedWeights(directory)
    leaf = opened.leaves[published.path_of(EXPERT)]
    whole = np.asarray(leaf).reshape(-1)
    for start, stop in ((0, 200), (3, 37), (19, 21), (40, 60), (199, 200)):
        np.testing.assert_array_equal(leaf.read(start, stop), whole[start:stop])
    opened.close()
