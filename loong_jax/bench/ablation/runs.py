"""The runs of the bench, as `short_runs.running` makes them: an arm with a seed each."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import configs
from loong_jax.bench.ablation import arms
from loong_jax.bench.ablation.arms import DOMAIN, STAGE, Arm, Size
from loong_jax.bench.short_runs import results, running
from loong_jax.launch.recipe import LocalVerifiers
from loong_jax.launch.recipes.quickstart import quickstart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One arm with one seed."""

    label: str  # for people; arms of several groups may be the same run
    arm: Arm
    seed: int
    size: Size

    @property
    def key(self) -> str:
        return running.key_of(STAGE, configs.to_json(self.recipe))

    @property
    def recipe(self) -> Any:
        return arms.recipe_of(self.arm, self.seed, self.size)

    @property
    def stage(self) -> str:
        return STAGE

    @property
    def about(self) -> Mapping[str, Any]:
        return {
            "seed": self.seed,
            "arm": configs.to_json(self.arm),
            "size": dataclasses.asdict(self.size),
        }

    def read(self, directory: Path) -> dict[str, Any]:
        return results.of_stage(directory, STAGE, DOMAIN)


def plan(groups: Iterable[str], seeds: Sequence[int], size: Size) -> list[Run]:
    """What the groups need, each run once; all arms of a seed before the next seed."""
    found: dict[str, Run] = {}
    for seed in seeds:
        for name in groups:
            for arm_name, arm in arms.GROUPS[name].arms.items():
                run = Run(label=f"{name}: {arm_name}, seed {seed}", arm=arm, seed=seed, size=size)
                found.setdefault(run.key, run)
    return list(found.values())


def cold_start_recipe() -> Any:
    """The quickstart, whose first stage the runs share; judged without a pool of Ray's."""
    return dataclasses.replace(quickstart(), verifiers=LocalVerifiers(num_workers=1))
