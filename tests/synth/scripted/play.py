"""What a scripted role is asked and says, the defects it plants, and the ledger of both."""

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """A reply. `defect` names what was planted; `truth` is for the ledger alone."""

    text: str
    defect: str | None = None
    truth: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Role = Callable[[Ask], Said]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defect:
    name: str
    about: str  # what is wrong, in a few words
    rate: float  # share of the replies to its prompts
    prompts: tuple[str, ...] = ()  # whose replies may have it; none: of every prompt


# Of the way and of the form of a reply; the server plants them, whoever plays.
COMMON = (
    Defect(name="timed_out", about="no byte of a body before the client gives up", rate=0.004),
    Defect(name="http_500", about="status 500, for good", rate=0.006),
    Defect(name="rate_limited", about="status 429 at the first attempt, then answers", rate=0.02),
    Defect(name="dropped", about="the connection closes before the body", rate=0.004),
    Defect(name="refusal", about="the model declines", rate=0.02),
    Defect(name="malformed_json", about="the reply breaks off its JSON in the midst", rate=0.02),
    Defect(name="missing_key", about="JSON without one of its keys", rate=0.01),
    Defect(name="truncated", about="cut at the token limit", rate=0.01),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Which defects are planted, and how often. `scale` multiplies every rate."""

    defects: tuple[Defect, ...]
    scale: float = 1.0
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)  # instead of their own

    def rate_of(self, defect: Defect) -> float:
        return min(1.0, self.scale * self.rates.get(defect.name, defect.rate))

    def draw(self, prompt_name: str, rng: random.Random) -> str | None:
        """At most one defect for a reply to this prompt."""
        position, total = rng.random(), 0.0
        for defect in self.of(prompt_name):
            total += self.rate_of(defect)
            if position < total:
                return defect.name
        return None

    def of(self, prompt_name: str) -> Sequence[Defect]:
        return [d for d in self.defects if not d.prompts or prompt_name in d.prompts]


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
