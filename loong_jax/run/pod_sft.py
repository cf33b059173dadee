"""Supervised fine-tuning over the devices of all processes, each of which calls `train` alike."""

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from loong_jax import configs
from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.models import families
from loong_jax.recipes import PodSettings, Recipe, SftStage
from loong_jax.remote import AnyPath
from loong_jax.report import metrics_log
from loong_jax.report.metrics_log import MetricsLog
from loong_jax.report.usage import StepProfile
from loong_jax.rl import sft, trainer
from loong_jax.rl.policy_model import PolicyModel, policy_of
from loong_jax.rl.sharded_checkpoint import ShardedCheckpoints
from loong_jax.rl.sharded_feed import ShardedFeed, batch_template, first_cursors
from loong_jax.rl.trainer import TrainState
from loong_jax.run import demonstrations, distributed, pipeline, places, starting
from loong_jax.run.distributed import ALONE_OR_TPU, PREEMPTED, Preemption, Processes
from loong_jax.run.texts import texts_of
from loong_jax.sharding import ShardingRules, make_mesh

SUMMARY = "summary.json"


def train(recipe: Recipe, run_dir: Path, processes: Processes = ALONE_OR_TPU) -> int:
    """Runs, or resumes, `recipe`; returns the exit status.

    That is 0 when all steps are done and 42 when a process was told to stop (SIGTERM) before the
    last one and all have saved the same step. Process 0 alone writes `run_dir`: config.json,
    metrics.jsonl, summary.json; it keeps the run to itself (`pipeline.holding`).

    Raises ConfigError, and writes nothing, where settings do not fit the devices or the places.
    """
    distributed.initialize(processes)
    distributed.first_does(lambda: _refuse_places(recipe, run_dir))
    given = recipe.mesh
    if given.num_devices != jax.device_count():
        raise ConfigError(
            f"the mesh {given} is for {given.num_devices} devices, and all processes together "
            f"have {jax.device_count()}. Give --mesh.* sizes with that product."
        )
    mesh = make_mesh(**dataclasses.asdict(given))
    directory = _pod(recipe).checkpoints or str(run_dir / "checkpoints")
    with contextlib.ExitStack() as lock:
        distributed.first_does(lambda: lock.enter_context(pipeline.holding(run_dir)))
        _refuse_separate_disks(directory)
        status = _train_on(mesh, recipe, run_dir, directory)
    distributed.shutdown()
    return status


def _train_on(mesh: jax.sharding.Mesh, recipe: Recipe, run_dir: Path, directory: str) -> int:
    with (
        jax.set_mesh(mesh),
        Preemption() as preemption,
        ShardedCheckpoints(directory, keep=_pod(recipe).keep_checkpoints) as checkpoints,
    ):
        return _train(recipe, run_dir, ShardingRules(mesh=mesh), checkpoints, preemption)


def _train(
    recipe: Recipe,
    run_dir: Path,
    rules: ShardingRules,
    checkpoints: ShardedCheckpoints,
    preemption: Preemption,
) -> int:
    stage, texts = _stage(recipe), texts_of(recipe)  # which refuses models of other tokens
    given = configs.to_json(recipe)
    last = checkpoints.latest()
    if last is not None:
        saved = checkpoints.metadata(last)["config"]
        configs.refuse_changes(saved, given, run_dir=run_dir)
    distributed.first_does(lambda: _open_run(recipe, run_dir))
    if last is not None and last >= stage.num_steps:
        distributed.first_does(lambda: _complete_summary(recipe, run_dir, last))
        distributed.say(f"done before, {last} steps")
        return 0
    settings = sft.SftSettings(
        optimizer=stage.optimizer,
        num_steps=stage.num_steps,
        rows=stage.rows,
        row_length=stage.row_length,
        routing_every=_pod(recipe).routing_every,
    )
    programs = _compile(recipe, settings, rules)
    distributed.meet("compiled")
    if last is None:
        state, cursors = programs.fresh()
        if recipe.start_from is not None:
            state = _start_from(recipe, recipe.start_from, state)
    else:
        state, cursors = checkpoints.restore(last, programs.template)
        distributed.say(f"resumed at step {last} of {stage.num_steps}")
    pairs = demonstrations.pairs_of(recipe, stage, texts)
    feed = ShardedFeed(pairs.pair_at, texts.example, settings, rules, cursors, lists=programs.lists)
    step, numbers = last or 0, {}

    def save() -> None:
        checkpoints.save(step, (state, feed.cursors()), {"config": given})
        distributed.say(f"saved step {step}")

    with _open_log(run_dir, step) as log, StepProfile(run_dir / "profile") as profile:
        while step < stage.num_steps:
            state, numbers = _step(programs, state, next(feed), sft.is_due(settings, step + 1))
            step += 1
            profile.step()
            if log is not None:
                log.step(step, numbers)
            is_told, is_last = preemption.reached(step), step == stage.num_steps
            if is_told or is_last or step % stage.checkpoint_every == 0:
                save()
            if is_told and not is_last:
                distributed.say(f"preempted; the same command again goes on from step {step}")
                return PREEMPTED
    distributed.first_does(lambda: _write_summary(recipe, run_dir, step, numbers, _this_program()))
    distributed.say(f"done, {step} steps")
    return 0


def _start_from(recipe: Recipe, source: AnyPath, fresh: TrainState) -> TrainState:
    """`fresh` with the weights of `source`, and nothing kept of its own."""
    template = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), fresh.weights
    )
    jax.tree.map(lambda a: a.delete(), fresh.weights)
    weights = starting.load(source, recipe.model, template, stack=_pod(recipe).stack_start)
    distributed.say(f"starts from {source}")
    return fresh._replace(weights=weights)


def _step(
    programs: "_Programs", state: Any, batch: Any, looks_at_routers: bool
) -> tuple[Any, dict[str, float]]:
    """One step; `state` is donated. The numbers are the same in every process but for the time."""
    looked = programs.routing_metrics(state.weights, batch) if looks_at_routers else {}
    num_tokens = jnp.sum(batch["segment_ids"] > 0)
    # CPUs run side by side what does not depend on each other, and two programs that exchange data
    # may then wait for each other for ever: each ends, on all devices, before the next begins.
    jax.block_until_ready((looked, num_tokens))
    start_s = time.monotonic()
    state, metrics, load = jax.block_until_ready(programs.train_step(state, batch))
    metrics |= looked
    numbers = {name: float(value) for name, value in metrics.items()}
    return state, numbers | programs.policy.load_metrics(load) | {
        "tokens_per_s": float(num_tokens) / (time.monotonic() - start_s),
        "packed_share": float(num_tokens) / batch["tokens"].size,
    }


def _open_log(run_dir: Path, step: int) -> contextlib.AbstractContextManager[MetricsLog | None]:
    """The log of the one process that keeps it, None in the others."""
    if not distributed.is_first():
        return contextlib.nullcontext()
    return MetricsLog(run_dir, stage="sft", restored_step=step)


class _Programs(NamedTuple):
    """Compiled before the first step, so that processes wait for each other but once."""

    policy: PolicyModel
    fresh: Callable[[], Any]  # (state, cursors) before step 1, sharded from birth
    template: Any  # their shapes, dtypes and shardings
    train_step: Callable[..., Any]  # see sft.make_train_step
    routing_metrics: Callable[..., Any]  # see sft.make_routing_metrics; compiled at its first use
    lists: bool = False  # see sft.lists_tokens


def _compile(recipe: Recipe, settings: sft.SftSettings, rules: ShardingRules) -> _Programs:
    def init():
        family = families.family_of(recipe.model)
        return family.init_weights(recipe.model, jax.random.key(recipe.seed), rules)

    graphs = []
    jax.eval_shape(lambda: graphs.append(init()[0]))
    policy = policy_of(
        graphs[0],
        recipe.model,
        recipe.bias,
        _pod(recipe).losses,
        rates_of=_pod(recipe).rates_of,
        watches_exchange=rules.parts("expert") > 1,
    )

    def fresh():
        weights = init()[1]
        return trainer.initial_state(policy, settings.optimizer, weights), first_cursors(rules)

    make = jax.jit(fresh).lower().compile()
    template = jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        jax.eval_shape(fresh),
        make.output_shardings,
    )
    train_step = sft.make_train_step(policy, settings.optimizer)
    lists = sft.lists_tokens(policy)
    batch = batch_template(settings, rules, lists=lists)
    return _Programs(
        policy=policy,
        fresh=make,
        template=template,
        train_step=train_step.lower(template[0], batch).compile(),
        routing_metrics=sft.make_routing_metrics(policy),
        lists=lists,
    )


def _pod(recipe: Recipe) -> PodSettings:
    return recipe.pod or PodSettings()


def _stage(recipe: Recipe) -> SftStage:
    (stage,) = recipe.stages.values()
    assert isinstance(stage, SftStage)
    return stage


def _open_run(recipe: Recipe, run_dir: Path) -> None:
    configs.open_run(recipe, run_dir, recipe=recipe.name)


def _refuse_places(recipe: Recipe, run_dir: Path) -> None:
    places.try_directories(run_dir=run_dir, checkpoints=_pod(recipe).checkpoints)


def _refuse_separate_disks(directory: str) -> None:
    """Raises ConfigError unless all processes see the files that process 0 writes there."""
    if jax.process_count() == 1:
        return
    number = secrets.randbits(31) if distributed.is_first() else 0
    number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
    mark = epath.Path(directory) / f".seen-by-all-{number}"

    def write():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    distributed.first_does(write)
    is_seen = distributed.all_agree(mark.exists())
    distributed.first_does(mark.unlink)
    if not is_seen:
        raise ConfigError(
            f"{directory} is not one directory for all {jax.process_count()} processes. Give "
            "--checkpoints gs://BUCKET/RUN/checkpoints or a shared file system."
        )


def _complete_summary(recipe: Recipe, run_dir: Path, step: int) -> None:
    """Writes the summary of a run that ended without one, or with that of fewer steps.

    Its numbers are those of the log, {} where that lacks the last step. What made that step is no
    longer known.
    """
    if json_files.read_json(run_dir / SUMMARY, {}).get("steps") == step:
        return
    lines = [line for line in metrics_log.read_metrics(run_dir) if line["step"] == step]
    head = ("stage", "step", "time_s")
    numbers = {name: value for line in lines for name, value in line.items() if name not in head}
    _write_summary(recipe, run_dir, step, numbers, made_by={})


def _this_program() -> dict[str, Any]:
    return {
        "num_processes": jax.process_count(),
        "platform": jax.default_backend(),
        "versions": configs.versions(),
    }


def _write_summary(
    recipe: Recipe,
    run_dir: Path,
    step: int,
    numbers: Mapping[str, float | None],
    made_by: Mapping[str, Any],
) -> None:
    """`made_by` describes the program that made the last step; null for what it lacks."""
    json_files.write_json(
        run_dir / SUMMARY,
        {
            "recipe": recipe.name,
            "steps": step,
            "num_processes": made_by.get("num_processes"),
            "num_devices": recipe.mesh.num_devices,
            "platform": made_by.get("platform"),
            "versions": made_by.get("versions"),
            "last_step": numbers,
        },
    )
