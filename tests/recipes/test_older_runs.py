"""Runs that were started before a config moved or grew are still read, and go on.

`older_runs/` holds config.json of such runs, as they were written; `-0.1` are of the last version
that had a class for each kind of recipe.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from loong_jax import config_kinds, configs, recipes
from loong_jax.models.moe import MoEConfig
from loong_jax.models.moe.core_attention import WholeScores
from loong_jax.orchestrator.baselines import (
    DropAndReplacePolicy,
    PartialRolloutPolicy,
    TailBatchingPolicy,
)
from loong_jax.recipes import FileProblems, PackagedProblems, Recipe, ThinkingStyle

OLDER = Path(__file__).with_name("older_runs")
EVALUATES = {"evaluation.num_problems", "evaluation.pass_at"}
FASTER = {"engine.prefill_prompts", "model.chunk_tokens",
          "model.unroll_layers", "engine.groups_per_replica",
          "engine.narrow_slots.1"}  # fmt: skip
RL_SHAPES = ("row_length", "rows", "score_rows")
SFT_SHAPES = ("rows", "row_length", "micro_rows")
CHANGED_SINCE = {  # what their recipes say otherwise today
    "problems": {"engine.cache_length", "engine.prefill_lengths", "stages.sft.row_length",
                 "stages.sft.always_runs", "stages.rl.row_length", "stages.before"},
    "rl": {"engine.cache_length", "engine.prefill_lengths", "stages.rl.domains", "stages.before",
           "stages.rl.row_length", "stages.rl.score_rows", *EVALUATES},
    "sft": {"engine.cache_length", "engine.prefill_lengths", "stages.before",
            "stages.sft.row_length", *EVALUATES},
    "distill": {"engine.cache_length", "engine.prefill_lengths", "stages.sft.row_length",
                *EVALUATES},
    "agentic-mini": {"stages.sft.always_runs"},
    "quickstart": FASTER
    | {f"stages.{name}.{f}" for name in ("rl_stem", "rl_logic", "rl_code", "general")
       for f in RL_SHAPES}
    | {f"stages.sft.{field}" for field in SFT_SHAPES},
    "quickstart-controls": FASTER
    | {f"stages.sft_continued.{field}" for field in SFT_SHAPES}
    | {f"stages.noise_{d}_{i}.{field}" for d in ("stem", "logic", "code") for i in range(6)
       for field in RL_SHAPES},
    "environments": {"stages.sft.always_runs", "stages.before"},
}  # fmt: skip


@pytest.fixture(params=sorted(path.stem for path in OLDER.glob("*.json")))
def name(request):
    return request.param


@pytest.fixture
def run(name, tmp_path):
    shutil.copy(OLDER / f"{name}.json", tmp_path / "config.json")
    return tmp_path


def load(name):
    record = json.loads((OLDER / f"{name}-0.1.json").read_text())
    return configs.from_json(record["config"])


def values_of(config):
    """All that a config says, without its kinds and the names of its fields."""
    if isinstance(config, dict):
        return [x for key, v in config.items() if key != "_kind" for x in values_of(v)]
    if isinstance(config, list):
        return [x for v in config for x in values_of(v)]
    return [config]


def kinds_of(config):
    if isinstance(config, dict):
        own = {config["_kind"]} if "_kind" in config else set()
        return own.union(*map(kinds_of, config.values()))
    return set().union(*map(kinds_of, config)) if isinstance(config, list) else set()


def test_they_read_back_as_what_they_were(run, name):
    before = json.loads((run / "config.json").read_text())["config"]
    config = configs.load(run)
    assert type(config) is Recipe
    written = configs.to_json(config)
    if "-started" not in name:  # those leave a cold start out
        said = set(map(str, values_of(written)))  # paths are whole
        assert {
            value for value in map(str, values_of(before)) if str(Path(value).resolve()) not in said
        } <= said
    assert not any("." in kind for kind in kinds_of(written))
    assert configs.from_json(json.loads(json.dumps(written))) == config


def test_they_go_on_with_the_settings_they_had(run):
    assert configs.open_run(configs.load(run), run) == []
    assert configs.open_run(configs.load(run), run) == []


@pytest.mark.parametrize(
    "name", [name for name in recipes.RECIPES if (OLDER / f"{name}-0.1.json").exists()]
)
def test_a_recipe_says_what_it_said_then(name):
    recipe = dataclasses.replace(recipes.get_recipe(name)(), model_of_start=False)  # as runs keep
    new = configs.to_json(recipe)
    found = {d.key for d in configs.differences(configs.to_json(load(name)), new)}
    assert found == CHANGED_SINCE.get(name, set())


def test_stages_follow_from_where_those_runs_began():
    started = load("problems-started")
    assert list(started.stages) == ["rl"]
    assert started.stages["rl"].after == "start"
    assert started.problems == FileProblems(file=Path("mine.jsonl"))
    continued = load("problems-continued").stages
    assert list(continued) == ["sft", "rl", "sft_continued"]
    assert continued["sft_continued"].after == "sft"
    assert load("sft-started").stages["sft"].after == "start"
    pulled = load("rl-pulled").stages["rl"]
    assert (pulled.after, pulled.reference) == ("start", "teacher")
    taught = load("distill-taught")
    assert list(taught.stages) == ["samples", "sft"]
    assert taught.stages["sft"].samples_of == "samples"
    some = load("environments-some").problems
    assert some == PackagedProblems(
        directory="envs", names=("a",), levels=(1, 2), max_prompt_chars=99
    )
    pod = load("pod-sft-started")
    assert (pod.start_from, pod.pod.checkpoints) == (Path("imported"), "gs://b/c")
    assert (pod.pod.routing_every, pod.mesh.fsdp) == (7, 4)


def test_every_tag_names_a_class_and_every_kind_of_a_recipe_has_one():
    for tag, place in config_kinds.KINDS.items():
        module, name = place.split(":")
        assert configs.kind_name(configs._class_of_kind(tag)) == tag
        assert configs._class_of_kind(f"{module}.{name}") is configs._class_of_kind(tag)
    for name in recipes.RECIPES:
        kinds = kinds_of(configs.to_json(recipes.get_recipe(name)()))
        assert kinds <= {*config_kinds.KINDS, "dtype", "float", "path"}


def as_saved(config, older, *without):
    """What it says, with the fields `older` in place of those `without`."""
    saved = configs.to_json(config)
    return {name: value for name, value in saved.items() if name not in without} | older


def test_a_cold_start_had_a_field_of_the_opposite_sense():
    stage = recipes.get_recipe("problems")().stages["sft"]
    for is_cold in (True, False):
        older = as_saved(stage, {"is_cold_start": is_cold}, "always_runs")
        assert configs.from_json(older).always_runs is not is_cold


def test_every_cold_start_had_shares_of_ways_of_thinking():
    stage = recipes.get_recipe("quickstart")().stages["sft"]
    shares = {"first_pairs": 7, "first_careful_share": 0.8, "careful_share": 0.2}
    found = configs.from_json(as_saved(stage, shares | {"is_cold_start": True}, "thinking"))
    assert found.thinking == ThinkingStyle(**shares)
    assert not found.always_runs


def test_settings_had_other_names():
    tools = recipes.get_recipe("agentic-mini")().tools
    found = configs.from_json(as_saved(tools, {"max_parked": 3}, "max_paused"))
    assert found == dataclasses.replace(tools, max_paused=3)
    model = MoEConfig.tiny(attention=WholeScores())
    older = as_saved(model, {"mixing": configs.to_json(WholeScores())}, "attention")
    assert configs.from_json(older) == model
    for kind in (TailBatchingPolicy, PartialRolloutPolicy, DropAndReplacePolicy):
        found = configs.from_json(
            as_saved(kind(groups_per_step=4), {"over_provision": 0.75}, "max_ahead")
        )
        assert found == kind(groups_per_step=4, max_ahead=1.75)
