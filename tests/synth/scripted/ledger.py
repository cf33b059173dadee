"""What the scripted author really said: one line for every reply, with the defect it planted.

No part of the synthesis reads it; tests and the report of caught shares do.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.verifiers.judge.client import content_hash


def digest(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """Names a request on both sides: the transcript's messages and seed give the same."""
    return content_hash([dict(message) for message in messages], seed)


class Ledger:
    """Appends lines; without a path it keeps them in memory alone. Safe in threads."""

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self.entries: list[dict[str, Any]] = []  # of this process

    def write(self, entry: Mapping[str, Any]) -> None:
        with self._lock:
            self.entries.append(dict(entry))
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
