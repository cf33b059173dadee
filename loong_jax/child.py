"""A child process that answers frames: a 4-byte little-endian length and that many bytes."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

MAX_FRAME_BYTES = 128 * 2**20
_STOP_S = 30.0


class ChildLost(Exception):
    """The child ended, or sent what is no frame. Start another."""


class Child:
    """One child process with frames on its stdin and stdout; stdout carries nothing else.

    It leads its own session, so that `stop` ends it and whatever it started. One caller at a time.
    """

    def __init__(self, command: Sequence[str], **popen: Any):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **popen
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._write_fd = self.process.stdin.fileno()
        self._read_fd = self.process.stdout.fileno()
        self._unread = bytearray()  # what came with frames before
        os.set_blocking(self._write_fd, False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def send(self, body: bytes, deadline: float) -> None:
        """Sends one frame. `deadline` is a `time.monotonic()`; raises TimeoutError or ChildLost."""
        self.write(len(body).to_bytes(4, "little") + body, deadline)

    def write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._write_fd, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ChildLost("it closed its input") from None

    def receive(self, deadline: float) -> bytes:
        """Returns the next frame; raises TimeoutError or ChildLost."""
        size = int.from_bytes(self._read(4, deadline), "little")
        if size > MAX_FRAME_BYTES:
            raise ChildLost(f"a frame of {size} bytes is above {MAX_FRAME_BYTES}")
        return self._read(size, deadline)

    def receive_until(self, end: bytes, deadline: float, max_bytes: int) -> bytes:
        """Reads from a child that sends no frames up to an end mark; for one reply at a time."""
        found = b""
        while not found.endswith(end):
            found += self._more(deadline)
            if len(found) > max_bytes:
                raise ChildLost(f"a reply is above {max_bytes} bytes")
        return found

    def kill(self) -> None:
        """Kills the child's process group; whoever waits for a frame gets ChildLost."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kills and reaps the child; may be called twice.

        One that cannot die (it waits inside the kernel) is left for `subprocess` to reap later.
        """
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self, size: int, deadline: float) -> bytes:
        while len(self._unread) < size:
            self._unread += self._more(deadline)
        body = bytes(self._unread[:size])
        del self._unread[:size]
        return body

    def _more(self, deadline: float) -> bytes:
        self._wait(self._read_fd, select.POLLIN, deadline)
        if not (chunk := os.read(self._read_fd, 2**20)):
            raise ChildLost("it ended")
        return chunk

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        remaining_s = max(0.0, deadline - time.monotonic())
        if not poll.poll(remaining_s * 1000):  # what came while we were stopped ourselves counts
            raise TimeoutError

    def last_words(self) -> str:
        """The rest of a killed child's stderr, if that is a pipe."""
        if self.process.stderr is None:
            return ""
        poll = select.poll()
        poll.register(self.process.stderr, select.POLLIN)
        if not poll.poll(1000):
            return ""
        return os.read(self.process.stderr.fileno(), 2000).decode(errors="replace").strip()
