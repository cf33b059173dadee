"""Weights that a run starts from: an import, or a finished stage.

Over many devices every process reads what its own devices hold, straight into the sharding of the
model, so no host ever holds more. Layers may be stacked on the way: `loong_jax.models.moe.scaling`.
"""

import dataclasses
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import jax

from loong_jax import recipes
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import checkpoints
from loong_jax.models import parameters
from loong_jax.models.families import ModelConfig, family_of
from loong_jax.models.hf import read_weights
from loong_jax.models.moe import MoEConfig, scaling
from loong_jax.recipes import START, TEACHER, EvaluationStage, Recipe, RlStage, SftStage, Stage
from loong_jax.remote import AnyPath, RemotePath
from loong_jax.rl import checkpoint
from loong_jax.run import sources
from loong_jax.sharding import NO_MESH, ShardingRules

# What may differ between a model as it was trained and as it goes on: how it is computed, and what
# only fresh weights or the bias controller ask for.
_FREE = {
    "attention", "chunk_tokens", "dtype", "exchange", "expert_gemm", "max_position", "param_dtype",
    "remat", "residual_gain", "target_ffn_experts", "token_chunks", "unroll_layers",
}  # fmt: skip


def load(
    directory: AnyPath, config: ModelConfig, template: Mapping[str, Any], *, stack: int = 1
) -> dict[str, Any]:
    """The weights in `directory` as those of `config`, in the dtypes and shardings of `template`.

    `template` is the tree of weights as `jax.ShapeDtypeStruct`; with `stack` above 1 the layers of
    the model in `directory` are repeated that often. All processes call it alike.

    Raises ConfigError where the two models differ, CheckpointError where the files do not hold
    what their config says.
    """
    found, _ = sources.read_model(directory)
    if stack > 1:
        if not isinstance(found, MoEConfig):
            raise ConfigError(
                f"stack_start={stack} repeats layers of LongCat-Flash, and {directory} holds a "
                f"{type(found).__name__}. Leave it out."
            )
        found = scaling.stack_config(found, stack)
    refuse_other_model(directory, found, config)
    wanted = {}
    for path, leaf in parameters.by_path(template).items():
        rows, *rest = leaf.shape or (1,)
        shape = (rows // stack, *rest) if path.startswith("layers/") else leaf.shape
        wanted[path] = jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    if isinstance(directory, RemotePath) or sources.is_published(directory):
        weights = read_weights(directory, found, parameters.as_tree(wanted))
    else:
        weights = parameters.as_tree(_read(directory, wanted))
    return weights if stack == 1 else scaling.stack_layers(weights, stack)


def load_on(
    directory: AnyPath, config: ModelConfig, rules: ShardingRules = NO_MESH
) -> dict[str, Any]:
    """Loads as `load`, on the mesh of `rules`, or all on the first device."""
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding or first),
        family_of(config).abstract_weights(config, rules)[1],
    )
    return load(directory, config, template)


def with_given_model(recipe: Recipe) -> Recipe:
    """The recipe as it runs: with the model of its `start_from`, and stages that begin there.

    Doing it again changes nothing. ConfigError where it does not name what it needs, or where the
    command line sized the model otherwise than it was found.
    """
    recipe = _with_ends_tied(recipe)
    found, model = given(recipe), recipe.model
    if START in found:
        of_start, _ = sources.read_model(found[START])
        model = of_start if recipe.model_of_start else model
        refuse_other_model(found[START], of_start, model)
    if recipe.dtype is not None:
        model = dataclasses.replace(model, dtype=recipe.dtype, param_dtype=recipe.dtype)
    recipe = dataclasses.replace(recipe, model=model, model_of_start=False)
    if TEACHER in found:
        model, _ = sources.read_model(found[TEACHER])
        if any(getattr(one, "reference", None) == TEACHER for one in recipe.stages.values()):
            refuse_other_model(found[TEACHER], model, recipe.model)
    return recipe


def _with_ends_tied(recipe: Recipe) -> Recipe:
    """The recipe with stages that begin at a given `start_from`, and refer to a teacher's weights.

    A cold start is left out then, and what came after it begins there too.
    """
    stages = dict(recipe.stages)
    if recipe.start_from is not None:
        cold = {n for n, one in stages.items() if isinstance(one, SftStage) and not one.always_runs}
        stages = {n: _after_start(one, cold) for n, one in stages.items() if n not in cold}
    if recipe.start_from is None or (recipe.problems is None and recipe.data is not None):
        stages = {n: one for n, one in stages.items() if not isinstance(one, EvaluationStage)}
    read = {name for stage in stages.values() for name in recipes.inputs_of(stage)}
    for what, is_missing in (
        (
            "this recipe trains weights that there are already. Give --start-from",
            recipe.start_from is None and START in read,
        ),
        (
            "this recipe needs a teacher. Give --teacher",
            recipe.teacher is None and recipe.learns_from_teacher,
        ),
    ):
        if is_missing:
            raise ConfigError(
                f"{what} a directory in the layout of Hugging Face, an import, a run, or a stage "
                "of one."
            )
    if recipe.teacher is not None and TEACHER not in read:
        pulled = {
            name: dataclasses.replace(stage, reference=TEACHER)
            for name, stage in stages.items()
            if isinstance(stage, RlStage) and stage.objective.kl is not None
        }
        if not pulled:
            raise ConfigError(
                f"teacher={recipe.teacher} would teach nothing: no stage samples it, and no "
                "objective has a penalty. Use an objective with one, such as "
                "grpo_objective(beta=...)."
            )
        stages |= pulled
    return dataclasses.replace(recipe, stages=stages)


def _after_start(stage: Stage, cold: Set[str]) -> Stage:
    is_first = isinstance(stage, SftStage) and stage.after is None
    if isinstance(stage, SftStage | RlStage) and (is_first or stage.after in cold):
        return dataclasses.replace(stage, after=START)
    return stage


def given(recipe: Recipe) -> dict[str, AnyPath]:
    """Directories with the weights that a recipe names, by what its stages call them."""
    named = {START: recipe.start_from, TEACHER: recipe.teacher}
    return {name: sources.find_weights(path) for name, path in named.items() if path is not None}


def refuse_other_model(directory: AnyPath, found: ModelConfig, config: ModelConfig) -> None:
    """ConfigError where weights of `found` are none of `config`."""
    if type(found) is not type(config):
        raise ConfigError(
            f"the weights in {directory} are of a {type(found).__name__}, and the recipe's model "
            f"is a {type(config).__name__}. Leave --model.* out, or name other weights."
        )
    for field in dataclasses.fields(config):
        have, want = getattr(found, field.name), getattr(config, field.name)
        if field.name not in _FREE and have != want:
            raise ConfigError(
                f"the weights in {directory} are of a model with {field.name}={have!r}, stacked as "
                f"asked, and the recipe's model has {want!r}. Give --model.* as the model.json "
                "there says, --stack-start where layers are to be repeated, or other weights."
            )


def _read(directory: Path, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    place = checkpoints.weight_directories(directory)[0]
    steps = checkpoint.steps(place)
    if not steps:
        raise CheckpointError(
            f"{directory} holds no finished weights. Name a directory that `loong import-hf` made, "
            "or a finished stage of a run."
        )
    stored = checkpoint.Stored(place, steps[-1])
    wanted = {f"weights/{path}": leaf for path, leaf in wanted.items()}
    shapes = {n: leaf.shape for n, leaf in stored.shapes.items() if not n.startswith("masters/")}
    asked = {name: tuple(leaf.shape) for name, leaf in wanted.items()}
    if odd := min((n for n in shapes | asked if shapes.get(n) != asked.get(n)), default=None):
        raise CheckpointError(
            f"{place} holds {odd} of shape {shapes.get(odd)}, and the model has {asked.get(odd)}. "
            "Put the model.json beside it that belongs to the weights."
        )
    arrays = stored.arrays({name: leaf.sharding for name, leaf in wanted.items()})
    return {
        name.removeprefix("weights/"): array.astype(wanted[name].dtype, copy=False)
        for name, array in arrays
    }
