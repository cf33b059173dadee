"""Steps that are traced, and none where nobody asks."""

import jax.numpy as jnp
import pytest

from loong_jax.errors import ConfigError
from loong_jax.report import usage


def test_a_trace_of_the_steps_that_were_asked_for(tmp_path, monkeypatch):
    traced = []
    monkeypatch.setattr(usage.jax.profiler, "start_trace", lambda to: traced.append("starts"))
    monkeypatch.setattr(usage.jax.profiler, "stop_trace", lambda: traced.append("ends"))

    def run(steps):
        traced.clear()
        with usage.StepProfile(tmp_path) as profile:
            for step in range(1, steps + 1):
                traced.append(step)
                profile.step()
        return traced

    assert run(6) == [1, 2, 3, 4, 5, 6]
    monkeypatch.setenv(usage.VARIABLE, "2")
    assert run(6) == [1, 2, 3, "starts", 4, 5, "ends", 6]
    assert run(4) == [1, 2, 3, "starts", 4, "ends"]  # the stage ended within it
    monkeypatch.setenv(usage.VARIABLE, "some")
    with pytest.raises(ConfigError, match="is no number of steps"):
        run(1)


def test_the_trace_is_one_that_tensorboard_reads(tmp_path, monkeypatch):
    monkeypatch.setenv(usage.VARIABLE, "1")
    with usage.StepProfile(tmp_path) as profile:
        for _ in range(4):
            jnp.ones(3).sum().block_until_ready()
            profile.step()
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
