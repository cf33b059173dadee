"""The progress of a run: a live display on a terminal, plain lines elsewhere."""

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

RATE_STEPS = 20  # whose pace tells the time left
LEAST_STEPS = 3  # steps before that time is said; the first ones compile
QUIET_S = 30  # without a step until a line off a terminal says what goes on

MARKS = {"done": ("✓", "green"), "running": ("●", "cyan"), "waiting": ("·", "dim")}
SHOWN = (  # name of the metric, label, format
    ("loss", "loss", "{:.3f}"),
    ("rewards/all_groups_mean", "reward", "{:.2f}"),
    ("judged/with_signal", "signal", "{:.0%}"),  # groups whose rewards differ, of all judged
    ("staleness/mean", "staleness", "{:.1f}"),
    ("completions/well_formed", "well-formed", "{:.0%}"),
    ("completions/mean_length", "length", "{:.0f}"),
    ("tokens_per_s", "tok/s", "{:,.0f}"),
)


class Progress:
    """Shows the stages of a pipeline; use as a context manager.

        with Progress(["sft", "rl"]) as progress:
            progress.start("sft", num_steps=300)
            progress.step(1, metrics)
            progress.finish("sft", "pass@1 stem 31 %")

    On a terminal it redraws a table. Elsewhere it prints one line every `line_every_s` seconds, and
    one when a stage starts or ends, so that a log stays short.
    """

    def __init__(
        self,
        stages: Sequence[str],
        *,
        title: str = "loong",
        console: Console | None = None,
        line_every_s: float | int = 10,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._console = console or Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._title = title
        self._clock = clock
        self._started_s = clock()
        self._line_every_s = line_every_s
        self._last_line_s = -float("inf")
        self._stages = {stage: _Stage() for stage in stages}
        self._current = ""
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self._is_live:
            self._live = Live(
                get_renderable=self._table, console=self._console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def start(self, stage: str, *, num_steps: int | None, first_step: int = 0) -> None:
        """`first_step` is where a resumed stage goes on.

        `num_steps` is None where something else than a number of steps ends the stage.
        """
        self._current = stage
        row = self._stages[stage] = _Stage()
        row.status, row.total, row.step = "running", num_steps, first_step
        row.started_s = self._clock()
        parts = [
            "starts",
            *([f"{num_steps} steps"] if num_steps is not None else []),
            *([f"resumed at {first_step}"] if first_step else []),
        ]
        self._line(f"{stage}: {', '.join(parts)}")

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Shows a step of the running stage; missing metrics are not shown."""
        row = self._stages[self._current]
        row.step, row.metrics, row.remark = step, dict(metrics), ""
        row.ends.append((step, self._clock()))
        if not self._is_live and self._clock() - self._last_line_s >= self._line_every_s:
            self._line(f"{self._current}: {row.describe()}")

    def note(self, text: str) -> None:
        """A remark on what the running stage does instead of steps, such as "evaluating"."""
        row = self._stages[self._current]
        row.remark = text
        row.ends.clear()
        self._line(f"{self._current}: {text}")

    def meanwhile(self, text: str) -> None:
        """Shows a remark on the time since the last step, such as "12 groups judged"."""
        self._stages[self._current].remark = text
        if self._clock() - self._last_line_s >= QUIET_S:
            self._line(f"{self._current}: {text}")

    def finish(self, stage: str, result: str = "") -> None:
        row = self._stages.setdefault(stage, _Stage())
        now = self._clock()
        row.status, row.remark = "done", result
        row.took_s = now - row.started_s if row.started_s is not None else 0.0
        took = f" in {duration(row.took_s)}" if row.started_s is not None else " (from before)"
        self._line(f"{stage}: done{took}" + (f", {result}" if result else ""))

    def _line(self, text: str) -> None:
        if self._is_live:
            return
        self._last_line_s = self._clock()
        elapsed = duration(self._last_line_s - self._started_s)
        print(f"[{elapsed:>6}] {text}", file=self._console.file, flush=True)

    def _table(self) -> Group:
        now = self._clock()
        table = Table(box=None, padding=(0, 1), show_header=False)
        for name, row in self._stages.items():
            mark, style = MARKS[row.status]
            text = row.describe() if row.status == "running" else row.remark
            if row.status == "done":
                text = f"{duration(row.took_s)}  {text}"
            table.add_row(Text(mark, style), Text(name, "bold" if mark == "●" else style), text)
        return Group(Text(f"{self._title}  {duration(now - self._started_s)}", "bold"), table)


class _Stage:
    def __init__(self):
        self.status = "waiting"
        self.step = 0
        self.total: int | None = 0
        self.metrics: dict[str, Any] = {}
        self.remark = ""
        self.started_s: float | None = None
        self.took_s = 0.0
        # of the last steps: number and when they ended
        self.ends: collections.deque[tuple[int, float]] = collections.deque(maxlen=RATE_STEPS + 1)

    def describe(self) -> str:
        parts = [f"step {self.step}" + ("" if self.total is None else f"/{self.total}")]
        for name, label, form in SHOWN:
            value = self.metrics.get(name)
            if isinstance(value, int | float):
                parts.append(f"{label} {form.format(value)}")
        if left := self._left():
            parts.append(left)
        if self.remark:
            parts.append(self.remark)
        return "  ".join(parts)

    def _left(self) -> str:
        """Time until the last step, at the pace of the last ones; empty while that is unknown."""
        if not self.total or self.step >= self.total or len(self.ends) <= LEAST_STEPS:
            return ""
        (first, began_s), (last, ended_s) = self.ends[0], self.ends[-1]
        return f"{duration((ended_s - began_s) / (last - first) * (self.total - last))} left"


def duration(seconds: float | int) -> str:
    """4 s, 2:05 or 1:02:05."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
