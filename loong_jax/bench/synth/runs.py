"""The runs of the bench: an arm with a seed each, all from one cold start."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import configs
from loong_jax.bench.short_runs import results, running
from loong_jax.bench.synth.settings import DOMAIN
from loong_jax.launch.recipe import FileProblems, Recipe
from loong_jax.orchestrator.pipeline import stage_directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """What is trained after the cold start: a stage of the recipe on a file of problems."""

    name: str
    stage: str  # rl or sft_continued
    recipe: Callable[[int], Recipe]  # by seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One arm with one seed; the seed draws problems and tokens, weights are the cold start's."""

    arm: Arm
    seed: int
    cold_start: str  # its key

    @property
    def label(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def recipe(self) -> Recipe:
        return self.arm.recipe(self.seed)

    @property
    def stage(self) -> str:
        return self.arm.stage

    @property
    def key(self) -> str:
        return running.key_of(self.stage, self.cold_start, record(self.recipe))

    @property
    def about(self) -> Mapping[str, Any]:
        return {"seed": self.seed, "arm": self.arm.name, "stage": self.stage}

    def read(self, directory: Path) -> dict[str, Any]:
        return results.of_stage(directory, self.stage, DOMAIN)


def record(recipe: Recipe) -> Any:
    """A recipe as JSON values, with the content of its file in the place of its name."""
    problems = recipe.problems
    assert isinstance(problems, FileProblems)
    assert problems.file is not None, "every recipe here has a file"
    digest = hashlib.sha256(problems.file.read_bytes()).hexdigest()
    nameless = dataclasses.replace(problems, file=None)
    return [digest, configs.to_json(dataclasses.replace(recipe, problems=nameless))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a cold start and of the runs that began with it."""

    base: dict[str, Any]  # the cold start's evaluation, as a result
    by_arm: dict[str, dict[int, dict[str, Any]]]  # results by arm and seed


def train(
    directory: Path,
    cold_start: Recipe,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    *,
    jobs: int,
    timeout_s: float,
    say: running.Say,
) -> Trained:
    """Makes what has no result yet; all arms of a seed before the next seed."""
    digest, _ = record(cold_start)
    parts = (cold_start.stages["sft"], cold_start.model, cold_start.evaluation)
    key = running.key_of("cold start", digest, [configs.to_json(part) for part in parts])
    work = running.WorkDir(directory / key, None)
    runs = [Run(arm=arm, seed=seed, cold_start=key) for seed in seeds for arm in arms]
    running.make_cold_start(work, cold_start, say=say)
    found = running.run_all(work, runs, jobs=jobs, timeout_s=timeout_s, say=say)
    by_arm: dict[str, dict[int, dict[str, Any]]] = {arm.name: {} for arm in arms}
    for run in runs:
        by_arm[run.arm.name][run.seed] = found[run.key]
    place = stage_directory(work.source, running.COLD_START)
    evaluation = results.evaluation_of(place, DOMAIN)
    base = {"pass@1": evaluation["pass@1"], "evaluation": evaluation}
    return Trained(base=base, by_arm=by_arm)
