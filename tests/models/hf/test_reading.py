"""Published files read from anywhere, in shards, and refused where a value would be wrong."""

import json
import shutil

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import hf, moe, parameters
from loong_jax.models.hf import files
from loong_jax.remote import RemotePath
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe.published import PUBLISHED, leaves_of, watch_reads

EXPERT = "model.layers.0.mlp.experts.4.up_proj.weight"


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for path in expected:
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


def template_of(config, dtype, **axes):
    _, abstract = moe.abstract_weights(config, ShardingRules(mesh=make_mesh(**axes)))
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding), abstract
    )


# --- where files lie ---------------------------------------------------------------------------


@pytest.fixture
def in_memory():
    """The fixture in fsspec's own file system, whose every read is noted as (path, bytes)."""
    memory = fsspec.filesystem("memory")
    for path in PUBLISHED.iterdir():
        memory.pipe_file(f"/bucket/model/{path.name}", path.read_bytes())
    yield "memory://bucket/model"
    memory.rm("/bucket", recursive=True)


def test_a_directory_that_fsspec_reads(in_memory):
    assert_equal(leaves_of(moe.load_hf(in_memory)), leaves_of(moe.load_hf(PUBLISHED)))
    with pytest.raises(CheckpointError, match=r"memory://.*model_00009.* is missing"):
        files.header_of(RemotePath(in_memory + "/model_00009.safetensors"))
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        moe.load_hf("memory://bucket/other")
    with pytest.raises(CheckpointError, match=r"nowhere://x/.* cannot be read.*Install"):
        moe.load_hf("nowhere://x")


def test_of_a_remote_file_only_the_rows_that_are_needed_are_read(in_memory, monkeypatch):
    read, num_bytes = RemotePath.read, []

    def counted(self, start, stop):
        num_bytes.append(stop - start)
        return read(self, start, stop)

    checkpoint = hf.HfCheckpoint(in_memory)
    monkeypatch.setattr(RemotePath, "read", counted)
    leaf = "layers/attention_0/query_up"
    shape = checkpoint.shapes[leaf].shape
    half = ((1, 2), (0, shape[1]), (0, shape[2] // 2), (0, shape[3]))
    found = checkpoint.read(leaf, half)
    whole = leaves_of(moe.load_hf(PUBLISHED))[leaf]
    np.testing.assert_array_equal(found, whole[1:2, :, : shape[2] // 2])
    assert sum(num_bytes) == found.nbytes


def test_an_index_names_no_file_outside_its_directory(copy):
    tensors, write = copy
    directory = write()
    other = shutil.copytree(directory, directory.with_name("other"))
    for name in (f"../{other.name}/model.safetensors", str(other / "model.safetensors"), ".."):
        (directory / files.INDEX).write_text(
            json.dumps({"weight_map": dict.fromkeys(tensors, name)})
        )
        with pytest.raises(CheckpointError, match=r"outside .*nothing there is read"):
            moe.load_hf(directory)


# --- straight onto devices, in the dtype that is asked for ---------------------------------------


def test_float32_masters_from_bfloat16_files_hold_no_more_than_a_shard(tmp_path, monkeypatch):
    """On the host there is one shard of one leaf at a time, and nothing is read twice."""
    config = tiny.smallest_config(
        num_layers=2, num_experts=4, vocab_size=256, param_dtype=jnp.bfloat16
    )
    _, weights = moe.init_weights(config, jax.random.key(0))
    hf.save_weights_hf(config, weights, tmp_path / "saved")
    template = template_of(config, jnp.float32, expert=2, fsdp=2, tensor=2)
    blocks = watch_reads(monkeypatch)
    found = parameters.by_path(hf.read_weights(tmp_path / "saved", config, template))
    shard_bytes = {}
    for path, leaf in found.items():
        assert leaf.dtype == jnp.float32, path
        assert leaf.sharding == parameters.by_path(template)[path].sharding, path
        shard_bytes[path] = max(shard.data.nbytes for shard in leaf.addressable_shards)
    assert_equal(found, {p: a.astype(jnp.float32) for p, a in parameters.by_path(weights).items()})
    assert all(size <= shard_bytes[leaf] for leaf, _, size in blocks)
    assert len({(leaf, region) for leaf, region, _ in blocks}) == len(blocks)


def test_weights_of_another_model_are_refused(tmp_path):
    config = tiny.smallest_config(num_layers=1)
    _, weights = moe.init_weights(config, jax.random.key(0))
    hf.save_weights_hf(config, weights, tmp_path)
    deeper = tiny.smallest_config(num_layers=2)
    with pytest.raises(CheckpointError, match=r"holds layers/.* of shape \(1, .*the model has \(2"):
        hf.read_weights(tmp_path, deeper, template_of(deeper, jnp.float32))


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_values_that_are_not_finite_are_refused_by_name(copy, value, dtype):
    tensors, write = copy
    tensors = {n: t if "router" in n else t.astype(dtype) for n, t in tensors.items()}
    tensors[EXPERT][3, 4] = value
    with pytest.raises(CheckpointError, match=f"{EXPERT} holds 1 values that are not finite"):
        moe.load_hf(write(tensors))


def test_a_dtype_that_would_make_values_infinite_is_refused(copy):
    tensors, write = copy
    tensors[EXPERT][3, 4] = 1e5
    directory = write()
    with pytest.raises(CheckpointError, match=f"{EXPERT} holds 100000, which F16 cannot"):
        moe.load_hf(directory, dtype="float16")
    moe.load_hf(directory, dtype="bfloat16")


# --- other models ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["LongcatCausalLM"], "model_type": None}, "LongcatCausalLM"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": [], "model_type": "gpt2"}, "gpt2"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"architectures": "LongcatFlashForCausalLM"}, "architectures"),
    ],
)
def test_other_architectures_are_refused_by_name(copy, changes, named):
    with pytest.raises(ConfigError, match=named):
        moe.load_hf(copy[1](**changes))
