"""What every environment promises, checked on all of them."""

import time

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.data import response
from loong_jax.environments import environment as base
from tests.environments import arithmetic

NAMES = sorted(environments.ENVIRONMENTS)
HOSTILE = [
    "",
    " ",
    "0" * 1_000_000,
    "x" * 1_000_000,
    "__import__('os').system('true')",
    "exec('1')",
    "().__class__",
    "9**9**9",
    "1<<99",
    "\x00",
    "\u0661\u0662\u0663\u0664",
    "[1,2,3,4]",
    "None",
    "nan",
]


def make(name):
    settings = {"run": arithmetic.run} if name == "masks" else {}
    return environments.get_environment(name, **settings)


@pytest.fixture(params=NAMES)
def env(request):
    return make(request.param)


def problems(env, count=20):
    return [env.problem(level, seed) for level in base.LEVELS for seed in range(count)]


def test_follows_the_protocol(env):
    assert isinstance(env, base.Environment)
    assert env.domain in environments.DOMAINS


def test_covers_every_domain():
    assert {make(name).domain for name in NAMES} == set(environments.DOMAINS)


def test_equal_arguments_give_equal_problems(env):
    for problem in problems(env, 3):
        assert env.problem(problem.level, problem.seed) == problem
        assert environments.Problem.from_json(problem.to_json()) == problem
        assert problem.gold is None
        assert problem.verifier == "environment"
        assert problem.arguments["environment"] == env.name


def test_canonical_forms_and_prompts_stand_for_each_other(env):
    drawn = problems(env, 100)
    assert len({p.canonical for p in drawn}) == len({p.prompt for p in drawn})
    assert len({p.canonical for p in drawn}) > 0.95 * len(drawn)


def test_every_level_has_enough_distinct_problems(env):
    counts = [env.num_distinct(level) for level in base.LEVELS]
    assert min(counts) >= 20_000
    assert counts == sorted(counts)


def test_accepts_its_gold(env):
    assert all(env.verify(p, env.gold(p)).is_correct for p in problems(env))


def test_rejects_perturbed_answers(env):
    for problem in problems(env, 4):
        gold = env.gold(problem)
        for place, character in enumerate(gold):
            for other in set("01234nx&^") - {character}:
                changed = gold[:place] + other + gold[place + 1 :]
                verdict = env.verify(problem, changed)
                if env.name != "masks":
                    assert verdict.outcome == "wrong", changed
        assert env.verify(problem, gold[:-1]).outcome == "wrong"
        assert env.verify(problem, gold + "1").outcome == "wrong"


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda a: repr(a[:16]))
def test_rejects_hostile_answers_at_once(env, answer):
    start = time.perf_counter()
    assert env.verify(env.problem(2, 0), answer).outcome == "wrong"
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("answer", [None, 3, b"1202", ["1202"], {"a": 1}])
def test_rejects_answers_that_are_not_text(env, answer):
    assert env.verify(env.problem(2, 0), answer).outcome == "wrong"


@pytest.mark.parametrize("style", environments.STYLES)
def test_solutions_have_three_steps_and_are_right(env, style):
    for problem in problems(env, 5):
        thinking, answer = env.solve(problem, np.random.default_rng(problem.seed), style)
        mark = base.EXACT if style == "careful" else base.LEAP
        num_steps = thinking.count(mark)
        assert thinking.startswith(mark)
        assert num_steps == (problem.level + 3 if style == "careful" else 3)
        assert env.verify(problem, answer).is_correct
        text = response.render_response(thinking, answer)
        assert response.parse_response(text) == (thinking, answer)


def test_headline_problems_fit_the_miniature_model(env):
    for seed in range(20):
        problem = env.problem(2, seed)
        thinking, answer = env.solve(problem, np.random.default_rng(0), "careful")
        assert len(problem.prompt) + 1 <= 32
        assert len(thinking) + len(answer) + 5 <= 48


def test_steps_are_aligned_with_operations(env):
    """One operation of the prompt and one written value take the same number of tokens."""
    problem = env.problem(2, 0)
    thinking, _ = env.solve(problem, np.random.default_rng(0), "careful")
    assert len(problem.prompt) - len(thinking) == 4


def test_hurried_thinking_leaves_out_values_of_careful_thinking(env):
    problem = env.problem(3, 1)
    careful = env.solve(problem, np.random.default_rng(0), "careful").thinking
    seen = {env.solve(problem, np.random.default_rng(s), "hurried").thinking for s in range(30)}
    assert len(seen) > 3
    for thinking in seen:
        assert set(thinking.split(base.LEAP)) <= set(careful.split(base.EXACT))


def test_a_problem_of_another_environment_is_refused():
    with pytest.raises(ValueError, match="belongs to"):
        make("gates").verify(make("vector_sum").problem(1, 0), "1202")


def test_unknown_names_and_levels_are_refused(env):
    with pytest.raises(ValueError, match="unknown"):
        environments.get_environment("nothing")
    with pytest.raises(ValueError, match="level=6"):
        env.problem(6, 0)
    with pytest.raises(ValueError, match="level=0"):
        env.num_distinct(0)
