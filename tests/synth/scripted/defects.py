"""The defects that the scripted author plants, each with a name and a rate."""

import dataclasses
import random
from collections.abc import Mapping, Sequence

from loong_jax.errors import ConfigError


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

    def __post_init__(self):
        if not 0 <= self.scale <= 100:
            raise ConfigError(f"scale={self.scale} of the defects is not in 0..100. Use 1, or 0.")
        names = [defect.name for defect in self.defects]
        if unknown := sorted(set(self.rates) - set(names)):
            raise ConfigError(f"rates name {unknown}, which no defect has. Known: {sorted(names)}.")
        if len(set(names)) < len(names):
            raise ConfigError("two defects have one name. Give each its own.")

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
