"""A killable process that judges: deadlines are kept by killing it, never by a signal handler.

`WorkerProcess` is our side of it. The other side is this module run by `python -m`; it reads
requests from stdin, builds each verifier once, and writes verdicts to what was stdout.
"""

import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import verifiers as verifiers_room
from loong_jax.child import Child, ChildLost
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers import raised

_START_S = 60.0  # a start imports NumPy: 0.2 s on an idle machine
_MAX_LOSSES = 2
_AHEAD_BYTES = 4096  # requests under way beside the first: any pipe holds a page


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The settings of a worker's verifiers; plain JSON values, since they cross processes."""

    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Arguments of `get_verifier` by name of the verifier."""
    table: Mapping[str, str] = dataclasses.field(default_factory=dict)  # verifiers beside our own
    memory_bytes: int = 4 * 2**30  # address space of the worker


class WorkerProcess:
    """One worker, restarted when it is lost or killed. One caller at a time."""

    def __init__(self, config: WorkerConfig):
        self._config = config
        self._child: Child | None = None
        self._is_ended = False
        self.num_lost = 0  # crashed, or killed by someone else than a deadline

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child and self._child.is_alive() else None

    def prepare(self) -> None:
        """It starts with its first request."""

    def start(self) -> None:
        """Starts the worker unless it runs; raises ChildLost where it cannot."""
        if self._child is not None and self._child.is_alive():
            return
        self.stop()
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        config = json.dumps(dataclasses.asdict(self._config))
        self._child = Child(
            [sys.executable, "-m", "loong_jax.verifiers.worker", config, str(os.getpid())],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        try:
            self._child.receive(time.monotonic() + _START_S)
        except TimeoutError:
            raise ChildLost(f"it does not start within {_START_S:.0f} s") from None

    def judge(self, requests: Sequence[bytes], deadlines_s: Sequence[float]) -> list[bytes]:
        """Verdicts of requests, all as JSON, in order; never raises.

        Some are written ahead of their turn, so that the worker does not wait for us. A deadline
        counts from the verdict before; one that passes costs a restart besides.
        """
        verdicts: list[bytes] = []
        num_sent = num_lost = 0  # workers that the request whose turn it is has lost
        while (turn := len(verdicts)) < len(requests):
            if self._is_ended:
                verdicts.append(encode(verdict.ungradable("pool closed")))
                num_sent = turn + 1
                continue
            try:
                if num_sent == turn:
                    self.start()
                assert self._child is not None
                deadline = time.monotonic() + deadlines_s[turn]
                for request in requests[num_sent:]:
                    ahead = sum(map(len, requests[turn:num_sent]))
                    if ahead and ahead + len(request) > _AHEAD_BYTES:
                        break
                    try:
                        self._child.send(request, deadline)
                    except ChildLost:
                        break  # verdicts that came before can still be read
                    num_sent += 1
                verdicts.append(self._child.receive(deadline))
                num_lost = 0
                continue
            except TimeoutError:
                why = verdict.ungradable("timeout", f"no verdict in {deadlines_s[turn]} s")
            except ChildLost as error:
                num_lost += 1
                self.num_lost += 1
                evidence = f"the worker was lost: {error} ({num_lost} times)"
                why = verdict.ungradable("worker lost", evidence)
            self.stop()
            num_sent = turn
            if why.reason == "timeout" or num_lost == _MAX_LOSSES:
                verdicts.append(encode(why))
                num_sent, num_lost = turn + 1, 0
        return verdicts

    def end(self) -> None:
        """Kills the worker for good, from another thread than the one in `judge`, which returns."""
        self._is_ended = True
        if (child := self._child) is not None:
            child.kill()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


def encode(judged: Verdict) -> bytes:
    return json.dumps(dataclasses.asdict(judged)).encode()


def decode(body: bytes) -> Verdict:
    return Verdict(**json.loads(body))


# ---- Below: the worker's own process. ----


def judge(verifiers: dict[str, Any], config: WorkerConfig, request: Mapping[str, Any]) -> Verdict:
    """Verdict of one request; whatever a verifier raises makes the answer ungradable."""
    name = request["problem"].get("verifier", "")
    place = config.table.get(name, f"verifier {name!r}")
    try:
        problem = Problem.from_json(request["problem"])
        if name not in verifiers:
            options = config.options.get(name, {})
            verifiers[name] = verifiers_room.get_verifier(name, table=config.table, **options)
        return raised.as_verdict(verifiers[name].verify(problem, request["response_text"]), place)
    except (Exception, SystemExit) as error:
        return raised.verdict_on(error, place)


def main(argument: str, parent: int) -> None:
    config = WorkerConfig(**json.loads(argument))
    _die_with_parent(parent)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)  # left as it is: sandboxed programs set theirs
    soft = config.memory_bytes if hard == resource.RLIM_INFINITY else min(config.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a verifier prints is no frame
    verifiers: dict[str, Any] = {}
    _send(stdout, b"ready")
    while len(head := stdin.read(4)) == 4:
        request = json.loads(stdin.read(int.from_bytes(head, "little")))
        _send(stdout, encode(judge(verifiers, config, request)))
    for verifier in verifiers.values():
        verifier.close()


def _send(stdout: Any, body: bytes) -> None:
    stdout.write(len(body).to_bytes(4, "little") + body)
    stdout.flush()


def _die_with_parent(parent: int) -> None:
    """Asks the kernel to kill us when the thread that started us ends, as a hung worker must."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before
        raise SystemExit


_LEVEL = 1  # texts of one kind repeat each other: the fastest level takes most of it away


class VerifierActor:
    """Hands each request to its worker and returns the verdicts in order."""

    def __init__(self, config: WorkerConfig):
        self._worker = WorkerProcess(config)

    def start(self) -> int:
        """Starts the worker and returns this process's id."""
        self._worker.start()
        return os.getpid()

    def judge(self, block: bytes, deadlines_s: list[float]) -> bytes:
        """Requests and verdicts as `pack` writes them."""
        return pack(self._worker.judge(unpack(block), deadlines_s))


def pack(bodies: Sequence[bytes]) -> bytes:
    """One block of these texts; `unpack` gives them back in order."""
    framed = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    return zlib.compress(framed, _LEVEL)


def unpack(block: bytes) -> list[bytes]:
    framed = zlib.decompress(block)
    bodies, position = [], 0
    while position < len(framed):
        end = position + 4 + int.from_bytes(framed[position : position + 4], "little")
        bodies.append(framed[position + 4 : end])
        position = end
    return bodies


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
