"""Gates over many modules at once, each module examined once and never again."""

import concurrent.futures
import dataclasses
import os
import queue
from collections.abc import Sequence
from pathlib import Path

from loong_jax.data import json_files
from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.synth.resyn import gates
from loong_jax.synth.resyn.gates import Examined


class Examiner:
    """Pairs of sandboxes, and what they found, kept in a directory by the module's hash."""

    def __init__(self, directory: Path, num_pairs: int | None = None):
        self._directory = directory / f"gates-{len(gates.GATES)}"
        count = num_pairs or len(os.sched_getaffinity(0))
        self._pairs: queue.SimpleQueue[tuple[ModuleRunner, ModuleRunner]] = queue.SimpleQueue()
        self._runners = [ModuleRunner() for _ in range(2 * count)]
        for i in range(count):
            self._pairs.put((self._runners[2 * i], self._runners[2 * i + 1]))
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "examiner")

    @property
    def runner(self) -> ModuleRunner:
        """One of the sandboxes, for other work between examinations."""
        return self._runners[0]

    def examine(self, modules: Sequence[Module]) -> list[Examined]:
        return list(self._threads.map(self._examine, modules))

    def _examine(self, module: Module) -> Examined:
        path = self._directory / f"{module.hash}.json"
        if (known := json_files.read_json(path)) is not None:
            return Examined(
                gate=known["gate"], detail=known["detail"], levels=tuple(known["levels"]),
                guess_share=known["guess_share"], prompt_chars=tuple(known["prompt_chars"]),
            )  # fmt: skip
        pair = self._pairs.get()
        try:
            found = gates.examine(module, *pair)
        finally:
            self._pairs.put(pair)
        json_files.write_json(path, dataclasses.asdict(found))
        return found

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for runner in self._runners:
            runner.close()

    def __enter__(self) -> "Examiner":
        return self

    def __exit__(self, *_) -> None:
        self.close()
