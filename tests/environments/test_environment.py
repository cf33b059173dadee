"""What every environment promises, whatever its problems are."""

import collections
import json
import re
import sys
import time

import numpy as np
import pytest

from loong_jax import environments
from loong_jax.data.response import parse_response, render_response
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.environments import ENVIRONMENTS, LEVELS, STYLES, Problem, environment, runner
from loong_jax.recipes import quickstart
from tests.bounds import EXPLODES_S
from tests.environments import evaluator

CODE = ("masks",)
SEEDS = range(12)
ALL_DIGITS, NO_ZERO = "0123456789", "123456789"
INSTEAD = {  # what a digit, letter or bracket of an answer may be taken for
    "vector_sum": "012", "gates": ALL_DIGITS, "masks": "01", "basket": ALL_DIGITS,
    "equation": NO_ZERO, "fractions": NO_ZERO, "units": NO_ZERO, "bases": NO_ZERO,
    "divisor": NO_ZERO, "urn": NO_ZERO, "truths": "01", "ranking": "abcdefgh",
    "program": NO_ZERO, "registers": ALL_DIGITS, "rewriting": "ab", "comparators": ALL_DIGITS,
    "brackets": ")]}", "run_length": NO_ZERO, "postfix": NO_ZERO, "addition": NO_ZERO,
    "largest": NO_ZERO,
}  # fmt: skip
PLACES = {"ranking": "[a-z]", "rewriting": "[a-z]", "brackets": r"[)\]}]"}  # elsewhere: digits
BEST_GUESS = {
    "vector_sum": 0.02, "gates": 0.01, "masks": 0.04, "basket": 0.02, "equation": 0.01,
    "fractions": 0.07, "units": 0.01, "bases": 0.02, "divisor": 0.03, "urn": 0.03,
    "truths": 0.02, "ranking": 0.01, "program": 0.09, "registers": 0.01, "rewriting": 0.09,
    "comparators": 0.01, "brackets": 0.03, "run_length": 0.01, "postfix": 0.05,
    "addition": 0.02, "largest": 0.02,
}  # fmt: skip
ALIGNED = ("vector_sum", "gates", "masks")
WORDED = ("largest",)  # for models that read English, longer than the miniature recipe reads

PAYLOADS = (
    "__import__('os').system('true')",
    "x.__class__",
    "x.real",
    "9**9**9",
    "x<<99",
    "lambda:x",
    "[x]*9",
    "x=1",
    "1;1",
    "0x1.8p9",
    "\uff11\u0662\u0661\u0660",  # digits, and not ASCII
    "1\x00",
    "\ud800",
    "<eos>",
    "$1$",
    "1e9",
    "nan",
)
TOO_LONG = ("1" * 10**6, "(" * 10**6, "x" * 10**6, " " * 10**6, "\n" * 10**6)
NO_TEXTS = (None, 5, b"1*x+1", ["1*x+1"], {}, 1.5, True, object())
NO_ANSWERS = ("", " ", "\n", "(((((((", ")x(", "()", "-", "x(x)", "x x", "007")

every_environment = pytest.mark.parametrize("name", ENVIRONMENTS)
every_level = pytest.mark.parametrize("level", LEVELS)


def make(name, run=evaluator.run):
    return environments.get_environment(name, **({"run": run} if name in CODE else {}))


def neighbours(name, answer):
    """The answer with one digit (letter, bracket) changed, in every way."""
    for match in re.finditer(f"0b|{PLACES.get(name, '[0-9]')}", answer):
        for symbol in INSTEAD[name]:
            if match[0] not in ("0b", symbol):
                yield answer[: match.start()] + symbol + answer[match.end() :]


@every_environment
@every_level
def test_a_problem_is_a_pure_function_of_level_and_seed(name, level):
    one, other = make(name), make(name)
    problems = [one.problem(level, seed) for seed in SEEDS]
    assert problems == [other.problem(level, seed) for seed in reversed(SEEDS)][::-1]
    assert {problem.level for problem in problems} == {level}
    assert {problem.domain for problem in problems} == {one.domain}
    for key in ("canonical", "prompt", "uid"):
        assert len({getattr(problem, key) for problem in problems}) == len(problems)


@every_environment
def test_levels_differ_and_others_are_refused(name):
    judge = make(name)
    sizes = [sum(len(judge.problem(level, n).prompt) for n in range(60)) for level in LEVELS]
    assert sorted(set(sizes)) == sizes
    for level in (0, 6, -1):
        for refusing in (lambda at: make(name).problem(at, 0), make(name).num_distinct):
            with pytest.raises(ValueError, match=f"level={level} is not in"):
                refusing(level)


@every_environment
@every_level
def test_accepts_its_own_solutions_in_both_styles(name, level):
    judge = make(name)
    for seed in SEEDS:
        problem = judge.problem(level, seed)
        assert judge.verify(problem, judge.gold(problem)).is_correct
        for style in STYLES:
            solution = judge.solve(problem, np.random.default_rng(seed), style)
            assert solution == judge.solve(problem, np.random.default_rng(seed), style)
            assert judge.verify(problem, solution.answer).is_correct


@every_environment
@every_level
def test_solutions_have_steps_that_lead_to_the_answer(name, level):
    judge, tokenizer = make(name), AsciiTokenizer()
    for seed in SEEDS:
        problem = judge.problem(level, seed)
        steps = {}
        for style in STYLES:
            solution = judge.solve(problem, np.random.default_rng(seed), style)
            rendered = render_response(*solution)
            assert parse_response(rendered) == solution
            assert tokenizer.decode(tokenizer.encode(rendered)) == rendered
            mark = environment.EXACT if style == "careful" else environment.LEAP
            empty, *steps[style] = solution.thinking.split(mark)
            assert empty == ""
        assert len(steps["hurried"]) == 3 <= len(steps["careful"])
        careful = iter(steps["careful"])
        assert all(step in careful for step in steps["hurried"])  # the same values, some left out
        assert steps["hurried"][-1] == steps["careful"][-1]


@every_environment
@every_level
def test_rejects_every_neighbour_of_the_gold_answer(name, level):
    judge = make(name)
    for seed in SEEDS:
        problem = judge.problem(level, seed)
        found = list(neighbours(name, judge.gold(problem)))
        assert len(found) >= 4
        for answer in found:
            judged = judge.verify(problem, answer)
            assert (judged.outcome, judged.reason) == ("wrong", "value"), answer


@every_environment
def test_what_is_no_answer_is_wrong_at_once_and_never_runs(name):
    judge = make(name, run=evaluator.refuse)
    problem = judge.problem(3, 0)
    before_s = time.process_time()
    for answer in (*PAYLOADS, *TOO_LONG, *NO_TEXTS):
        judged = judge.verify(problem, answer)
        assert (judged.outcome, judged.reason) == ("wrong", "format"), repr(answer)[:40]
    assert time.process_time() - before_s < EXPLODES_S


@every_environment
def test_what_only_looks_like_an_answer_is_wrong(name):
    judge = make(name)
    problem = judge.problem(3, 0)
    outcomes = {answer: judge.verify(problem, answer).outcome for answer in NO_ANSWERS}
    assert set(outcomes.values()) == {"wrong"}, outcomes


@pytest.mark.parametrize("name", CODE)
def test_code_answers_run_in_the_sandbox_where_nothing_else_is_given(name):
    judge = environments.get_environment(name)
    problem = judge.problem(2, 0)
    gold = judge.gold(problem)
    try:
        assert judge.verify(problem, gold).is_correct
        outcomes = [judge.verify(problem, answer) for answer in (*NO_ANSWERS, gold + gold)]
        assert {judged.outcome for judged in outcomes} == {"wrong"}
        assert judge.verify(problem, next(neighbours(name, gold))).reason == "value"
        assert runner.shared().tier in ("process", "namespaces")
    finally:
        runner.shared().close()


@every_environment
def test_judges_no_problem_of_another(name):
    judge = make(name)
    other = next(other for other in ENVIRONMENTS if other != name)
    with pytest.raises(ValueError, match=f"belongs to '{other}', not '{name}'"):
        judge.gold(make(other).problem(1, 0))


@every_environment
def test_a_problem_read_from_json_is_judged_alike(name):
    judge = make(name)
    problem = judge.problem(4, 7)
    again = Problem.from_json(json.loads(json.dumps(problem.to_json())))
    assert again == problem
    assert judge.gold(again) == judge.gold(problem)
    assert judge.verify(again, judge.gold(problem)).is_correct


@every_environment
def test_a_problem_holds_no_reference_answer(name):
    problem = make(name).problem(2, 0)
    assert (problem.gold, problem.rubric) == (None, None)
    assert (problem.verifier, problem.arguments["environment"]) == ("environment", name)
    assert problem.uid.startswith(f"{name}-")


@pytest.mark.parametrize("name", ALIGNED)
def test_steps_are_aligned_with_operations(name):
    """One operation of the prompt and one written value take the same number of tokens."""
    judge = make(name)
    for level in LEVELS:
        problem = judge.problem(level, 0)
        thinking, _ = judge.solve(problem, np.random.default_rng(0), "careful")
        assert len(problem.prompt) - len(thinking) == 4


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name not in WORDED])
def test_level_1_fits_the_miniature_recipe(name):
    """Its engine reads 32 tokens, the first of them <bos>, and writes 48."""
    judge, tokenizer = make(name), AsciiTokenizer()
    num_read = quickstart.quickstart().engine.prefill_length
    for seed in range(200):
        problem = judge.problem(1, seed)
        solution = judge.solve(problem, np.random.default_rng(0), "careful")
        assert 1 + len(tokenizer.encode(problem.prompt)) <= num_read == 32
        assert len(tokenizer.encode(render_response(*solution))) <= quickstart.MAX_NEW_TOKENS == 48


@every_environment
def test_prompts_have_tokens(name):
    tokenizer = AsciiTokenizer()
    for level in LEVELS:
        for seed in SEEDS:
            prompt = make(name).problem(level, seed).prompt
            assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


@pytest.mark.parametrize(("name", "best_guess"), BEST_GUESS.items())
def test_one_answer_for_all_problems_is_seldom_right(name, best_guess):
    judge = make(name)
    for level in (1, 5):
        golds = [judge.gold(judge.problem(level, seed)) for seed in range(500)]
        assert collections.Counter(golds).most_common(1)[0][1] < best_guess * 500 + 10


def test_levels_with_few_problems_are_known():
    few = [
        (name, level)
        for name in ENVIRONMENTS
        for level in LEVELS
        if make(name).num_distinct(level) < 20_000
    ]
    assert few == [("addition", 1)]


# Each environment shrunk until every one of its problems turns up: (constant, its value) pairs.
SHRUNK = {
    "vector_sum": ({"NUM_OPERATIONS": {1: 1}, "NUM_COORDINATES": 1}, 3 * 2 * 3),
    "gates": ({"NUM_GATES": {1: 1}, "NUM_PLACES": 1}, 10 * 2 * 10),
    "basket": ({"NUM_ITEMS": {1: 1}, "NUM_PRICES": 8}, 26 * 8),
    "masks": ({"NUM_STATEMENTS": {1: 2}, "NUM_BITS": 1}, (3 * 2) ** 2),
    "equation": (  # ax+c=bx+d: 4 times 4 coefficients less 4 that cancel
        {"NUM_TERMS": {1: 3}, "MAX_COEFFICIENT": 2, "MAX_CONSTANT": 2, "MAX_SOLUTION": 1},
        (4 * 4 - 4) * 4 * 3,
    ),
    "fractions": ({"NUM_OPERATIONS": {1: 2}, "DENOMINATORS": {1: (2, 3)}}, 3 * 6 * 6),
    "units": (
        {"NUM_TERMS": {1: 2}, "MAX_NUMBER": 3, "UNITS": {"a": {"x": 1, "y": 2}, "b": {"z": 1}}},
        2 * (6 * 6 + 3 * 3),
    ),
    "bases": ({"NUM_DIGITS": {1: 3}, "MAX_BASE": 4}, 2 * (4 + 18 + 48)),
    "divisor": ({"NUM_DIVISIONS": {1: 3}, "MAX_QUOTIENT": 3, "MAX_DIVISOR": 5}, 5 * 2 * 3 * 3),
    "urn": ({"NUM_DRAWS": {1: 2}, "NUM_COUNTS": 2}, 2**4 * 4**2),
    "truths": ({"NUM_SPEAKERS": {1: 4}}, 2 * 2 * 4 * 6),
    "ranking": ({"NUM_PLAYERS": {1: 5}}, 120),
    "program": (
        {"NUM_STATEMENTS": {1: 1}, "DIGITS": "12", "PLAIN": ("a+=b", "b-=1", "a*=2")},
        2 * 2 * 3 * 2,
    ),
    "registers": ({"NUM_INSTRUCTIONS": {1: 1}, "MODULUS": 3}, 27 * 12),
    "rewriting": ({"NUM_RULES": {1: 1}, "LENGTH": 4}, 16 * 12),
    "comparators": ({"NUM_COMPARATORS": {1: 1}, "NUM_WIRES": 2}, 100),
    "brackets": ({"NUM_CLOSED": {1: 2}, "NUM_LACKING": {1: 1}}, 5 * 27),
    "run_length": ({"NUM_RUNS": {1: 3}, "MAX_RUN": 2, "LETTERS": "abc"}, 3 * 2 * 2 * 8),
    "postfix": ({"NUM_OPERATORS": {1: 3}, "OPERATORS": "+", "DIGITS": "12"}, 5 * 16),
    "addition": ({"NUM_DIGITS": {1: 1}}, 45),
    "largest": ({"NUM_NUMBERS": {1: 4}, "NUMBERS": range(10, 16)}, 15),
}


@every_environment
def test_num_distinct_is_the_number_of_problems_that_turn_up(name, monkeypatch):
    constants, count = SHRUNK[name]
    for constant, value in constants.items():
        module = sys.modules[ENVIRONMENTS[name].__module__]
        monkeypatch.setattr(module, constant, value)
    judge = make(name)
    assert judge.num_distinct(1) == count
    assert len({judge.problem(1, seed).canonical for seed in range(3000)}) == count


def test_names_are_those_of_the_table():
    assert [make(name).name for name in ENVIRONMENTS] == list(ENVIRONMENTS)
    assert {make(name).domain for name in ENVIRONMENTS} == {"stem", "logic", "code"}
    assert all(isinstance(make(name), environments.Environment) for name in ENVIRONMENTS)
    with pytest.raises(ValueError, match="environment 'chess' is unknown"):
        environments.get_environment("chess")


def test_hurried_thinking_needs_three_operations():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="num_operations=2 gives fewer than 3 steps"):
        environment.written_after(2, rng, "hurried")
    drawn = {tuple(environment.written_after(5, rng, "hurried")) for _ in range(200)}
    assert drawn == {(i, j, 5) for i in range(1, 5) for j in range(i + 1, 5)}
    assert environment.written_after(5, rng, "careful") == [1, 2, 3, 4, 5]
