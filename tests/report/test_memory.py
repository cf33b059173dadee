"""Proportional set sizes against a made-up /proc and against a real child."""

import os
import subprocess
import sys
import threading
import time

import pytest

from loong_jax.report import usage as memory


def process(proc, pid, parent, pss_kb=None, name="a (b) c"):
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1")
    if pss_kb is not None:
        (directory / "smaps_rollup").write_text(
            f"00-ff ---p 0 [rollup]\nRss: {9 * pss_kb} kB\nPss: {pss_kb} kB\nPss_Dirty: 1 kB"
        )


def test_the_tree_is_summed_and_strangers_are_not(tmp_path):
    process(tmp_path, 10, 1, 100)
    process(tmp_path, 11, 10, 20)
    process(tmp_path, 12, 11, 3)
    process(tmp_path, 13, 10)  # gone: no rollup
    process(tmp_path, 20, 1, 5000)
    process(tmp_path, 21, 20, 700)
    (tmp_path / "meminfo").write_text("")
    assert memory.children_of(10, tmp_path) == [10, 11, 13, 12]
    assert memory.tree_bytes(10, proc=tmp_path) == 123 * 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs smaps_rollup")
def test_a_child_raises_the_peak_and_leaves_it_when_it_ends():
    with memory.MemoryMonitor(interval_s=0.05) as monitor:
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
    monkeypatch.setattr(memory, "tree_bytes", lambda **_: next(sizes) * 10**9)
    monitor = memory.MemoryMonitor()
    for _ in range(2):
        monitor.sample()
    assert monitor.stage_peak_gb() == 9.0
    monitor.sample()
    assert monitor.stage_peak_gb() == 4.0
    assert monitor.peak_gb == 9.0


def test_pages_are_walked_again_only_where_there_may_be_more_of_them(monkeypatch):
    resident, looks, looked = iter([100, 100, 101, 90, 150, 150]), [], threading.Event()

    def tree_bytes(*, size_of=memory.proportional_bytes, **_):
        if size_of is memory.proportional_bytes:
            return 70 + len(looks)
        looks.append(next(resident, None))
        if looks[-1] is None:
            looked.set()
            raise OSError("seen enough")
        return looks[-1]

    monkeypatch.setattr(memory, "tree_bytes", tree_bytes)
    with memory.MemoryMonitor(interval_s=0.001) as monitor:
        assert looked.wait(10)
        assert monitor.num_samples == 3  # at the start, at 100 and at 150
        assert monitor.peak_bytes == 75


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs smaps_rollup")
def test_no_process_has_less_resident_than_its_share():
    pid = os.getpid()
    assert memory.resident_bytes(pid) >= 0.9 * memory.proportional_bytes(pid) > 10**6
    assert memory.resident_bytes(2**30) == 0
