"""A trainer in a process of its own, on a core of its own, as the orchestrator's `TrainerGroup`.

The child runs `LocalTrainer`; commands and events travel through a pipe, and published weights come
back through it. One child serves several runs in turn, so that it compiles once.
"""

import dataclasses
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax import process
from loong_jax.errors import LoongError
from loong_jax.models import moe
from loong_jax.rl import events
from loong_jax.rl.local_trainer import LocalTrainer, TrainerSettings
from loong_jax.rl.policy_model import policy_of
from loong_jax.rl.trainer import initial_state
from loong_jax.rollout.records import Group
from loong_jax.rollout.versions import VersionStore

START_TIMEOUT_S = 300.0  # imports and the first weights, on a busy machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerSpec:
    """What the child builds; no checkpoint is written."""

    model: moe.MoEConfig
    settings: TrainerSettings
    seed: int = 0
    core: int | None = None  # of the machine; None: wherever the system puts it


class ProcessTrainer:
    """Use `begin` before each run, and `close` at the end."""

    def __init__(self, spec: TrainerSpec, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()
        self._run = 0
        self._versions: VersionStore | None = None
        self._emit: Callable[[Any], None] | None = None
        self._sending = threading.Lock()
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read, name="trainer-events", daemon=True)
        self._reader.start()

    def begin(self, versions: VersionStore) -> None:
        """A run from fresh weights, which become version 0 of `versions`."""
        self._run += 1
        self._versions, self._emit = versions, None
        self._begun.clear()
        self._send("begin")
        if not self._begun.wait(START_TIMEOUT_S):
            raise LoongError(
                f"the trainer's process did not begin within {START_TIMEOUT_S:.0f} s; its exit "
                f"code is {self._process.exitcode}. Its errors are on stderr."
            )

    def start(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit

    def score(self, groups: Sequence[Group]) -> None:
        self._send("score", tuple(groups))

    def train(self, step: int, groups: Sequence[Group]) -> None:
        self._send("train", step, tuple(groups))

    def publish(self, version: int) -> None:
        self._send("publish", version)

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        """Nothing is saved: a bench run is not resumed."""
        del control
        now = self._clock()
        assert self._emit is not None
        self._emit(events.Saved(step, "", now, now))

    def close(self, timeout_s: float) -> None:
        self._send("end")
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            raise LoongError(f"the trainer's process was still busy after {timeout_s:.0f} s.")

    def _send(self, name: str, *arguments: Any) -> None:
        with self._sending:
            self._pipe.send((self._run, name, arguments))

    def _read(self) -> None:
        """Events of the run under way; a published version is in the store before its event."""
        while True:
            try:
                run, event, weights = self._pipe.recv()
            except (EOFError, OSError):
                if self._emit is not None:
                    self._emit(events.WorkerFailed("trainer", "its process has ended"))
                return
            if run != self._run:
                continue
            if weights is not None:
                assert self._versions is not None
                version = 0 if event is None else event.version
                self._versions.put(version, jax.tree.map(jnp.asarray, weights))
            if event is None:
                self._begun.set()
                continue
            if isinstance(event, events.VersionPublished):
                event = event._replace(end_s=self._clock())
            if self._emit is not None:
                self._emit(event)


# ---- the child --------------------------------------------------------------------------------


def _serve(pipe: Connection, spec: TrainerSpec) -> None:
    process.keep_freed_memory()
    if spec.core is not None:
        os.sched_setaffinity(0, {spec.core})
    graphdef, weights = moe.init_weights(spec.model, jax.random.key(spec.seed))
    policy = policy_of(graphdef, spec.model, 0.0)
    trainer: LocalTrainer | None = None
    while True:
        run, name, arguments = pipe.recv()
        if name == "begin":
            if trainer is not None:
                trainer.close(START_TIMEOUT_S)
            store = VersionStore(spec.settings.max_staleness + 1)
            store.put(0, jax.tree.map(jnp.copy, weights))
            trainer = LocalTrainer(
                model=policy,
                settings=spec.settings,
                state=initial_state(policy, spec.settings.optimizer, weights),
                versions=store,
                checkpoints="",
            )
            trainer.start(_sender(pipe, run, store, spec.settings.max_staleness))
            pipe.send((run, None, jax.tree.map(np.asarray, weights)))
        elif trainer is None or name == "end":
            if trainer is not None:
                trainer.close(START_TIMEOUT_S)
            return
        else:
            getattr(trainer, name)(*arguments)


def _sender(
    pipe: Connection, run: int, store: VersionStore, max_staleness: int
) -> Callable[[Any], None]:
    def send(event: Any) -> None:
        weights = None
        if isinstance(event, events.VersionPublished):
            weights = jax.tree.map(np.asarray, store.get(event.version))
            for version in store.numbers():
                if version < event.version - max_staleness:  # no step may still use it
                    store.retire(version)
        pipe.send((run, event, weights))

    return send
