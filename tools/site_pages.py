"""Pages of the site that the package writes about itself: its commands, recipes and settings.

mkdocs calls `on_files` (mkdocs.yml, hooks). Nothing of these pages is in the repository.
"""

import contextlib
import inspect
import io
import os
from typing import Any
from unittest import mock

from mkdocs.structure.files import File, Files

from loong_jax import cli, recipes

WIDTH = "92"  # columns of a help text


def on_files(files: Files, *, config: Any) -> Files:
    pages = {"command_line": command_line(), "recipes": named_recipes(), "settings": settings()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def command_line() -> str:
    parts = ["# Command line\n\n`python -m loong_jax.cli ARGS` is the same as `loong ARGS`.\n"]
    parts.append(_block(cli.help_text()))
    for name, command in cli.COMMANDS.items():
        parts.append(f"## loong {name}\n\n{command.summary}\n\n{_block(_help(name))}")
    return "\n".join(parts)


def named_recipes() -> str:
    parts = [
        "# Recipes\n\n`loong train NAME` runs one of these; `--help` lists the settings that "
        "matter, and [settings](settings.md) has all. [Which recipe](../how-to/recipes.md) helps "
        "to choose.\n"
    ]
    for name in recipes.RECIPES:
        parts.append(f"## {name}\n\n{inspect.getdoc(recipes.get_recipe(name))}\n")
    return "\n".join(parts)


def settings() -> str:
    return (
        "# Settings\n\nEvery setting of `loong train rl` with its value, as `--help-all` has it. "
        "Other recipes have the same settings, under the names of their own stages: "
        "`--rl-stem.num-steps` of `quickstart` is `--rl.num-steps` here. "
        "[Configuration](configuration.md) says how they are given and kept.\n\n"
    ) + _block(_help("train", "rl", "--help-all"))


def _help(*words: str) -> str:
    shown = io.StringIO()
    given = words if words[-1].startswith("--") else (*words, "--help")
    plain = {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    with (
        mock.patch.dict(os.environ, plain),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        cli.main(given)
    return shown.getvalue()


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"
