"""The doctor: each finding has a status, and each shortcoming its remedy."""

import json
import sys
from pathlib import Path

import pytest

from loong_jax import cli, doctor
from loong_jax.doctor import Check

GIB = 2**30
CPU = {"platform": "cpu", "kind": "cpu", "num_devices": 1}
TPU = {"platform": "tpu", "kind": "TPU v5 lite", "num_devices": 4}


@pytest.mark.parametrize(
    ("check", "status", "words"),
    [
        (doctor.check_python((3, 11, 0), "p"), "ok", "3.11.0"),
        (doctor.check_python((3, 10, 9), "p"), "missing", "3.11 or newer"),
        (doctor.check_packages({"jax": "0.10.2", "flax": "1"}), "ok", "jax 0.10.2"),
        (doctor.check_packages({"jax": None, "flax": "1"}), "missing", "without jax"),
        (doctor.check_packages({}), "missing", "make setup"),
        (doctor.check_devices(CPU, []), "ok", "no TPU"),
        (doctor.check_devices(TPU, ["tpu"]), "ok", "4 x TPU v5 lite"),
        (doctor.check_devices(CPU, ["tpu"]), "note", ".[tpu]"),
        (doctor.check_devices(CPU, ["gpu"]), "note", ".[cuda]"),
        (doctor.check_devices("no answer", []), "missing", "JAX_PLATFORMS=cpu"),
        (doctor.check_cores(2), "ok", "2"),
        (doctor.check_cores(1), "note", "overlap"),
        (doctor.check_memory(8 * GIB), "ok", "8.0 GiB"),
        (doctor.check_memory(2 * GIB), "note", "6 GiB"),
        (doctor.check_memory(None), "note", "unknown"),
        (doctor.check_disk(50 * GIB), "ok", "50.0 GiB"),
        (doctor.check_disk(GIB), "note", "another disk"),
        (doctor.check_model_size(int(22e9), 100 * GIB), "ok", "1.0 billion weights trained whole"),
        (doctor.check_model_size(int(22e9), 14 * GIB), "note", "up to about 0.5 billion"),
        (doctor.check_model_size(None, GIB), "note", "unknown"),
        (doctor.check_ray(None), "note", "make setup"),
        (doctor.check_ray("2.60.0"), "ok", "2.60.0"),
        (doctor.check_extra("tpu", {"libtpu": None}), "note", ".[tpu]"),
        (doctor.check_extra("tpu", {"libtpu": "1"}), "ok", "libtpu 1"),
    ],
    ids=lambda value: value.name if isinstance(value, Check) else None,
)
def test_findings(check, status, words):
    assert check.status == status
    assert words in f"{check.found} {check.remedy}"
    assert bool(check.remedy) == (check.status != "ok") or check.name in ("memory", "own model")


def test_only_what_is_required_fails():
    note = Check(name="b", status="note", found="x", remedy="do this")
    missing = Check(name="cc", status="missing", found="y", remedy="do that")
    assert doctor.is_healthy([note])
    assert not doctor.is_healthy([note, missing])
    text = doctor.as_text([note, missing])
    assert "do this" in text
    assert "Something required is missing" in text
    answer = json.loads(doctor.as_json([note, missing]))
    assert answer["ok"] is False
    assert [check["name"] for check in answer["checks"]] == ["b", "cc"]


def test_a_cache_that_cannot_be_written_has_a_remedy(tmp_path):
    fine = doctor.check_compile_cache(tmp_path / "new" / "cache")
    assert fine.status == "ok"
    (tmp_path / "file").write_text("")
    assert "JAX_COMPILATION_CACHE_DIR" in doctor.check_compile_cache(tmp_path / "file").remedy


def test_a_device_that_does_not_answer_costs_one_line(monkeypatch):
    monkeypatch.setattr(doctor, "_ASK_DEVICES", "raise SystemExit('the chip is taken')")
    assert doctor.ask_devices() == "the chip is taken"
    monkeypatch.setattr(doctor, "_ASK_DEVICES", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_DEVICE_TIMEOUT_S", 0.3)
    assert "did not answer" in doctor.ask_devices()


def test_extras_are_read_from_the_package():
    assert doctor._requirements("")["jax"]
    assert "libtpu" in doctor._requirements("tpu")
    assert "google-jetstream" in doctor._requirements("jetstream")
    assert doctor._requirements("no_such_extra") == {}


def test_this_machine(monkeypatch, capsys):
    """Whatever runs the tests can run the quickstart."""
    asked = dict(CPU)
    monkeypatch.setattr(doctor, "ask_devices", lambda: asked)
    assert cli.main(["doctor"]) == 0
    assert sys.executable in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in answer["checks"]}
    assert answer["ok"]
    assert found["packages"]["status"] == "ok"
    assert int(found["cores"]["found"]) >= 1
    assert found["isolation"]["found"].startswith(("namespaces", "process"))
    assert Path(found["compile cache"]["found"].split(",")[0]).is_dir()


def test_devices_are_asked_in_a_child_process():
    found = doctor.ask_devices()
    assert isinstance(found, dict), found
    assert found["num_devices"] >= 1
