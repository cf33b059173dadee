"""Calibration against SciPy and brute force, and its decisions on planted curves."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from loong_jax.errors import ConfigError
from loong_jax.synth.resyn import measures
from loong_jax.synth.resyn.measures import CalibrationRule, LevelCount, calibrate
from tests.synth.resyn import power


def counts_of(*solved, tried=20):
    return [LevelCount(i + 1, k, tried) for i, k in enumerate(solved)]


def oracle(counts):
    """Slope, its standard error and one-sided p of a logistic regression, by general optimizers."""
    x = np.concatenate([[c.level] * c.num_attempts for c in counts]).astype(float)
    y = np.concatenate([[1] * c.num_solved + [0] * (c.num_attempts - c.num_solved) for c in counts])

    def loss(beta):
        logit = beta[0] + beta[1] * x
        return np.sum(np.logaddexp(0, logit) - y * logit)

    best = optimize.minimize(loss, [0.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x
    step = 1e-4
    hessian = np.zeros((2, 2))
    for i, j in itertools.product(range(2), repeat=2):
        e, f = np.eye(2)[i] * step, np.eye(2)[j] * step
        corners = loss(best + e + f) - loss(best + e - f) - loss(best - e + f) + loss(best - e - f)
        hessian[i, j] = corners / (4 * step**2)
    error = math.sqrt(np.linalg.inv(hessian)[1, 1])
    return best[1], error, stats.norm.cdf(best[1] / error)


@pytest.mark.parametrize(
    "solved", [(18, 15, 10, 6, 3), (10, 10, 9, 11, 10), (1, 0, 2, 4, 9), (20, 20, 19, 12, 0)]
)
def test_wald_is_scipys(solved):
    counts = counts_of(*solved)
    fit = measures.fit_logistic(counts)
    slope, error, p = oracle(counts)
    assert fit.slope == pytest.approx(slope, rel=1e-4)
    assert fit.slope_error == pytest.approx(error, rel=1e-3)
    assert measures.wald_p_falling(fit) == pytest.approx(p, rel=1e-2, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=4))
def test_the_exact_test_counts_every_choice(pairs):
    counts = [LevelCount(i + 1, k, k + extra) for i, (k, extra) in enumerate(pairs)]
    levels = [c.level for c in counts for _ in range(c.num_attempts)]
    total = sum(c.num_solved for c in counts)
    seen = sum(c.level * c.num_solved for c in counts)
    chosen = [sum(choice) for choice in itertools.combinations(levels, total)]
    expected = sum(score <= seen for score in chosen) / len(chosen)
    assert measures.exact_p_falling(counts) == pytest.approx(expected, abs=1e-12)


def test_two_levels_are_fishers_test():
    counts = [LevelCount(1, 9, 10), LevelCount(2, 3, 11)]
    _, expected = stats.fisher_exact([[9, 1], [3, 8]], alternative="greater")
    assert measures.exact_p_falling(counts) == pytest.approx(expected, rel=1e-9)


def test_a_perfect_step_has_no_fit_and_is_kept():
    """Wald cannot be had: the estimate is infinite. The exact test keeps what it would drop."""
    for solved in [(20, 20, 0, 0, 0), (20, 20, 9, 0, 0), (20, 20, 20, 20, 0)]:
        counts = counts_of(*solved)
        assert measures.is_separated(counts)
        assert measures.fit_logistic(counts) is None
        found = calibrate(counts, CalibrationRule(attempts_per_level=20))
        assert (found.decision, found.test) == ("kept", "exact")
    turned = calibrate(counts_of(0, 0, 0, 20, 20), CalibrationRule(attempts_per_level=20))
    assert (turned.decision, turned.test) == ("inverted", "exact")
    assert not measures.is_separated(counts_of(20, 19, 1, 0, 0))


def test_a_fall_that_is_worth_nothing_is_flat():
    counts = [LevelCount(i + 1, 5300 - 50 * i, 10_000) for i in range(5)]
    found = calibrate(counts, CalibrationRule())
    assert found.p_falling < 0.05
    assert found.decision == "flat"
    assert calibrate(counts, CalibrationRule(min_drop=0.01)).decision == "kept"


def test_planted_curves_are_decided_rightly_at_the_stated_size():
    """95 of 100 at the default number of attempts; chance alone cannot pass for a fall."""
    size = CalibrationRule().attempts_per_level
    result = power.measure(250, seed=1, sizes=(size,))
    shares = {name: found[size] for name, found in result["planted"].items()}
    assert {decision for decision, _ in power.PLANTED.values()} == {
        "kept", "flat", "inverted", "impossible", "trivial",
    }  # fmt: skip
    assert min(shares.values()) >= 0.95, shares


def test_power_grows_with_the_sample_and_the_fall():
    result = power.measure(80, seed=2, sizes=(8, 32))
    small, large = (np.array(result["kept_by_drop"][size]) for size in (8, 32))
    drops = np.array(power.DROPS)
    assert large[drops >= 0.5].min() > 0.95
    assert large[drops <= 0].max() <= 0.05
    assert large[drops >= 0.4].sum() > small[drops >= 0.4].sum()


@pytest.mark.parametrize(
    "bad",
    [{"target_band": (0.9, 0.1)}, {"attempts_per_level": 2}, {"alpha": 0.7}, {"min_drop": 1.5}],
)
def test_rules_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError):
        CalibrationRule(**bad)


BASE = '''
import math
def helper(numbers, factor=3):
    """Adds up."""
    return sum(numbers) * factor
def question(state): return "q"
def reward(state, answer):
    # checks
    return answer.strip() == str(helper(state["numbers"]))
'''


def test_names_numbers_texts_and_comments_do_not_make_another_verifier():
    other = (
        BASE.replace("helper", "total").replace("numbers", "xs").replace("=3", "=5")
        .replace('"""Adds up."""', '"""Something else."""').replace("# checks", "# x")
        .replace('return "q"', 'return "another question"')
    )  # fmt: skip
    assert measures.verifier_form(other) == measures.verifier_form(BASE)
    for old, new in [("sum(", "max("), ("*", "+"), ("==", "in"), ("strip", "lower")]:
        changed = BASE.replace(old, new)
        assert measures.verifier_form(changed) != measures.verifier_form(BASE), (old, new)


def test_a_template_is_what_the_questions_share():
    asked = ["Anna buys 3 red pears, 12 in all.", "Otto buys 40 green pears, 5 in all."]
    assert measures.template(asked) == "w buys 0 w pears , 0 in all ."
    assert measures.template(asked) != measures.template(["Anna sells 3 pears."])


def test_figures_of_a_set():
    one = measures.form_of(BASE, ["add 1 2", "add 3 4"])
    two = measures.form_of(BASE.replace("sum", "max"), ["most of 1 2", "most of 3 4"])
    found = measures.measure({"a": one, "b": two, "c": one}, {"a": "k", "b": "k", "c": "l"})
    assert found["environments"] == 3
    assert found["distinct_both"] == found["distinct_verifiers"] == 2
    assert found["nearest_similarity"]["max"] == 1.0
    assert found["keywords"] == 2
    assert found["most_of_one_keyword"] == 2
