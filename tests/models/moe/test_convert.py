"""The published layout: a model made by transformers, dtypes, and everything that is refused."""

import dataclasses
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import hf, moe, parameters
from loong_jax.models.hf import files, reading
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe.published import (
    PUBLISHED,
    assert_same_bytes,
    leaves_of,
    published,
    tensors_of,
    watch_reads,
)
from tests.sweeps import thinned

EXPECTED = np.load(PUBLISHED / "expected.npz")


def forward(model, tokens, **kwargs):
    graphdef, state = nnx.split(model, graph=False)
    return jax.jit(lambda state: nnx.merge(graphdef, state)(tokens, **kwargs))(state)


# --- what transformers computes ----------------------------------------------------------------


def check_output(output, tolerance=2e-5):
    for found, expected in ((output.logits, "logits"), (output.hidden, "hidden")):
        wanted = EXPECTED[expected]
        scale = max(1, np.sqrt((wanted**2).mean()))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)
    np.testing.assert_array_equal(np.sort(output.target, axis=-1), EXPECTED["chosen"])


def test_a_model_of_transformers_computes_the_same():
    """YaRN, small latents, two kinds of experts, a drafting head; several files with an index."""
    model = published()
    assert model.config.num_mtp_layers == 1
    check_output(model(jnp.asarray(EXPECTED["tokens"])))  # as it is, no jit and no mesh


BREAKS = {
    "epsilon of the norms on latents": dict(lora_norm_eps=1e-5),
    "epsilon of the other norms": dict(rms_norm_eps=1e-3),
    "gate scale": dict(gate_scale=2.51),
    "rotary base": dict(rope_theta=1e2),
    "YaRN": dict(yarn=None),
    "mscale of scores": dict(
        yarn=dataclasses.replace(
            moe.YarnScaling(factor=8.0, original_max_position=32), rotary_scale=1.0
        )
    ),
    "choices": dict(num_chosen=2, target_ffn_experts=1.0),
}


@pytest.mark.parametrize("name", thinned(BREAKS, 0, 4, 5))  # the others are seen elsewhere
def test_the_comparison_sees_every_mistake(name):
    """The fixture tells the right setting from one that is slightly wrong."""
    config = dataclasses.replace(published().config, **BREAKS[name])
    graphdef, _ = moe.abstract_weights(config)
    _, state = nnx.split(published(), graph=False)
    output = forward(nnx.merge(graphdef, state), jnp.asarray(EXPECTED["tokens"]))
    assert np.abs(output.logits - EXPECTED["logits"]).max() > 2e-4


def test_padding_on_either_side_and_packing_agree_with_plain_rows():
    """One row of a batch, alone in wider rows; every row of the batch, two to a row."""
    tokens, logits = EXPECTED["tokens"], EXPECTED["logits"]
    num_tokens = tokens.shape[1]
    wide = np.full((2, num_tokens + 4), 7, np.int32)
    wide[0, 4:], wide[1, :-4] = tokens[0], tokens[1]
    index = np.arange(wide.shape[1])[None]
    mask = np.concatenate([index >= 4, index < num_tokens])
    padded = forward(published(), jnp.asarray(wide), mask=jnp.asarray(mask))
    assert np.isfinite(padded.logits).all()
    np.testing.assert_allclose(padded.logits[0, 4:], logits[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(padded.logits[1, :-4], logits[1], rtol=0, atol=1e-4)
    packed = np.concatenate([tokens[0], tokens[1]])[None]
    segments = np.repeat([[1, 2]], num_tokens, axis=1)
    together = forward(published(), jnp.asarray(packed), segment_ids=jnp.asarray(segments))
    np.testing.assert_allclose(together.logits[0], logits[:2].reshape(-1, 41), rtol=0, atol=1e-4)


# --- in and out again --------------------------------------------------------------------------


def test_dtypes_are_kept_or_chosen(copy):
    tensors, write = copy
    kept = {n: t if "router" in n else t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}
    directory = write(kept)
    model = moe.load_hf(directory)
    assert model.config.dtype == model.config.param_dtype == jnp.bfloat16
    for path, leaf in leaves_of(model).items():
        assert leaf.dtype == (jnp.float32 if "router" in path else jnp.bfloat16), path
    output = forward(model, jnp.asarray(EXPECTED["tokens"]))
    rms = np.sqrt((EXPECTED["logits"] ** 2).mean())
    assert np.sqrt(((output.logits - EXPECTED["logits"]) ** 2).mean()) < 0.1 * rms
    moe.save_hf(model, directory.parent / "saved")
    assert_same_bytes(tensors_of(directory.parent / "saved"), kept)
    wide = moe.load_hf(directory, dtype=jnp.float32)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves_of(wide).values())
    narrow = leaves_of(moe.load_hf(PUBLISHED, dtype=jnp.bfloat16))
    assert narrow["layers/experts/down"].dtype == jnp.bfloat16
    assert narrow["layers/attention_0/query_norm"].dtype == jnp.float32
    assert narrow["layers/router/kernel"].dtype == jnp.float32


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", jnp.float32, np.dtype(np.float32)], ids=str
)
def test_dtypes_have_names(dtype):
    assert hf.HfCheckpoint(PUBLISHED, dtype).config.param_dtype == jnp.dtype(dtype)


@pytest.mark.parametrize(
    "dtype",
    ["int8", np.int32, bool, jnp.complex64, "float64", jnp.float8_e4m3fn, "nonsense", 3, ""],
)
def test_refuses_dtypes_that_destroy_weights(dtype):
    with pytest.raises(ConfigError, match="Choose one of float32, bfloat16, float16"):
        moe.load_hf(PUBLISHED, dtype=dtype)


@pytest.mark.parametrize(
    "sizes", thinned([dict(fsdp=2, tensor=2), dict(expert=4, data=2)], 0), ids=str
)
def test_sharded_leaves_are_put_together_in_blocks(sizes, tmp_path, monkeypatch):
    """No block on the host is larger than allowed, and none is a whole stack of experts."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 2000)
    blocks = watch_reads(monkeypatch)
    config = tiny.smallest_config(num_layers=3, num_mtp_layers=1)
    _, weights = moe.init_weights(config, jax.random.key(0))
    hf.save_weights_hf(config, weights, tmp_path / "saved")
    rules = ShardingRules(mesh=make_mesh(**sizes))
    model = moe.load_hf(tmp_path / "saved", rules=rules)
    _, abstract = moe.abstract_weights(config, rules)
    expected = parameters.by_path(weights)
    for (path, leaf), spec in zip(
        leaves_of(model).items(), parameters.by_path(abstract).values(), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(spec.sharding, leaf.ndim), path
        np.testing.assert_array_equal(leaf, expected[path])
    one_layer = expected["layers/experts/gate_up"][0].nbytes
    assert max(size for *_, size in blocks) < one_layer
    moe.save_hf(model, tmp_path / "again")
    assert_same_bytes(tensors_of(tmp_path / "saved"), tensors_of(tmp_path / "again"))


def test_a_mesh_that_is_set_changes_nothing(tmp_path, monkeypatch):
    """Blocks are written to, and tensors cut from, one device of the mesh at a time."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 2000)
    config = tiny.smallest_config(num_layers=1)
    _, weights = moe.init_weights(config, jax.random.key(0))
    hf.save_weights_hf(config, weights, tmp_path / "saved")
    rules = ShardingRules(mesh=make_mesh(expert=2, fsdp=2, tensor=2))
    with jax.set_mesh(rules.mesh):
        moe.save_hf(moe.load_hf(tmp_path / "saved", rules=rules), tmp_path / "again")
    assert_same_bytes(tensors_of(tmp_path / "saved"), tensors_of(tmp_path / "again"))


def test_ngram_models_come_back(tmp_path):
    ngram = moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=2 * 128, eos_token=7)
    config = tiny.smallest_config(ngram=ngram, num_layers=1, chunk_tokens=None)
    _, weights = moe.init_weights(config, jax.random.key(0))
    hf.save_weights_hf(config, weights, tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["architectures"] == ["LongcatFlashNgramForCausalLM"]
    stored = tensors_of(tmp_path)
    assert stored["model.ngram_embeddings.embedders.3.weight"].shape == (2 * 128 + 7, 8)
    assert stored["model.ngram_embeddings.post_projs.0.weight"].shape == (32, 8)
    model = moe.load_hf(tmp_path)
    assert model.config == config
    for path, leaf in leaves_of(model).items():
        np.testing.assert_array_equal(leaf, parameters.by_path(weights)[path])


# --- what is refused ---------------------------------------------------------------------------


def without(tensors, *gone):
    return {name: tensor for name, tensor in tensors.items() if name not in gone}


Q_NORM = "model.layers.0.self_attn.0.q_a_layernorm.weight"
ROUTER = "model.layers.1.mlp.router.classifier.weight"
EXPERT = "model.layers.0.mlp.experts.4.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: without(t, EXPERT), f"{EXPERT} is missing"),
        (lambda t: without(t, "model.mtp.embed_tokens.weight"), "mtp.embed_tokens.weight is miss"),
        (lambda t: t | {"model.extra.weight": t[Q_NORM]}, "model.extra.weight is not in the pub"),
        (lambda t: t | {EXPERT: t[EXPERT][1:]}, r"shape \[9, 20\].*\[10, 20\]"),
        (lambda t: t | {EXPERT: t[EXPERT].T.copy()}, r"shape \[20, 10\]"),
        (lambda t: t | {EXPERT: t[EXPERT].astype(np.float16)}, "is F16 and must be F32"),
        (lambda t: t | {EXPERT: t[EXPERT].astype(np.int32)}, "is I32 and must be F32"),
        (lambda t: t | {ROUTER: t[ROUTER].astype(np.int32)}, "is I32 and must be F32"),
        (
            lambda t: t | {"model.layers.0.mlp.experts.5.gate_proj.weight": t[EXPERT]},
            "zero-computation experts.*Delete",
        ),
        (
            lambda t: t | {"model.layers.0.mlp.experts.gate_up_proj": np.zeros((8, 20, 20), "f4")},
            "one tensor per expert",
        ),
        (lambda t: t | {EXPERT + "_scale_inv": t[Q_NORM]}, "F32 and has .* only float8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_tensors_that_do_not_belong(copy, change, message):
    tensors, write = copy
    with pytest.raises(CheckpointError, match=message):
        moe.load_hf(write(change(tensors)))


def test_routers_are_widened(copy):
    """What trainers of other frameworks export in bfloat16; so it is with a dtype of one's own."""
    tensors, write = copy
    router = tensors[ROUTER].astype(ml_dtypes.bfloat16)
    directory = write(tensors | {ROUTER: router})
    for model in (moe.load_hf(directory), moe.load_hf(directory, dtype=jnp.bfloat16)):
        kernel = leaves_of(model)["layers/router/kernel"]
        assert kernel.dtype == jnp.float32
        np.testing.assert_array_equal(kernel[1], router.T.astype(np.float32))


def test_a_drafting_head_with_an_embedding_of_its_own_is_left_out(copy, caplog):
    tensors, write = copy
    changed = {"model.mtp.embed_tokens.weight": tensors["model.embed_tokens.weight"] * 2}
    model = moe.load_hf(write(tensors | changed))
    assert model.config.num_mtp_layers == 0
    assert "the drafting head is left out" in caplog.text
    check_output(model(jnp.asarray(EXPECTED["tokens"])))


@pytest.mark.parametrize(
    ("norms", "named"),
    [
        (["query_norm"], "of q_a_layernorm have mean [^ ]+ with alpha 2.53:"),
        (["latent_norm"], "of kv_a_layernorm have mean [^ ]+ with alpha 2.53:"),
        (["query_norm", "latent_norm"], "of q_a_layernorm .* and kv_a_layernorm .*:"),
    ],
)
def test_refuses_alphas_folded_into_the_norms(copy, norms, named):
    tensors, write = copy
    config = tiny.smallest_config(num_layers=1, kv_lora_rank=5, q_lora_rank=5)  # alpha 2.5 both
    _, weights = moe.init_weights(config, jax.random.key(0))
    random = np.random.default_rng(0)
    for i in (0, 1):
        for name in ("query_norm", "latent_norm"):
            gain = 1 + 0.3 * random.normal(size=weights["layers"][f"attention_{i}"][name].shape)
            weights["layers"][f"attention_{i}"][name] = gain.astype(np.float32)
    directory = write(tensors).parent
    hf.save_weights_hf(config, weights, directory / "plain")
    moe.load_hf(directory / "plain")
    folded = jax.tree.map(lambda a: a, weights)
    for i in (0, 1):
        for name in norms:
            folded["layers"][f"attention_{i}"][name] *= np.float32(config.q_scale)
    hf.save_weights_hf(config, folded, directory / "folded")
    with pytest.raises(CheckpointError, match=f"{named} alpha is folded"):
        moe.load_hf(directory / "folded")
    text = (directory / "folded" / "config.json").read_text()
    record = json.loads(text) | {"loong_jax": {"alpha_folded": False}}
    (directory / "folded" / "config.json").write_text(json.dumps(record))
    model = moe.load_hf(directory / "folded")
    moe.save_hf(model, directory / "again")
    assert json.loads((directory / "again" / "config.json").read_text()) == record


def test_refuses_sizes_far_beyond_the_files_at_once(copy):
    _, write = copy
    directory = write()
    path = directory / "config.json"
    record = json.loads(path.read_text())
    record.pop("num_hidden_layers", None)
    path.write_text(json.dumps(record | {"num_layers": 10**6}))
    with pytest.raises(CheckpointError, match="num_layers=1000000"):
        moe.load_hf(directory)


@pytest.mark.parametrize("record", ["null", "3", '"a"', "[]"])
def test_refuses_a_config_that_is_no_object(tmp_path, record):
    (tmp_path / "config.json").write_text(record)
    with pytest.raises(CheckpointError, match="no JSON object"):
        moe.load_hf(tmp_path)


def test_refuses_damaged_files(copy):
    _, write = copy
    file = write() / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:-3], whole + b"x", whole[:200], b"", b"not a safetensors file"):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            moe.load_hf(file.parent)
    file.write_bytes(whole)
    shutil.copy(file, file.with_name("other.safetensors"))
    with pytest.raises(CheckpointError, match="stored twice"):
        moe.load_hf(file.parent)
    file.with_name("other.safetensors").unlink()
    for header in ('{"a": {}, "a": {}}', '{"a": 1}', "[1]", '{"a": '):
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with pytest.raises(CheckpointError, match=r"truncated or damaged: .*header"):
            moe.load_hf(file.parent)
    for shape, offsets in (("[1.0]", "[0, 4]"), ("[1]", "[0.0, 4.0]"), ("[-1, -1]", "[0, 4]")):
        header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
        with pytest.raises(CheckpointError, match=r"truncated or damaged: .*usize"):
            moe.load_hf(file.parent)
    deep = "[" * 100_000
    file.write_bytes(len(deep).to_bytes(8, "little") + deep.encode())
    with pytest.raises(CheckpointError, match=r"truncated or damaged: .*header"):
        moe.load_hf(file.parent)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        moe.load_hf(file.parent)
    (file.parent / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        moe.load_hf(file.parent)


def test_refuses_an_index_of_another_checkpoint(tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(PUBLISHED, directory)
    path = directory / files.INDEX
    index = json.loads(path.read_text())
    first = directory / sorted(set(index["weight_map"].values()))[0]

    def refused(weight_map, message):
        path.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=message):
            moe.load_hf(directory)

    refused(index["weight_map"] | {"lm_head.weight": "model_00009-of-00003.safetensors"}, "missing")
    refused(index["weight_map"] | {"lm_head.weights": first.name}, "which does not hold it")
    refused(index["weight_map"] | {"lm_head.weight": "\ud800"}, "does not give a file name")
    refused(without(index["weight_map"], "lm_head.weight"), "does not list")
    first.unlink()
    refused(index["weight_map"], f"{first.name} is missing")


@pytest.mark.parametrize(
    ("plain", "spelling"),
    [
        ("model.safetensors", "./model.safetensors"),
        ("s/model.safetensors", "s/model.safetensors"),
        ("s/model.safetensors", "s/../s/model.safetensors"),
    ],
)
def test_an_index_may_spell_a_file_in_several_ways(copy, plain, spelling):
    tensors, write = copy
    directory = write()
    (directory / "s").mkdir()
    (directory / "model.safetensors").rename(directory / plain)
    weight_map = dict.fromkeys(tensors, spelling) | {"lm_head.weight": plain}
    (directory / files.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    found = files.stored_tensors(directory)
    assert found.keys() == tensors.keys()
    assert {tensor.file.resolve() for tensor in found.values()} == {(directory / plain).resolve()}


def test_hidden_files_are_no_weights(copy):
    tensors, write = copy
    directory = write()
    (directory / "._model.safetensors").write_bytes(b"of another system")
    assert files.stored_tensors(directory).keys() == tensors.keys()


@pytest.mark.parametrize(
    "weight_map", [[], ["a"], {"a": 1}, {"a": ["b"]}, {"a": None}, 3, {"a": ""}]
)
def test_refuses_an_index_that_names_no_files(copy, weight_map):
    _, write = copy
    directory = write()
    (directory / files.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="no index of safetensors files"):
        moe.load_hf(directory)


def test_refuses_paths_of_another_kind(copy):
    _, write = copy
    directory = write()
    with pytest.raises(CheckpointError, match=r"config\.json is no directory"):
        moe.load_hf(directory / "config.json")
    for target in (directory / "config.json", directory / "config.json" / "x"):
        with pytest.raises(CheckpointError, match="cannot be written to"):
            moe.save_hf(published(), target)
    (directory / "b.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"b\.safetensors cannot be read: Is a directory"):
        moe.load_hf(directory)
    (directory / "config.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="no text"):
        moe.load_hf(directory)


@pytest.mark.parametrize("size", [0, float("nan")])
def test_refuses_a_size_of_files_that_is_none(tmp_path, size):
    with pytest.raises(ConfigError, match=r"max_shard_bytes=.* is no number of bytes >= 1.*Give"):
        moe.save_hf(published(), tmp_path, max_shard_bytes=size)


def test_refuses_what_is_no_model_with_weights(tmp_path):
    config = tiny.smallest_config(num_layers=1)
    abstract = nnx.merge(*moe.abstract_weights(config))
    with pytest.raises(CheckpointError, match=r"embedding is a shape without values.*Load"):
        moe.save_hf(abstract, tmp_path)
    parts = moe.init_weights(config, jax.random.key(0))
    with pytest.raises(CheckpointError, match=r"given a tuple.*nnx\.merge\(graphdef, weights\)"):
        moe.save_hf(parts, tmp_path)  # type: ignore[arg-type]
    moe.save_hf(nnx.merge(*parts), tmp_path)


# --- config.json -------------------------------------------------------------------------------


def saved_config(model, directory) -> bytes:
    moe.save_hf(model, directory)
    return (directory / "config.json").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", "\r\n", 3),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("{", '{"\u00e9\u2028": NaN, "\\u00e9": -0.0,', 1),
        lambda text: text.replace("{", '{"loong_jax": {"lora_norm_eps": 1e-6},', 1),
        lambda text: text.replace("{", '{"loong_jax": {},', 1),
        lambda text: text.replace("{", '{"loong_jax": null,', 1),
    ],
    ids=["CRLF", "CR", "mixed", "no end", "odd", "own default", "own empty", "own null"],
)
def test_config_json_comes_back_to_the_byte(copy, change):
    _, write = copy
    directory = write()
    text = change((PUBLISHED / "config.json").read_text()).encode()
    (directory / "config.json").write_bytes(text)
    assert saved_config(moe.load_hf(directory), directory.parent / "saved") == text


@pytest.mark.parametrize(
    ("key", "value"),
    thinned(
        itertools.product(
            ["torch_dtype", "dtype"],
            ["bfloat16", "auto", "torch.float32", "float32", "", None],
        ),
        0, -1,
    ),
)  # fmt: skip
def test_a_dtype_in_config_json_is_kept_while_weights_keep_theirs(copy, key, value):
    """Whatever it says of the float32 tensors that lie beside it."""
    _, write = copy
    directory = write(dtype="absent") if key == "torch_dtype" else write()
    record = json.loads((directory / "config.json").read_text()) | {key: value}
    text = json.dumps(record, indent=3)
    (directory / "config.json").write_text(text)
    saved = directory.parent
    assert saved_config(moe.load_hf(directory), saved / "one") == text.encode()
    same = moe.load_hf(directory, dtype="float32")
    assert saved_config(same, saved / "two") == text.encode()
    assert saved_config(moe.load_hf(saved / "two"), saved / "three") == text.encode()
    narrow = moe.load_hf(directory, dtype="float16")
    written = json.loads(saved_config(narrow, saved / "narrow"))
    assert written == record | {key: None if value is None else "float16"}


def test_the_dtype_written_is_that_of_the_weights(tmp_path):
    """Not the one that the config would give them."""
    config = tiny.smallest_config(num_layers=1)
    _, weights = moe.init_weights(config, jax.random.key(0))
    narrow = {
        path: leaf if "router" in path else leaf.astype(jnp.bfloat16)
        for path, leaf in parameters.by_path(weights).items()
    }
    hf.save_weights_hf(config, parameters.as_tree(narrow), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert moe.load_hf(tmp_path).config.param_dtype == jnp.bfloat16
