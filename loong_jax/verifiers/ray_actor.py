"""The verifiers' actor on Ray, and its batches: many JSON texts as one compressed block.

A module of its own, so that an actor's process loads little and never JAX.
"""

import os
import zlib
from collections.abc import Sequence

from loong_jax.verifiers.worker import WorkerConfig, WorkerProcess

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
        bodies = unpack(block)
        return pack(
            [
                self._worker.judge(body, deadline_s)
                for body, deadline_s in zip(bodies, deadlines_s, strict=True)
            ]
        )


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
