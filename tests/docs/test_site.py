"""The site builds without a broken link or reference, and holds what the package says of itself."""

import os
import re
import subprocess
import sys

import pytest

from loong_jax import cli, recipes
from tests.docs.reading import DOCS, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    words = ["mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place


def test_every_command_and_recipe_has_its_section(site):
    commands = (site / "reference/command_line.html").read_text()
    assert re.findall(r'<h2 id="loong-([a-z-]+)"', commands) == list(cli.COMMANDS)
    named = (site / "reference/recipes.html").read_text()
    assert re.findall(r'<h2 id="([a-z-]+)"', named) == list(recipes.RECIPES)
    assert "--rl.scheduler.max-staleness" in (site / "reference/settings.html").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "loong_jax.models.load_hf",
        "loong_jax.models.moe.LongcatFlash",
        "loong_jax.merge.fuse",
        "loong_jax.rl.objectives.policy_loss",
        "loong_jax.verifiers.get_verifier",
        "loong_jax.environments.get_environment",
        "loong_jax.recipes.Recipe",
    ],
)
def test_what_may_be_imported_is_described(site, name):
    pages = (site / "reference/api").glob("*.html")
    assert any(f'id="{name}"' in page.read_text() for page in pages)


def test_lists_are_lists(site):
    """The site wants an empty line before a list, where other readers of Markdown do not."""
    texts = {page.name: page.read_text() for page in site.rglob("*.html")}
    found = {n: re.findall(r"<p>[^<]*(?:<(?!/p>)[^<]*)*\n- ", text) for n, text in texts.items()}
    assert {name for name, paragraphs in found.items() if paragraphs} == set()


def test_nothing_is_fetched_to_read_a_page(site):
    text = (site / "index.html").read_text()
    assert not re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="https?://[^"]*"', text)


def test_no_page_is_longer_than_a_reader_has_patience():
    lengths = {str(p.relative_to(DOCS)): p.read_text().count("\n") for p in DOCS.rglob("*.md")}
    assert {name: length for name, length in lengths.items() if length > 200} == {}
