"""Prompts of authors: one readable file per purpose in synth/prompts, and how data is put in.

A file has three parts between lines of three dashes: its purpose, the system message, the user
message. `{name}` in the user message becomes the field of that name between `<name>` and
`</name>` on lines of their own. Marks inside a field are escaped, so text of a model cannot leave
its place, and a reader of the messages finds every field again.
"""

import functools
import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable

from loong_jax.errors import ConfigError
from loong_jax.verifiers.judge import prompts
from loong_jax.verifiers.judge.prompts import Prompt


@functools.cache
def load(name: str) -> Prompt:
    """The prompt of this name, such as "loongenv/code"; ConfigError for an unknown one."""
    try:
        text = _directory().joinpath(f"{name}.md").read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise ConfigError(
            f"prompt {name!r} is unknown. Choose one of {', '.join(names())}."
        ) from None
    return read(text, name)


def read(text: str, name: str) -> Prompt:
    """A prompt from its file's text."""
    parts = text.split("\n---\n")
    if len(parts) != 3 or not parts[0].startswith("Purpose: "):
        raise ConfigError(
            f"prompt {name!r} must have three parts between lines of '---': 'Purpose: ...', the "
            "system message, the user message."
        )
    prompt = prompts.read(text)
    if len(set(prompt.fields)) != len(prompt.fields):
        raise ConfigError(f"prompt {name!r} has a field twice. Use each of {prompt.fields} once.")
    return prompt


@functools.cache
def names() -> tuple[str, ...]:
    """All prompts there are, sorted."""
    return tuple(sorted(_names(_directory(), "")))


def messages(prompt: Prompt, fields: Mapping[str, str]) -> list[dict[str, str]]:
    """The chat that asks; ConfigError where the fields are not exactly those of the prompt."""
    if set(fields) != set(prompt.fields):
        raise ConfigError(
            f"fields {sorted(fields)} are not those of the prompt, {sorted(prompt.fields)}. "
            "Give each, and no other."
        )
    marks = _marks(prompt)

    def filled(match: re.Match[str]) -> str:
        value = marks.sub(lambda mark: f"&lt;{mark[0][1:]}", fields[match[1]])
        return f"<{match[1]}>\n{value}\n</{match[1]}>"

    user = prompts.FIELD.sub(filled, prompt.user)
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": user}]


def _marks(prompt: Prompt) -> re.Pattern[str]:
    names = "|".join(prompt.fields) or "$^"
    return re.compile(rf"</?(?:{names})>")


def _directory() -> Traversable:
    return resources.files("loong_jax.synth").joinpath("prompts")


def _names(directory: Traversable, prefix: str) -> list[str]:
    found = []
    for entry in directory.iterdir():
        if entry.is_dir():
            found += _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".md"):
            found.append(prefix + entry.name.removesuffix(".md"))
    return found
