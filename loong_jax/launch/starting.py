"""Weights that a run starts from: an import, or a finished stage.

Over many devices every process reads what its own devices hold, straight into the sharding of the
model, so no host ever holds more. Layers may be stacked on the way: `loong_jax.models.moe.growth`.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.launch import convert, serve
from loong_jax.launch.recipe import (
    START,
    TEACHER,
    DistillRecipe,
    OwnProblemsRecipe,
    Recipe,
    RlRecipe,
    SftRecipe,
)
from loong_jax.models import parameters
from loong_jax.models.moe import MoEConfig, abstract_weights, growth
from loong_jax.rl import checkpoint

# What may differ between a model as it was trained and as it goes on: how it is computed, and what
# only fresh weights or the bias controller ask for.
_FREE = {
    "chunk_tokens",
    "dtype",
    "exchange",
    "expert_gemm",
    "max_position",
    "mixing",
    "param_dtype",
    "remat",
    "residual_gain",
    "target_ffn_experts",
    "token_chunks",
    "unroll_layers",
}


def load(
    directory: Path, config: MoEConfig, template: Mapping[str, Any], *, stack: int = 1
) -> dict[str, Any]:
    """The weights in `directory` as those of `config`, in the dtypes and shardings of `template`.

    `template` is the tree of weights as `jax.ShapeDtypeStruct`; with `stack` above 1 the layers of
    the model in `directory` are repeated that often. All processes call it alike.

    Raises ConfigError where the two models differ, CheckpointError where the files do not hold
    what their config says.
    """
    found, _ = convert.read_model(directory)
    refuse_other_model(directory, growth.stack_config(found, stack), config)
    wanted = {f"weights/{path}": leaf for path, leaf in parameters.by_path(template).items()}
    unstacked = {name: _unstacked(name, leaf, stack) for name, leaf in wanted.items()}
    flat = _read(directory, unstacked)
    weights = parameters.as_tree({name.removeprefix("weights/"): a for name, a in flat.items()})
    return weights if stack == 1 else growth.stack_layers(weights, stack)


def load_whole(directory: Path, config: MoEConfig) -> dict[str, Any]:
    """As `load`, all on the first device."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        abstract_weights(config)[1],
    )
    return load(directory, config, template)


def with_given_model(recipe: Recipe) -> Recipe:
    """The recipe with the model that its `start_from` brings, and with all that it must name.

    A model that the command line sized otherwise is refused with ConfigError.
    """
    if isinstance(recipe, RlRecipe) and recipe.start_from is None:
        raise ConfigError(
            "this recipe trains weights that there are already. Give --start-from a run, a stage "
            "of one, or what `loong import-hf` made."
        )
    learns_from_teacher = isinstance(recipe, DistillRecipe) or (
        isinstance(recipe, RlRecipe) and recipe.rl.learns_from_all
    )
    if isinstance(recipe, DistillRecipe | RlRecipe) and learns_from_teacher and not recipe.teacher:
        raise ConfigError(
            "this recipe needs a teacher. Give --teacher a run, a stage of one, or what "
            "`loong import-hf` made."
        )
    found = given(recipe)
    if START in found and isinstance(recipe, _StartsFrom):
        model, _ = convert.read_model(found[START])
        _refuse_other_tokens(found[START], model)
        if recipe.model == MoEConfig.tiny():  # nobody asked for another one
            recipe = dataclasses.replace(recipe, model=model)
        refuse_other_model(found[START], model, recipe.model)
    if TEACHER in found:
        model, _ = convert.read_model(found[TEACHER])
        _refuse_other_tokens(found[TEACHER], model)
        if isinstance(recipe, RlRecipe):
            refuse_other_model(found[TEACHER], model, recipe.model)
    return recipe


def _refuse_other_tokens(directory: Path, model: MoEConfig) -> None:
    if model.vocab_size != AsciiTokenizer.vocab_size:
        raise ConfigError(
            f"the model in {directory} has {model.vocab_size} tokens, and this recipe writes in "
            f"the {AsciiTokenizer.vocab_size} of the quickstart. Name weights of such a model."
        )


_StartsFrom = OwnProblemsRecipe | SftRecipe | RlRecipe | DistillRecipe


def given(recipe: Recipe) -> dict[str, Path]:
    """Directories with the weights that a recipe names, by what its stages call them."""
    found = {}
    if isinstance(recipe, _StartsFrom) and recipe.start_from is not None:
        found[START] = serve.find_weights(recipe.start_from)
    if isinstance(recipe, RlRecipe | DistillRecipe) and recipe.teacher is not None:
        found[TEACHER] = serve.find_weights(recipe.teacher)
    return found


def refuse_other_model(directory: Path, found: MoEConfig, config: MoEConfig) -> None:
    """ConfigError where weights of `found` are none of `config`."""
    for field in dataclasses.fields(MoEConfig):
        have, want = getattr(found, field.name), getattr(config, field.name)
        if field.name not in _FREE and have != want:
            raise ConfigError(
                f"the weights in {directory} are of a model with {field.name}={have!r}, stacked as "
                f"asked, and the recipe's model has {want!r}. Give --model.* as the model.json "
                "there says, --stack-start where layers are to be repeated, or other weights."
            )


def _unstacked(name: str, leaf: Any, stack: int) -> jax.ShapeDtypeStruct:
    rows, *rest = leaf.shape or (1,)
    shape = (rows // stack, *rest) if name.startswith("weights/layers/") else leaf.shape
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)


def _read(directory: Path, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    steps = checkpoint.steps(directory / "weights")
    if not steps:
        raise CheckpointError(
            f"{directory} holds no finished weights. Name a directory that `loong import-hf` made, "
            "or a finished stage of a run."
        )
    path = (directory / "weights" / str(steps[-1]) / "arrays").absolute()
    with ocp.PyTreeCheckpointer() as reader:
        there = reader.metadata(path).item_metadata.tree
        there = {name: leaf for name, leaf in there.items() if not name.startswith("masters/")}
        shapes = {name: tuple(leaf.shape) for name, leaf in there.items()}
        if odd := _first_difference(shapes, {n: tuple(a.shape) for n, a in wanted.items()}):
            raise CheckpointError(
                f"{path} holds {odd} of shape {shapes.get(odd)}, and the model has "
                f"{wanted[odd].shape if odd in wanted else None}. Put the model.json beside it "
                "that belongs to the weights."
            )
        kinds = {
            name: ocp.ArrayRestoreArgs(sharding=a.sharding, global_shape=a.shape, dtype=a.dtype)
            for name, a in wanted.items()
        }
        return reader.restore(
            path, args=ocp.args.PyTreeRestore(wanted, restore_args=kinds, partial_restore=True)
        )


def _first_difference(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    return next((name for name in sorted(a | b) if a.get(name) != b.get(name)), None)
