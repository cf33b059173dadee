"""What a scripted role is asked and says, the defects it plants, and the ledger of both."""

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.verifiers.judge.client import content_hash


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, read back from its messages."""

    prompt_name: str
    fields: Mapping[str, Any]  # as the author's request gave them
    rng: random.Random  # seeded by the script's seed, the messages and the request's seed
    defect: str | None  # what the role is to plant, if it can


@dataclasses.dataclass(frozen=True)
class Said:
    """A reply. `defect` names what was planted."""

    text: str
    defect: str | None = None


Role = Callable[[Ask], Said]


class Defect(NamedTuple):
    name: str
    rate: float  # share of the replies to its prompts
    prompts: tuple[str, ...]  # whose replies may have it; none: of every prompt


def defects(*prompts: str, **rates: float) -> tuple[Defect, ...]:
    """Those of the replies to `prompts`, each with its rate."""
    return tuple(Defect(name, rate, prompts) for name, rate in rates.items())


# Of the way and of the form of a reply; the server plants them, whoever plays.
COMMON = defects(
    timed_out=0.004,  # no byte of a body before the client gives up
    http_500=0.006,
    rate_limited=0.02,  # status 429 at the first attempt, then answers
    dropped=0.004,  # the connection closes before the body
    refusal=0.02,
    malformed_json=0.02,
    missing_key=0.01,
    truncated=0.01,
)


def digest(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """Names a request on both sides: the transcript's messages and seed give the same."""
    return content_hash([dict(message) for message in messages], seed)


class Ledger:
    """Appends lines; without a path it keeps them in memory alone. Safe in threads."""

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self.entries: list[dict[str, Any]] = []  # of this process

    def write(self, **entry: Any) -> None:
        with self._lock:
            self.entries.append(entry)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
