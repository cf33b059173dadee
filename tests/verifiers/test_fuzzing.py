"""Some of the fuzzing of every registered verifier: `fuzzing.fuzz_all` takes any number."""

import traceback

import pytest

from loong_jax.environments import ENVIRONMENTS
from loong_jax.problems import verdict
from tests.sweeps import thinned
from tests.verifiers import fuzzing


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_texts", thinned([80, 1200], 0))
def test_nothing_crashes_hangs_or_flips(num_texts):
    counts = fuzzing.fuzz_all(num_texts)
    assert {"math", "logic", "loongbench", "metamath", "judge", "lean"} <= set(counts)
    assert {f"environment {name}" for name in ENVIRONMENTS} <= set(counts)


def test_a_verdict_that_flips_is_found():
    said = iter(range(10**6))

    def flips(index, text):
        return verdict.wrong("value") if next(said) % 97 else verdict.correct("once in a while")

    with pytest.raises((AssertionError, ExceptionGroup)) as raised:  # it flips in the replay too
        fuzzing.fuzz(flips, ["1"], 400)
    assert "and then" in "".join(traceback.format_exception(raised.value))


def test_a_crash_is_found():
    def crashes(index, text):
        return verdict.wrong(f"{1 / (len(text) - 7)}")

    with pytest.raises(ZeroDivisionError):
        fuzzing.fuzz(crashes, ["1"], 400)
