"""A trainer in a thread of this process: it carries out a totally ordered list of commands.

score, train, publish and save return at once; what became of them arrives as events
(`rl/events.py`), in the order of the commands. After a failure the state can no longer be trusted,
so every later command is answered by `WorkerFailed` too.
"""

import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights
from loong_jax.problems.response import FORMS, ResponseForm
from loong_jax.rl import batching, checkpoint, events, objectives, trainer
from loong_jax.rl.objectives import Objective, TripletClip
from loong_jax.rl.optimizers import Optimizer
from loong_jax.rl.policy_model import FIELDS, PolicyModel
from loong_jax.rl.trainer import TrainState
from loong_jax.rollout import records
from loong_jax.rollout.records import Emit, Group
from loong_jax.rollout.versions import VersionStore

Command = tuple[str, Callable[[], Any]]  # its name, and what makes its event


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Shapes and rates of a trainer. One shape for training and one for scoring are compiled."""

    objective: Objective
    optimizer: Optimizer
    max_staleness: int
    row_length: int = 128  # T; holds the longest prompt with its longest response
    rows: int = 48  # per micro-batch of a step
    score_rows: int = 4  # per micro-batch of scoring; one group is scored on its own
    keep_checkpoints: int = 2
    replays_routing: bool = False  # experts are those the engine chose; see `batching.choices`
    # the responses to one prompt lie behind one copy of it; None: where the model can
    shares_prompts: bool | None = None
    # the log-probabilities of the step stand for those of the behaviour, and nothing is scored
    # before it: where every rollout is of the weights that its step begins with
    scores_in_step: bool = False
    form: ResponseForm = FORMS["tagged"]  # of what counts as well-formed


class LocalTrainer:
    """Owns the `TrainState`; the thread that carries commands out is the only one to touch it."""

    def __init__(
        self,
        *,
        model: PolicyModel,
        settings: TrainerSettings,
        state: TrainState,
        versions: VersionStore,
        checkpoints: Path | str,
        reference: Weights | None = None,
        frozen: Any = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        assert reference is not None or settings.objective.kl is None
        self.settings = settings
        self._model = model
        self._programs = trainer.make_programs(
            model,
            settings.objective,
            settings.optimizer,
            settings.max_staleness,
            settings.replays_routing,
            settings.shares_prompts,
        )
        self._state = state
        self._versions = versions
        self._checkpoints = Path(checkpoints)
        self._frozen = frozen  # the part of the weights that no step changes
        self._reference = reference if settings.objective.kl is not None else None
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure = ""

    # ---- commands: any thread -----------------------------------------------------------------

    def start(self, emit: Emit) -> None:
        """Begins to carry out commands, also those given before; `emit` is called in the trainer's
        thread.
        """
        assert self._thread is None, "a trainer starts once"
        self._thread = threading.Thread(
            target=self._work, args=(emit,), name="trainer", daemon=True
        )
        self._thread.start()

    def score(self, groups: Sequence[Group]) -> None:
        """Fills in `behavior_logprob`, each group under its own version, which stays alive until
        then.
        """
        held = self._hold({g.version for g in groups}, f"score-{id(groups)}")
        self._commands.put(("score", lambda: self._score(tuple(groups), held)))

    def train(self, step: int, groups: Sequence[Group]) -> None:
        """One update from version `step - 1` to `step`."""
        self._commands.put(("train", lambda: self._train(step, tuple(groups))))

    def publish(self, version: int) -> None:
        """Puts the weights into the version store; they must be those of `version`."""
        self._commands.put(("publish", lambda: self._publish(version)))

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        """Weights, optimizer, the older versions in control["versions"] and `control`: one atomic
        checkpoint.
        """
        older = {v for v in control.get("versions", ()) if v != step}
        held = self._hold(older, f"save-{step}")
        self._commands.put(("save", lambda: self._save(step, dict(control), held)))

    def close(self, timeout_s: float) -> None:
        """Carries out what was commanded and stops. Raises TimeoutError where that takes longer."""
        self._commands.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise TimeoutError(
                    f"the trainer is still busy after {timeout_s} s. Wait longer, or end the "
                    "process: checkpoints are atomic."
                )

    @property
    def weights(self) -> Weights:
        """The last step's weights, once the trainer is closed; they may be its own and no copy."""
        return self._model.join(self._state.weights, self._frozen)

    @property
    def state(self) -> TrainState:
        """The state of the last step, as `weights`."""
        return self._state

    # ---- the trainer's thread -----------------------------------------------------------------

    def _work(self, emit: Emit) -> None:
        while (command := self._commands.get()) is not None:
            name, carry_out = command
            if self._failure:
                emit(events.WorkerFailed(f"trainer/{name}", f"not run: {self._failure}"))
                continue
            try:
                event = carry_out()
            except Exception as error:  # whatever it is, the orchestrator must hear of it
                kind = "" if isinstance(error, LoongError) else f"{type(error).__name__}: "
                self._failure = f"{name} failed: {kind}{error}"
                event = events.WorkerFailed(f"trainer/{name}", f"{kind}{error}")
            emit(event)

    def _hold(self, versions: set[int], holder: str) -> list[tuple[int, str]]:
        held: list[tuple[int, str]] = []
        try:
            for version in sorted(versions):
                self._versions.acquire(version, holder)
                held.append((version, holder))
        except Exception:
            self._release(held)
            raise
        return held

    def _release(self, held: list[tuple[int, str]]) -> None:
        for version, name in held:
            self._versions.release(version, name)

    def _score(self, groups: tuple[Group, ...], held: list[tuple[int, str]]) -> events.GroupsScored:
        start_s = self._clock()
        try:
            scored = tuple(
                score_group(self._programs, self._versions.get(group.version), group, self.settings)
                for group in groups
            )
        finally:
            self._release(held)
        return events.GroupsScored(scored, start_s, self._clock())

    def _train(self, step: int, groups: tuple[Group, ...]) -> events.StepTrained:
        start_s, settings, version = self._clock(), self.settings, int(self._state.step)
        assert step == version + 1, f"step {step} was commanded after step {version}"
        reference = None
        if self._reference is not None:
            scored = functools.partial(group_logprobs, self._programs, self._reference)
            reference = {
                (rollout.ticket, rollout.attempt): logprob
                for group in groups
                for rollout, logprob in zip(
                    group.rollouts, scored(group, settings, replays_routing=False), strict=True
                )
            }
        batches = batching.make_batches(
            groups,
            settings.objective.signal,
            trainer_version=version,
            rows=settings.rows,
            row_length=settings.row_length,
            reference_logprob=reference,
            replays_routing=settings.replays_routing,
            scores_in_step=settings.scores_in_step,
            layout=self._programs.layout,
        )
        temperature = batching.common_temperature(groups)
        self._state, metrics = trainer.train_step(
            self._programs,
            self._model,
            self._state,
            batches,
            len(groups),
            temperature,
            self._frozen,
        )
        histogram = records.staleness_histogram(groups, version)
        clip = settings.objective.clip
        if isinstance(clip, TripletClip) and clip.pos_high_schedule is not None:
            metrics["clip/eps_pos_high"] = float(objectives.pos_high_at(clip, version))
        metrics |= records.completion_metrics(records.rollouts_of(groups), settings.form) | {
            "staleness/histogram": histogram,
            "staleness/mean": sum(int(lag) * n for lag, n in histogram.items())
            / sum(histogram.values()),
        }
        return events.StepTrained(step, metrics, start_s, self._clock())

    def _publish(self, version: int) -> events.VersionPublished:
        start_s = self._clock()
        assert version == int(self._state.step), f"version {version} is not that of the weights"
        published = self._programs.publish(self._state.weights, self._frozen)
        self._versions.put(version, jax.block_until_ready(published))
        return events.VersionPublished(version, start_s, self._clock())

    def _save(
        self, step: int, control: dict[str, Any], held: list[tuple[int, str]]
    ) -> events.Saved:
        start_s = self._clock()
        try:
            assert step == int(self._state.step), f"checkpoint {step} is not of this step"
            arrays = trainer.to_arrays(self._state) | {
                "versions": {version: self._versions.get(version) for version, _ in held},
                "control": {"record": np.frombuffer(records.encode(control), np.uint8)},
            }
            checkpoint.save(self._checkpoints, step, arrays, keep=self.settings.keep_checkpoints)
        finally:
            self._release(held)
        return events.Saved(step, str(self._checkpoints), start_s, self._clock())


def score_group(
    programs: trainer.TrainerPrograms, weights: Weights, group: Group, settings: TrainerSettings
) -> Group:
    """The group with `behavior_logprob` under `weights`, those of the group's version; as it is
    where the step scores.

    A response that has tokens of other versions (partial rollouts) cannot be scored under one:
    what the engine sampled from stands for its behaviour, and its engine ratio is 1.
    """
    if settings.scores_in_step:
        return group
    own = [r for r in group.rollouts if r.versions == ((0, group.version),)]
    found = group_logprobs(programs, weights, group.replace_rollouts(tuple(own)), settings)
    scored = {r.attempt: logprob for r, logprob in zip(own, found, strict=True)}
    return group.replace_rollouts(
        tuple(
            dataclasses.replace(r, behavior_logprob=scored.get(r.attempt, r.engine_logprob))
            for r in group.rollouts
        )
    )


def group_logprobs(
    programs: trainer.TrainerPrograms,
    weights: Weights,
    group: Group,
    settings: TrainerSettings,
    *,
    replays_routing: bool | None = None,
) -> list[np.ndarray]:
    """Log-probabilities of each response under `weights`, in nats, float32; [] for none.

    A group is packed on its own, so its values do not depend on what else is scored with it.
    Routing is replayed where the settings say so; other weights, of a reference say, route freely.
    """
    if replays_routing is None:
        replays_routing = settings.replays_routing
    if not group.rollouts:
        return []
    temperature = jnp.asarray(batching.common_temperature([group]), jnp.float32)
    for rollout in group.rollouts:
        batching.refuse_longer(rollout, settings.row_length)
    sequences = []
    for index, rollout in enumerate(group.rollouts):
        tokens = batching.tokens_of(rollout)
        is_response = np.arange(len(tokens)) >= len(rollout.prompt)
        owner = np.full(len(tokens), index, np.int32)
        sequences.append({"tokens": tokens, "owner": owner, "is_response": is_response})
        if replays_routing:
            sequences[-1]["routing"] = batching.choices(rollout)
    prompts = [rollout.prompt for rollout in group.rollouts]
    parts = programs.layout.parts
    shape = settings.row_length, -(-settings.score_rows // parts) * parts
    found = [np.zeros(len(r.tokens), np.float32) for r in group.rollouts]
    for packed in batching.rows_of(sequences, prompts, "is_response", *shape, programs.layout):
        rows = programs.put_rows([packed.get(name) for name in FIELDS])
        logprob = np.asarray(programs.logprobs(weights, *rows[:3], temperature, *rows[3:]))
        is_response, owner = packed["is_response"], packed["owner"]
        for index in np.unique(owner[is_response]):
            found[index] = logprob[is_response & (owner == index)]
    return found


def restore(
    model: PolicyModel,
    settings: TrainerSettings,
    template: Weights,
    directory: Path | str,
    *,
    fall_back: bool = True,
    frozen: Any = (),
) -> tuple[TrainState, dict[int, Weights], dict[str, Any], tuple[str, ...]]:
    """Latest checkpoint: (state, weights by version for the version store, control, damaged ones
    passed over).

    `template` has the structure of the weights, `frozen` is what training leaves as it is. The
    versions hold the state's own too.
    """
    with model.rules.scope():
        whole = jax.eval_shape(model.join, template, frozen)
    shardings = trainer.shardings(model, settings.optimizer, template, whole)
    found = checkpoint.restore(directory, fall_back=fall_back, shardings=shardings)
    state = trainer.from_arrays(model, settings.optimizer, template, found.arrays)
    publish = trainer.publisher(model)
    with model.rules.scope():
        versions = {
            version: model.published(jax.tree.map(jnp.asarray, weights))
            for version, weights in found.arrays.get("versions", {}).items()
        }
    versions[found.step] = publish(state.weights, frozen)
    control = records.decode(found.arrays["control"]["record"].data)
    return state, versions, control, found.skipped
