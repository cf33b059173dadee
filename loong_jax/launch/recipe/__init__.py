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
from loong_jax.launch.recipe.longcat import ControlsRecipe, LongcatRecipe
from loong_jax.launch.recipe.pod import MeshSettings, PodSftRecipe
from loong_jax.launch.recipe.problems import (
    DomainProblems,
    FileProblems,
    GeneratedProblems,
    OneDomain,
    PackagedProblems,
    Problems,
    SomeProblems,
)
from loong_jax.launch.recipe.stages import (
    FusionStage,
    RlStage,
    SampleStage,
    Scheduler,
    SftStage,
    StageSettings,
)
from loong_jax.launch.recipe.straight import (
    START,
    TEACHER,
    AgenticRecipe,
    DistillRecipe,
    EnvironmentsRecipe,
    OwnProblemsRecipe,
    RlRecipe,
    SftRecipe,
    ToolSettings,
)

StraightRecipe = OwnProblemsRecipe | SftRecipe | RlRecipe | DistillRecipe
Recipe = LongcatRecipe | ControlsRecipe | AgenticRecipe | EnvironmentsRecipe | StraightRecipe

__all__ = [
    "START",
    "TEACHER",
    "AgenticRecipe",
    "ControlsRecipe",
    "DistillRecipe",
    "DomainProblems",
    "EngineSettings",
    "EnvironmentsRecipe",
    "FileProblems",
    "FusionStage",
    "GeneratedProblems",
    "LocalVerifiers",
    "LongcatRecipe",
    "MeshSettings",
    "OneDomain",
    "OwnProblemsRecipe",
    "PackagedProblems",
    "Placement",
    "PodSftRecipe",
    "Problems",
    "ProcessReplicas",
    "RayReplicas",
    "RayVerifiers",
    "Recipe",
    "RlRecipe",
    "RlStage",
    "SampleStage",
    "Scheduler",
    "SftRecipe",
    "SftStage",
    "SomeProblems",
    "StageSettings",
    "StraightRecipe",
    "ThreadReplicas",
    "ToolSettings",
]  # fmt: skip
