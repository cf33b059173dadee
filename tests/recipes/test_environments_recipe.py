"""Environment packages as a recipe's problems: chosen, tried, demonstrated."""

import dataclasses
import shutil

import pytest

from loong_jax import configs
from loong_jax.data import json_files, packages
from loong_jax.data.packages import Package
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.environments.modules import Module
from loong_jax.errors import ConfigError
from loong_jax.recipes import PackagedProblems, get_recipe, problems
from loong_jax.run import demonstrations, run
from loong_jax.run.demonstrations import held_out
from loong_jax.run.session import Session
from loong_jax.run.texts import Texts
from tests.environments.module_texts import SUM
from tests.synth.scripted.resyn_families import FAMILIES

pytestmark = pytest.mark.bubblewrap
TEXTS = Texts(tokenizer=AsciiTokenizer())
LONGEST = {"double": (8, 9, 10, 11, 12), "product": (9, 11, 13, 15, 17),
           "maze": (900, 900, 900, 900, 900)}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("packages")
    for name, chars in LONGEST.items():
        package = Package(
            name=name, module=Module(FAMILIES[name].source()), levels=(1, 2, 3, 4, 5),
            domain="logic", licence="Apache-2.0", author="scripted", title=name,
            about={"prompt_chars": list(chars)},
        )  # fmt: skip
        packages.write(place, package, [])
    return place


def test_packages_are_domains(directory):
    chosen = PackagedProblems(directory=str(directory)).by_domain()
    assert list(chosen) == ["double", "product"]  # the third asks too much
    assert chosen["double"].levels == (1, 2, 3, 4, 5)
    few = PackagedProblems(directory=str(directory), max_prompt_chars=10, levels=(1, 2))
    assert {name: d.levels for name, d in few.by_domain().items()} == {"double": (1, 2)}
    problems.require_sound(chosen.values())


def test_a_package_that_does_not_say_how_long_its_questions_are_is_measured(tmp_path):
    source = FAMILIES["double"].source()
    package = Package(
        name="double", module=Module(source), levels=(1, 2, 3), domain="logic",
        licence="Apache-2.0", author="me", title="double",
    )  # fmt: skip
    packages.write(tmp_path, package, [])
    assert list(PackagedProblems(directory=str(tmp_path)).by_domain()) == ["double"]
    short = PackagedProblems(directory=str(tmp_path), max_prompt_chars=5)
    with pytest.raises(ConfigError, match=r"double up to \d+\. Raise --max-prompt-chars"):
        short.by_domain()
    (place,) = tmp_path.iterdir()
    with pytest.raises(ConfigError, match="is a package itself"):
        PackagedProblems(directory=str(place)).by_domain()


def test_the_longest_questions_and_responses_fit():
    full = get_recipe("environments")()
    shown, posed = full.stages["sft"], full.stages["rl"]
    longest = full.problems.max_prompt_chars + 2 + posed.sampling.max_new_tokens  # with marks
    assert longest <= min(full.engine.cache_length, posed.row_length, shown.row_length)
    assert longest <= full.model.max_position


@pytest.mark.parametrize(
    ("change", "said"),
    [({"directory": ""}, "--packages"), ({"names": ("nobody",)}, "holds no package"),
     ({"max_prompt_chars": 3}, "Raise --max-prompt-chars"), ({"levels": (1, 9)}, "has level 9")],
)  # fmt: skip
def test_a_choice_of_nothing_is_refused(directory, change, said):
    with pytest.raises(ConfigError, match=said):
        PackagedProblems(**{"directory": str(directory)} | change).by_domain()


def test_a_run_without_packages_is_not_begun(tmp_path):
    with pytest.raises(ConfigError, match="--packages"):
        run.train(get_recipe("environments")(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "randrange(100)", "randrange(2)",
            r"problems drawn from level 2 of odd .*Leave it out, or",
        ),
        ('"Add ', '"Plus\u00e9 ', "problem odd-.* cannot be asked: character '\u00e9' at"),
    ],
    ids=["too few problems", "a question without tokens"],
)  # fmt: skip
def test_a_package_that_cannot_be_posed_is_refused_before_the_first_step(tmp_path, old, new, said):
    odd = Package(
        name="odd", module=Module(SUM.replace(old, new)), levels=(1, 2, 3), domain="stem",
        licence="CC0-1.0", author="me", title="odd",
    )  # fmt: skip
    packages.write(tmp_path, odd, [])
    own = PackagedProblems(directory=str(tmp_path))
    recipe = dataclasses.replace(get_recipe("environments")(), problems=own)
    with pytest.raises(ConfigError, match=said):
        Session(recipe)
    with pytest.raises(ConfigError, match=said):
        run.try_out(recipe, tmp_path / "run")


def test_sides_of_the_split_and_demonstrations(directory):
    chosen = PackagedProblems(directory=str(directory), levels=(1, 2))
    settings = dataclasses.replace(get_recipe("environments")(), problems=chosen)
    posed = held_out(settings, "product", "test", 6)
    assert len({problem.canonical for problem in posed}) == 6
    taught = iter(demonstrations.pairs_of(settings, settings.stages["sft"], TEXTS))
    pairs = [next(taught) for _ in range(12)]
    assert {prompt[:3] for prompt, _ in pairs} == {"dbl", "mul"}
    assert not {prompt for prompt, _ in pairs} & {problem.prompt for problem in posed}


def test_a_run_keeps_to_the_packages_it_began_with(directory, tmp_path):
    """By the digest of their modules, which stands in the names of their directories."""
    problems = PackagedProblems(directory=str(directory))
    recipe = dataclasses.replace(get_recipe("environments")(), problems=problems)
    run._with_inputs(recipe, tmp_path)  # a run that begins
    began = run._packages(problems)
    json_files.write_json(tmp_path / run.PACKAGES, began)
    run._with_inputs(recipe, tmp_path)
    configs.open_run(recipe, tmp_path)
    moved = shutil.copytree(directory, tmp_path / "moved")
    there = PackagedProblems(directory=str(moved))
    (change,) = configs.open_run(dataclasses.replace(recipe, problems=there), tmp_path)
    assert (change.key, change.given) == ("problems.directory", str(moved))
    run._with_inputs(configs.load(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match=r"nowhere' is no directory\. .* RUN --packages DIR"):
        PackagedProblems(directory=str(tmp_path / "nowhere")).by_domain()
    name, uid = next(iter(began.items()))
    json_files.write_json(tmp_path / run.PACKAGES, began | {name: uid[:-1] + "?"})
    with pytest.raises(ConfigError, match=r"is not what .* began with.*Put the packages back"):
        run._with_inputs(recipe, tmp_path)
