"""Where hosts live: what `hosted_replicas` asks of whatever starts processes and carries bytes."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from loong_jax.rollout.host_messages import HostSetup

Receive = Callable[[Any], None]
Ended = Callable[[str], None]


@runtime_checkable
class Host(Protocol):
    """One process. Messages arrive once and in order, or the host ends."""

    def start(self, receive: Receive, ended: Ended) -> None:
        """Begins to start the process. `receive` is called with each report, `ended` once with the
        reason when no more will come; both in threads of the host.
        """
        ...

    def send(self, message: Any, data: Any = None) -> None:
        """One command, with what `Placement.share` made of its bytes. From any thread. Silent
        where the host has ended: `ended` says it.
        """
        ...

    def kill(self) -> None:
        """Ends the process at once. May be called twice."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the process; false where it goes on."""
        ...


@runtime_checkable
class Placement(Protocol):
    """A kind of place, and how it is reached."""

    def new(self, number: int, setup: HostSetup) -> Host: ...

    def share(self, data: np.ndarray) -> Any:
        """uint8 bytes in the form in which `Host.send` takes them, once for all hosts."""
        ...

    def close(self) -> None:
        """After the last host has ended."""
        ...
