"""Configs survive JSON, and a run goes on only with the settings it began with."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax import configs
from loong_jax.configs import KIND, Difference, differences, from_json, open_run, to_json
from loong_jax.errors import CheckpointError, ConfigError, refuse_below, refuse_no_share
from loong_jax.own import OwnPart
from loong_jax.rollout.records import SamplingSettings
from tests.doubles.nested_config import Adam, Inner, Muon, Outer


def through_json(config: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(config))))


def test_a_nested_config_reads_back_as_what_it_was():
    config = Outer(
        seed=3,
        optimizer=Muon(momentum=0.5),
        inners=(Inner(levels=(1, 2)), Inner(name="b")),
        by_domain={"stem": Inner(rate=math.inf), "code": Inner(rate=1e-30)},
        path=Path("runs") / "a",
        dtype=np.dtype(np.float16),
    )
    again = through_json(config)
    assert again == config
    assert type(again.optimizer) is Muon
    assert isinstance(again.path, Path)
    assert through_json(again) == again


def test_every_kind_is_named():
    plain = to_json(Outer())
    assert plain[KIND] == "nested_config.Outer"
    assert plain["optimizer"][KIND] == "nested_config.Adam"
    assert to_json(SamplingSettings())[KIND] == "sampling_settings"


def test_dtypes_of_every_spelling_read_back_equal():
    import jax.numpy as jnp

    for dtype in (jnp.bfloat16, np.float32, np.dtype("int8"), np.dtype(ml_dtypes.bfloat16)):
        again = through_json(Outer(dtype=dtype))
        assert np.dtype(again.dtype) == np.dtype(dtype)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text().filter(lambda name: name != KIND), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain_values)
def test_plain_values_round_trip(value):
    assert through_json(Outer(note=value)) == Outer(note=value)
    assert differences(to_json(value), to_json(value)) == []


@pytest.mark.parametrize("value", [[1, 2], {1}, object(), len, {"_kind": 1}, {3: 4}, 1j, b"x"])
def test_what_json_cannot_hold_is_refused_by_key(value):
    with pytest.raises(ConfigError, match=r"config\.inners\.0\.note"):
        to_json(Outer(inners=(Inner(note=value),)))
    with pytest.raises(ConfigError, match=r"outer\.note is the class Inner, .*Write Inner\(\)\.$"):
        to_json(Outer(note=Inner), "outer")


@pytest.mark.parametrize(
    "kind",
    [
        *("os.system", "subprocess.Popen", "nested_config.Missing", "errors.LoongError"),
        *("nested_config", "", ".", "..os", "cli.main", 3, None, ["a"]),
    ],
)
def test_unknown_kinds_are_refused(kind):
    with pytest.raises(ConfigError, match="does not have"):
        from_json({KIND: kind})


def test_unknown_and_missing_fields_are_refused():
    with pytest.raises(ConfigError, match="no field 'depth'"):
        from_json({KIND: "nested_config.Inner", "depth": 3})
    with pytest.raises(ConfigError, match="outcome"):
        from_json({KIND: "problems.verdict.Verdict"})


def test_a_rule_of_the_config_is_checked_on_reading():
    plain = to_json(SamplingSettings()) | {"temperature": -1.0}
    with pytest.raises(ValueError, match="must be positive"):
        from_json(plain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounded:
    size: int = 1
    share: float = 0.5
    most: int | None = None

    def __post_init__(self):
        refuse_below(self, 1, "size", "most")
        refuse_no_share(self, "share")


@pytest.mark.parametrize("changes", [{"size": None}, {"share": None}, {"most": 0}])
def test_none_is_refused_where_a_number_belongs(changes):
    (said,) = (f"{name}={value}" for name, value in changes.items())
    with pytest.raises(ConfigError, match=said):
        Bounded(**changes)
    assert Bounded().most is None


def test_differences_name_key_and_both_values():
    old = to_json(Outer())
    new = to_json(Outer(seed=1, inners=(Inner(rate=0.5),), optimizer=Adam(beta=0.8)))
    found = differences(old, new)
    assert [difference.key for difference in found] == ["seed", "optimizer.beta", "inners.0.rate"]
    assert str(found[0]) == "seed: the run has 0, you gave 1"


def test_another_kind_another_length_and_a_new_key_are_differences():
    assert differences(to_json(Outer()), to_json(Outer(optimizer=Muon()))) == [
        Difference("optimizer", "nested_config.Adam", "nested_config.Muon")
    ]
    assert [d.key for d in differences(to_json(Outer()), to_json(Outer(inners=())))] == ["inners"]
    assert str(differences({"a": 1}, {"b": 2})[1]) == "b: the run has (absent), you gave 2"
    assert differences({"a": 1}, {"a": 1.0}) == []
    assert [d.key for d in differences({"a": 1}, {"a": True})] == ["a"]
    assert [d.key for d in differences({"a": None}, {"a": False})] == ["a"]


def test_a_run_goes_on_with_equal_settings_and_with_another_length(tmp_path):
    run = tmp_path / "run"
    assert open_run(Outer(), run, recipe="quickstart") == []
    assert open_run(Outer(), run, recipe="quickstart") == []
    longer = dataclasses.replace(Outer(), num_steps=500, log_every=7)
    allowed = open_run(longer, run, recipe="quickstart")
    assert {difference.key for difference in allowed} == {"num_steps", "log_every"}
    assert configs.load(run) == longer
    record = json.loads((run / "config.json").read_text())
    assert record["recipe"] == "quickstart"
    assert record["versions"]["jax"]
    assert not list(run.glob("*.partial"))


def test_a_run_warns_of_a_file_of_your_own_that_was_edited(tmp_path, caplog):
    def start(name):
        part = OwnPart(kind=f"{tmp_path}/{name}:Mine", settings={})
        open_run({"other": "/gone.py:It", "signal": part}, tmp_path / "run")
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return said

    file = tmp_path / "mine.py"
    file.write_text("sign = 1\n")
    assert start("mine.py") == start("mine.py") == []
    file.write_text("sign = -1\n")
    (said,) = start("mine.py")
    assert said.startswith(f"{file} was edited since {tmp_path / 'run'}")
    moved = file.rename(tmp_path / "moved.py")
    assert start("moved.py") == []
    moved.write_text("sign = 1\n")
    assert len(start("moved.py")) == 1
    moved.rename(file).write_text("sign = 2\n")
    assert len(start("mine.py")) == 1
    file.rename(moved)
    assert start("moved.py") == []
    path = tmp_path / "run" / "config.json"
    older = json.loads(path.read_text())
    del older["own_files"]
    path.write_text(json.dumps(older))
    assert start("moved.py") == []


def test_a_run_refuses_settings_that_change_what_is_learnt(tmp_path):
    open_run(Outer(), tmp_path)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError) as error:
        open_run(Outer(seed=1, optimizer=Adam(beta=0.5), num_steps=9), tmp_path)
    assert "seed: the run has 0, you gave 1" in str(error.value)
    assert "optimizer.beta: the run has 0.9, you gave 0.5" in str(error.value)
    assert "num_steps" not in str(error.value)
    assert (tmp_path / "config.json").read_text() == before


def test_a_field_that_came_later_has_its_default_in_older_runs(tmp_path):
    open_run(Outer(), tmp_path)
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    del record["config"]["seed"], record["config"]["optimizer"]["beta"]
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"optimizer\.beta: the run has 0\.9, you gave 0\.5"):
        open_run(Outer(optimizer=Adam(beta=0.5)), tmp_path)
    assert open_run(Outer(), tmp_path) == []
    assert configs.load(tmp_path) == Outer()


def test_a_longer_schedule_is_another_schedule(tmp_path):
    old = {"num_steps": 10, "optimizer": {"schedule": {"num_steps": 10}}}
    new = {"num_steps": 20, "optimizer": {"schedule": {"num_steps": 20}}}
    with pytest.raises(ConfigError, match=r"settings: optimizer\.schedule\.num_steps"):
        configs.refuse_changes(old, new, run_dir=tmp_path)


def test_a_directory_without_a_readable_config_is_no_run(tmp_path):
    with pytest.raises(CheckpointError, match="no run"):
        configs.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        configs.load(tmp_path)
    (tmp_path / "config.json").write_text('{"format_version": 99}')
    with pytest.raises(CheckpointError, match="99"):
        configs.load(tmp_path)
