"""Our engine under JetStream's own Driver: its tests, and the real model through it."""

import functools
import json
import os
import signal

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rollout.engine_config import PageConfig
from tests.doubles import fake_model
from tests.processes import run_python
from tests.rollout.engine_runs import Run, request

pytest.importorskip(
    "jetstream.core",
    reason="google-jetstream 0.2.2 is not installed (extra `jetstream`)",
)
pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

RACE = "At this point we must have some requests inserted into the slots"
REFUSED = {
    "decode_steps": {"decode_steps": 4},
    "prefill_lengths": {"prefill_lengths": (24,)},
    "pages": {"pages": PageConfig(num_pages=12, page_size=4)},
}


def test_the_tests_inside_the_wheel_accept_our_engine(tmp_path):
    names = ("test_orchestrator", "test_server", "test_config_lib")
    output = in_own_process(
        *("-m", "pytest", "-q", "-s", "-p", "tests.rollout.jetstream.accept_022", "--pyargs"),
        *(f"jetstream.tests.core.{name}" for name in names),
        *("-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull),
    )
    assert "13 passed" in output


@pytest.mark.parametrize("case", REFUSED)
def test_engines_that_the_driver_would_misread_are_refused(case):
    from loong_jax.rollout.jetstream.adapter import JetStreamAdapter

    shapes = {"prefill_lengths": (16,), "decode_steps": 1} | REFUSED[case]
    engine = fake_model.fake_engine(**shapes)
    with pytest.raises(ConfigError, match=case):
        JetStreamAdapter(engine, fake_model.fake_weights(0))


@pytest.mark.parametrize("mode", ["interleaved", "disaggregated"])
def test_the_driver_writes_what_the_engine_writes(mode, tmp_path):
    """More requests than slots; the oracle is the engine's own loop."""
    in_own_process("-m", "tests.rollout.jetstream.drive", mode, str(tmp_path / "tokens.json"))
    found = json.loads((tmp_path / "tokens.json").read_text())
    assert found == written_by_engine()


def in_own_process(*arguments):
    """What Python writes on stdout; the Driver kills its process where a thread fails.

    One of its own races does that: it asserts that a slot is in use just when the last request may
    have ended. Then, and only then, it is tried again.
    """
    flags = "--xla_force_host_platform_device_count=1"
    for _ in range(5):
        done = run_python(*arguments, timeout=300, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
        if done.returncode != -signal.SIGKILL or RACE not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


@functools.cache
def written_by_engine() -> list[list[int]]:
    from tests.rollout.jetstream import drive

    engine, weights = fake_model.fake_engine(), drive.weights()
    asked = request(0, greedy=True, max_new_tokens=drive.NUM_TOKENS)
    prompts = [np.array([1, *text.encode()], np.int32) for text in drive.TEXTS]
    return [Run(engine, weights).fill([p], [0], [asked]).decode(2).tokens[0] for p in prompts]
