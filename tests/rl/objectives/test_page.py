"""What docs/reference/objectives.md prints can be run, and it leaves no objective out."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

from loong_jax import options
from loong_jax.recipes import get_recipe
from loong_jax.rl import objectives
from loong_jax.rl.objectives import objective

PAGE = (Path(__file__).parents[3] / "docs/reference/objectives.md").read_text()
COMMANDS = re.findall(r"^loong train (.*)$", PAGE, re.MULTILINE)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def parsed(command):
    name, *arguments = shlex.split(command)
    return options.parse_train(name, "", get_recipe(name)(), arguments).config


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_something_new_and_is_understood(command):
    assert parsed(command) != get_recipe(command.split()[0])()


def test_overrides_reach_the_objective():
    masked = parsed(next(c for c in COMMANDS if "engine.token" in c)).stages["rl_stem"].objective
    assert masked.engine.token == objectives.Band(low=0.5, high=5.0)
    tight = parsed(next(c for c in COMMANDS if "eps-pos-high" in c)).stages["rl_stem"].objective
    assert (tight.clip.eps_pos_high, tight.ratio.engine_cap) == (0.2, 1.5)


def test_the_snippet_makes_a_recipe():
    (snippet,) = SNIPPETS
    names = {}
    exec(snippet, names)
    assert isinstance(
        names["with_gspo"]().stages["rl_stem"].objective.ratio, objectives.SequenceRatio
    )


def test_the_tables_name_every_objective_and_correction():
    named = [
        name
        for name, value in vars(objective).items()
        if inspect.isfunction(value)
        and value.__module__ == objective.__name__
        and not name.startswith("_")
        and value is not objective.objective_of
    ]
    assert len(named) > 10
    for name in named:
        assert f"| `{name}` |" in PAGE, name
