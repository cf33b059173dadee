"""The files of a running stage: metrics, events, sample rollouts, TensorBoard.

Every line is written and flushed at once, so a kill loses at most the line being written. On
resume the files go back to the restored step, so each step appears once, and time goes on from
there: `time_s` and the times of events count seconds of kept work, not the time between two starts.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tensorboardX

from loong_jax.data import disk, json_files
from loong_jax.problems.response import FORMS, ResponseForm, read
from loong_jax.report.progress import has_signal
from loong_jax.rollout.records import Group, Rollout, readable

METRICS, EVENTS, ROLLOUTS = "metrics.jsonl", "events.jsonl", "rollouts/train.jsonl"
GROUPS_SHOWN = 2  # of a step, two rollouts each


class MetricsLog(contextlib.AbstractContextManager):
    """The log of one stage, in its directory; one writer. Use as a context manager.

    `restored_step` is the step a checkpoint was restored at, 0 for a fresh start: later records are
    dropped. Events passed in must carry times of `clock`; they count from this moment on it.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        stage: str,
        restored_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        form: ResponseForm = FORMS["tagged"],
    ):
        self.directory = Path(directory)
        self.stage = stage
        self._clock = clock
        self._form = form
        self._judged = _JudgedTally(form)
        self.earlier_s = rewind(self.directory, restored_step)
        self._offset_s = self.earlier_s - clock()
        (self.directory / "rollouts").mkdir(parents=True, exist_ok=True)
        self._files: dict[str, TextIO] = {
            name: (self.directory / name).open("a", encoding="utf-8")
            for name in (METRICS, EVENTS, ROLLOUTS)
        }
        self._writer = tensorboardX.SummaryWriter(
            str(self.directory / "tensorboard"), purge_step=restored_step + 1, flush_secs=10
        )
        if restored_step:
            now = self.elapsed_s
            self._append(
                EVENTS, {"kind": "resume", "step": restored_step, "start_s": now, "end_s": now}
            )

    def __exit__(self, *_) -> None:
        for file in (*self._files.values(), self._writer):
            file.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stage began, without work that a kill undid."""
        return self._clock() + self._offset_s

    def event(self, record: Mapping[str, Any]) -> None:
        """Appends an event; its `start_s` and `end_s` are readings of this log's clock."""
        ends = [key for key in ("start_s", "end_s") if key in record]
        times = {key: round(record[key] + self._offset_s, 4) for key in ends}
        self._append(EVENTS, {**record, **times})

    def judged(self, group: Group, disposition: str) -> None:
        """Counts a group that has its verdicts, whatever becomes of it, towards the next step."""
        self._judged.add(group, disposition)

    def step(
        self, step: int, metrics: Mapping[str, Any], groups: Sequence[Group] = ()
    ) -> dict[str, Any]:
        """Appends the line of a step and returns it. `groups` are those it trained on; `metrics`
        wins over what is counted from them here."""
        counted = trained_metrics(groups, trainer_version=step - 1) | self._judged.metrics()
        self._judged = _JudgedTally(self._form)
        head = {"stage": self.stage, "step": step}
        time_s = {"time_s": round(self.elapsed_s, 3)}
        record = json_files.without_nan({**head, **time_s, **counted, **metrics})
        for group in groups[:GROUPS_SHOWN]:
            for rollout in _two_of(group):
                shown = readable(group.ticket.problem, rollout, self._form)
                staleness = {"staleness": step - 1 - rollout.version}
                self._append(ROLLOUTS, {**head, **shown, **staleness})
        self._append(METRICS, record)  # last, so that a line of metrics means a whole step
        for name, value in numbers(record).items():
            if name not in ("step", "time_s"):
                self._writer.add_scalar(f"{self.stage}/{name}", value, step)
        return record

    def _append(self, name: str, record: dict[str, Any]) -> None:
        file = self._files[name]
        with disk.writing(self.directory / name):
            file.write(json_files.json_line(record))
            file.flush()


def rewind(directory: Path | str, step: int) -> float:
    """Drops all records after `step`; returns the seconds that the kept ones had taken.

    Events are kept up to the publishing of version `step`, the last thing a step does.
    """
    directory = Path(directory)
    elapsed_s = 0.0
    for name in (METRICS, ROLLOUTS):
        if (directory / name).exists():
            kept = [r for r in json_files.read_jsonl(directory / name) if r["step"] <= step]
            json_files.write_jsonl(directory / name, kept)
            elapsed_s = max([elapsed_s, *(r.get("time_s") or 0.0 for r in kept)])
    if (directory / EVENTS).exists():
        kept = events_through(json_files.read_jsonl(directory / EVENTS), step)
        json_files.write_jsonl(directory / EVENTS, kept)
        elapsed_s = max([elapsed_s, *(event.get("end_s", 0.0) for event in kept)])
    return float(elapsed_s)


def events_through(events: Sequence[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """The events up to the publishing of version `step`, or its training where that is missing."""
    last = 0
    for place, event in enumerate(events, 1):
        done = event.get("step") if event["kind"] == "train" else event.get("version")
        if event["kind"] in ("train", "publish") and done is not None and done <= step:
            last = place
    return list(events[:last]) if step else []


def trained_metrics(groups: Sequence[Group], *, trainer_version: int) -> dict[str, Any]:
    """Metrics of the rollouts of a batch; {} for an empty batch."""
    rollouts = [(g, r, r.reward) for g in groups for r in g.rollouts if r.reward is not None]
    if not rollouts:
        return {}
    lengths = [len(r.tokens) for _, r, _ in rollouts]
    staleness = [trainer_version - r.version for _, r, _ in rollouts]
    return {
        "rewards/mean": float(np.mean([reward for _, _, reward in rollouts])),
        "rewards/by_domain": _mean_by(
            (g.ticket.problem.domain, reward) for g, _, reward in rollouts
        ),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": max(lengths),
        "staleness/mean": float(np.mean(staleness)),
        "staleness/histogram": {str(n): staleness.count(n) for n in sorted(set(staleness))},
    }


class _JudgedTally:
    """Counts over all judged groups since the last step, filtered ones too."""

    def __init__(self, form: ResponseForm):
        self._form = form
        self._rewards: list[float] = []
        self._signals: list[bool] = []
        self._formed: list[bool] = []
        self._correct: list[tuple[str, bool]] = []
        self._counts = {name: collections.Counter() for name in ("groups", "verdicts", "isolation")}

    def add(self, group: Group, disposition: str) -> None:
        self._counts["groups"][disposition] += 1
        domain = group.ticket.problem.domain
        self._signals.append(has_signal([rollout.reward for rollout in group.rollouts]))
        for rollout in group.rollouts:
            if rollout.reward is not None:
                self._rewards.append(rollout.reward)
            verdict = rollout.verdict
            if verdict is None:
                continue
            self._counts["verdicts"][verdict.outcome] += 1
            self._counts["isolation"][verdict.isolation] += 1
            self._formed.append(read(rollout.text, self._form).is_well_formed)
            if verdict.is_graded:
                self._correct.append((domain, verdict.is_correct))

    def metrics(self) -> dict[str, Any]:
        if not self._counts["groups"]:
            return {}
        record: dict[str, Any] = {f"judged/{name}": dict(of) for name, of in self._counts.items()}
        for name, values in (
            ("judged/with_signal", self._signals),
            ("rewards/all_groups_mean", self._rewards),
            ("completions/well_formed", self._formed),
        ):
            if values:
                record[name] = float(np.mean(values))
        if self._correct:
            record["correct/by_domain"] = _mean_by(self._correct)
        return record


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a record under flat names: {"a": {"0": 1}} gives {"a/0": 1.0}."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, bool | int | float):
            flat[f"{prefix}{key}"] = float(value)
    return flat


def read_metrics(stage_dir: Path | str) -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl` in order of step; [] where there is none."""
    return json_files.read_jsonl(Path(stage_dir) / METRICS)


def read_events(stage_dir: Path | str) -> list[dict[str, Any]]:
    return json_files.read_jsonl(Path(stage_dir) / EVENTS)


def read_rollouts(stage_dir: Path | str) -> list[dict[str, Any]]:
    """Sample rollouts of training, oldest first."""
    return json_files.read_jsonl(Path(stage_dir) / ROLLOUTS)


def merge_stage_metrics(run_dir: Path | str, stages: Sequence[str]) -> Path:
    """Writes `RUN/metrics.jsonl`: the lines of all stages, in the order given."""
    run_dir = Path(run_dir)
    return json_files.write_jsonl(
        run_dir / METRICS,
        (line for stage in stages for line in read_metrics(run_dir / "stages" / stage)),
    )


def _two_of(group: Group) -> list[Rollout]:
    """The first right and the first other rollout of a group."""
    found: dict[bool, Rollout] = {}
    for rollout in group.rollouts:
        if rollout.verdict is not None and rollout.reward is not None:
            found.setdefault(rollout.verdict.is_correct, rollout)
    return [found[is_right] for is_right in (True, False) if is_right in found]


def _mean_by(pairs) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: float(np.mean(values)) for key, values in sorted(groups.items())}
