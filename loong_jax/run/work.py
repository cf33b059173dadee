"""A stage at work: its settings, what it shares with others, and weights it reads and leaves."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from loong_jax.data import json_files
from loong_jax.errors import CheckpointError
from loong_jax.models.parameters import Weights
from loong_jax.recipes import Stage
from loong_jax.report.progress import Progress
from loong_jax.rl import checkpoint, policy_model
from loong_jax.rollout.versions import manifest_of
from loong_jax.run import starting
from loong_jax.run.pipeline import StageDirectories
from loong_jax.run.session import Session

T = TypeVar("T", bound=Stage)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work(Generic[T]):
    """A stage on its way: its settings, what it shares with others, where it reads and writes."""

    session: Session
    name: str
    stage: T
    directories: StageDirectories
    progress: Progress

    @property
    def own(self) -> Path:
        return self.directories.own

    @property
    def domains(self) -> tuple[str, ...]:
        """Those whose problems it poses."""
        return getattr(self.stage, "domains", ()) or self.session.domains

    def weights_of(self, name: str) -> Weights:
        """Those of an earlier stage, or from elsewhere as weights of the recipe's model."""
        session, given = self.session, self.directories.given
        if name in given:
            return starting.load_on(given[name], session.recipe.model, session.rules)
        return session.place(load_weights(self.directories.inputs[name]))

    def keep_going(self, earlier_s: float) -> Callable[[], bool]:
        """True until as much time has passed as `wall_time_of` trained for; always true for none.

        `earlier_s` of it had passed before an interruption.
        """
        stages: tuple[str, ...] = getattr(self.stage, "wall_time_of", ())
        if not stages:
            return lambda: True
        places = self.directories.inputs
        done = [json_files.read_json(places[name] / "done.json") for name in stages]
        whole_s = sum(part["wall_s"] - part["evaluation_s"] for part in done)
        ends_s = time.monotonic() + whole_s - earlier_s
        return lambda: time.monotonic() < ends_s


def save_weights(directory: Path, step: int, weights: Weights, like: Weights | None = None) -> None:
    """Writes `weights/` of a stage, rounded to the dtypes of `like`.

    Where that loses bits they are there as "masters" too, for the stages that go on from here.
    """
    stored = weights if like is None else policy_model.in_dtypes_of(weights, like)
    arrays: dict[str, Any] = {"weights": stored}
    if manifest_of(stored) != manifest_of(weights):
        arrays["masters"] = weights
    checkpoint.save(directory / "weights", step, arrays, keep=1)


def load_weights(directory: Path) -> Weights:
    """What a finished stage made, as precise as there is, on device. CheckpointError where it is
    damaged.
    """
    try:
        found = checkpoint.restore(directory / "weights")
    except CheckpointError as error:
        raise CheckpointError(
            f"the weights of stage {directory.name} cannot be read: {error} If {directory} is of "
            f"this run, delete {directory / 'done.json'} and {directory / 'weights'}, and the same "
            "command makes them again from the stage's last checkpoint."
        ) from error
    return jax.tree.map(jnp.asarray, found.arrays.get("masters", found.arrays["weights"]))
