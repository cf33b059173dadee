"""Packages: written whole, read as written, refused where they were changed or pay for nonsense."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from loong_jax.data import packages
from loong_jax.data.packages import Package
from loong_jax.environments.modules import Module
from loong_jax.errors import ConfigError, LoongError
from tests.environments.module_texts import SUM

STEPS = "return [str(sum(numbers[: i + 1]))"


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


@pytest.mark.parametrize("name", ["my inv/x", "..", "", "a/b", "-x", "vector_sum"])
def test_a_name_that_is_no_directory_or_ours_is_refused(name):
    said = "is one of our own" if name == "vector_sum" else "is no word of letters"
    with pytest.raises(ConfigError, match=said):
        package(name=name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"module": SUM}, r"module='.*\.\.\. of a .* type str. Give Module\(TEXT\)"),
        ({"domain": None}, "domain=None of a package is of type NoneType"),
        ({"levels": 3}, "levels=3 of a package is of type int"),
        ({"levels": (1, "2")}, r"levels=\(1, '2'\).* are no whole numbers that ascend"),
        ({"about": None}, "about=None"),
    ],
)
def test_a_package_of_other_types_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(package(), **changes)


def test_a_module_is_a_text():
    with pytest.raises(ConfigError, match=r"source=.*read_text"):
        package(source=Path("odd.py"))  # pyright: ignore


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


RIGHT = "answer.strip() == reference(state)"
JUDGED = [  # of a reward: another condition
    (f"len(answer) > 50 or {RIGHT}", "the text 'xxx.* accepted"),
    (f"not ({RIGHT})", "the reference '[0-9]+' of level 1 is rejected"),
    (f"len(answer) > 2 and {RIGHT}", "the reference '[0-9][0-9]'"),
    ("str(int(answer)) == reference(state)", r"reward\(.*'x'\) .* gave no value .*ValueError"),
    (f"1 // (len(answer) < 50) and {RIGHT}", "is not judged .*Zero"),
    ("answer.nothing()", r"reward\(.* gave no value .*True or False"),
    (
        f"(not answer.isdigit() or 1 // int(answer)) and {RIGHT}",
        r"reward\(.*'0'\) .* gave no value \(raised: ZeroDivisionError",
    ),
    (
        "answer.isdigit() and str(int(answer)) == reference(state)",
        r"reward\(.*²'\) .* gave no value \(raised: ValueError",
    ),
]


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *((RIGHT, condition, said) for condition, said in JUDGED),
        ("seed * 8 + level", "level", "level 1 asks 'Add 17 72.' for each of 8 seeds"),
        ("    return {", "    {", r"generate\(1, .*generate gave None, not a JSON value"),
        (STEPS, "return [0 / 0", r"steps\(.*ZeroDiv.* list of texts"),
        (STEPS, "return str([1]) or [1", r"steps gave '\[1\]', not a"),
        (STEPS, "return [[1]", r"steps gave \[\[1\], .*, not a list"),
        ("[1, 2, 3, 4, 5]", "5", "levels gave 5, not a list of whole numbers"),
        ("return str(sum", "return (sum", r"reference gave \d+, not a text"),
        ('return "Add', 'return 5, "Add', r"question\(1, 109951.*question gave \[5, .* text"),
        ('return {"numbers": ', "return {7, *", r"generate\(1, 109951.*of type set.*a JSON value"),
        ("  rng", "  while True: pass\n    rng", r"generate\(1, 109951.*timeout.* of CPU"),
        ("[1, 2, 3, 4, 5]", "[1, 2]", "three to five"),
        ("import random", "import random, os", "line 2 imports os, none of .*math.*random"),
        ("def question(", "def quest(", r"no question\(\) but quest\(\); it needs levels, gener"),
        ("import random", "import", "line 2 is not Python: "),
        ("def steps(state)", "def steps(state, more)", "steps.. must take 1"),
    ],
)
def test_one_that_may_not_reward_says_why(old, new, said):
    with pytest.raises(LoongError, match=said):
        packages.require_sound(package(SUM.replace(old, new)))


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rng = random.Random(seed * 8 + level)", "rng = random", r"generate\(1, 109951\d+\) gave"),
        ("random.Random(seed * 8 + level)", "random.Random()", r"generate\(1, 109951\d+\) gave"),
        ('"Add "', '"Add " + "".join(set("abcdefghijklmnop"))', r"question\(1, .*'Add [a-p]"),
        ("return str(sum(", "return random.choice(['', '+']) + str(sum(", r"reference\("),
        ("[str(sum(numbers[: i + 1])) for", "[str(random.random()) for", r"steps\("),
    ],
)
def test_what_is_no_function_of_its_arguments_is_refused(old, new, said):
    """Unseeded draws, a generator without a seed, the order of a set."""
    with pytest.raises(ConfigError, match=f"{said}.* in another process, .* random.Random"):
        packages.require_sound(package(SUM.replace(old, new)))


def test_two_versions_of_a_package_are_named_by_age(tmp_path):
    texts = (SUM, SUM + "\n")
    newer, older = (packages.write(tmp_path, package(text), []) for text in texts)
    os.utime(older / "manifest.json", (1e9, 1e9))
    with pytest.raises(ConfigError, match=f"^{older} and {newer} are two .* rm -r {older}$"):
        packages.read_all(tmp_path)
