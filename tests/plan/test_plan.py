"""A plan of a program that is written here: figures, report, chart; and searches of meshes."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from loong_jax.errors import ConfigError
from loong_jax.models.dense import DenseConfig
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.moe.scaling import num_active_params
from loong_jax.plan import (
    analytic,
    chart,
    command,
    compiled,
    counts,
    figures,
    plan,
    report,
    request,
)
from loong_jax.plan.compiled import Compiled
from loong_jax.plan.topology import CHIPS, Topology
from tests.plan import test_roofline
from tests.plan.asking import asked, make_request, ranked

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


def shown(made) -> str:
    """The report, its words apart by one space."""
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(made, console)
    return " ".join(console.export_text().split())


def test_a_plan_adds_up():
    made = plan.read(make_request(), [COMPILED], VERSIONS)
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


def test_a_step_is_as_many_micro_batches_and_one_update():
    """And the fullest moment may be that of a program that no step runs."""
    scoring = dataclasses.replace(
        COMPILED, name="logprobs", text=None, runs=0, resident={"state": 60e9}
    )
    update = dataclasses.replace(COMPILED, name="update", arguments={"masters": 2e9})
    gradients = dataclasses.replace(COMPILED, name="accumulate", runs=3, resident={"moments": 1e9})
    made = plan.read(make_request(), [scoring, gradients, update], VERSIONS)
    (one,) = (plan.read(make_request(), [COMPILED], VERSIONS).reference,)
    assert made.reference.step_s == pytest.approx(4 * one.step_s)
    assert made.reference.step.cost.flops == pytest.approx(4 * one.step.cost.flops)
    assert [row.trips for row in made.reference.step.rows] == [3, 1]
    value = figures.to_json(made)
    assert value["hbm_per_device_gb"] == pytest.approx(51 + 60)
    assert "while logprobs runs" in shown(made)
    assert value["programs"]["accumulate"] == {
        "runs": 3,
        "hbm_per_device_gb": pytest.approx(52),
        "roofline_s": pytest.approx(one.step_s),
    }
    assert value["programs"]["logprobs"]["roofline_s"] is None


def test_experts_on_one_chip_use_no_link_and_the_json_stays_valid():
    """Pairs of devices that share a chip: no bandwidth is finite there, nor named."""
    topology = Topology(chip=CHIPS["tpu7x"], shape=(1, 1, 2))
    mesh = request.parse_mesh("fsdp=2,expert=2", topology)
    text = TEXT.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")
    pairs = dataclasses.replace(
        COMPILED, text=text, coordinates=((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1))
    )
    made = plan.read(make_request(topology=topology, mesh=mesh), [pairs], VERSIONS)
    assert made.torus_all_to_all == float("inf")
    value = json.loads(json.dumps(figures.to_json(made), allow_nan=False))
    assert value["torus_all_to_all_gb_per_s"] is None
    assert any("share a chip" in line for line in value["assumptions"])
    assert not any("inf" in line.split() for line in value["assumptions"])


def test_a_plan_is_shown_and_drawn(tmp_path):
    made = plan.read(make_request(), [COMPILED], VERSIONS)
    text = shown(made)
    assert "51.00 of 102.01 GB, fits" in text
    assert "all-to-all" in text
    cost = made.reference.step.cost
    assert f"per device and step: {cost.flops / 1e12:.3g} TFLOP" in text
    assert f"{cost.hbm_bytes / 1e9:.3g} GB of HBM traffic" in text
    assert "no TPU ran" in text
    chart.save(made, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_decoding_is_measured_against_memory():
    asked = make_request(mode="decode", num_drafts=1, acceptance=0.8)
    assert (asked.num_tokens, asked.num_kept_tokens) == (16, pytest.approx(8 * 1.8))
    arguments = {"weights": 2765e6, "cache": 2 * 2765e6, "batch": 0.0}
    there = dataclasses.replace(COMPILED, arguments=arguments)
    made = plan.read(asked, [there], VERSIONS)
    value = figures.to_json(made)["decode"]
    kept = 8 * 1.8 / 4  # per step and chip
    assert value["cache_bound_tokens_per_s_per_chip"] == pytest.approx(kept / 2e-3)
    assert value["memory_bound_tokens_per_s_per_chip"] == pytest.approx(kept / 3e-3)
    assert "target_tokens_per_s_per_chip" not in value  # which is another model's
    assert value["tensor_cuts"] == "heads"
    text = shown(made)
    assert "target" not in text
    assert "cache bound tokens per s per chip" in text
    assert "tensor cuts heads" in text


def test_a_dense_decoder_has_no_experts_to_speak_of():
    config = DenseConfig.tiny()
    made = plan.read(make_request(model="tiny-dense", config=config), [COMPILED], VERSIONS)
    value = json.loads(json.dumps(figures.to_json(made)))
    assert value["exchange"] is None
    assert [row["gb_per_s_per_chip"] for row in value["by_exchange_bandwidth"]] == [200]
    useful = 8 * 64 * 3 * (2 * 1e9 + 2 * 3 * 4 * (32 + 32) * 32.5)
    mfu = useful / (4 * 459e12 * value["roofline_step_s"])
    assert value["roofline_mfu"] == pytest.approx(mfu)
    assert not any("expert" in line for line in value["assumptions"])
    assert "Expert traffic" not in shown(made)


def test_the_published_model_has_a_target_to_reach():
    flash = MoEConfig.flash(num_mtp_layers=1, remat="layer")
    assert figures.is_flash(flash)
    assert not figures.is_flash(dataclasses.replace(flash, num_layers=8))
    assert not figures.is_flash(MoEConfig.lite())
    assert not figures.is_flash(DenseConfig.qwen25_7b())
    there = dataclasses.replace(COMPILED, arguments={"weights": 1e9, "cache": 1e9})
    made = plan.read(make_request(mode="decode", config=flash), [there], VERSIONS)
    value = figures.to_json(made)["decode"]
    target = 3785 * 2.765 / 3.35
    assert value["target_tokens_per_s_per_chip"] == pytest.approx(target)
    share = value["tokens_per_s_per_chip"] / target
    assert value["share_of_target"] == pytest.approx(share)
    text = shown(made)
    assert f"share of target │ {share:.1%}" in text


def test_a_small_plan_is_shown_in_small_units():
    memory = dict.fromkeys(COMPILED.memory, 0.0) | {"argument": 4e6}
    there = dataclasses.replace(COMPILED, memory=memory, arguments={"masters": 3.5e6})
    made = plan.read(make_request(), [there], VERSIONS)
    text = shown(made)
    assert "HBM per device: 4.00 MB of 102.01 GB" in text
    assert "masters │ 3.500" in text
    seconds = made.reference.step_s
    assert seconds < 1e-2
    assert f"Roofline: {seconds * 1e3:.3f} ms per step" in text
    assert "step ms" in text


def test_a_call_of_several_steps_is_told_by_the_step():
    there = dataclasses.replace(COMPILED, arguments={"weights": 1e9, "cache": 1e9})
    made = plan.read(make_request(mode="decode", num_steps=4), [there], VERSIONS)
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
    text = shown(made)
    assert f"{call_s:.4f}" not in text
    assert "runs in a call of 4 steps" in text


def test_a_shorter_model_is_said_to_be_shorter():
    shorter = dataclasses.replace(MoEConfig.tiny(), num_layers=1)
    made = plan.read(make_request(config=shorter), [COMPILED], VERSIONS)
    assert figures.to_json(made)["num_layers"] == 1
    assert figures.title(made).startswith("tiny, layers=1, train on v5p:2x2x1")


def test_advice_on_memory_traffic_names_what_there_is():
    made = plan.read(make_request(), [COMPILED], VERSIONS)
    for timing in made.timings:
        timing.step.product_s = 0.0
    (said,) = [line for line in figures.advise(made) if "HBM traffic" in line]
    assert "--chart" in said
    assert "JSON" not in said


def test_what_does_not_fit_says_what_to_change():
    memory = dict(COMPILED.memory) | {"temp": 90e9}
    made = plan.read(
        make_request(batch=16), [dataclasses.replace(COMPILED, memory=memory)], VERSIONS
    )
    assert not made.fits
    said = " ".join(figures.advise(made))
    assert "over the limit by 29.0 GB" in said
    assert "--num-microbatches 2" in said
    decoding = dataclasses.replace(COMPILED, memory=memory)
    made = plan.read(make_request(mode="decode"), [decoding], VERSIONS)
    said = " ".join(figures.advise(dataclasses.replace(made, timings=())))
    assert "use a smaller batch, or more devices" in said
    assert "context" not in said
    refused = dataclasses.replace(
        COMPILED, text=None, memory={}, out_of_memory={"used": 150e9, "limit": 102e9}
    )
    made = plan.read(make_request(), [refused], VERSIONS)
    value = figures.to_json(made)
    assert (value["fits"], value["roofline_step_s"]) == (False, None)
    assert value["hbm_per_device_gb"] == pytest.approx(150)


def test_a_drafting_head_is_active_only_where_the_program_drafts():
    without, within = MoEConfig.tiny(), MoEConfig.tiny(num_mtp_layers=1)
    plain, idle, drafting = counts.of(without), counts.of(within), counts.of(within, drafts=True)
    head = idle.total - plain.total
    assert head > 0
    assert idle.active == plain.active == num_active_params(without)
    assert drafting.active == plain.active + head == num_active_params(within, drafts=True)


def test_tables_of_ngrams_are_looked_up_and_not_active():
    ngram = NgramEmbedding(max_order=2, base_rows=50)
    within, without = counts.of(MoEConfig.tiny(ngram=ngram)), counts.of(MoEConfig.tiny())
    table = sum(ngram.rows) * 128 / len(ngram.rows)
    assert within.active - without.active == within.total - without.total - table


def test_a_prefill_needs_one_row_of_logits_per_sequence():
    asks = asked("tiny --topology v5e:1x1 --mode prefill --batch 2 --length 64")
    made = counts.of(asks.config)
    assert made.head == 128 * 128
    attention = 2 * 2 * 2 * 4 * (48 + 32) * 65 / 2  # layers, operations, sub-layers, heads, keys
    rows = 2 * 64 * (2 * (made.active - made.head) + attention)
    assert plan.useful_flops(asks, made.named()) == pytest.approx(rows + 2 * 2 * made.head)


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("longcat-flash", pytest.approx(560.665e9, rel=1e-5), pytest.approx(27.15e9, rel=1e-3)),
        ("qwen2.5-7b", 7_615_616_512, 7_615_616_512 - 152_064 * 3584),
        ("smollm2-135m", 134_515_008, 134_515_008),  # its embedding is its head
    ],
)
def test_weights_are_counted_as_published(model, total, active):
    made = counts.of(request.find_model(model))
    assert (made.total, made.active) == (total, active)
    assert made.dense + made.experts + made.looked_up == made.total


def test_tables_of_ngrams_lie_in_memory_and_are_not_read():
    """68.6 billion weights, 31.4 of them in tables."""
    config = MoEConfig.lite()
    made = counts.of(config)
    assert made.tables == pytest.approx(31.4e9, rel=1e-2)
    assert made.total == pytest.approx(68.6e9, rel=1e-3)
    assert made.dense + made.experts + made.looked_up + made.tables == made.total
    line = "longcat-flash-lite --topology v6e:4x4 --mode decode --mesh expert=16 --batch 16"
    found = asked(f"{line} --length 1024 --tensor-cuts heads")
    with_tables, without = (
        analytic.estimate(dataclasses.replace(found, config=c))
        for c in (config, dataclasses.replace(config, ngram=None))
    )
    more = 2 * (made.tables / 16 + config.hidden_size**2)  # of bytes; projections lie whole
    assert with_tables.hbm_bytes - without.hbm_bytes == pytest.approx(more)
    assert with_tables.step_s < 1.02 * without.step_s


def test_a_search_ranks_what_fits_first():
    fits = [made.fits for made in ranked("longcat-flash --topology v5p:4x4x8")]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)


def test_a_search_may_spread_sequences_over_tensor():
    """Caches are then kept once, and the attentions' weights on every device."""
    config, batch, length = MoEConfig.flash(), 8192, 5120
    line = "longcat-flash --topology v6e:16x16 --mode decode --batch 8192 --length 5120"
    heads, sequences = (
        analytic.estimate(asked(f"{line} --mesh expert=64,tensor=4 --tensor-cuts {cuts}"))
        for cuts in ("heads", "sequences")
    )
    cache = 2 * 2 * config.num_layers * 576 * length * batch / 256
    attention = 2 * counts.of(config).attention * 3 / 4
    tokens = batch / 256 * (10 * config.vocab_size / 4 + 8 * config.ffn_hidden_size)
    rows = 4 * 2 * config.hidden_size * config.target_ffn_experts * batch / 256
    saved = 3 * (cache + tokens + rows) - attention
    assert heads.hbm_bytes - sequences.hbm_bytes == pytest.approx(saved)
    assert not heads.fits
    assert sequences.step_s < heads.step_s
    found = ranked(line)
    assert all(512 % (made.mesh["expert"] * made.mesh["tensor"]) == 0 for made in found)
    assert found[0].mesh["tensor"] > 1
    assert found[0].fits


def test_both_refusals_for_want_of_memory_are_read():
    used = "Ran out of memory in memory space hbm. Used 120.50G of 95.74G hbm. Exceeded by 24.7G"
    assert compiled.out_of_memory(used) == {"used": 120.5 * 2**30, "limit": 95.74 * 2**30}
    temporaries = (
        "CompileTimeHbmOom: the total memory required for HLO temporaries (124.94G) exceeds "
        "available HBM (94.74G). HLO module: jit_decode"
    )
    found = compiled.out_of_memory(temporaries)
    assert found == {"used": 124.94 * 2**30, "limit": 94.74 * 2**30}
    assert compiled.out_of_memory("something else") is None


def test_a_search_is_shown():
    made = plan.read(make_request(), [COMPILED], VERSIONS)
    estimates = ranked("tiny --topology v5p:2x2x1 --batch 8 --length 64")
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
        return plan.read(asked, [COMPILED], VERSIONS)

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
        return plan.read(asked, [COMPILED], VERSIONS)

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


@pytest.mark.parametrize(
    ("unit", "quantity", "shown"),
    [
        (figures.of_time, 5.96, "5.9600 s"),
        (figures.of_time, 0.0312, "0.0312 s"),
        (figures.of_time, 0.004, "4.000 ms"),
        (figures.of_time, 4.2e-5, "0.042 ms"),
        (figures.of_time, 4.2e-6, "4.20 us"),
        (figures.of_time, 1e-9, "0.00 us"),
        (figures.of_size, 95.5e9, "95.500 GB"),
        (figures.of_size, 0.1e9, "0.100 GB"),
        (figures.of_size, 2.1e7, "21.000 MB"),
        (figures.of_size, 512.0, "0.51 KB"),
        (figures.of_work, 13.1e12, "13.10 TFLOP"),
        (figures.of_work, 5.3e8, "0.53 GFLOP"),
        (figures.of_work, 0.0, "0.00 TFLOP"),
    ],
)
def test_what_is_small_has_a_small_unit(unit, quantity, shown):
    assert unit(quantity).show(quantity) == shown


def test_a_table_keeps_to_the_unit_of_its_largest():
    unit = figures.of_time(0.5)
    assert [unit.number(s) for s in (0.5, 0.0001)] == ["0.5000", "0.0001"]
