"""Requests, topologies, the command's defaults, and a plan of a program that is written here."""

import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from loong_jax import configs, options
from loong_jax.errors import ConfigError
from loong_jax.launch import convert
from loong_jax.launch.plan import (
    advice,
    analytic,
    chart,
    child,
    command,
    compiled,
    figures,
    plan,
    programs,
    report,
    request,
)
from loong_jax.launch.plan.chips import CHIPS
from loong_jax.launch.plan.compiled import Compiled
from loong_jax.launch.plan.topology import Topology
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.moe.convert import HfCheckpoint
from loong_jax.models.moe.rope import YarnScaling
from loong_jax.models.moe.sizes import num_params
from tests.launch.plan import test_roofline
from tests.launch.plan.asking import asked

V5P = Topology.parse("v5p:2x2x1")
PUBLISHED = Path(__file__).parents[2] / "models" / "moe" / "fixtures" / "published"


def make_request(**changes) -> request.Request:
    fields = dict(
        model="tiny",
        config=MoEConfig.tiny(),
        topology=V5P,
        mode="train",
        mesh=request.parse_mesh("expert=4", V5P),
        batch=8,
        length=64,
    )
    return request.Request(**(fields | changes))


BY_SEQUENCE = dict(
    mode="decode", tensor_cuts="sequences", mesh=request.parse_mesh("expert=2,tensor=2", V5P)
)
LINES = [
    f"%s = {test_roofline.START}",
    f"%a = {test_roofline.DOT}",
    test_roofline.done("e", "s"),
]
TEXT = test_roofline.HEAD + "".join(f"  {line}\n" for line in LINES) + "}\n"
COMPILED = Compiled(
    text=TEXT,
    memory={"argument": 40e9, "output": 30e9, "alias": 30e9, "temp": 10e9, "generated_code": 1e9},
    arguments={"masters": 12e9, "optimizer": 24e9, "batch": 1e9},
    coordinates=((0, 0, 0, 0), (0, 1, 0, 0), (0, 1, 1, 0), (0, 0, 1, 0)),
    shardings={"state.masters.head": "expert, -"},
    weights={"total": 3e9, "experts": 2e9, "embedding": 1e8, "head": 1e8, "active": 1e9},
    out_of_memory=None,
    compile_s=1.0,
)
VERSIONS = {"jax": "0", "libtpu": "0"}


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
        ("v5p:4x4", "has 2 axes and v5p has 3"),
        ("v6e:2x2x2", "has 3 axes and v6e has 2"),
        ("v9:2x2", "unknown"),
        ("v6e:0x2", "side of 0 chips"),
        ("0x v6e:2x2", "at least 1"),
        ("v5e:3x3", "does not exist. v5e has 1x1, 2x2"),
        ("v5p:3x3x3", "multiples of 4"),
        ("2x v5p:4x4x1", "come as v5p:2x2x4"),
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
        ({"mesh": request.parse_mesh("expert=2", V5P)}, "Make the product equal"),
        ({"length": 0}, "no positive multiple"),
        (
            BY_SEQUENCE | {"mesh": request.parse_mesh("fsdp=2,tensor=2", V5P)},
            "fsdp=2 and tensor=2",
        ),
        ({"num_microbatches": 0}, "num_microbatches=0 must be at least 1"),
        ({"num_microbatches": -1}, "num_microbatches=-1 must be at least 1"),
        ({"tensor_cuts": "sequences"}, "only decoding"),
        ({**BY_SEQUENCE, "batch": 6}, "expert.tensor"),
        (
            {**BY_SEQUENCE, "config": dataclasses.replace(MoEConfig.tiny(), num_experts=6)},
            "num_experts=6 is no multiple of expert=2 times tensor=2",
        ),
        (
            {"config": dataclasses.replace(MoEConfig.tiny(), num_experts=6)},
            "num_experts=6 is no multiple of expert=4",
        ),
        (
            {
                "mesh": request.parse_mesh("tensor=4", V5P),
                "config": dataclasses.replace(MoEConfig.tiny(), num_heads=2),
            },
            "num_heads=2 is no multiple of tensor=4",
        ),
        ({"num_microbatches": 2, "mode": "prefill"}, "only training"),
        ({"num_drafts": 1}, "only decoding"),
    ],
)
def test_requests_that_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        make_request(**changes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--num-microbatches 0", "--num-microbatches 0 must be at least 1"),
        ("--slices -1", "--slices -1 must be at least 1"),
        ("--batch 0", "--batch 0 must be at least 1"),
        ("--json DIR/file/plan.json", "cannot be written: "),
        ("--json DIR", "it is a directory. Name a file"),
        ("--chart DIR/plan.txt", "ends in none of .svg"),
        ("--keep DIR/file", "is no directory. Name a directory"),
        ("--keep DIR/file/sub", "is no directory. Name a directory"),
        ("--json /proc/plan.json", "cannot be written"),
        ("--chart /proc/plan.svg", "cannot be written"),
        ("--keep /proc/plan", "cannot be written to"),
        ("--timeout-s nan", "must be positive and finite"),
        ("--timeout-s inf", "must be positive and finite"),
        ("--timeout-s 0", "must be positive and finite"),
        ("--timeout-s -5", "must be positive and finite"),
        ("--choices-per-row 100", "exceeds num_chosen"),
        ("--num-drafts 1", "num_drafts=1 in mode train: only decoding"),
        ("--mode decode --num-microbatches 2", "num_microbatches=2 in mode decode: only training"),
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


def test_a_search_with_a_mesh_is_refused(monkeypatch):
    monkeypatch.setattr(plan, "make", None)
    words = ["tiny", "--topology", "v5p:2x2x1", "--mesh", "expert=4", "--search"]
    with pytest.raises(ConfigError, match="Leave one of them out"):
        command.main(words)


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


@pytest.mark.parametrize("name", ["", "none"])
def test_a_directory_without_a_model_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"neither one of .*Name .*`loong import-hf` made"):
        request.find_model(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama"}', "model_type='llama'"),
        ('{"vocab_size": 128', "is not JSON"),
        ("[1]", "of type list"),
        ('{"config": 3}', "of type int"),
        ('{"vocab_size": 128}', "missing.*hidden_size"),
        ('{"_kind": "rl.optimizers.AdamW"}', "holds a rl.optimizers.AdamW"),
        ('{"yarn": "long"}', "yarn='long'"),
        ('{"yarn": {"factor": 2.0}}', "original_max_position"),
        ('{"ngram": {"width": 3}}', "no field 'width'"),
        ('{"mixing": {"block": 3}}', "that names its _kind"),
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


@pytest.mark.parametrize("kind", ["padded", "ragged"])
def test_rows_are_asked_for_in_eight_bits(kind):
    line = f"tiny --topology v5p:2x2x1 --mesh expert=4 --exchange {kind} --fp8-dispatch"
    assert asked(line).config.exchange.dispatch_dtype == "float8_e4m3fn"


def test_a_plan_adds_up():
    made = plan.read(make_request(), COMPILED, VERSIONS)
    value = figures.to_json(made)
    assert value["hbm_per_device_gb"] == pytest.approx(40 + 30 - 30 + 10 + 1)
    assert sum(value["hbm_by_kind_gb"].values()) == pytest.approx(51)
    assert value["hbm_by_kind_gb"]["padding"] == pytest.approx(3)
    assert value["hbm_limit_gb"] == pytest.approx(95 * 2**30 / 1e9)
    assert value["fits"]
    assert value["devices_per_chip"] == 1
    assert sum(value["seconds"].values()) == pytest.approx(value["roofline_step_s"])
    sent = 2 * 4096**2 * 3 / 4
    by_bandwidth = {row["gb_per_s_per_chip"]: row for row in value["by_exchange_bandwidth"]}
    for bandwidth, row in by_bandwidth.items():
        seconds = sent / (bandwidth * 1e9)
        hidden = min(1.0, test_roofline.DOT_S / seconds)
        assert row["expert_traffic_s"] == pytest.approx(seconds)
        assert row["hidden_share"] == pytest.approx(hidden)
    assert value["expert_traffic_hidden_share"] == by_bandwidth[200]["hidden_share"]
    useful = 8 * 64 * 3 * (2 * 1e9 + 2 * 2 * 2 * 4 * (32 + 16 + 32) * 32.5)
    mfu = useful / (4 * 459e12 * value["roofline_step_s"])
    assert value["roofline_mfu"] == pytest.approx(mfu)
    assert json.loads(json.dumps(value)) == value
    (row,) = value["collectives"]
    assert (row["kind"], row["axes"], row["window_tflop"]) == (
        "all-to-all",
        ["expert"],
        pytest.approx(2 * 4096**3 / 1e12),
    )


def test_experts_on_one_chip_use_no_link_and_the_json_stays_valid():
    """Pairs of devices that share a chip: no bandwidth is finite there, nor named."""
    topology = Topology(chip=CHIPS["tpu7x"], shape=(1, 1, 2))
    mesh = request.parse_mesh("fsdp=2,expert=2", topology)
    text = TEXT.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")
    pairs = dataclasses.replace(
        COMPILED, text=text, coordinates=((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1))
    )
    made = plan.read(make_request(topology=topology, mesh=mesh), pairs, VERSIONS)
    assert made.torus_all_to_all == float("inf")
    value = json.loads(json.dumps(figures.to_json(made), allow_nan=False))
    assert value["torus_all_to_all_gb_per_s"] is None
    assert any("share a chip" in line for line in value["assumptions"])
    assert not any("inf" in line.split() for line in value["assumptions"])


def test_a_plan_is_shown_and_drawn(tmp_path):
    made = plan.read(make_request(), COMPILED, VERSIONS)
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    text = console.export_text()
    assert "51.00 of 102.01 GB, fits" in text
    assert "all-to-all" in text
    cost = made.reference.step.cost
    assert f"per device and step: {cost.flops / 1e12:.3g} TFLOP" in " ".join(text.split())
    assert f"{cost.hbm_bytes / 1e9:.3g} GB of HBM traffic" in " ".join(text.split())
    assert "no TPU ran" in text
    chart.save(made, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_decoding_is_measured_against_memory():
    asked = make_request(mode="decode", num_drafts=1, acceptance=0.8)
    assert (asked.num_tokens, asked.num_kept_tokens) == (16, pytest.approx(8 * 1.8))
    arguments = {"weights": 2765e6, "cache": 2 * 2765e6, "batch": 0.0}
    there = dataclasses.replace(COMPILED, arguments=arguments)
    made = plan.read(asked, there, VERSIONS)
    value = figures.to_json(made)["decode"]
    kept = 8 * 1.8 / 4  # per step and chip
    assert value["cache_bound_tokens_per_s_per_chip"] == pytest.approx(kept / 2e-3)
    assert value["memory_bound_tokens_per_s_per_chip"] == pytest.approx(kept / 3e-3)
    assert "target_tokens_per_s_per_chip" not in value  # which is another model's
    assert value["tensor_cuts"] == "heads"
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    text = console.export_text()
    assert "target" not in text
    assert "cache bound tokens per s per chip" in text
    assert "tensor cuts heads" in " ".join(text.split())


def test_the_published_model_has_a_target_to_reach():
    flash = MoEConfig.flash(num_mtp_layers=1, remat="layer")
    assert figures.is_flash(flash)
    assert not figures.is_flash(dataclasses.replace(flash, num_layers=8))
    assert not figures.is_flash(MoEConfig.lite())
    there = dataclasses.replace(COMPILED, arguments={"weights": 1e9, "cache": 1e9})
    made = plan.read(make_request(mode="decode", config=flash), there, VERSIONS)
    value = figures.to_json(made)["decode"]
    target = 3785 * 2.765 / 3.35
    assert value["target_tokens_per_s_per_chip"] == pytest.approx(target)
    share = value["tokens_per_s_per_chip"] / target
    assert value["share_of_target"] == pytest.approx(share)
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    text = " ".join(console.export_text().split())
    assert f"share of target │ {share:.1%}" in text


def test_a_small_plan_is_shown_in_small_units():
    memory = dict.fromkeys(COMPILED.memory, 0.0) | {"argument": 4e6}
    there = dataclasses.replace(COMPILED, memory=memory, arguments={"masters": 3.5e6})
    made = plan.read(make_request(), there, VERSIONS)
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    text = " ".join(console.export_text().split())
    assert "HBM per device: 4.00 MB of 102.01 GB" in text
    assert "masters │ 3.500" in text
    seconds = made.reference.step_s
    assert seconds < 1e-2
    assert f"Roofline: {seconds * 1e3:.3f} ms per step" in text
    assert "step ms" in text


def test_a_call_of_several_steps_is_told_by_the_step():
    there = dataclasses.replace(COMPILED, arguments={"weights": 1e9, "cache": 1e9})
    made = plan.read(make_request(mode="decode", num_steps=4), there, VERSIONS)
    call_s, cost = made.reference.step_s, made.reference.step.cost
    value = figures.to_json(made)
    assert value["roofline_step_s"] == pytest.approx(call_s / 4)
    assert sum(value["seconds"].values()) == pytest.approx(call_s / 4)
    assert value["flops_per_device"] == pytest.approx(cost.flops / 4)
    assert value["hbm_traffic_gb_per_device"] == pytest.approx(cost.hbm_bytes / 4e9)
    row = value["by_exchange_bandwidth"][1]
    assert row["gb_per_s_per_chip"] == 200
    assert row["step_s"] == pytest.approx(call_s / 4)
    assert row["expert_traffic_s"] == pytest.approx(made.reference.traffic(of_experts=True)[0] / 4)
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    text = console.export_text()
    assert f"{call_s:.4f}" not in text
    assert "runs in a call of 4 steps" in text


def test_what_does_not_fit_says_what_to_change():
    memory = dict(COMPILED.memory) | {"temp": 90e9}
    made = plan.read(make_request(batch=16), dataclasses.replace(COMPILED, memory=memory), VERSIONS)
    assert not made.fits
    said = " ".join(advice.advise(made))
    assert "over the limit by 29.0 GB" in said
    assert "--num-microbatches 2" in said
    decoding = dataclasses.replace(COMPILED, memory=memory)
    made = plan.read(make_request(mode="decode"), decoding, VERSIONS)
    said = " ".join(advice.advise(dataclasses.replace(made, timings=())))
    assert "use a smaller batch, or more devices" in said
    assert "context" not in said
    refused = dataclasses.replace(
        COMPILED, text=None, memory={}, out_of_memory={"used": 150e9, "limit": 102e9}
    )
    made = plan.read(make_request(), refused, VERSIONS)
    value = figures.to_json(made)
    assert (value["fits"], value["roofline_step_s"]) == (False, None)
    assert value["hbm_per_device_gb"] == pytest.approx(150)


def test_a_drafting_head_is_active_only_where_the_program_drafts():
    without, within = MoEConfig.tiny(), MoEConfig.tiny(num_mtp_layers=1)
    plain, idle = programs.weight_counts(without), programs.weight_counts(within)
    drafting = programs.weight_counts(within, drafts=True)
    head = idle["total"] - plain["total"]
    assert head > 0
    assert idle["active"] == pytest.approx(plain["active"])
    assert drafting["active"] == pytest.approx(plain["active"] + head)


def test_tables_of_ngrams_are_looked_up_and_not_active():
    ngram = NgramEmbedding(max_order=2, base_rows=50)
    counts = programs.weight_counts(MoEConfig.tiny(ngram=ngram))
    plain = programs.weight_counts(MoEConfig.tiny())
    table = sum(ngram.rows) * 128 / len(ngram.rows)
    more = {name: counts[name] - plain[name] for name in ("total", "active")}
    assert more["active"] == pytest.approx(more["total"] - table)


def test_a_prefill_needs_one_row_of_logits_per_sequence():
    asks = asked("tiny --topology v5e:1x1 --mode prefill --batch 2 --length 64")
    counts = programs.weight_counts(asks.config)
    assert counts["head"] == 128 * 128
    attention = 2 * 2 * 2 * 4 * (48 + 32) * 65 / 2  # layers, operations, sub-layers, heads, keys
    rows = 2 * 64 * (2 * (counts["active"] - counts["head"]) + attention)
    assert plan.useful_flops(asks, counts) == pytest.approx(rows + 2 * 2 * counts["head"])


def test_closed_forms_count_the_published_weights():
    counts = analytic.Counts.of(MoEConfig.flash())
    total = counts.dense + counts.experts + counts.embedding
    assert total == pytest.approx(560.665e9, rel=1e-5)
    assert counts.active(MoEConfig.flash()) == pytest.approx(27.15e9, rel=1e-3)


def test_closed_forms_count_tables_of_ngrams():
    """68.6 billion weights, 31.4 of them in tables that no step reads whole."""
    config = MoEConfig.lite()
    counts = analytic.Counts.of(config)
    assert counts.tables == pytest.approx(31.4e9, rel=1e-2)
    total = counts.dense + counts.experts + counts.embedding + counts.tables
    assert total == pytest.approx(num_params(config), rel=1e-5)
    mesh, v6e = request.parse_mesh("expert=16", Topology.parse("v6e:4x4")), "v6e:4x4"
    sizes = dict(batch=16, length=1024)
    with_tables, without = (
        analytic.estimate(c, Topology.parse(v6e), "decode", mesh, **sizes)
        for c in (config, dataclasses.replace(config, ngram=None))
    )
    more = 2 * (counts.tables / 16 + config.hidden_size**2)  # of bytes; projections lie whole
    assert with_tables.hbm_bytes - without.hbm_bytes == pytest.approx(more)
    assert with_tables.step_s < 1.02 * without.step_s


def test_a_search_ranks_what_fits_first():
    topology = Topology.parse("v5p:4x4x8")
    ranked = analytic.ranked(MoEConfig.flash(), topology, "train", batch=None, length=4096)
    fits = [made.fits(topology) for made in ranked]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    for made in ranked:
        size = 1
        for axis in made.mesh.values():
            size *= axis
        assert size == topology.num_devices


def test_a_search_may_spread_sequences_over_tensor():
    """Caches are then kept once, and the attentions' weights on every device."""
    topology, config = Topology.parse("v6e:16x16"), MoEConfig.flash()
    batch, length = 8192, 5120
    mesh = request.parse_mesh("expert=64,tensor=4", topology)
    heads, sequences = (
        analytic.estimate(
            config, topology, "decode", mesh, batch=batch, length=length, tensor_cuts=cuts
        )
        for cuts in ("heads", "sequences")
    )
    cache = 2 * 2 * config.num_layers * 576 * length * batch / 256
    attention = 2 * analytic.Counts.of(config).attention * 3 / 4
    tokens = batch / 256 * (10 * config.vocab_size / 4 + 8 * config.ffn_hidden_size)
    rows = 4 * 2 * config.hidden_size * config.target_ffn_experts * batch / 256
    saved = 3 * (cache + tokens + rows) - attention
    assert heads.hbm_bytes - sequences.hbm_bytes == pytest.approx(saved)
    assert not heads.fits(topology)
    assert sequences.step_s < heads.step_s
    ranked = analytic.ranked(
        config, topology, "decode", batch=batch, length=length, tensor_cuts="sequences"
    )
    assert all(512 % (made.mesh["expert"] * made.mesh["tensor"]) == 0 for made in ranked)
    assert ranked[0].mesh["tensor"] > 1
    assert ranked[0].fits(topology)


def test_both_refusals_for_want_of_memory_are_read():
    used = "Ran out of memory in memory space hbm. Used 120.50G of 95.74G hbm. Exceeded by 24.7G"
    assert child.out_of_memory(used) == {"used": 120.5 * 2**30, "limit": 95.74 * 2**30}
    temporaries = (
        "CompileTimeHbmOom: the total memory required for HLO temporaries (124.94G) exceeds "
        "available HBM (94.74G). HLO module: jit_decode"
    )
    found = child.out_of_memory(temporaries)
    assert found == {"used": 124.94 * 2**30, "limit": 94.74 * 2**30}
    assert child.out_of_memory("something else") is None


def test_a_search_is_shown():
    made = plan.read(make_request(), COMPILED, VERSIONS)
    estimates = analytic.ranked(MoEConfig.tiny(), V5P, "train", batch=8, length=64)
    console = Console(width=160, record=True, file=io.StringIO())
    report.show_search([(estimates[0], made, ""), (estimates[1], None, "refused")], console)
    text = console.export_text()
    assert request.show_mesh(estimates[1].mesh) in text
    assert "refused" in text
    assert f"{made.reference.mfu:.1%}" in text


def test_a_search_keeps_the_program_of_every_mesh_that_it_compiles(monkeypatch, tmp_path):
    kept = {}

    def make(asked, *, timeout_s, keep):
        kept[keep] = asked.mesh
        return plan.read(asked, COMPILED, VERSIONS)

    monkeypatch.setattr(plan, "make", make)
    words = f"tiny --topology v5p:2x2x1 --search --batch 8 --length 64 --keep {tmp_path}"
    command.main(words.split())
    assert len(kept) == command.NUM_COMPILED
    for directory, mesh in kept.items():
        assert directory == tmp_path / request.show_mesh(mesh)


def test_a_search_is_written_as_it_was_ranked(monkeypatch, tmp_path):
    """What compiles and what does not; the plan itself is of the best."""
    meshes = []

    def make(asked, *, timeout_s, keep):
        meshes.append(asked.mesh)
        if len(meshes) == 2:
            raise compiled.CompilerError("refused")
        return plan.read(asked, COMPILED, VERSIONS)

    monkeypatch.setattr(plan, "make", make)
    path = tmp_path / "plan.json"
    words = f"tiny --topology v5p:2x2x1 --batch 8 --length 64 --json {path}"
    command.main([*words.split(), "--search"])
    record = json.loads(path.read_text())
    assert len(record["search"]) == command.NUM_COMPILED
    for one, mesh in zip(record["search"], meshes, strict=True):
        assert one["mesh"] == {axis: size for axis, size in mesh.items() if size > 1}
        assert one["analytic"]["step_s"] > 0
        assert one["analytic"]["hbm_per_device_gb"] > 0
    first, refused, *_ = record["search"]
    assert (refused["compiled"], refused["error"]) == (None, "refused")
    assert first["error"] is None
    assert first["compiled"]["mfu"] == pytest.approx(record["roofline_mfu"])
    assert first["compiled"]["step_s"] == record["roofline_step_s"]
    assert first["compiled"]["hbm_per_device_gb"] == record["hbm_per_device_gb"]
    command.main([*words.split(), "--mesh", "expert=4"])
    assert "search" not in json.loads(path.read_text())


def test_a_missing_or_unpaired_libtpu_is_named(monkeypatch):
    def missing(name):
        raise compiled.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compiled.metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install .*'\.\[tpu\]'"):
        compiled.check_versions()
    monkeypatch.setattr(compiled.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(ConfigError, match=r"libtpu 0\.0\.1 is not the one"):
        compiled.check_versions()
