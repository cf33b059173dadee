"""Topologies, meshes, models and requests, and what is refused before anything is compiled."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

from loong_jax import configs, options, recipes
from loong_jax.errors import ConfigError
from loong_jax.models.dense import DenseConfig
from loong_jax.models.hf import HfCheckpoint
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.rope import YarnScaling
from loong_jax.plan import command, plan, request
from loong_jax.plan.topology import Topology
from loong_jax.run import convert
from tests.plan.asking import V5P, asked, make_request, ranked

PUBLISHED = Path(__file__).parents[1] / "models" / "moe" / "fixtures" / "published"
BY_SEQUENCE = {"mode": "decode", "tensor_cuts": "sequences", "mesh": "expert=2,tensor=2"}


@pytest.mark.parametrize(
    ("text", "slices", "chips", "devices", "wraps"),
    [
        ("v5p:4x4x8", None, 128, 128, (True, True, True)),
        ("v5p:2x2x1", None, 4, 4, (False, False, False)),
        ("2x tpu7x:4x4x4", None, 128, 256, (True, True, True)),
        ("v6e:16x16", 2, 512, 512, (True, True)),
        ("v5e:4x8", None, 32, 32, (False, False)),
        ("v5e:1x1", None, 1, 1, (False, False)),
        ("v5p:4x4x32", None, 512, 512, (True, True, True)),  # another shape than a VM's
    ],
)
def test_topologies(text, slices, chips, devices, wraps):
    found = Topology.parse(text, num_slices=slices)
    assert (found.num_chips, found.num_devices, found.wraps) == (chips, devices, wraps)
    assert Topology.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v5p", "not of the form"),
        ("v5p:4x4", "16 chips come as v5p:2x2x4"),
        ("v9:2x2", "unknown"),
        ("0x v6e:2x2", "at least 1"),
        ("v5p:3x3x3", "multiples of 4"),
        ("v5p:64x64x64", "a pod of v5p has 8960"),
        ("v5p:1x2x2", "Write v5p:2x2x1"),
    ],
)
def test_topologies_that_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        Topology.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no axis"),
        ("expert=2,expert=4", "names expert twice"),
        ("fsdp=0", "size of at least 1"),
        ("fsdp", "is not AXIS=SIZE"),
        ("model=4", "is not AXIS=SIZE"),
    ],
)
def test_meshes_that_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        request.parse_mesh(text, V5P)


@pytest.mark.parametrize("text", ["expert=2, fsdp=2", " expert = 2,fsdp=2 , "])
def test_a_mesh_may_hold_spaces(text):
    assert request.parse_mesh(text, V5P) == request.parse_mesh("expert=2,fsdp=2", V5P)


def test_a_request_survives_its_way_to_the_child():
    asked = make_request(compiler_options={"a": True}, num_microbatches=2)
    there = json.loads(json.dumps(asked.to_json()))
    assert request.Request.from_json(there) == asked


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 6}, "no multiple of 4"),
        ({"mesh": "expert=2"}, "Make the product equal"),
        ({"mesh": "context=4", "length": 6}, "no multiple of context=4"),
        (BY_SEQUENCE | {"mesh": "fsdp=2,tensor=2"}, "fsdp=2 and tensor=2"),
        ({"tensor_cuts": "sequences"}, "only decoding"),
        (BY_SEQUENCE | {"batch": 6}, "expert.tensor"),
        (
            BY_SEQUENCE | {"config": MoEConfig.tiny(num_experts=6)},
            "num_experts=6 is no multiple of expert=2 times tensor=2",
        ),
        ({"config": MoEConfig.tiny(num_experts=6)}, "num_experts=6 is no multiple of expert=4"),
        (
            {"mesh": "tensor=4", "config": MoEConfig.tiny(num_heads=2)},
            "num_heads=2 is no multiple of tensor=4",
        ),
        (
            {"mesh": "tensor=4", "config": DenseConfig.tiny()},
            r"num_kv_heads=2 is no multiple of tensor=4.* divides it: 1, 2\.",
        ),
        (
            {"mode": "decode", "num_drafts": 1, "config": DenseConfig.tiny()},
            "num_drafts=1 for a DenseConfig",
        ),
    ],
)
def test_requests_that_are_refused(changes, said):
    mesh = request.parse_mesh(changes.get("mesh", "expert=4"), V5P)
    with pytest.raises(ConfigError, match=said):
        make_request(**changes | {"mesh": mesh})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--num-microbatches 0", "--num-microbatches 0 must be finite and at least 1"),
        ("--slices -1", "--num-slices -1 must be finite and at least 1"),
        ("--batch 0", "--batch 0 must be finite and at least 1"),
        ("--json DIR/file/plan.json", "cannot be written: "),
        ("--json DIR", "it is a directory. Name a file"),
        ("--chart DIR/plan.txt", "ends in none of .svg"),
        ("--keep DIR/file", "is no directory. Name a directory"),
        ("--keep DIR/file/sub", "is no directory. Name a directory"),
        ("--json /proc/plan.json", "cannot be written"),
        ("--chart /proc/plan.svg", "cannot be written"),
        ("--keep /proc/plan", "cannot be written to"),
        ("--timeout-s nan", "must be finite and at least 1"),
        ("--timeout-s inf", "must be finite and at least 1"),
        ("--mesh expert=4 --search", "--mesh expert=4 with --search, which tries them"),
        ("--mode decode --offload-moments", "--offload-moments in mode decode: train alone"),
        ("--choices-per-row 100", "exceeds num_chosen"),
        ("--num-drafts 1", "num_drafts=1 in mode train: only decoding"),
        ("--mode decode --num-microbatches 2", "num_microbatches=2 in mode decode: only training"),
        ("--remat layr", "some of .*router.*; or one of off, layer, all_but_dispatched alone"),
        ("--mode prefill --remat layer", "--remat layer in mode prefill"),
        ("--mode decode --acceptance 0.5", "without --num-drafts"),
    ],
)
def test_what_must_fail_in_the_end_is_refused_before_anything_is_compiled(
    line, said, monkeypatch, tmp_path
):
    monkeypatch.setattr(plan, "make", None)
    if "/proc" in line and sys.platform != "linux":
        pytest.skip("/proc takes no files on Linux alone")
    (tmp_path / "file").touch()
    words = f"tiny --topology v5p:2x2x1 {line.replace('DIR', str(tmp_path))}".split()
    for search in ([], ["--search"]):
        with pytest.raises(ConfigError, match=said):
            command.main([*words, *search])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("v5p:16x16x16", "divides tiny. Name a smaller topology"),
        ("v5p:2x2x2 --batch 3", "divides tiny and batch=3. Name another batch"),
    ],
)
def test_a_topology_that_no_mesh_divides_the_model_over_is_named(line, said):
    with pytest.raises(ConfigError, match=said):
        asked(f"tiny --topology {line}")


@pytest.mark.parametrize("name", ["plan.json", "there.json"])
def test_trying_an_output_leaves_it_as_it_was(name, tmp_path):
    there = tmp_path / "there.json"
    there.write_text("kept")
    line = f"tiny --topology v5p:2x2x1 --json {tmp_path / name} --keep {tmp_path / 'a' / 'b'}"
    command.check_outputs(options.parse(command.PlanOptions, "loong plan", line.split()))
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_text() == "kept"


def test_models_by_name_and_by_file(tmp_path):
    assert request.find_model("longcat-flash").num_experts == 512
    path = tmp_path / "small.json"
    fields = dataclasses.asdict(MoEConfig.tiny())
    kept = {k: v for k, v in fields.items() if isinstance(v, int | float) and k != "chunk_tokens"}
    path.write_text(json.dumps(kept | {"dtype": "bfloat16"}))
    assert str(request.find_model(str(path)).dtype) == "bfloat16"
    path.write_text('{"width": 3}')
    with pytest.raises(ConfigError, match="width"):
        request.find_model(str(path))
    with pytest.raises(ConfigError, match="neither"):
        request.find_model("longcat")


def test_models_of_an_import_and_with_parts_are_read(tmp_path):
    path = tmp_path / "model.json"
    yarn = YarnScaling(factor=4.0, original_max_position=256)
    model = MoEConfig.tiny(yarn=yarn, ngram=NgramEmbedding(max_order=2, base_rows=50))
    record = {"format_version": 1, "config": configs.to_json(model), "hf_config": None}
    path.write_text(json.dumps(record))
    assert request.find_model(str(path)) == model
    fields = {k: v for k, v in configs.to_json(MoEConfig.tiny()).items() if k != "_kind"}
    plain = {
        "yarn": {"factor": 4.0, "original_max_position": 256},
        "ngram": {"max_order": 2, "base_rows": 50},
    }
    path.write_text(json.dumps(fields | plain))
    assert request.find_model(str(path)) == model


def test_the_model_of_a_run_is_read(tmp_path):
    recipe = recipes.get_recipe("quickstart")()
    configs.open_run(recipe, tmp_path)
    assert request.find_model(str(tmp_path)) == recipe.model
    (tmp_path / "config.json").write_text('{"_kind": "recipe", "model": null}')
    with pytest.raises(ConfigError, match=r"config.json holds a recipe, and .* directory"):
        request.find_model(str(tmp_path))


def test_directories_of_weights_are_read(tmp_path):
    """A published one, one with no more than its config.json, and what an import makes of it."""
    model = request.find_model(str(PUBLISHED))
    expected = HfCheckpoint(PUBLISHED, dtype="bfloat16").config
    assert model == dataclasses.replace(expected, num_mtp_layers=0)
    record = json.loads((PUBLISHED / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(record | {"dtype": "float32"}))
    there = dataclasses.replace(model, dtype="float32", param_dtype="float32")
    assert request.find_model(str(tmp_path / "config.json")) == there
    (tmp_path / "config.json").write_text(json.dumps(record | {"torch_dtype": "auto"}))
    assert request.find_model(str(tmp_path)) == model
    convert.import_hf(PUBLISHED, tmp_path / "ours")
    assert request.find_model(str(tmp_path / "ours")) == HfCheckpoint(PUBLISHED).config


# Of the config.json of Qwen2.5-7B and of SmolLM2-135M what decides anything.
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
SMOL = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


@pytest.mark.parametrize(("name", "record"), [("qwen2.5-7b", QWEN), ("smollm2-135m", SMOL)])
def test_a_published_dense_decoder_is_the_one_of_that_name(name, record, tmp_path):
    """Its directory has a config.json and no weights; an import says the same in its model.json."""
    (tmp_path / "config.json").write_text(json.dumps(record))
    found = request.find_model(str(tmp_path))
    assert found == request.find_model(name)
    (tmp_path / "model.json").write_text(json.dumps({"config": configs.to_json(found)}))
    assert request.find_model(str(tmp_path)) == found


def test_a_file_may_have_a_field_by_its_older_name(tmp_path):
    fields = configs.to_json(MoEConfig.tiny())
    fields["mixing"] = fields.pop("attention")
    (tmp_path / "model.json").write_text(json.dumps(fields))
    assert request.find_model(str(tmp_path)) == MoEConfig.tiny()


@pytest.mark.parametrize("name", ["", "none"])
def test_a_directory_without_a_model_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"neither one of .*Name .*`loong import-hf` made"):
        request.find_model(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "gpt2"}', "model_type='gpt2'"),
        ('{"vocab_size": 128', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "of type list"),
        ('{"config": 3}', "of type int"),
        ('{"vocab_size": 128}', "model.json: mo_e_config.* missing.*hidden_size"),
        ('{"num_layers": "two"}', "model.json: mo_e_config cannot be read"),
        ('{"_kind": "rl.optimizers.AdamW"}', "holds a rl.optimizers.AdamW"),
        ('{"yarn": "long"}', "yarn='long'"),
        ('{"yarn": {"factor": 2.0}}', "original_max_position"),
        ('{"ngram": {"width": 3}}', "no field 'width'"),
        ('{"attention": {"block": 3}}', "that names its _kind"),
        ('{"dtype": "float3"}', "is no dtype"),
    ],
)
def test_files_that_hold_no_model_are_refused(text, said, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        request.find_model(str(path))


@pytest.mark.parametrize("line", ["gather --fp8-dispatch", "gather --choices-per-row 2",
                                  "ragged --choices-per-row 2"])  # fmt: skip
def test_what_an_exchange_cannot_do_is_refused(line):
    with pytest.raises(ConfigError, match="choose padded"):
        asked(f"tiny --topology v5p:2x2x1 --mesh expert=4 --exchange {line}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--exchange ragged", "--exchange for tiny-dense, a DenseConfig: it has no experts"),
        ("--buffer-factor 1.1", "--buffer-factor for"),
        ("--remat residual+ffn_1", "is none of off, layer"),
    ],
)
def test_options_of_experts_are_refused_for_a_dense_decoder(line, said):
    with pytest.raises(ConfigError, match=said):
        asked(f"tiny-dense --topology v5p:2x2x1 --mesh fsdp=4 {line}")


@pytest.mark.parametrize("model", ["tiny", "tiny-dense"])
@pytest.mark.parametrize("mode", ["train", "decode"])
def test_meshes_that_a_search_tries_divide_the_model(model, mode):
    tried = ranked(f"{model} --topology v5e:2x4 --mode {mode} --length 64 --tensor-cuts heads")
    assert max(one.mesh["tensor"] for one in tried) == {"tiny": 4, "tiny-dense": 2}[model]
    assert all(math.prod(one.mesh.values()) == 8 for one in tried)


@pytest.mark.parametrize("kind", ["padded", "ragged"])
def test_rows_are_asked_for_in_eight_bits(kind):
    line = f"tiny --topology v5p:2x2x1 --mesh expert=4 --exchange {kind} --fp8-dispatch"
    assert asked(line).config.exchange.dispatch_dtype == "float8_e4m3fn"
