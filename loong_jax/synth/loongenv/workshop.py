"""What every strategy works with: one domain's seeds, packages and earlier questions."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from loong_jax.synth.authors import structured
from loong_jax.synth.loongenv.asking import Asker
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.seeds import Seed

NUM_SHOWN = 3  # seeds in a prompt (arXiv 2509.03059, appendix)
MAX_SHOWN_CHARS = 6000  # of one seed: longer ones are left out of prompts
QUESTION = structured.fields(question=str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """`earlier` are questions that this strategy posed in finished rounds, oldest first."""

    asker: Asker
    domain: str
    seeds: Sequence[Seed]
    packages: Mapping[str, str]  # name -> version, of what may be imported
    earlier: Sequence[str] = ()

    @property
    def packages_text(self) -> str:
        lines = [f"- {name} {version}" for name, version in sorted(self.packages.items())]
        return "\n".join(lines) or "none but the standard library"

    def shown(self, rng: random.Random) -> list[Seed]:
        """The seeds of one prompt."""
        short = [s for s in self.seeds if len(s.question) + len(s.code) <= MAX_SHOWN_CHARS]
        return rng.sample(short, min(NUM_SHOWN, len(short)))

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.asker.seed}/{name}")


class Strategy(Protocol):
    """Poses questions: `propose` gives a candidate per id, open with a question, or ended."""

    @property
    def name(self) -> str: ...

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]: ...
