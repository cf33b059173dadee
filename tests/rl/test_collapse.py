import math

import pytest

from loong_jax.errors import ConfigError, LoongError
from loong_jax.rl import collapse
from loong_jax.rl.collapse import CollapseLimits, CollapseRules, CollapseWatch, Drift
from tests.doubles import killable_run

ENTROPY, LENGTH, LOAD = collapse.ENTROPY, collapse.LENGTH, collapse.LOAD


def history(metric, values):
    return [{metric: value} for value in values]


QUIET = CollapseRules(entropy=CollapseLimits(low=0.1, window=3))
LOUD = CollapseRules(entropy=CollapseLimits(high=5.0, window=2))
SHORT = CollapseRules(length=CollapseLimits(low=3.0, window=2))
SHRINKS = CollapseRules(length_drift=Drift(low=0.5, window=2))
GROWS = CollapseRules(length_drift=Drift(high=3.0, window=1))
FULL = CollapseRules(load=CollapseLimits(high=4.0, window=2))


@pytest.mark.parametrize(
    ("rules", "metric", "values", "rule"),
    [
        (QUIET, ENTROPY, [1, 0.09, 0.05, 0.09], "entropy"),
        (QUIET, ENTROPY, [0.05, 0.05, 0.2, 0.05], None),
        (QUIET, ENTROPY, [0.05, 0.05], None),
        (QUIET, ENTROPY, [0.1, 0.1, 0.1], None),
        (QUIET, ENTROPY, [0, math.nan, 0, None, 0], "entropy"),
        (QUIET, LENGTH, [0, 0, 0], None),
        (LOUD, ENTROPY, [4, 6, 7], "entropy"),
        (SHORT, LENGTH, [9, 2, 2], "length"),
        (SHRINKS, LENGTH, [9, 11, 4.9, 4], "length_drift"),
        (SHRINKS, LENGTH, [9, 11, 4.9, 5.1], None),
        (SHRINKS, LENGTH, [9, 1, 1], None),
        (GROWS, LENGTH, [2, 4, 7], "length_drift"),
        (FULL, LOAD, [1.2, 4.1, 7.9], "load"),
        (CollapseRules(), LOAD, [1e9] * 99, None),
    ],
)
def test_a_rule_fires_when_a_whole_window_breaks_it(rules, metric, values, rule):
    found = collapse.find_collapse(rules, history(metric, values))
    assert (found.rule if found else None) == rule


def test_reason_names_value_rule_and_remedy():
    watch = CollapseWatch(CollapseRules(entropy=CollapseLimits(low=0.1, window=2)))
    watch.step(1, {ENTROPY: 0.07, "loss": 1.0})
    with pytest.raises(LoongError, match=r"step 2: entropy was at most 0\.07, under low=0\.1") as e:
        watch.step(2, {ENTROPY: 0.02})
    assert "collapse.entropy" in str(e.value)
    assert "last checkpoint" in str(e.value)


def test_a_run_that_goes_on_remembers_the_steps_before():
    rules = CollapseRules(length_drift=Drift(low=0.5, window=2))
    watch = CollapseWatch(rules, history(LENGTH, [10, 10, 3]))
    with pytest.raises(collapse.CollapseError):
        watch.step(4, {LENGTH: 3})
    CollapseWatch(rules).step(4, {LENGTH: 3})


@pytest.mark.parametrize(
    "make",
    [
        lambda: CollapseLimits(low=2.0, high=1.0),
        lambda: CollapseLimits(window=0),
        lambda: Drift(low=1.5),
        lambda: Drift(high=0.9),
        lambda: Drift(window=0),
    ],
)
def test_rules_that_cannot_be_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_a_stopped_run_goes_on_and_loses_nothing(tmp_path, monkeypatch):
    """Stopped at step 3 of 4, given again without the rule: the weights of a run never stopped."""
    whole = killable_run.run(tmp_path / "whole")
    watch = CollapseWatch(CollapseRules(entropy=CollapseLimits(low=0.1, window=3)))
    monkeypatch.setattr(
        killable_run.NoLog, "step", lambda _, step, *__: watch.step(step, {ENTROPY: 0.01})
    )
    with pytest.raises(collapse.CollapseError, match="step 3"):
        killable_run.run(tmp_path / "stopped")
    monkeypatch.undo()
    assert killable_run.run(tmp_path / "stopped")["weights"] == whole["weights"]
