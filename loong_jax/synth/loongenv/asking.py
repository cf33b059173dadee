"""Asks an author for many candidates at once, again where a reply is useless."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from loong_jax.synth.authors import Author, Request

# What another try may mend. A call that timed out or met an error was tried again already.
_MENDABLE = ("refused", "malformed", "truncated")


class OverBudget(Exception):
    """The budget is spent: what is open stays so until somebody raises it."""


class Answer(NamedTuple):
    parsed: Any  # None where it failed
    failure: str
    calls: tuple[str, ...]  # keys of every try


class Asker:
    """`seed` is the run's; a request's own follows from it, the name, and the try."""

    def __init__(self, author: Author, *, seed: int, max_tries: int):
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
