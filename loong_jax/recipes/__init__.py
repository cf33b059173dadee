"""Recipes: the settings of every part of a run as frozen dataclasses, and the named ones.

A recipe is a function that returns a `Recipe`; its docstring gives the command, the machine, the
hours and the numbers to expect. The command line overrides single fields. `loong_jax.run` carries
it out.

Knows: data, environments, errors, eval, merge, models, orchestrator, own, problems, remote, rl,
rollout, sharding, verifiers.
"""

import importlib
from collections.abc import Callable
from typing import Any

from loong_jax.errors import ConfigError
from loong_jax.own import own_function
from loong_jax.recipes.problems import (
    DomainProblems,
    FileProblems,
    GeneratedProblems,
    PackagedProblems,
    ProblemSource,
)
from loong_jax.recipes.recipe import (
    LocalVerifiers,
    MeshSettings,
    PodSettings,
    RayVerifiers,
    Recipe,
    ToolSettings,
    refuse_misfit,
)
from loong_jax.recipes.stages import (
    SCHEDULERS,
    START,
    TEACHER,
    EvaluationStage,
    FusionStage,
    RlStage,
    SampleStage,
    Scheduler,
    SftStage,
    Stage,
    ThinkingStyle,
    inputs_of,
)
from loong_jax.rollout.engine_config import (
    EngineSettings,
    Placement,
    ProcessReplicas,
    RayReplicas,
    ThreadReplicas,
)

__all__ = [
    "ON_ALL_PROCESSES", "RECIPES", "SCHEDULERS", "START", "TEACHER", "DomainProblems",
    "EngineSettings", "EvaluationStage", "FileProblems", "FusionStage", "GeneratedProblems",
    "LocalVerifiers", "MeshSettings", "PackagedProblems", "Placement", "PodSettings",
    "ProblemSource", "ProcessReplicas", "RayReplicas", "RayVerifiers", "Recipe", "RlStage",
    "SampleStage", "Scheduler", "SftStage", "Stage", "ThinkingStyle", "ThreadReplicas",
    "ToolSettings",
    "get_recipe", "inputs_of", "own_function", "refuse_misfit",
]  # fmt: skip

RECIPES: dict[str, str] = {  # name on the command line -> "module:function"
    "quickstart": "loong_jax.recipes.quickstart:quickstart",
    "quickstart-controls": "loong_jax.recipes.quickstart:controls",
    "agentic-mini": "loong_jax.recipes.straight:agentic_mini",
    "environments": "loong_jax.recipes.straight:environments",
    "problems": "loong_jax.recipes.straight:problems",
    "sft": "loong_jax.recipes.straight:sft",
    "rl": "loong_jax.recipes.straight:rl",
    "distill": "loong_jax.recipes.straight:distill",
    "smol": "loong_jax.recipes.smol:smol",
    "smol-control": "loong_jax.recipes.smol:control",
    "smol-chat": "loong_jax.recipes.smol:chat",
    "pod-sft": "loong_jax.recipes.straight:pod_sft",
    "pod-sft-flash": "loong_jax.recipes.straight:pod_sft_flash",
}

ON_ALL_PROCESSES = ("pod-sft", "pod-sft-flash")  # the others run in one process with its own Ray


def get_recipe(name: str) -> Callable[[], Any]:
    """The function that returns the recipe called `name`; `FILE.py:FUNCTION` is one of your own.

    Raises:
      ConfigError: there is no such recipe.
    """
    if name in RECIPES:
        module, function = RECIPES[name].split(":")
        return getattr(importlib.import_module(module), function)
    if ".py" not in name:
        raise ConfigError(
            f"{name!r} is no recipe. Choose one of: {', '.join(RECIPES)}; or name a function of "
            "your own: FILE.py:FUNCTION."
        )
    return own_function(name)
