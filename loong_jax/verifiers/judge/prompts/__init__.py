"""Prompts of judges: one readable file per purpose, and how data is put into it."""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

NAMES = ("direct", "reasoning", "rubric")
FIELD = re.compile(r"\{([a-z_]+)\}")


class Prompt(NamedTuple):
    """A file of three parts between lines of three dashes."""

    purpose: str
    system: str
    user: str
    digest: str  # of the whole file

    @property
    def fields(self) -> tuple[str, ...]:
        """The names in braces in the user message, in order."""
        return tuple(FIELD.findall(self.user))


def read(text: str) -> Prompt:
    """The prompt of a file's text."""
    purpose, system, user = text.split("\n---\n")
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    purpose = " ".join(purpose.removeprefix("Purpose: ").split())
    return Prompt(purpose, system.strip(), user.strip(), digest)


@functools.cache
def load(name: str) -> Prompt:
    """The prompt of this name; its file holds purpose, instructions and place of the data."""
    return read(resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8"))


def messages(name: str, data: Mapping[str, object]) -> list[dict[str, str]]:
    """Chat messages that ask about `data`, which travels as JSON and cannot leave its string.

    `<`, `>` and everything beyond ASCII are escaped, so neither a token of a chat template nor a
    look-alike survives. The mark is a hash of the data, which no answer can contain.
    """
    prompt = load(name)
    body = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e")
    mark = hashlib.blake2b((prompt.digest + body).encode(), digest_size=8).hexdigest()
    fenced = f"BEGIN {mark}\n{body}\nEND {mark}"
    return [
        {"role": "system", "content": prompt.system.replace("{mark}", mark)},
        {"role": "user", "content": prompt.user.replace("{data}", fenced)},
    ]
