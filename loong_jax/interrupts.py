"""Ctrl-C and SIGTERM, which end a command alike, and a training loop only between two steps.

Slurm, Kubernetes and clouds send SIGTERM some seconds before they take a machine away.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit statuses after SIGINT and SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What cleans up after Ctrl-C cleans up after it too."""


_holds = False  # signals wait
_waiting: type[KeyboardInterrupt] | None = None


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread, as SIGINT raises KeyboardInterrupt.

    Changes nothing where another thread asks, which can set no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The handler of SIGTERM after the block is that before it, whatever a library set inside.

    A library that took SIGTERM for an exit meanwhile raised SystemExit with its number.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM:
            raise Terminated from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def between_steps() -> Iterator[None]:
    """A block of steps: from its first `let_through` on, a signal waits for the next one.

    A second signal waits for nothing.
    """
    global _holds
    try:
        yield
    finally:
        _holds = False
    let_through(holds=False)


def is_waiting() -> bool:
    """True where a signal came and `let_through` is to raise it."""
    return _waiting is not None


def let_through(*, holds: bool = True) -> None:
    """Raises the signal that waits, if any; later ones wait again where it `holds`."""
    global _holds, _waiting
    _holds, waited, _waiting = holds, _waiting, None
    if waited is not None:
        _holds = False
        raise waited


def leave(status: int) -> NoReturn:
    """Ends this process; after a signal at once, with its Ray.

    Threads may compile or sample then, and an interpreter that is taken down under them crashes.
    """
    if status not in (INTERRUPTED, TERMINATED):
        sys.exit(status)
    if (ray := sys.modules.get("ray")) is not None:
        with contextlib.suppress(Exception):
            ray.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _on_signal(number: int, _: Any) -> None:
    global _waiting
    kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    if _holds and _waiting is None:
        _waiting = kind
        return
    _waiting = None
    raise kind
