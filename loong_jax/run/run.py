"""`loong train`: a recipe's stages in order, in one run directory, to the report at the end."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from loong_jax import cli_help, configs, options, recipes
from loong_jax.data import chat_records, json_files
from loong_jax.errors import CheckpointError, ConfigError, refuse_below
from loong_jax.recipes import FileProblems, PackagedProblems, Recipe, RlStage, SftStage
from loong_jax.report.metrics_log import merge_stage_metrics
from loong_jax.report.progress import Progress
from loong_jax.report.usage import RunUsage
from loong_jax.run import (
    choosing,
    devices,
    distributed,
    memory,
    named,
    own_admission,
    own_problems,
    pipeline,
    places,
    pod_sft,
    samples,
    sizes,
    sources,
    stages,
    starting,
    train_help,
)
from loong_jax.run.pipeline import StageDirectories, StageGraph, is_done
from loong_jax.run.session import Judge, Session, evaluation_problems, refuse_odd_clips
from loong_jax.run.texts import Texts, texts_of

DATA = "data.json"  # in the run directory: which conversations it began with
SOURCE = "source.json"  # the run whose stages it takes (--from), and --only
PACKAGES = "packages.json"  # by name, the directory of each that a run poses
RUN: Mapping[type, Callable[[Any], dict[str, Any]]] = {  # a stage -> what carries it out
    SftStage: stages.run_sft,
    RlStage: stages.run_rl,
    recipes.FusionStage: stages.run_fusion,
    recipes.SampleStage: samples.run_samples,
    recipes.EvaluationStage: stages.run_evaluation,
}


def main(arguments: Sequence[str]) -> int:
    """`loong train`: from the words of the command line to a finished run."""
    profiled, words = cli_help.take("--profile-steps", arguments)
    if profiled is not None:
        os.environ["LOONG_PROFILE"] = profiled
    is_dry, words = "--dry-run" in words, [word for word in words if word != "--dry-run"]
    name, *rest = words
    if name.startswith("-"):
        name, rest = None, words
    found = choosing.to_run(name, rest)
    recipe = found.config
    if isinstance(recipe, Recipe):
        recipe, rest = named.choose(recipe, rest)
        if {"-h", "--help"} & set(rest):
            print(train_help.settings_that_matter(name or found.name, recipe, found.text))
            return 0
    rest = ["--help" if word == "--help-all" else word for word in rest]
    has_pod = getattr(recipe, "pod", None) is not None
    processes = distributed.Processes() if has_pod else None
    chosen = options.parse_train(found.name, found.text, recipe, rest, processes=processes)
    if has_pod:
        return pod_sft.train(chosen.config, chosen.run_dir, chosen.processes)
    config = choosing.finished(chosen.config, recipe, rest) if found.is_new else chosen.config
    if isinstance(config, Recipe):
        named.try_own_parts(config)
    if is_dry:
        try_out(config, chosen.run_dir, chosen.only)
    else:
        only, source = chosen.only, chosen.source
        if name is None and only is source is None:  # as it began
            began = json_files.read_json(chosen.run_dir / SOURCE, {})
            only, source = began.get("only"), began.get("source")
        train(config, chosen.run_dir, only=only, source=source and Path(source))
    return 0


def train(
    recipe: Recipe, run_dir: Path, *, only: str | None = None, source: Path | None = None
) -> None:
    """Runs, or resumes, `recipe` in `run_dir`.

    `only` runs one stage alone; `source` is another run with finished stages that stages here start
    from. Wall time and peak memory add up over resumptions. One process at a time: ConfigError
    where another works in `run_dir`.
    """
    recipe, texts = _with_inputs(recipe, run_dir)
    asked, recipe = recipe.stages, sizes.fitted(recipe, texts)
    settings, given = recipe.stages, starting.given(recipe)
    needed = {name: recipes.inputs_of(stage) for name, stage in settings.items()}
    graph = StageGraph(needed=needed, run_dir=run_dir, only=only, source=source, given=given)
    graph.refuse_missing()
    if source is not None:
        starting.refuse_other_model(source, configs.load(source).model, recipe.model)
        graph.refuse_unused()
    places.try_directories(run_dir=run_dir)
    for name, stage in settings.items() if recipes.START in given else ():
        if isinstance(stage, SftStage | RlStage):
            epochs = getattr(asked[name], "epochs", None)
            said = f" ({epochs:g} epochs)" if epochs else ""
            rate = f"learning rate up to {stage.optimizer.schedule.peak:g}"
            print(f"{name}: {stage.num_steps} steps{said}, {rate}", flush=True)
    running = [name for name in graph.asked if not is_done(run_dir, name)]
    free = (*configs.FREE_ON_RESUME, *configs.FREE_MESHES)
    memory.keep_freed(recipe)
    with contextlib.ExitStack() as held:
        held.enter_context(pipeline.holding(run_dir))
        with configs.put_back_where_refused(run_dir):
            changes = configs.open_run(recipe, run_dir, recipe=recipe.name, free=free)
            _refuse_more_steps(changes, run_dir)
            progress = held.enter_context(Progress(list(settings), title=recipe.name))
            session = held.enter_context(Session(recipe))
            # once verifiers have started: Ray forks, which a process with JAX's threads should not
            _show_memory(recipe, running)
        if source is not None:
            json_files.write_json(run_dir / SOURCE, {"source": str(source), "only": only})
        usage = held.enter_context(RunUsage(run_dir))
        _keep_inputs(recipe, run_dir, session, progress)

        def run_one(name: str, directories: StageDirectories) -> dict[str, Any]:
            usage.save()
            stage = settings[name]
            work: Any = stages.Work(
                session=session, name=name, stage=stage, directories=directories, progress=progress
            )
            return RUN[type(stage)](work) | {"peak_gb": round(usage.stage_peak_gb(), 2) or None}

        graph.run(run_one, on_skip=progress.finish)
    if all(is_done(run_dir, name) for name in settings):
        write_report(run_dir)


def _with_inputs(recipe: Recipe, run_dir: Path) -> tuple[Recipe, Texts]:
    """The recipe with the model that it starts from, and its texts.

    ConfigError where files that the user gives are not fit, or not those the run began with.
    """
    refuse_below(recipe, 0, "seed")
    devices.leave_to_replicas(recipe)
    recipe = starting.with_given_model(recipe)
    problems, texts = recipe.problems, texts_of(recipe)
    if isinstance(problems, FileProblems):
        own_problems.refuse_other(problems, run_dir)
        sampled = sizes.with_sampling(recipe, texts.form.stop)
        own_problems.refuse_misfit(sampled, texts)
    if recipe.data is not None:
        chat_records.read(recipe.data)  # says what is wrong with it
        began, digest = json_files.read_json(run_dir / DATA, {}), _digest(recipe.data)
        if began and began["digest"] != digest:
            pipeline.refuse_other(
                run_dir,
                recipe.data,
                began=f"{began['file']} of digest {began['digest']}",
                found=f"one of digest {digest}",
                remedy="Give the same --data",
            )
    if isinstance(problems, PackagedProblems):
        pipeline.refuse_other(
            run_dir,
            problems.directory,
            began=json_files.read_json(run_dir / PACKAGES),
            found=_packages(problems),
            remedy="Put the packages back",
        )
    return recipe, texts


def _keep_inputs(recipe: Recipe, run_dir: Path, session: Session, progress: Progress) -> None:
    """Notes or copies what the user gave; problems of a file once they are admitted."""
    problems = recipe.problems
    if recipe.data is not None:
        record = {"file": str(recipe.data), "digest": _digest(recipe.data)}
        json_files.write_json(run_dir / DATA, record)
    if isinstance(problems, PackagedProblems):
        json_files.write_json(run_dir / PACKAGES, _packages(problems))
    if recipe.start_from is not None:
        sources.keep_files(sources.find(recipe.start_from), run_dir / sources.KEPT)
    if isinstance(problems, FileProblems):
        if not own_admission.is_done(run_dir):
            progress.start(next(iter(recipe.stages)), num_steps=None)
            progress.note("tries the answers and verifiers of the file")
            own_admission.require(problems, Judge(session.verifiers, name="admission"), run_dir)
        own_problems.keep_copy(problems, run_dir)


def _packages(problems: PackagedProblems) -> dict[str, str]:
    """By name, the directory of each, which names what its module says by a digest."""
    return {name: Path(part.environment).name for name, part in problems.by_domain().items()}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _refuse_more_steps(changes: Sequence[configs.Difference], run_dir: Path) -> None:
    """ConfigError where a stage that is done shall have another number of steps."""
    for change in changes:
        _, _, name = change.key.removesuffix(".num_steps").rpartition("stages.")
        if change.key.endswith(".num_steps") and is_done(run_dir, name):
            raise ConfigError(
                f"{change}, and stage {name} is done. Drop the override, or train on from its "
                f"weights: --start-from {run_dir} with another --run-dir."
            )


def try_out(recipe: Recipe, run_dir: Path, only: str | None = None) -> None:
    """Prints the memory that stages need on a device, all that train or `only` one, compiled.

    ConfigError where `train` would refuse the problems.
    """
    recipe, texts = _with_inputs(recipe, run_dir)
    recipe = sizes.fitted(recipe, texts)
    evaluation_problems(recipe, texts)
    refuse_odd_clips(recipe)
    for name, stage in recipe.stages.items():
        if isinstance(stage, SftStage | RlStage) and only in (None, name):
            found = memory.compiled_needs(recipe, name)
            Console().print(memory.table(name, found, memory.limit_of_devices()))


def _show_memory(recipe: Recipe, names: Sequence[str]) -> None:
    """Prints the needs of the stage that needs most; ConfigError where a device cannot hold it."""
    limit = memory.limit_of_devices()
    trained = [name for name in names if isinstance(recipe.stages[name], SftStage | RlStage)]
    if not trained or (limit is None and recipe.mesh.num_devices == 1):
        return
    found = {name: memory.needs(recipe, name) for name in trained}
    largest = max(trained, key=lambda name: memory.total(found[name]))
    Console(stderr=True).print(memory.table(largest, found[largest], limit))
    memory.refuse_too_much(largest, found[largest], limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Writes the page of a run anew, from what the run directory holds: RUN_DIR/report.html.

    A run writes its page when it ends; this also serves one that is still going or was stopped.
    Example: loong report runs/quickstart
    """

    run_dir: tyro.conf.Positional[Path]


def report(arguments: Sequence[str]) -> int:
    chosen = options.parse(ReportOptions, "loong report", arguments)
    if not (chosen.run_dir / "config.json").exists():
        raise CheckpointError(
            f"{chosen.run_dir} holds no config.json, so it is no run. Name a run directory."
        )
    write_report(chosen.run_dir, keeps_machine=True)
    return 0


def write_report(run_dir: Path, *, keeps_machine: bool = False) -> None:
    """(Re)writes summary, gains and report of a run from what its stages left.

    With `keeps_machine` an earlier summary's machine and versions stay: the run was there.
    """
    from loong_jax.eval import compare
    from loong_jax.report import page

    recipe = configs.load(run_dir)
    if recipe.pod is not None:
        raise ConfigError(
            f"{run_dir} is a run of {recipe.name}, which has no stages to report on. Look at its "
            "metrics.jsonl, summary.json or TensorBoard events."
        )
    if recipe.controls:
        real_run = Path(json_files.read_json(run_dir / SOURCE)["source"])
        runs = dict.fromkeys(recipe.controls, run_dir)
        compare.write_controls(run_dir, real_run, runs, control_stages=recipe.controls)
        print(f"report: {page.write_controls(run_dir, {'real run': real_run, **runs})}")
        return
    compare.write_gains(run_dir)
    merge_stage_metrics(run_dir, [name for name in recipe.stages if is_done(run_dir, name)])
    usage = json_files.read_json(run_dir / "usage.json", {})
    print(f"report: {page.write_report(run_dir, **usage, keeps_machine=keeps_machine)}")
