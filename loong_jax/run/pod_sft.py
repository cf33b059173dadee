"""Supervised fine-tuning over the devices of all processes, each of which calls `train` alike."""

import contextlib
import dataclasses
import secrets
from collections.abc import Callable
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
from loong_jax.rl import checkpoint, sft, trainer
from loong_jax.rl.policy_model import PolicyModel, policy_of
from loong_jax.rl.sft import ShardedFeed, batch_template, first_cursors
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
    pod, given = recipe.pod or PodSettings(), recipe.mesh
    written = {"run_dir": run_dir, "checkpoints": pod.checkpoints}
    distributed.first_does(lambda: places.try_directories(**written))
    if given.num_devices != jax.device_count():
        raise ConfigError(
            f"the mesh {given} is for {given.num_devices} devices, and all processes together "
            f"have {jax.device_count()}. Give --mesh.* sizes with that product."
        )
    mesh = make_mesh(**dataclasses.asdict(given))
    directory = pod.checkpoints or str(run_dir / "checkpoints")
    with contextlib.ExitStack() as held:
        distributed.first_does(lambda: held.enter_context(pipeline.holding(run_dir)))
        _refuse_separate_disks(directory)
        held.enter_context(jax.set_mesh(mesh))
        preemption = held.enter_context(Preemption())
        rules = families.family_of(recipe.model).training_rules(recipe.model, mesh)
        status = _train(recipe, pod, run_dir, directory, rules, preemption)
    distributed.shutdown()
    return status


def _train(
    recipe: Recipe,
    pod: PodSettings,
    run_dir: Path,
    directory: str,
    rules: ShardingRules,
    preemption: Preemption,
) -> int:
    (stage,) = recipe.stages.values()
    assert isinstance(stage, SftStage)
    texts = texts_of(recipe)  # which refuses models of other tokens
    given = configs.to_json(recipe)
    last = max(checkpoint.steps(directory), default=None)
    stored = None if last is None else checkpoint.Stored(directory, last)
    if stored is not None:
        configs.refuse_changes(stored.metadata["config"], given, run_dir=run_dir)
    distributed.first_does(lambda: configs.open_run(recipe, run_dir, recipe=recipe.name))
    if last is not None and last >= stage.num_steps:
        distributed.first_does(lambda: _write_summary(recipe, run_dir, last))
        distributed.say(f"done before, {last} steps")
        return 0
    settings = configs.made_from(sft.SftSettings, stage, routing_every=pod.routing_every)
    programs = _compile(recipe, settings, rules)
    distributed.meet("compiled")
    if stored is not None:
        state, cursors = stored.restore(programs.template)
        distributed.say(f"resumed at step {last} of {stage.num_steps}")
    else:
        state, cursors = programs.fresh()
        if recipe.start_from is not None:
            state = _start_from(recipe, recipe.start_from, pod.stack_start, state)
    pairs = demonstrations.pairs_of(recipe, stage, texts)
    feed = ShardedFeed(pairs.pair_at, texts.example, settings, rules, cursors)
    step, is_told = last or 0, False

    def next_batch(_: int) -> sft.Fed:
        batches = next(feed)
        num_tokens = sum(int(jnp.sum(batch["segment_ids"] > 0)) for batch in batches)
        return sft.Fed(batches, num_tokens, {})

    def on_step(state: TrainState, metrics: dict[str, float]) -> None:
        nonlocal step, is_told
        step = int(state.step)
        profile.step()
        if log is not None:
            log.step(step, metrics)
        is_told = preemption.reached(step)
        if is_told or step == stage.num_steps or step % stage.checkpoint_every == 0:
            arrays, keep = checkpoint.by_path((state, feed.cursors())), pod.keep_checkpoints
            checkpoint.save(directory, step, arrays, {"config": given}, keep=keep)
            distributed.say(f"saved step {step}")

    with (
        MetricsLog(run_dir, stage="sft", restored_step=step)
        if distributed.is_first()
        else contextlib.nullcontext() as log,
        StepProfile(run_dir / "profile") as profile,
    ):
        sft.run_on(
            programs.policy,
            settings,
            state,
            next_batch,
            programs.train_step,
            on_step=on_step,
            keep_going=lambda: not is_told,
        )
    if step < stage.num_steps:
        distributed.say(f"preempted; the same command again goes on from step {step}")
        return PREEMPTED
    made_by = {"num_processes": jax.process_count(), "platform": jax.default_backend()}
    made_by["versions"] = configs.versions()
    distributed.first_does(lambda: _write_summary(recipe, run_dir, step, **made_by))
    distributed.say(f"done, {step} steps")
    return 0


def _start_from(recipe: Recipe, source: AnyPath, stack: int, fresh: TrainState) -> TrainState:
    """`fresh` with the weights of `source`, and nothing kept of its own."""
    template = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), fresh.weights
    )
    jax.tree.map(lambda a: a.delete(), fresh.weights)
    weights = starting.load(source, recipe.model, template, stack=stack)
    distributed.say(f"starts from {source}")
    return fresh._replace(weights=weights)


class _Programs(NamedTuple):
    """Compiled before the first step, so that processes wait for each other but once."""

    policy: PolicyModel
    fresh: Callable[[], Any]  # (state, cursors) before step 1, sharded from birth
    template: Any  # their shapes, dtypes and shardings
    train_step: Callable[..., Any]  # see sft.make_train_step


def _compile(recipe: Recipe, settings: sft.SftSettings, rules: ShardingRules) -> _Programs:
    def init():
        family = families.family_of(recipe.model)
        return family.init_weights(recipe.model, jax.random.key(recipe.seed), rules)

    graphs, pod = [], recipe.pod or PodSettings()
    jax.eval_shape(lambda: graphs.append(init()[0]))
    policy = policy_of(
        graphs[0],
        recipe.model,
        recipe.bias,
        pod.losses,
        rates_of=pod.rates_of,
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
    batches = (batch_template(settings, rules),) * settings.num_micro_batches
    return _Programs(
        policy=policy,
        fresh=make,
        template=template,
        train_step=train_step.lower(template[0], batches, ()).compile(),
    )


def _refuse_separate_disks(directory: str) -> None:
    """Raises ConfigError unless all processes see the files that process 0 writes there."""
    if jax.process_count() == 1:
        return
    number = int(multihost_utils.broadcast_one_to_all(np.int32(secrets.randbits(31))))
    mark = epath.Path(directory) / f".seen-by-all-{number}"
    distributed.first_does(lambda: mark.parent.mkdir(parents=True, exist_ok=True))
    distributed.first_does(mark.touch)
    is_seen = distributed.all_agree(mark.exists())
    distributed.first_does(mark.unlink)
    if not is_seen:
        raise ConfigError(
            f"{directory} is not one directory for all {jax.process_count()} processes. Give "
            "--checkpoints gs://BUCKET/RUN/checkpoints or a shared file system."
        )


def _write_summary(recipe: Recipe, run_dir: Path, step: int, **made_by: Any) -> None:
    """Writes the summary of a run that ends at `step`, unless it has that of so many steps.

    `made_by` describes the program that made the last step; null for what it lacks. The step's
    numbers are those of the log, {} where that lacks it.
    """
    if not made_by and json_files.read_json(run_dir / SUMMARY, {}).get("steps") == step:
        return
    head = ("stage", "step", "time_s")
    numbers = {
        name: value
        for line in metrics_log.read_metrics(run_dir)
        for name, value in line.items()
        if line["step"] == step and name not in head
    }
    unknown = dict.fromkeys(("num_processes", "platform", "versions"))
    known = {"recipe": recipe.name, "steps": step, "num_devices": recipe.mesh.num_devices}
    record = {**known, **unknown, **made_by, "last_step": numbers}
    json_files.write_json(run_dir / SUMMARY, record)
