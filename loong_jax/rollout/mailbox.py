"""The commands of one replica, for as long as somebody carries them out."""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from loong_jax.rollout.replica import Replica


class Command(NamedTuple):
    """Something to do with a replica in its own thread."""

    carry_out: Callable[[Replica], None]
    if_lost: Callable[[], None] = lambda: None  # instead, where nobody will


class Mailbox:
    """One life of a replica. Every command is carried out or lost, and hears which.

    A command that raises counts as lost, and its error ends the replica.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.is_over = False

    def put(self, command: Command) -> None:
        """From any thread. After the end, `if_lost` is called at once."""
        with self._lock:
            if not self.is_over:
                self._commands.put(command)
                return
        command.if_lost()

    def carry_out(self, replica: Replica, wait_s: float) -> None:
        """All that wait; where nothing does, the first has `wait_s` to come."""
        try:
            command = self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait()
            while True:
                try:
                    command.carry_out(replica)
                except Exception:
                    command.if_lost()
                    raise
                command = self._commands.get_nowait()
        except queue.Empty:
            pass

    def end(self) -> None:
        """Commands that still wait are lost."""
        with self._lock:
            self.is_over = True
        while True:
            try:
                self._commands.get_nowait().if_lost()
            except queue.Empty:
                return
