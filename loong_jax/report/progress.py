"""The progress of a run: a live display on a terminal, plain lines elsewhere, and a warning where
no group teaches."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import console as rich_console
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loong_jax.rollout.records import Group

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
        self._stages[stage] = _Stage(
            status="running", total=num_steps, step=first_step, started_s=self._clock()
        )
        length = f", {num_steps} steps" if num_steps is not None else ""
        resumed = f", resumed at {first_step}" if first_step else ""
        self._line(f"{stage}: starts{length}{resumed}")

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
        row.status, row.remark, took = "done", result, " (from before)"
        if row.started_s is not None:
            row.took_s = self._clock() - row.started_s
            took = f" in {duration(row.took_s)}"
        self._line(f"{stage}: done{took}" + (f", {result}" if result else ""))

    def _line(self, text: str) -> None:
        if self._is_live:
            return
        self._last_line_s = self._clock()
        elapsed = duration(self._last_line_s - self._started_s)
        print(f"[{elapsed:>6}] {text}", file=self._console.file, flush=True)

    def _table(self) -> rich_console.Group:
        table = Table(box=None, padding=(0, 1), show_header=False)
        for name, row in self._stages.items():
            mark, style = MARKS[row.status]
            text = row.describe() if row.status == "running" else row.remark
            if row.status == "done":
                text = f"{duration(row.took_s)}  {text}"
            table.add_row(Text(mark, style), Text(name, "bold" if mark == "●" else style), text)
        title = f"{self._title}  {duration(self._clock() - self._started_s)}"
        return rich_console.Group(Text(title, "bold"), table)


@dataclasses.dataclass
class _Stage:
    status: str = "waiting"
    step: int = 0
    total: int | None = 0
    started_s: float | None = None
    took_s: float = 0.0
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    remark: str = ""
    # of the last steps: number and when they ended
    ends: collections.deque[tuple[int, float]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=RATE_STEPS + 1)
    )

    def describe(self) -> str:
        parts = [f"step {self.step}" + ("" if self.total is None else f"/{self.total}")]
        for name, label, form in SHOWN:
            value = self.metrics.get(name)
            if isinstance(value, int | float):
                parts.append(f"{label} {form.format(value)}")
        return "  ".join([*parts, *filter(None, [self._left(), self.remark])])

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


# ---- groups without a signal: said in plain words while a run still waits for one that teaches ---

FIRST_S, RARER = 45.0, 4  # of silence before the first warning; how much longer until the next one
LEAST_GROUPS, MANY_GROUPS, MANY_S = 4, 64, 10.0  # so many groups say enough after fewer seconds
_SHOWN = 160  # characters of a text


def has_signal(rewards: Sequence[float | None]) -> bool:
    """True where valid rewards differ: advantages are 0 otherwise."""
    return len({reward for reward in rewards if reward is not None}) > 1


class SignalWatch:
    """Gives a warning where one group after the other has equal rewards.

    The first comes within a minute, the next ones ever more rarely. A group that teaches begins the
    count anew.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._warn, self._clock = warn, clock
        self._wait_s = FIRST_S
        self._silent: list[Group] = []
        self._since_s = 0.0

    def judged(self, group: Group) -> None:
        """Call it with every group that has its rewards."""
        now = self._clock()
        if has_signal([rollout.reward for rollout in group.rollouts]):
            self._silent = []
            return
        if not self._silent:
            self._since_s = now
        self._silent.append(group)
        count, waited_s = len(self._silent), now - self._since_s
        is_first = self._wait_s == FIRST_S
        if (waited_s >= self._wait_s and count >= LEAST_GROUPS) or (
            is_first and waited_s >= MANY_S and count >= MANY_GROUPS
        ):
            self._wait_s = RARER * max(waited_s, self._wait_s)
            self._warn(describe(self._silent))


def describe(groups: Sequence[Group]) -> str:
    """A summary of the answers in groups without a signal, and a remedy."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    verdicts = [r.verdict for r in rollouts if r.verdict and r.finish_reason != "length"]
    outcomes = collections.Counter(verdict.outcome for verdict in verdicts)
    graded = outcomes["correct"] + outcomes["wrong"]
    reasons = collections.Counter(verdict.reason for verdict in verdicts)
    reasons.pop("", None)
    cut = sum(r.finish_reason == "length" for r in rollouts)
    said = (
        f"none of {len(groups)} groups in a row can teach: all rewarded answers to a problem got "
        f"the same reward. {outcomes['correct']} of {graded} answers that ended were right"
    )
    if outcomes["ungradable"]:
        said += f", {outcomes['ungradable']} more could not be graded"
    if reasons:
        reason, count = reasons.most_common(1)[0]
        said += f"; the most frequent reason is {reason!r} ({count})"
    said += (
        f"; {cut} of all {len(rollouts)} were cut off at the limit of tokens, which no verdict "
        "makes up for. "
    )
    if graded and outcomes["correct"] >= 0.9 * graded:
        return said + "Pose harder problems; the run ends by itself where all are solved."
    if cut >= 0.5 * len(rollouts):
        limit = rollouts[-1].sampling.max_new_tokens
        said += f"Raise sampling.max_new_tokens={limit}, or ask for shorter answers."
    elif outcomes["ungradable"] > graded:
        said += "See what the verifier misses: `loong verify` judges a file of answers."
    else:
        said += (
            "Pose easier problems, draw larger groups (group_size), show the form of an answer in "
            "the prompt, or fine-tune before (`loong train sft`)."
        )
    last = groups[-1]
    return (
        f"{said} For example, {_short(last.ticket.problem.prompt)} was answered with "
        f"{_short(last.rollouts[-1].text)}."
    )


def _short(text: str) -> str:
    """In quotes, the end of it where it is long: a question and an answer stand there."""
    return repr(text if len(text) <= _SHOWN else "…" + text[-_SHOWN:])
