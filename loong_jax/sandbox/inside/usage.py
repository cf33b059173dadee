"""Resource usage of a run, by the control group's count or by samples, and why it must end."""

import contextlib
import math
import os
import resource
import select
import time

from loong_jax.sandbox.inside import program, system

SAMPLE_S = 0.02  # how often usage is read while a program runs
FROZEN_S = 0.5  # a wait that ends so much late means that we were stopped
MAX_STRETCH = 4  # how far an overloaded machine may stretch a program's wall time


class State:
    """State that all runs share: our streams, the filter, and the control group's open files."""

    def __init__(self, setup):
        self.filter = bytes.fromhex(setup["filter"])
        self.group = {name: int(fd) for name, fd in setup["group"].items()}
        self.has_proc = setup["samples"] and os.path.isdir("/proc/self")
        self.streams = program.standard_streams()

    def read(self, name):
        return os.pread(self.group[name], 4096, 0) if name in self.group else b""

    def cpu_s(self):
        """CPU seconds of the control group since it was made, or None without one."""
        text = self.read("cpu")
        if not text:
            return None
        if text.startswith(b"usage_usec"):
            return int(text.split()[1]) / 1e6
        return int(text) / 1e9

    def kills(self):
        """Processes of the control group that the kernel killed for want of memory, a count."""
        words = self.read("kills").split()
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0


class Watch:
    """Drains a program's pipes while it runs and says why it must end."""

    def __init__(self, state, limits, start, cpu_before, used_before):
        self.state, self.limits, self.start = state, limits, start
        self.deadline = start + limits["wall_s"]
        self.cpu_before, self.used_before = cpu_before, used_before
        self.sampled_cpu_s = self.sampled_bytes = self.waited_s = 0.0
        self.has_group_cpu = "cpu" in state.group
        self.has_group_memory = "memory_peak" in state.group

    def drain(self, fds, caps):
        """(descriptor, 0, size) of a file in memory for each pipe, and why the reading ended."""
        kept = [os.memfd_create("output", os.MFD_CLOEXEC) for _ in fds]
        sizes = [0 for _ in fds]
        end = self.drain_into(fds, kept, sizes, caps)
        return [(fd, 0, size) for fd, size in zip(kept, sizes, strict=True)], end

    def drain_into(self, fds, kept, sizes, caps):
        view = memoryview(system.SCRATCH)
        index = {fd: i for i, fd in enumerate(fds)}
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        next_sample = self.start + SAMPLE_S
        while index:
            now = time.monotonic()
            if now >= self.deadline:
                if end := self.sample():
                    return end
                if not self.is_extended(now):
                    return "wall"
            if now >= next_sample:
                if end := self.sample():
                    return end
                next_sample = time.monotonic() + SAMPLE_S
            wait_s = max(0.0, min(self.deadline, next_sample) - now)
            ready = poll.poll(math.ceil(wait_s * 1000))
            self.forgive(time.monotonic() - now - wait_s)
            for fd, _ in ready:
                count = os.readv(fd, [view])
                i = index[fd]
                if not count:
                    poll.unregister(fd)
                    del index[fd]
                    continue
                system.write_all(kept[i], view[: min(count, caps[i] - sizes[i])])
                sizes[i] = min(sizes[i] + count, caps[i] + 1)
                if sizes[i] > caps[i]:
                    sizes[i] = caps[i]
                    self.sample()
                    return "output" if i < 3 else "artefact"
        return "closed"

    def forgive(self, late_s):
        """Time in which we ourselves stood still was not the program's to use."""
        if late_s > FROZEN_S:
            self.deadline += late_s
            self.start += late_s

    def is_extended(self, now):
        """Gives a program back the time it stood ready without a processor, up to a multiple."""
        wall_s = self.limits["wall_s"]
        self.deadline = self.start + wall_s + min(self.waited_s, (MAX_STRETCH - 1) * wall_s)
        return now < self.deadline

    def sample(self):
        """Reads what the program uses now; returns "cpu" or "memory" if that is too much."""
        if not (self.has_group_cpu and self.has_group_memory) or time.monotonic() >= self.deadline:
            self.sample_processes()
        if self.cpu_s() > self.limits["cpu_s"]:
            return "cpu"
        if not self.has_group_memory and self.sampled_bytes > self.limits["memory_bytes"]:
            return "memory"
        return ""

    def sample_processes(self):
        """Adds up every process but ourselves: without a control group, they are the run's."""
        if not self.state.has_proc:
            return
        tick, page = os.sysconf("SC_CLK_TCK"), resource.getpagesize()
        ticks = own = shared = waited = 0
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                ticks += sum(map(int, fields[11:15]))
                with open(f"/proc/{name}/statm", "rb") as file:
                    _, resident, common, *_ = map(int, file.read().split())
                own, shared = own + resident - common, max(shared, common)
                with open(f"/proc/{name}/schedstat", "rb") as file:
                    waited += int(file.read().split()[1])
        self.sampled_cpu_s = max(self.sampled_cpu_s, ticks / tick)
        self.sampled_bytes = max(self.sampled_bytes, (own + shared) * page)
        self.waited_s = max(self.waited_s, waited / 1e9)

    def cpu_s(self):
        used = self.state.cpu_s()
        return self.sampled_cpu_s if used is None else used - self.cpu_before

    def memory_bytes(self):
        peak = self.state.read("memory_peak")
        if not peak.strip().isdigit():
            return int(self.sampled_bytes)
        return max(0, int(peak) - self.used_before)


def set_group_limits(state, limits):
    for name, value in (("memory_max", limits["memory_bytes"]), ("pids_max", limits["pids"] + 2)):
        if name in state.group:
            with contextlib.suppress(OSError):
                os.pwrite(state.group[name], str(value).encode(), 0)
