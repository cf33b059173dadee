"""Recipes: functions that return a whole run's config. Their names are one table.

A recipe's docstring gives the command, the machine, the hours and the numbers to expect.
"""

import importlib
from collections.abc import Callable
from typing import Any

from loong_jax.errors import ConfigError

RECIPES: dict[str, str] = {  # name on the command line -> "module:function"
    "quickstart": "loong_jax.launch.recipes.quickstart:quickstart",
    "quickstart-controls": "loong_jax.launch.recipes.quickstart:controls",
    "agentic-mini": "loong_jax.launch.recipes.agentic:agentic_mini",
    "environments": "loong_jax.launch.recipes.environments:environments",
    "problems": "loong_jax.launch.recipes.straight:problems",
    "sft": "loong_jax.launch.recipes.straight:sft",
    "rl": "loong_jax.launch.recipes.straight:rl",
    "distill": "loong_jax.launch.recipes.straight:distill",
    "pod-sft": "loong_jax.launch.recipes.pod:pod_sft",
    "pod-sft-flash": "loong_jax.launch.recipes.pod:pod_sft_flash",
}

ON_ALL_PROCESSES = ("pod-sft", "pod-sft-flash")  # the others run in one process with its own Ray


def get_recipe(name: str) -> Callable[[], Any]:
    """The function that returns the config called `name`.

    Raises:
      ConfigError: there is no such recipe.
    """
    if name not in RECIPES:
        raise ConfigError(f"{name!r} is no recipe. Choose one of: {', '.join(RECIPES)}.")
    module, function = RECIPES[name].split(":")
    return getattr(importlib.import_module(module), function)
