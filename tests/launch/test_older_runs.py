"""Runs that were started before a config moved or grew are still read, and go on.

`older_runs/` holds config.json of such runs, as they were written.
"""

import json
import shutil
from pathlib import Path

import pytest

from loong_jax import configs
from loong_jax.launch import recipe as recipes

OLDER = Path(__file__).with_name("older_runs")
KINDS = {
    "agentic-mini": recipes.AgenticRecipe,
    "pod-sft": recipes.PodSftRecipe,
    "quickstart": recipes.LongcatRecipe,
    "quickstart-controls": recipes.ControlsRecipe,
}


@pytest.fixture(params=sorted(KINDS))
def name(request):
    return request.param


@pytest.fixture
def run(name, tmp_path):
    shutil.copy(OLDER / f"{name}.json", tmp_path / "config.json")
    return tmp_path


def config_of(run):
    return json.loads((run / "config.json").read_text())["config"]


def assert_kept(old, new, where="config"):
    """Every value of `old` stands in `new`; kinds may have moved, and fields may have come."""
    if isinstance(old, dict):
        for key in set(old) - {"_kind"}:
            assert_kept(old[key], new[key], f"{where}.{key}")
        if "_kind" in old:
            assert old["_kind"].split(".")[-1] == new["_kind"].split(".")[-1], where
    else:
        assert old == new or (isinstance(old, list) and len(old) == len(new)), where
        if isinstance(old, list):
            for place, pair in enumerate(zip(old, new, strict=True)):
                assert_kept(*pair, f"{where}.{place}")


def test_they_read_back_as_what_they_were(run, name):
    config = configs.load(run)
    assert type(config) is KINDS[name]
    assert config.name == name
    assert_kept(config_of(run), configs.to_json(config))


def test_they_go_on_with_the_settings_they_had(run):
    before = config_of(run)
    assert configs.open_run(configs.load(run), run) == []
    assert_kept(before, config_of(run))
