"""docs/own_model.md: its commands as they are printed, on a tiny random checkpoint."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.data import json_files
from loong_jax.launch import recipes
from loong_jax.launch.choosing import value_of
from loong_jax.testing import tiny_hf

PAGE = (Path(__file__).parents[2] / "docs" / "own_model.md").read_text()
SHORT = "--max-new-tokens 4 --evaluation.num-problems 4 --engine.slots-per-replica 8"
SHORT_RL = (
    "--rl.num-steps 1 --rl.scheduler.groups-per-step 2 --rl.group-size 2 --rl.rows 4 "
    "--rl.learns-from-all"  # nothing is right yet
)


def blocks(language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def shortened(words):
    if words[0] == "eval":
        return [*words, *"--samples 1 --k 1 --num-problems 2".split()]
    if words[:2] == ["train", "sft"]:
        return [*words, *"--sft.num-steps 1 --sft.rows 2".split()]
    if words[0] == "train":
        return [*words, *SHORT.split(), *SHORT_RL.split()]
    return words


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_of_the_tutorial_run_as_printed(tmp_path, monkeypatch):
    """Save that trainings and evaluations are cut short by overrides."""
    monkeypatch.chdir(tmp_path)
    tiny_hf.write_longcat(Path("model"))
    (script,) = (block for block in blocks() if "<<'END'" in block)
    subprocess.run(["bash", "-c", script], check=True)
    commands = blocks()[0].splitlines()
    assert len(commands) == 7
    for command in commands:
        assert cli.main(shortened(shlex.split(command)[1:])) == 0, command
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        assert Path("exported", name).exists()
    done = json_files.read_json(Path("runs/rl/stages/rl/done.json"))
    assert done["steps"] == 1
    assert done["peak_gb"] > 0
    assert "Ten rollouts" in Path("runs/rl/report.html").read_text()


def test_what_is_of_ones_own_is_taken(tmp_path, monkeypatch):
    from loong_jax.launch import named

    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    Path("own.py").write_text(code)
    first, second = blocks()[2].splitlines()
    name = value_of("--rl.objective", shlex.split(first))
    chosen, _ = named.choose(recipes.get_recipe("rl")(), ["--rl.objective", str(name)])
    assert type(chosen.stages["rl"].objective.reduction).__name__ == "TokenMean"
    recipe = recipes.get_recipe(shlex.split(second)[2])()
    assert (recipe.name, recipe.max_new_tokens) == ("short", 32)


def test_the_forms_of_the_page_are_those_there_are():
    from loong_jax.data.response import FORMS

    table = PAGE.split("| form |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == set(FORMS)
