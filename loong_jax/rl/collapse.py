"""Collapse: when a run is no longer worth its machines, told from the history of its metrics.

A rule is data, and judging it a pure function of the history, so a finished run can be judged again
from its metrics.jsonl. A rule fires where each of the last `window` steps breaks it, so a single
odd step stops nothing. All rules are off until a threshold is given: what entropy or length is
healthy depends on the task and the tokenizer, and a wrong guess would stop a good run.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loong_jax.errors import ConfigError, LoongError, refuse_below

ENTROPY, LENGTH, LOAD = "entropy", "completions/mean_length", "load/max_over_mean"
_METRIC_OF = {"entropy": ENTROPY, "length": LENGTH, "length_drift": LENGTH, "load": LOAD}  # rules


class CollapseError(LoongError):
    """A rule fired: the run stops, and its last checkpoint stays as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollapseLimits:
    """Fires where a metric stays below `low`, or above `high`, for `window` steps."""

    low: float = -math.inf
    high: float = math.inf
    window: int = 20  # steps

    def __post_init__(self):
        if not self.low < self.high:
            raise ConfigError(f"low={self.low} must be below high={self.high}. Correct the recipe.")
        refuse_below(self, 1, "window")

    def reason(self, metric: str, values: Sequence[float]) -> str:
        """A sentence on the limit that the last values break; empty where they break none."""
        return _reason(self, metric, values[-self.window :])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """Fires where a metric stays below `low` times, or above `high` times, its mean over the first
    `window` steps, for `window` steps that come after those.
    """

    low: float = 0.0
    high: float = math.inf
    window: int = 20  # steps

    def __post_init__(self):
        if not 0 <= self.low < 1 < self.high:
            raise ConfigError(
                f"low={self.low} and high={self.high} are shares of where the run began: "
                "0 <= low < 1 < high. Correct the recipe."
            )
        refuse_below(self, 1, "window")

    def reason(self, metric: str, values: Sequence[float]) -> str:
        """A sentence on the drift of the last values; empty where it is within limits."""
        start = sum(values[: self.window]) / self.window
        return _reason(self, metric, values[self.window :][-self.window :], start)


def _reason(
    rule: CollapseLimits | Drift, metric: str, last: Sequence[float], start: float | None = None
) -> str:
    """Empty where `last`, the values of a window, are within limits: of a drift, times `start`."""
    if len(last) < rule.window:
        return ""
    unit, of = (1.0, "") if start is None else (start, f" times the {start:.4g} it began with")
    if max(last) < rule.low * unit:
        return f"{metric} was at most {max(last):.4g}, under low={rule.low:g}{of}"
    if min(last) > rule.high * unit:
        return f"{metric} was at least {min(last):.4g}, over high={rule.high:g}{of}"
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollapseRules:
    """Rules that stop a run. Thresholds that are left alone never do.

    `entropy` is in nats, the mean over trained tokens: near 0 nothing is explored any more, and far
    above its start the text falls apart. `length` is the mean response in tokens, `length_drift`
    compares it with the run's beginning. `load` is the fullest expert over the mean one.
    """

    entropy: CollapseLimits = CollapseLimits()
    length: CollapseLimits = CollapseLimits()
    length_drift: Drift = Drift()
    load: CollapseLimits = CollapseLimits()


@dataclasses.dataclass(frozen=True)
class Collapse:
    """The rule that fired, and its reason."""

    rule: str  # field of CollapseRules
    reason: str  # names the value and the threshold
    window: int  # steps for which it held


def find_collapse(rules: CollapseRules, history: Iterable[Mapping[str, Any]]) -> Collapse | None:
    """The first rule that the metrics of all steps so far, oldest first, break.

    Steps that lack a metric, or where it is not finite, do not count for the rules about it.
    """
    records = list(history)
    for name, metric in _METRIC_OF.items():
        rule: CollapseLimits | Drift = getattr(rules, name)
        found = [record.get(metric) for record in records]
        values = [float(value) for value in found if value is not None and math.isfinite(value)]
        if reason := rule.reason(metric, values):
            return Collapse(name, reason, rule.window)
    return None


class CollapseWatch:
    """Remembers what the rules look at, and stops a run when one fires.

    `earlier` are the metrics of the steps before, when a run goes on.
    """

    def __init__(self, rules: CollapseRules, earlier: Iterable[Mapping[str, Any]] = ()):
        self._rules = rules
        self._history = [_watched(record) for record in earlier]

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Raises CollapseError where the metrics of this step make a rule fire."""
        self._history.append(_watched(metrics))
        found = find_collapse(self._rules, self._history)
        if found is not None:
            raise CollapseError(
                f"step {step}: {found.reason}, for {found.window} steps: the rule "
                f"collapse.{found.rule} stops the run. Look at what the samples became, then start "
                "again with other settings; or move its threshold and give the same command, which "
                "goes on from the last checkpoint."
            )


def _watched(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in _METRIC_OF.values() if name in record}
