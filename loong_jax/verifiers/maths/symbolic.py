"""The symbolic rung: sympy in processes that may be killed, never in ours.

A server imports sympy in the background and forks a process per question. A profiling timer of the
kernel ends that process when its CPU time is spent, whatever the load.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from loong_jax.child import Child, ChildLost
from loong_jax.errors import VerifierError
from loong_jax.verifiers.maths.expression import Node

_WAIT_S = 8.0  # for the server to be ready, beside the question of another thread
_WALL_FACTOR = 10  # wall time per CPU time: a loaded machine makes no answer late
MEMORY_BYTES = 2 * 2**30


class SymbolicLost(VerifierError):
    """sympy could not be asked, which says nothing about the answer."""


class SymbolicServer:
    """Decides pairs of expressions; started ahead, restarted when it dies. Safe between threads."""

    def __init__(self, *, cpu_s: float = 0.5):
        self._cpu_s = cpu_s
        self._child: Child | None = None
        self._is_ready = False
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):  # a first question tries again, and says why not
            self._begin()

    def budget(self) -> Callable[[Node, Node], bool | None]:
        """Asks as long as the CPU time of one verdict lasts."""
        left_s = self._cpu_s

        def ask(gold: Node, answer: Node) -> bool | None:
            nonlocal left_s
            if left_s < 0.01:
                return None
            outcome, used_s = self.ask(gold, answer, left_s)
            left_s -= used_s
            return outcome

        return ask

    def ask(self, gold: Node, answer: Node, cpu_s: float) -> tuple[bool | None, float]:
        """True, False, or None where sympy cannot tell within its limits; and its CPU seconds.

        Raises SymbolicLost where it could not be asked in time.
        """
        body = json.dumps([cpu_s, encode(gold), encode(answer)]).encode()
        if len(body) > 20_000:
            return None, 0.0
        deadline = time.monotonic() + _WAIT_S
        if not self._lock.acquire(timeout=_WAIT_S):
            raise SymbolicLost(f"other threads kept sympy for {_WAIT_S:g} s. Judge it again.")
        try:
            for _ in range(2):
                try:
                    return self._answer(body, deadline)
                except (ChildLost, OSError) as error:
                    self._stop()
                    why = str(error)
        finally:
            self._lock.release()
        raise SymbolicLost(f"the process of sympy was lost twice: {why}. Judge it again.")

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _begin(self) -> Child:
        """A server on its way to be ready, or one that is."""
        if self._child is None or not self._child.is_alive():
            self._stop()
            paths = [str(Path(__file__).resolve().parents[3]), *filter(None, sys.path)]
            self._child = Child(
                [sys.executable, "-m", "loong_jax.verifiers.maths.symbolic_server"],
                env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths)},
            )
        return self._child

    def _answer(self, body: bytes, deadline: float) -> tuple[bool | None, float]:
        child = self._begin()
        try:
            if not self._is_ready:
                child.receive(deadline)
                self._is_ready = True
        except TimeoutError:  # it goes on starting meanwhile
            raise SymbolicLost(f"sympy was not ready in {_WAIT_S:g} s. Judge it again.") from None
        wall_s = self._cpu_s * _WALL_FACTOR
        try:
            child.send(body, time.monotonic() + wall_s)
            outcome, used_s = json.loads(child.receive(time.monotonic() + wall_s))
        except TimeoutError:
            self._stop()
            raise SymbolicLost(f"no answer of sympy in {wall_s:g} s. Use fewer workers.") from None
        return outcome, used_s

    def _stop(self) -> None:
        self._is_ready = False
        if self._child is not None:
            self._child.stop()
            self._child = None

    def __del__(self):
        with contextlib.suppress(Exception):
            self._stop()


def encode(item: Any) -> Any:
    """A tree as JSON: nodes and tuples as lists, exact numbers as text."""
    match item:
        case Node(head, args):
            return ["node", head, *map(encode, args)]
        case tuple():
            return ["tuple", *map(encode, item)]
        case int() | Fraction() if not isinstance(item, bool):
            return ["exact", hex(item.numerator), hex(item.denominator)]
    return item


def decode(item: Any) -> Any:
    match item:
        case ["node", head, *args]:
            return Node(head, tuple(map(decode, args)))
        case ["exact", above, below]:
            value = Fraction(int(above, 16), int(below, 16))
            return value.numerator if value.denominator == 1 else value
        case ["tuple", *parts]:
            return tuple(map(decode, parts))
    return item
