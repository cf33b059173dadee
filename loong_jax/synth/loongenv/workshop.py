"""The resources of every strategy: one domain's seeds and packages, and the way to the author."""

import dataclasses
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.synth.authors import Author, Request, structured
from loong_jax.synth.loongenv.seeds import Seed

NUM_SHOWN = 3  # seeds in a prompt (arXiv 2509.03059, appendix)
MAX_SHOWN_CHARS = 6000  # of one seed: longer ones are left out of prompts
QUESTION = structured.fields(question=str)

# Failures that another try may mend. A call that timed out or met an error was tried again already.
_MENDABLE = ("refused", "malformed", "truncated")


class OverBudget(Exception):
    """The budget is spent: what is open stays so until somebody raises it."""


class Answer(NamedTuple):
    parsed: Any  # None where it failed
    failure: str
    calls: tuple[str, ...]  # keys of every try


class Asker:
    """`seed` is the run's; a request's own follows from it, the name, and the try.

    A reply that is refused, malformed or cut off is asked for up to `max_tries` times.
    """

    def __init__(self, author: Author, *, seed: int, max_tries: int = 2):
        self.author = author
        self.seed = seed
        self.max_tries = max_tries

    def ask(
        self,
        role: str,
        asked: Mapping[str, Mapping[str, str]],
        schema: Mapping[str, Any],
        prompt: str = "",
    ) -> dict[str, Answer]:
        """Answers by name, such as a candidate's id; `asked` holds the fields of each.

        OverBudget once a call is refused for it, AuthorDown once nobody answers.
        """
        found: dict[str, Answer] = {}
        tries: dict[str, tuple[str, ...]] = dict.fromkeys(asked, ())
        for number in range(self.max_tries):
            names = [name for name in asked if name not in found]
            requests = [
                Request(
                    role=role, prompt_name=f"loongenv/{prompt or role}", fields=asked[name],
                    seed=seed_of(self.seed, name, role, number), schema=schema,
                )
                for name in names
            ]  # fmt: skip
            for name, reply in zip(names, self.author.ask(requests), strict=True):
                if reply.failure == "over_budget":
                    raise OverBudget
                tries[name] += (reply.transcript.key,)
                is_last = number + 1 == self.max_tries
                if reply.failure is None:
                    found[name] = Answer(reply.parsed, "", tries[name])
                elif reply.failure not in _MENDABLE or is_last:
                    found[name] = Answer(None, f"{role} {reply.failure}", tries[name])
            self.author.require_up()
        return found


def seed_of(*parts: int | str) -> int:
    """A seed in 0..2^31-1 for these parts: the same here and everywhere."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


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
        short = [s for s in self.seeds if len(s.question) + len(s.code) <= MAX_SHOWN_CHARS]
        return rng.sample(short, min(NUM_SHOWN, len(short)))

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.asker.seed}/{name}")
