"""Recipes: the settings of every part of a run as frozen dataclasses, and the named ones.

A recipe is a function that returns a `Recipe`; its docstring gives the command, the machine, the
hours and the numbers to expect. The command line overrides single fields. `loong_jax.run` carries
it out.
"""

from loong_jax.recipes.by_name import ON_ALL_PROCESSES, RECIPES, get_recipe, own_function
from loong_jax.recipes.mesh import MeshSettings, PodSettings
from loong_jax.recipes.problems import (
    DomainProblems,
    FileProblems,
    GeneratedProblems,
    PackagedProblems,
    ProblemSource,
)
from loong_jax.recipes.recipe import LocalVerifiers, RayVerifiers, Recipe, ToolSettings
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
)
from loong_jax.rollout.engine_config import (
    EngineSettings,
    Placement,
    ProcessReplicas,
    RayReplicas,
    ThreadReplicas,
)

__all__ = [
    "ON_ALL_PROCESSES",
    "RECIPES",
    "SCHEDULERS",
    "START",
    "TEACHER",
    "DomainProblems",
    "EngineSettings",
    "EvaluationStage",
    "FileProblems",
    "FusionStage",
    "GeneratedProblems",
    "LocalVerifiers",
    "MeshSettings",
    "PackagedProblems",
    "Placement",
    "PodSettings",
    "ProblemSource",
    "ProcessReplicas",
    "RayReplicas",
    "RayVerifiers",
    "Recipe",
    "RlStage",
    "SampleStage",
    "Scheduler",
    "SftStage",
    "Stage",
    "ThreadReplicas",
    "ToolSettings",
    "get_recipe",
    "own_function",
]  # fmt: skip
