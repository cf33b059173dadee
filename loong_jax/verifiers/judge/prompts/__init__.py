"""Prompts of judges: one readable file per purpose, and how data is put into it."""

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

NAMES = ("direct", "reasoning", "rubric")


class Prompt(NamedTuple):
    purpose: str
    system: str
    user: str
    digest: str  # of the whole file


@functools.cache
def load(name: str) -> Prompt:
    """The prompt of this name; its file holds purpose, instructions and place of the data."""
    text = resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8")
    purpose, system, user = text.split("\n---\n")
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return Prompt(purpose.removeprefix("Purpose: ").strip(), system, user.strip(), digest)


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
