"""Packages: written whole, read as written, refused where they were changed or pay for nonsense."""

import json
import os

import pytest

from loong_jax.data import packages
from loong_jax.data.packages import Package
from loong_jax.environments.modules import Module
from loong_jax.errors import ConfigError
from tests.environments.module_texts import SUM


def package(source=SUM, name="sum"):
    return Package(
        name=name, module=Module(source), levels=(1, 2, 3, 4, 5), domain="stem",
        licence="CC0-1.0", author="scripted", title="Sums", about={"keyword": "addition"},
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path):
    place = packages.write(tmp_path, package(), [{"key": "k", "reply": "text"}])
    assert place.name == f"sum-{Module(SUM).hash}"
    assert packages.read(place) == package()
    assert packages.read_all(tmp_path) == [package()]
    assert json.loads((place / "transcript.jsonl").read_text())["reply"] == "text"


def test_a_changed_module_is_refused(tmp_path):
    place = packages.write(tmp_path, package(), [])
    (place / "environment.py").write_text(SUM.replace("== reference", "!= reference"))
    with pytest.raises(ConfigError, match="was changed after"):
        packages.read(place)


@pytest.mark.parametrize("damage", ["manifest", "version", "empty", "twice", "key"])
def test_what_is_no_package_is_refused(tmp_path, damage):
    place = packages.write(tmp_path, package(), [])
    manifest = json.loads((place / "manifest.json").read_text())
    if damage == "manifest":
        (place / "manifest.json").unlink()
    elif damage == "empty":
        tmp_path = tmp_path / "nothing"
    elif damage == "twice":
        packages.write(tmp_path, package(SUM + "\n"), [])
    else:
        if damage == "version":
            manifest["format_version"] = 99
        else:
            del manifest["levels"]
        (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError):
        packages.read_all(tmp_path)


@pytest.mark.bubblewrap
def test_a_package_is_tried_before_it_rewards():
    packages.require_sound(package())


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("answer.strip() ==", "len(answer) > 50 or answer.strip() ==", "the text 'xxx.* accepted"),
        ("answer.strip() ==", "answer.strip() !=", "the reference '[0-9]+' of level 1 is rejected"),
        ("answer.strip()", "answer.nothing()", "is not judged"),
        ("[1, 2, 3, 4, 5]", "[1, 2]", "three to five"),
        ("import random", "import random, os", "line 2 imports os"),
        ("def steps(state)", "def steps(state, more)", "steps.. must take 1"),
    ],
)
def test_one_that_may_not_reward_says_why(old, new, said):
    with pytest.raises(ConfigError, match=said):
        packages.require_sound(package(SUM.replace(old, new)))


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rng = random.Random(seed * 8 + level)", "rng = random", r"generate\(1, 109951\d+\) gave"),
        ("random.Random(seed * 8 + level)", "random.Random()", r"generate\(1, 109951\d+\) gave"),
        (
            '"Add " +',
            '"Add " + next(iter(set("abcdefgh"))) +',
            r"question\(1, .*'Add [a-h]",
        ),
        ("return str(sum(", "return random.choice(['', '+']) + str(sum(", r"reference\("),
        ("[str(sum(numbers[: i + 1])) for", "[str(random.random()) for", r"steps\("),
    ],
)
def test_what_is_no_function_of_its_arguments_is_refused(old, new, said):
    """Unseeded draws, a generator without a seed, the order of a set."""
    with pytest.raises(ConfigError, match=f"{said}.* in another process, .* random.Random"):
        packages.require_sound(package(SUM.replace(old, new)))


def test_two_versions_of_a_package_are_named_by_age(tmp_path):
    newer, older = (
        packages.write(tmp_path, package(), []),
        packages.write(tmp_path, package(SUM + "\n"), []),
    )
    os.utime(older / "manifest.json", (1e9, 1e9))
    with pytest.raises(ConfigError, match=f"^{older} and {newer} are two .* rm -r {older}$"):
        packages.read_all(tmp_path)
