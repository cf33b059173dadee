"""Memory of a tree of processes, against a real child; steps that are traced."""

import builtins
import os
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import psutil
import pytest

from loong_jax.errors import ConfigError
from loong_jax.report import usage


def test_processes_that_end_meanwhile_count_nothing(monkeypatch):
    class Ended(psutil.Process):
        def memory_info(self):
            raise psutil.NoSuchProcess(self.pid)

    others = [Ended(), psutil.Process(os.getppid())]
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: others)
    total = usage.tree_bytes(usage.resident_bytes)
    assert total > usage.resident_bytes(psutil.Process(os.getppid())) > 0


def test_processes_that_the_system_hides_are_passed_over(monkeypatch):
    def opened(file, *arguments, _open=open, **settings):
        if file == "/proc/1/stat":  # as where /proc is mounted with hidepid=1
            raise PermissionError(1, "Operation not permitted", file)
        return _open(file, *arguments, **settings)

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = []
    monkeypatch.setattr(builtins, "open", opened)
    usage.tree_bytes(lambda one: seen.append(one.pid) or 0)
    child.communicate(b"\n")
    assert seen[0] == os.getpid()
    assert child.pid in seen
    assert 1 not in seen


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs smaps_rollup")
def test_a_child_raises_the_peak_and_leaves_it_when_it_ends():
    with usage.MemoryMonitor(interval_s=0.05) as monitor:
        before = monitor.sample()
        code = "x = bytearray(b'1') * 400_000_000; print('up', flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        deadline = time.monotonic() + 5
        while monitor.peak_bytes < before + 380_000_000 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate("\n")
    # This process shares the machine with other tests, so its own size moves a little.
    assert before + 350_000_000 < monitor.peak_bytes < before + 650_000_000
    assert monitor.sample() < before + 250_000_000
    assert monitor.peak_gb == monitor.peak_bytes / 1e9


def test_every_stage_has_its_own_peak(monkeypatch):
    sizes = iter([5, 9, 3, 4, 2])
    monkeypatch.setattr(usage, "tree_bytes", lambda: next(sizes) * 10**9)
    monitor = usage.MemoryMonitor()
    for _ in range(2):
        monitor.sample()
    assert monitor.stage_peak_gb() == 9.0
    monitor.sample()
    assert monitor.stage_peak_gb() == 4.0
    assert monitor.peak_gb == 9.0


def test_pages_are_walked_again_only_where_there_may_be_more_of_them(monkeypatch):
    resident, looks, looked = iter([100, 100, 101, 90, 150, 150]), [], threading.Event()

    def tree_bytes(size_of=usage.proportional_bytes):
        if size_of is usage.proportional_bytes:
            return 70 + len(looks)
        looks.append(next(resident, 0))
        if not looks[-1]:
            looked.set()
        return looks[-1]

    monkeypatch.setattr(usage, "tree_bytes", tree_bytes)
    with usage.MemoryMonitor(interval_s=0.001) as monitor:
        assert looked.wait(10)
        assert monitor.num_samples == 3  # at the start, at 100 and at 150
        assert monitor.peak_bytes == 75


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs smaps_rollup")
def test_no_process_has_less_resident_than_its_share():
    this = psutil.Process()
    assert usage.resident_bytes(this) >= 0.9 * usage.proportional_bytes(this) > 10**6


def test_a_trace_of_the_steps_that_were_asked_for(tmp_path, monkeypatch, caplog):
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
    assert "no step was traced" not in caplog.text
    run(2)
    assert "no step was traced: the first 3 of a start are not, and 2 were done." in caplog.text
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
