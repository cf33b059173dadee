"""What a recipe says: the settings of every part of a run, as frozen dataclasses.

A recipe is a function in `loong_jax.launch.recipes` that returns a `Recipe`; the command line
overrides single fields. Nothing here does any work.
"""

from loong_jax.launch.recipe.engine import (
    EngineSettings,
    LocalVerifiers,
    Placement,
    ProcessReplicas,
    RayReplicas,
    RayVerifiers,
    ThreadReplicas,
)
from loong_jax.launch.recipe.mesh import MeshSettings, PodSettings
from loong_jax.launch.recipe.problems import (
    DomainProblems,
    FileProblems,
    GeneratedProblems,
    PackagedProblems,
    ProblemSource,
)
from loong_jax.launch.recipe.recipe import Recipe, ToolSettings
from loong_jax.launch.recipe.stages import (
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

__all__ = [
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
]  # fmt: skip
