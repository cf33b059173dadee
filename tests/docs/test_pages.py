"""What the documentation names exists."""

import importlib.util
import inspect
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import cli, merge, recipes
from loong_jax.report import metrics_log
from loong_jax.rl import policy_model, trainer
from loong_jax.rl.objectives import loss
from loong_jax.rollout import records
from loong_jax.verifiers import VERIFIERS
from tests.docs.reading import DOCS, ROOT

MODEL = (DOCS / "explanation/model.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", MODEL)))


PLACES = ("models.moe", "models.moe.kernels", "models.moe.exchange", "models")


@pytest.mark.parametrize("name", [".".join(name) for name in NAMED])
def test_every_object_of_the_tour_exists(name):
    """A module of the models and an object in it, or a module of another room."""
    module, attribute = name.split(".")
    room = ROOT / "loong_jax" / module
    if room.is_dir():
        assert (room / f"{attribute}.py").exists()
        return
    places = [f"loong_jax.{place}.{module}" for place in PLACES]
    found = [importlib.import_module(p) for p in places if importlib.util.find_spec(p)]
    assert any(hasattr(module, attribute) for module in found)


def test_the_tour_runs_in_a_notebook():
    cell, of_rates = re.findall(r"```python\n(.*?)```", MODEL, re.S)
    found = {}
    exec(cell, found)
    exec(of_rates, {})
    whole = jnp.concatenate([jnp.asarray(found["tokens"]), jnp.stack(found["written"], 1)], axis=1)
    best = jnp.argmax(found["model"](whole).logits[:, 4:-1], axis=-1)
    np.testing.assert_array_equal(best, whole[:, 5:])
    assert set(found["gradient"]) == {"embedding", "layers", "final_norm", "head"}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
MADE = {"command_line.md", "recipes.md", "settings.md"}  # tools/site_pages.py


def test_every_picture_and_folder_exists():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            made = page.parent / target
            if "://" not in target and not (made.name in MADE and made.parent.name == "reference"):
                assert made.exists(), f"{page.name} points to {target}"
    rooms = re.findall(r"`(loong_jax/\w+)`", (ROOT / "README.md").read_text().split("## What")[0])
    assert len(rooms) > 10
    assert {ROOT / room for room in rooms} <= {path for path in (ROOT / "loong_jax").iterdir()}


def test_messages_name_pages_that_exist():
    """Docstrings and errors too: whoever moves a page meets them here."""
    folders = ("loong_jax", "launch", "tools", "experiments")
    files = [path for name in folders for path in (ROOT / name).rglob("*.*")]
    text = "\n".join(path.read_text() for path in files if path.suffix in {".py", ".sh"})
    pages = set(re.findall(r"(?<![\w/])docs/[\w/-]+\.md", text))
    assert len(pages) > 5
    assert {page for page in pages if not (ROOT / page).exists()} == set()


def test_figures_to_watch_are_keys_of_metrics():
    table = (DOCS / "how-to/debugging.md").read_text().split("| figure |")[1].split("\n\n")[0]
    figures = re.findall(r"^\| `([^`]+)`", table, re.M)
    made = (metrics_log, records.completion_metrics, trainer, loss, policy_model)
    code = "".join(map(inspect.getsource, made))
    assert len(figures) > 5
    assert {name for name in figures if f'"{name}"' not in code} == set()


def test_every_printed_command_is_one():
    seconds = {
        "train": recipes.RECIPES, "verify": {*VERIFIERS, "admission"}, "merge": merge.METHODS,
    }  # fmt: skip
    pages = [page for page in PAGES if not page.name.startswith("add_")]  # these add names
    fenced = [re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S) for page in pages]
    printed = "".join(itertools.chain.from_iterable(fenced))
    lines = re.findall(r"^(?:\.venv/bin/)?loong (.*)", printed, re.M)
    assert len(lines) > 50
    for line in lines:
        name, *rest = line.split()
        assert name in cli.COMMANDS or name.startswith("-") or name == "COMMAND", line
        second = rest[0] if rest else "-"
        own = second.startswith("-") or ".py:" in second or second.isupper()
        assert own or name not in seconds or second in seconds[name], line
