import contextlib
import io
import json
import random

import pytest

from loong_jax.synth import calls
from loong_jax.verifiers.loongbench.domains import DOMAINS
from tests.synth.scripted import Ask, loongenv_roles, roles, world
from tests.synth.scripted.families import FAMILIES


def printed(program):
    """What one of our own programs prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    return out.getvalue().strip()


@pytest.mark.parametrize("family", world.FAMILIES, ids=lambda family: family.name)
def test_questions_read_back_and_programs_reach_the_truth(family):
    rng = random.Random(1)
    for _ in range(8):
        puzzle = world.Puzzle(
            family=family, values=family.draw(rng), wording=rng.randrange(len(family.wordings))
        )
        puzzle = world.with_persona(world.deepened(puzzle, rng), rng)
        assert world.read(puzzle.question) == puzzle
        assert world.read(puzzle.question + " Hint: guess.") is None
        assert loongenv_roles.same(puzzle.truth, printed(puzzle.program()))
        plain = world.Puzzle(family=family, values=family.draw(rng))
        assert not loongenv_roles.same(plain.truth, printed(plain.program(is_wrong=True)))


def test_all_twelve_domains_have_questions():
    assert {family.domain for family in FAMILIES} == set(DOMAINS)


def test_every_role_has_a_prompt_and_every_defect_a_role():
    for name in roles.ROLES:
        if not name.startswith("judge/"):
            calls.prompt(name)
    named = [defect.name for defect in roles.DEFECTS]
    assert len(named) == len(set(named)) >= 15
    for defect in roles.DEFECTS:
        assert set(defect.prompts) <= set(roles.ROLES), defect.name


@pytest.mark.parametrize("defect", [d.name for d in loongenv_roles.DEFECTS])
def test_a_planted_defect_is_in_what_is_said(defect):
    """Told to plant it, a role does so, at the latest at the tenth try."""
    [planted] = [d for d in loongenv_roles.DEFECTS if d.name == defect]
    shown = [{"question": "How many legs have 3 spiders?", "code": "print(24)", "answer": "24"}]
    puzzle = world.draw("logic", random.Random(0))
    fields = {
        "domain": "logic", "examples": json.dumps(shown), "packages": "", "operator": "Deepen it.",
        "question": puzzle.question, "code": puzzle.program(), "answer": puzzle.truth,
        "parent": "", "reference": "12",
    }  # fmt: skip
    if defect == "judge_accepts":
        fields["answer"] = "wrong"
    name = planted.prompts[-1]
    for seed in range(10):
        ask = Ask(prompt_name=name, fields=fields, rng=random.Random(seed), defect=defect)
        if roles.ROLES[name](ask).defect == defect:
            return
    raise AssertionError(f"{name} never plants {defect}")
