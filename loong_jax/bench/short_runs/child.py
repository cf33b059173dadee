"""One run in a process of its own, on one core: `python -m loong_jax.bench.short_runs.child FILE`.

The file is written by `running`; the process goes on where an earlier one of the same directory was
killed. It ends with its parent.
"""

import ctypes
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A stage of a recipe to be run in `run_dir`, on `core` alone or (None) on all there are."""

    recipe: Any  # as JSON values, see `loong_jax.configs`
    stage: str
    run_dir: str
    source: str | None  # the run that has the stages before it
    core: int | None
    parent: int  # process id


def main(path: Path) -> None:
    task = Task(**json.loads(path.read_text()))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != task.parent:
            raise SystemExit("the bench has ended")
    if task.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {task.core})  # before JAX counts them
    from loong_jax import process

    process.prepare()
    process.keep_freed_memory()

    from loong_jax import configs
    from loong_jax.launch import run

    recipe = configs.from_json(task.recipe)
    source = None if task.source is None else Path(task.source)
    run.train(recipe, Path(task.run_dir), only=task.stage, source=source)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
