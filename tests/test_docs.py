"""What the documentation names exists."""

import importlib
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
MODEL = (ROOT / "docs/explanation/model.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", MODEL)))


@pytest.mark.parametrize("name", [".".join(name) for name in NAMED])
def test_every_object_of_the_tour_exists(name):
    module, attribute = name.split(".")
    places = [
        f"loong_jax.{package}.{module}" for package in ("models", "models.moe", "models.moe.kernels")
    ]
    files = [ROOT / place.replace(".", "/") for place in places]
    found = [file.is_dir() or file.with_suffix(".py").exists() for file in files]
    assert hasattr(importlib.import_module(places[found.index(True)]), attribute)


def test_the_tour_runs_in_a_notebook():
    (cell,) = re.findall(r"```python\n(.*?)```", MODEL, re.S)
    found = {}
    exec(cell, found)
    whole = jnp.concatenate([jnp.asarray(found["tokens"]), jnp.stack(found["written"], 1)], axis=1)
    best = jnp.argmax(found["model"](whole).logits[:, 4:-1], axis=-1)
    np.testing.assert_array_equal(best, whole[:, 5:])
    assert set(found["gradient"]) == {"embedding", "layers", "final_norm", "head"}


def test_every_picture_and_folder_exists():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} points to {target}"
    for folder in re.findall(r"^\| `(loong_jax[/\w]*)`", (ROOT / "README.md").read_text(), re.M):
        assert (ROOT / folder).is_dir(), folder
