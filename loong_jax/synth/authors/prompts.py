"""Prompts of authors: one readable file per purpose in synth/prompts, and how data is put in.

A file has three parts between lines of three dashes: its purpose, the system message, the user
message. `{name}` in the user message becomes the field of that name between `<name>` and
`</name>` on lines of their own. Marks inside a field are escaped, so text of a model cannot leave
its place, and a reader of the messages finds every field again.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from loong_jax.verifiers.judge import prompts
from loong_jax.verifiers.judge.prompts import Prompt

DIRECTORY = Path(__file__).parents[1] / "prompts"


@functools.cache
def load(name: str) -> Prompt:
    """The prompt of this name, such as "loongenv/code"."""
    return prompts.read((DIRECTORY / f"{name}.md").read_text(encoding="utf-8"))


def messages(prompt: Prompt, fields: Mapping[str, str]) -> list[dict[str, str]]:
    marks = re.compile(rf"</?(?:{'|'.join(prompt.fields) or '$^'})>")

    def filled(match: re.Match[str]) -> str:
        value = marks.sub(lambda mark: f"&lt;{mark[0][1:]}", fields[match[1]])
        return f"<{match[1]}>\n{value}\n</{match[1]}>"

    user = prompts.FIELD.sub(filled, prompt.user)
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": user}]
