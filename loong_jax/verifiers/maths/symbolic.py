"""The symbolic rung: sympy in a child process that may be killed, never in ours.

The child counts CPU time by a profiling timer of the kernel, whose default action ends it, so the
limit neither needs a signal handler nor the main thread, and does not depend on the load.
"""

import contextlib
import json
import os
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from loong_jax.verifiers.child import Child, ChildLost
from loong_jax.verifiers.maths.expression import Node

_START_S = 60.0  # importing sympy takes 0.4 s on an idle machine
_WALL_FACTOR = 20  # wall time per CPU time: a loaded machine makes no answer late
MEMORY_BYTES = 2 * 2**30


class SymbolicChild:
    """Decides pairs of expressions; started by the first question, restarted when it dies."""

    def __init__(self, *, cpu_s: float = 0.5):
        self._cpu_s = cpu_s
        self._child: Child | None = None
        self._lock = threading.Lock()

    def __call__(self, gold: Node, answer: Node) -> bool | None:
        """True, False, or None where sympy cannot tell within its limits."""
        body = json.dumps([encode(gold), encode(answer)]).encode()
        if len(body) > 20_000:
            return None
        with self._lock:
            try:
                child = self._started()
                child.send(body, time.monotonic() + self._cpu_s * _WALL_FACTOR)
                return json.loads(child.receive(time.monotonic() + self._cpu_s * _WALL_FACTOR))
            except (ChildLost, TimeoutError, BrokenPipeError, OSError):
                self._stop()
                return None

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _started(self) -> Child:
        if self._child is None or not self._child.is_alive():
            self._stop()
            root = str(Path(__file__).resolve().parents[3])
            self._child = Child(
                [
                    sys.executable,
                    "-m",
                    "loong_jax.verifiers.maths.symbolic_child",
                    str(self._cpu_s),
                ],
                env={
                    "PATH": os.defpath,
                    "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)]),
                },
            )
            self._child.receive(time.monotonic() + _START_S)
        return self._child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def __del__(self):
        with contextlib.suppress(Exception):
            self._stop()


def encode(item: Any) -> Any:
    """A tree as JSON: nodes and tuples as lists, exact numbers as text."""
    if isinstance(item, Node):
        return ["node", item.head, *(encode(arg) for arg in item.args)]
    if isinstance(item, tuple):
        return ["tuple", *(encode(arg) for arg in item)]
    if isinstance(item, bool):
        return item
    if isinstance(item, int | Fraction):
        return ["exact", hex(item.numerator), hex(item.denominator)]
    return item


def decode(item: Any) -> Any:
    if not isinstance(item, list):
        return item
    tag, *rest = item
    if tag == "node":
        return Node(rest[0], tuple(decode(arg) for arg in rest[1:]))
    if tag == "exact":
        value = Fraction(int(rest[0], 16), int(rest[1], 16))
        return value.numerator if value.denominator == 1 else value
    return tuple(decode(arg) for arg in rest)
