"""What a scripted role is asked, and what it says."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any


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
