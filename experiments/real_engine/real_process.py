"""The real-engine part in a process of its own: XLA counts the cores that it finds at its start."""

import multiprocessing
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax

from experiments.real_engine import real, timeline
from experiments.real_engine.regimes import Setting
from loong_jax import process
from loong_jax.errors import LoongError

TIMEOUT_S = 1800.0  # without a word from the child
DRAWN = ("sync", "one step off", "DORA")
DRAWN_STEPS = 20.0  # of DORA's training steps, in width


class Made(NamedTuple):
    result: dict[str, Any]
    picture: bytes  # the timeline as a PNG


def measure(regimes: Mapping[str, Setting], *, say: Callable[[str], None]) -> Made:
    """All regimes, as JSON values, and the timeline of the first."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_run, args=(theirs, dict(regimes)))
    child.start()
    theirs.close()
    try:
        while True:
            if not ours.poll(TIMEOUT_S):
                raise queue.Empty
            kind, value = ours.recv()
            if kind == "made":
                child.join(60.0)
                return value
            say(value)
    except (EOFError, queue.Empty):
        raise LoongError(
            f"the process of the real engine ended or fell silent (exit code {child.exitcode}). "
            "Its errors are on stderr."
        ) from None
    finally:
        if child.is_alive():
            child.kill()


def _run(pipe: Connection, regimes: Mapping[str, Setting]) -> None:
    process.keep_freed_memory()
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the trainer's process, which begins from here
    jax.config.update("jax_platforms", "cpu")

    def say(text: str) -> None:
        pipe.send(("say", text))

    pipe.send(("made", run(regimes, say=say)))


def run(regimes: Mapping[str, Setting], *, say: Callable[[str], None]) -> Made:
    """The same in this process. The first regime's figures stand at the top too."""
    result: dict[str, Any] = {"regimes": {}}
    picture = b""
    for name, setting in regimes.items():
        say(f"Real engine and trainer: {name}")
        result["regimes"][name], runs = real.measure(setting, say=say)
        picture = picture or _picture(runs, setting)
    first = next(iter(result["regimes"].values()))
    return Made({**first, **result}, picture)


def _picture(runs: Mapping[str, Sequence[real.Record]], setting: Setting) -> bytes:
    drawn = {name: runs[name][0] for name in DRAWN}
    seconds = DRAWN_STEPS * real.figures([drawn["DORA"]])["step_s"]
    return timeline.png(
        {
            name: timeline.Run(record.replicas.blocks, record.log.events, setting.slots_per_replica)
            for name, record in drawn.items()
        },
        start_s={name: record.window[0] for name, record in drawn.items()},
        seconds=seconds,
    )


def table(result: dict[str, Any]) -> str:
    lines = []
    for title, part in result["regimes"].items():
        steps = ", ".join(
            f"{point['active_slots']}: {1e3 * point['step_s']:.2f} ms"
            for point in part["step_time_vs_active_slots"]
        )
        lines += ["", f"Real engine: {title}", f"a decode step by active slots: {steps}"]
        head = ("tokens/s", "vs sync", "step s", "trainer", "active", "oldest", "drained", "again")
        lines.append(f"{'':28}" + "".join(f"{name:>10}" for name in head))
        for name, row in part["policies"].items():
            cells = (
                f"{row['consumed_tokens_per_s']:.0f}",
                f"{row['speedup_vs_sync']:.2f}x",
                f"{row['step_s']:.2f}",
                f"{row['trainer_busy_share']:.0%}",
                f"{row['mean_active_slots']:.1f}",
                f"{max(row['staleness'])}",
                f"{row['drained_slots']}",
                f"{row['reprefilled_tokens']}",
            )
            lines.append(f"{name:28}" + "".join(f"{cell:>10}" for cell in cells))
    lines.append(
        "tokens: consumed by training; trainer: share of time it works; active: slots per block; "
        "oldest: staleness; drained: slots emptied for an update; again: tokens read again"
    )
    return "\n".join(lines)
