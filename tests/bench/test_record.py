"""What a bench leaves when it is stopped, and what its file says of how it was measured."""

import json
import types
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.bench import (
    asynchronous,
    curation,
    decode,
    device,
    fusion,
    ours,
    placement,
    products,
    verify,
    versus,
)
from loong_jax.bench import model as model_bench
from tests.doubles import tiny

MEASURED = {"what": 1.0}


def stop(*_, **__):
    raise KeyboardInterrupt


def stopped(words: list[str], path: Path) -> dict:
    """The file that a bench leaves which is interrupted in its second part."""
    assert cli.main(["bench", *words, "--json", str(path)]) == 130
    return json.loads(path.read_text())


def found(*_, **__):
    return MEASURED


def test_a_stopped_curation_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(curation, "measure_quality", found)
    monkeypatch.setattr(curation, "quality_text", str)
    monkeypatch.setattr(curation, "measure_contamination", stop)
    left = stopped(["curation", "--planted", "7"], tmp_path / "a.json")
    assert left["quality"] == MEASURED
    assert left["setup"]["options"]["planted"] == 7
    assert left["setup"]["machine"].keys() == {"processor", "cores", "load"}
    assert {"python", "jax", "numpy"} <= left["setup"]["versions"].keys()


def test_a_stopped_verify_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "read_cases", lambda _: [])
    monkeypatch.setattr(verify, "measure", lambda *_, **__: dict(MEASURED))
    monkeypatch.setattr(verify, "as_text", str)
    monkeypatch.setattr(verify, "_sandbox", stop)
    assert stopped(["verify"], tmp_path / "a.json")["what"] == 1.0


def test_a_stopped_decode_leaves_its_first_part(tmp_path, monkeypatch):
    defaults = decode.measure.__kwdefaults__ | {"config": tiny.smallest_config(num_layers=1)}
    monkeypatch.setattr(decode.measure, "__kwdefaults__", defaults)
    monkeypatch.setattr(decode._Bench, "group_prefill", found)
    monkeypatch.setattr(decode._Bench, "active_slots", stop)
    parts = "group_prefill,active_slots"
    left = stopped(["decode", "--parts", parts], tmp_path / "a.json")
    assert left["group_prefill"] == MEASURED


def test_a_stopped_device_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(device._Bench, "ceilings", found)
    monkeypatch.setattr(device._Bench, "train", stop)
    left = stopped(["device", "--model", "tiny"], tmp_path / "a.json")
    assert left["ceilings"] == MEASURED


def test_a_stopped_fusion_leaves_its_first_method(tmp_path, monkeypatch):
    monkeypatch.setattr(fusion, "write_models", found)
    monkeypatch.setattr(fusion.importlib.util, "find_spec", lambda _: None)
    side = {"gb_per_s_core": 1.0, "peak_leaves": 1.0, "seconds": 1.0, "first_s": 1.0}
    rows = iter([{"ours": side}])
    monkeypatch.setattr(fusion, "_row", lambda *_: next(rows, None) or stop())
    left = stopped(["fusion", "--methods", "linear,ties"], tmp_path / "a.json")
    assert left["methods"] == {"linear": {"ours": side}}


def test_a_stopped_placement_leaves_its_first_size(tmp_path, monkeypatch):
    names = ("start_s", "bytes_per_command", "bytes_per_report", "driver_us_per_report")
    row = dict.fromkeys((*names, "publish_s"), 1.0)
    rows = iter([row])
    monkeypatch.setattr(placement, "measure", lambda *_: next(rows, None) or stop())
    assert stopped(["placement"], tmp_path / "a.json")["rows"] == [row]


def test_a_stopped_async_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(asynchronous.calibration, "check", found)
    monkeypatch.setattr(asynchronous.tables, "calibration", str)
    monkeypatch.setattr(asynchronous, "policies", stop)
    assert stopped(["async"], tmp_path / "a.json")["calibration"] == MEASURED


def test_a_stopped_comparison_leaves_its_first_setting(tmp_path, monkeypatch):
    """Each setting of the grid takes minutes."""
    passes = {name: {"ours_s": 1.0} for name in ("forward", "train_step")}
    compared = iter([passes])
    peer = types.SimpleNamespace(set_num_threads=found, versions=lambda: {"torch": "0"})
    monkeypatch.setattr(versus, "peer", lambda: peer)
    monkeypatch.setattr(versus, "compare", lambda *_, **__: next(compared, None) or stop())
    monkeypatch.setattr(ours, "problem", found)
    monkeypatch.setattr(ours, "load", found)
    for name in ("of_forward", "time_each"):
        monkeypatch.setattr(products, name, found)
    monkeypatch.setattr(products, "bound", lambda *_: {"sentence": ""})
    monkeypatch.setattr(products, "alone", lambda *_: products.Alone(1.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(model_bench.process, "keep_freed_memory", found)
    left = stopped(["model", "--settings", "wide", "few_big_experts"], tmp_path / "a.json")
    assert left["transformers"]["settings"].keys() == {"wide"}
    assert left["setup"]["options"]["budget_s"] == 15.0


@pytest.mark.parametrize(
    "words",
    [
        ["model", "--parts"],
        ["verify", "--parts"],
        ["curation", "--parts"],
        ["placement", "--hosts"],
        ["fusion", "--methods", ","],
        ["model", "--budget-s", "inf"],
        ["verify", "--parts", "math", "ray", "--requests", "5"],
    ],
)
def test_what_measures_nothing_or_never_ends_is_refused_at_once(words, monkeypatch, capsys):
    for bench in (curation, fusion, placement, verify, model_bench):
        monkeypatch.setattr(bench, "measure", stop, raising=False)
    try:
        status = cli.main(["bench", *words])
    except SystemExit as ended:
        status = ended.code
    assert status in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
