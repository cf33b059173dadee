"""The scripted author: its questions have the truth it says, and it plants what it is told to."""

import contextlib
import io
import json
import random

import pytest

from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.synth import calls
from loong_jax.synth.resyn import gates, ideas
from loong_jax.synth.resyn.command import FIRST_SEED
from tests.synth.scripted import Ask, loongenv_roles, resyn_defects, resyn_roles, roles, world


def ask(prompt, defect=None, seed=0, **fields):
    return Ask(prompt_name=prompt, fields=fields, rng=random.Random(seed), defect=defect)


def printed(program):
    """What one of our own programs prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    return out.getvalue().strip()


@pytest.mark.parametrize("family", world.FAMILIES, ids=lambda family: family.name)
def test_questions_read_back_and_programs_reach_the_truth(family):
    rng = random.Random(1)
    for n in range(8):
        puzzle = world.Puzzle(
            family=family, values=family.draw(rng), wording=n % len(family.wordings),
            persona=world.PERSONA * (n % 2),
        )  # fmt: skip
        assert world.read(puzzle.question) == puzzle
        assert world.read(f"{puzzle.question} Hint: guess.") is None
        assert loongenv_roles.same(puzzle.truth, printed(puzzle.program()))
        assert not loongenv_roles.same(puzzle.truth, printed(puzzle.program(is_wrong=True)))


def test_every_role_has_a_prompt_and_every_defect_a_role():
    for name in roles.ROLES:
        if not name.startswith("judge/"):
            calls.prompt(name)
    assert len(roles.RATES) == len(roles.DEFECTS)
    for defect in roles.DEFECTS:
        assert set(defect.prompts) <= set(roles.ROLES), defect.name


@pytest.mark.parametrize("planted", loongenv_roles.DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_in_what_is_said(planted):
    """Told to plant it, a role does so, at the latest at the tenth try."""
    shown = [{"question": "How many legs have 3 spiders?", "code": "print(24)", "answer": "24"}]
    puzzle = world.draw("logic", random.Random(0))
    fields = {
        "domain": "logic", "examples": json.dumps(shown), "operator": "Deepen it.",
        "question": puzzle.question, "code": puzzle.program(), "reference": "12",
        "answer": "wrong" if planted.name == "judge_accepts" else puzzle.truth,
    }  # fmt: skip
    name = planted.prompts[-1]
    asked = (ask(name, planted.name, seed, **fields) for seed in range(10))
    assert any(roles.ROLES[name](one).defect == planted.name for one in asked)


@pytest.fixture(scope="module")
def pair():
    with ModuleRunner() as one, ModuleRunner() as other:
        yield one, other


@pytest.mark.bubblewrap
def test_the_solver_is_right_as_often_as_its_curve_says(pair):
    title = "x [digit_sum-a1]"
    module = Module(resyn_roles.source_of(title))
    seeds = range(FIRST_SEED, FIRST_SEED + 60)
    for level in (1, 5):
        posed = pair[0].run(module, [("pose", (level, seed)) for seed in seeds])
        states, questions = zip(*(one.value for one in posed), strict=True)
        said = [
            resyn_roles.solve(ask("resyn/solve", seed=n, title=title, question=question))
            for n, question in enumerate(questions)
        ]
        answers = [ideas.answer_of(one.text) for one in said]
        judged = pair[0].run(module, [("reward", p) for p in zip(states, answers, strict=True)])
        solved = sum(one.value is True for one in judged) / len(seeds)
        assert abs(solved - resyn_defects.FALLING[level - 1]) < 0.15
    unknown = ask("resyn/solve", title=title, question="never posed")
    assert "do not know" in resyn_roles.solve(unknown).text


@pytest.mark.bubblewrap
@pytest.mark.parametrize("kind", [k for k in resyn_defects.IDEA_KINDS if k not in "ad"])
def test_bad_ideas_are_sound_code(pair, kind):
    """They are for the judge and for calibration: the gates have nothing against them."""
    source = resyn_roles.source_of(f"x [prefix_sums-{kind}7]")
    assert gates.examine(Module(source), *pair).is_accepted
