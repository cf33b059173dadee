"""What a bench leaves when it is stopped, what its file says, and where it cannot be written."""

import importlib
import json
import types
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.bench import BENCHES, asynchronous, decode, device, fusion, ours, verify
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


def test_a_stopped_verify_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "read_cases", lambda _: [])
    monkeypatch.setattr(verify, "measure_judges", lambda *_, **__: dict(MEASURED))
    monkeypatch.setattr(verify, "as_text", str)
    monkeypatch.setattr(verify, "measure_sandbox", stop)
    left = stopped(["verify", "--rounds", "7"], tmp_path / "a.json")
    assert left["what"] == 1.0
    assert left["setup"]["options"]["rounds"] == 7
    assert left["setup"]["machine"].keys() == {"processor", "cores", "load"}
    assert {"python", "jax", "numpy"} <= left["setup"]["versions"].keys()


def test_a_stopped_decode_leaves_its_first_part(tmp_path, monkeypatch):
    defaults = decode.measure.__kwdefaults__ | {"config": tiny.smallest_config(num_layers=1)}
    monkeypatch.setattr(decode.measure, "__kwdefaults__", defaults)
    monkeypatch.setattr(decode._Bench, "engines", lambda _: (MEASURED, None))
    monkeypatch.setattr(decode._Bench, "transformers", stop)
    assert stopped(["decode"], tmp_path / "a.json")["engine"] == MEASURED


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


def test_a_stopped_async_leaves_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(asynchronous, "policies", found)
    monkeypatch.setattr(asynchronous, "policies_text", str)
    monkeypatch.setattr(asynchronous, "compare", stop)
    assert stopped(["async"], tmp_path / "a.json")["policies"] == MEASURED


def test_a_stopped_comparison_leaves_its_first_setting(tmp_path, monkeypatch):
    """Each setting of the grid takes minutes."""
    passes = {name: {"ours_s": 1.0} for name in ("forward", "train_step")}
    compared = iter([passes])
    peer = types.SimpleNamespace(set_num_threads=found, versions=lambda: {"torch": "0"})
    monkeypatch.setattr(model_bench, "find_peer", lambda: peer)
    monkeypatch.setattr(model_bench, "compare", lambda *_, **__: next(compared, None) or stop())
    monkeypatch.setattr(ours, "problem", found)
    monkeypatch.setattr(model_bench.process, "keep_freed_memory", found)
    left = stopped(["model", "--settings", "wide", "few_big_experts"], tmp_path / "a.json")
    assert left["settings"].keys() == {"wide"}
    assert left["setup"]["options"]["budget_s"] == 15.0


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "--parts"],
        ["fusion", "--methods", ","],
        ["model", "--budget-s", "inf"],
        ["model", "--settings", "huge"],
    ],
)
def test_what_measures_nothing_or_never_ends_is_refused_at_once(words, monkeypatch, capsys):
    for bench in (fusion, verify, model_bench):
        monkeypatch.setattr(bench, "measure", stop, raising=False)
    try:
        status = cli.main(["bench", *words])
    except SystemExit as ended:
        status = ended.code
    assert status in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def refused(name: str, option: str, place: Path, monkeypatch, capsys) -> str:
    """What is said where `loong bench NAME --OPTION PLACE` must not measure."""
    for measuring in ("measure", "read_cases"):
        monkeypatch.setattr(importlib.import_module(BENCHES[name]), measuring, None, raising=False)
    words = ["bench", name, f"--{option}", str(place)]
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"loong bench: --{option} {place} cannot be written")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("name", BENCHES)
def test_files_that_cannot_be_written_are_refused(name, tmp_path, monkeypatch, capsys):
    for place, why in ((tmp_path, "it is a directory"), (Path("/proc/x.json"), "")):
        assert why in refused(name, "json", place, monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    said = refused("fusion", "directory", tmp_path / "file", monkeypatch, capsys)
    assert "is no directory" in said
    refused("fusion", "directory", Path("/proc/x"), monkeypatch, capsys)
