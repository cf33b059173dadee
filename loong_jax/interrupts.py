"""Ctrl-C and SIGTERM, which end a command alike, and a training loop only between two steps.

Slurm, Kubernetes and clouds send SIGTERM some seconds before they take a machine away.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


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
    """The handler of SIGTERM after the block is that before it, whatever a library set inside."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def between_steps() -> Iterator[None]:
    """From the first `let_through` in the block on, a signal waits for the next one.

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


def _on_signal(number: int, _: Any) -> None:
    global _waiting
    kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    if _holds and _waiting is None:
        _waiting = kind
        return
    _waiting = None
    raise kind
