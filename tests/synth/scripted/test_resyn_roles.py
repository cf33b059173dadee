"""The scripted author of ReSyn: ideas, modules with planted defects, a solver of known rates."""

import random

import pytest

from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.sandbox import Limits
from loong_jax.synth.resyn import gates, ideas
from loong_jax.synth.resyn.command import FIRST_SEED
from tests.sweeps import thinned
from tests.synth.scripted import resyn_defects, resyn_roles
from tests.synth.scripted.play import Ask

pytestmark = pytest.mark.bubblewrap
LIMITS = Limits(cpu_s=0.7, wall_s=60.0, result_bytes=2**20)


@pytest.fixture(scope="module")
def pair():
    with ModuleRunner(LIMITS) as one, ModuleRunner(LIMITS) as other:
        yield one, other


def ask(prompt, defect=None, seed=0, **fields):
    return Ask(prompt_name=prompt, fields=fields, rng=random.Random(seed), defect=defect)


# what would pay for something else than solving; the others break modules as test_gates does
@pytest.mark.parametrize(
    "name",
    thinned(
        resyn_defects.CHANGES,
        *(n for n, name in enumerate(resyn_defects.CHANGES) if name in resyn_defects.LOOPHOLES),
    ),
)
@pytest.mark.parametrize("family", thinned(["rotate", "subset_sum", "walk"], 0))
def test_no_planted_defect_of_code_passes_the_gates(pair, family, name):
    title = f"x [{family}-a1]"
    asked = ask("resyn/module", resyn_defects.IN_MODULE + name, title=title, description="")
    said = resyn_roles.module(asked)
    assert said.defect == f"module: {name}"
    source = ideas.code_of(said.text)
    assert source != resyn_roles.source_of(title)
    found = gates.examine(Module(source), *pair)
    assert not found.is_accepted
    assert found.gate in gates.GATES


@pytest.mark.parametrize("name", ["answer_leaked", "answer_in_note"])
@pytest.mark.parametrize("family", ["subset_sum", "walk"])
def test_an_answer_of_several_words_leaks_too(pair, family, name):
    source = resyn_roles.source_of(f"x [{family}-a1]")
    source = resyn_defects.planted(source, name, random.Random(0))
    assert gates.examine(Module(source), *pair).gate == "leak"


def test_the_solver_is_right_as_often_as_its_curve_says(pair):
    title = "x [digit_sum-a1]"
    module = Module(resyn_roles.source_of(title))
    seeds = range(FIRST_SEED, FIRST_SEED + 60)
    solved = {}
    for level in (1, 5):
        posed = pair[0].run(module, [("pose", (level, seed)) for seed in seeds])
        answers = [
            resyn_roles.solve(ask("resyn/solve", seed=n, title=title, question=one.value[1]))
            for n, one in enumerate(posed)
        ]
        calls = [
            ("reward", (one.value[0], ideas.answer_of(said.text)))
            for one, said in zip(posed, answers, strict=True)
        ]
        judged = pair[0].run(module, calls)
        solved[level] = sum(one.value is True for one in judged) / len(seeds)
        assert solved[level] == sum(said.truth["right"] for said in answers) / len(seeds)
    assert abs(solved[1] - resyn_defects.FALLING[0]) < 0.15
    assert abs(solved[5] - resyn_defects.FALLING[4]) < 0.15
    unknown = ask("resyn/solve", title=title, question="never posed")
    assert "do not know" in resyn_roles.solve(unknown).text


@pytest.mark.parametrize("kind", [k for k in resyn_defects.IDEA_KINDS if k not in "ad"])
def test_bad_ideas_are_sound_code(pair, kind):
    """They are for the judge and for calibration: the gates have nothing against them."""
    source = resyn_roles.source_of(f"x [prefix_sums-{kind}7]")
    assert gates.examine(Module(source), *pair).is_accepted
