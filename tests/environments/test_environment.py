"""What every environment promises, whatever its problems are."""

import collections
import itertools
import json
import math
import re
import time

import pytest

from loong_jax import environments
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.environments import (
    ENVIRONMENTS,
    LEVELS,
    WORKED,
    Problem,
    ProblemStream,
    chains,
    environment,
)
from loong_jax.problems.problem import current_uid, split_of
from loong_jax.problems.response import render_response
from loong_jax.recipes import quickstart
from loong_jax.verifiers.environment import EnvironmentVerifier
from tests.bounds import EXPLODES_S
from tests.environments import evaluator

CODE = ("masks",)
SEEDS = range(12)
TOKENIZER = AsciiTokenizer()
ALL_DIGITS, NO_ZERO = "0123456789", "123456789"
# what a digit, letter or bracket of an answer may be taken for; how often one answer is right
ANSWERS = {
    "vector_sum": ("012", 0.02), "gates": (ALL_DIGITS, 0.01), "masks": ("01", 0.04),
    "basket": (ALL_DIGITS, 0.02), "equation": (NO_ZERO, 0.01), "fractions": (NO_ZERO, 0.07),
    "units": (NO_ZERO, 0.01), "bases": (NO_ZERO, 0.02), "divisor": (NO_ZERO, 0.03),
    "urn": (NO_ZERO, 0.03), "truths": ("01", 0.02), "ranking": ("abcdefgh", 0.01),
    "program": (NO_ZERO, 0.09), "registers": (ALL_DIGITS, 0.01), "rewriting": ("ab", 0.09),
    "comparators": (ALL_DIGITS, 0.01), "brackets": (")]}", 0.03), "run_length": (NO_ZERO, 0.01),
    "postfix": (NO_ZERO, 0.05), "addition": (NO_ZERO, 0.02), "largest": (NO_ZERO, 0.02),
}  # fmt: skip
PLACES = {"ranking": "[a-z]", "rewriting": "[a-z]", "brackets": r"[)\]}]"}  # elsewhere: digits
ALIGNED = ("vector_sum", "gates", "masks")
WORDED = ("largest",)  # for models that read English, longer than the miniature recipe reads

PAYLOADS = (
    "__import__('os').system('true')", "x.__class__", "x.real", "9**9**9", "x<<99", "lambda:x",
    "[x]*9", "x=1", "1;1", "0x1.8p9", "1\x00", "\ud800", "<eos>", "$1$", "1e9", "nan",
    "\uff11\u0662\u0661\u0660",  # digits, and not ASCII
)  # fmt: skip
TOO_LONG = ("1" * 10**6, "(" * 10**6, "x" * 10**6, " " * 10**6, "\n" * 10**6)
NO_TEXTS = (None, 5, b"1*x+1", ["1*x+1"], {}, 1.5, True, object())
NO_ANSWERS = ("", " ", "\n", "(((((((", ")x(", "()", "-", "x(x)", "x x", "007")

every_environment = pytest.mark.parametrize("name", WORKED)
worked_or_puzzle = pytest.mark.parametrize("name", ENVIRONMENTS)
every_level = pytest.mark.parametrize("level", LEVELS)


def make(name, run=evaluator.run):
    return environments.get_environment(name, **({"run": run} if name in CODE else {}))


def neighbours(name, answer):
    """The answer with one digit (letter, bracket) changed, in every way."""
    for match in re.finditer(f"0b|{PLACES.get(name, '[0-9]')}", answer):
        for symbol in ANSWERS[name][0]:
            if match[0] not in ("0b", symbol):
                yield answer[: match.start()] + symbol + answer[match.end() :]


@worked_or_puzzle
@every_level
def test_a_problem_is_a_pure_function_of_level_and_seed(name, level):
    one, other = make(name), make(name)
    problems = [one.problem(level, seed) for seed in SEEDS]
    assert problems == [other.problem(level, seed) for seed in reversed(SEEDS)][::-1]
    assert {problem.level for problem in problems} == {level}
    assert {problem.domain for problem in problems} == {one.domain}
    again = Problem.from_json(json.loads(json.dumps(problems[0].to_json())))
    assert again == problems[0]
    assert one.verify(again, one.solve(problems[0]).answer).is_correct
    for key in ("canonical", "prompt", "uid"):
        assert len({getattr(problem, key) for problem in problems}) == len(problems)
    for prompt in (problem.prompt for problem in problems):
        assert TOKENIZER.decode(TOKENIZER.encode(prompt)) == prompt


@every_environment
def test_levels_differ(name):
    judge = make(name)
    sizes = [sum(len(judge.problem(level, n).prompt) for n in range(60)) for level in LEVELS]
    assert sorted(set(sizes)) == sizes


@worked_or_puzzle
def test_other_levels_are_refused(name):
    for level in (0, 6, -1):
        with pytest.raises(ValueError, match=f"level={level} is not in"):
            make(name).problem(level, 0)


@every_environment
@every_level
def test_solutions_have_steps_that_lead_to_a_right_answer(name, level):
    judge = make(name)
    for seed in SEEDS:
        problem = judge.problem(level, seed)
        solution = judge.solve(problem)
        assert judge.verify(problem, solution.answer).is_correct
        assert judge.verify(problem, f" {solution.answer}\n").is_correct
        rendered = render_response("=".join(solution.steps), solution.answer)
        assert TOKENIZER.decode(TOKENIZER.encode(rendered)) == rendered
        assert len(solution.steps) >= 3


@every_environment
@every_level
def test_rejects_every_neighbour_of_the_gold_answer(name, level):
    judge = make(name)
    for seed in SEEDS:
        problem = judge.problem(level, seed)
        found = list(neighbours(name, judge.solve(problem).answer))
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
    gold = judge.solve(problem).answer
    try:
        assert judge.verify(problem, gold).is_correct
        outcomes = [judge.verify(problem, answer) for answer in (*NO_ANSWERS, gold + gold)]
        assert {judged.outcome for judged in outcomes} == {"wrong"}
        assert judge.verify(problem, next(neighbours(name, gold))).reason == "value"
        assert environment.shared_sandbox().tier in ("process", "namespaces")
    finally:
        environment.shared_sandbox().close()


@every_environment
def test_judges_no_problem_of_another(name):
    judge = make(name)
    other = next(other for other in WORKED if other != name)
    with pytest.raises(ValueError, match=f"belongs to '{other}', not '{name}'"):
        judge.solve(make(other).problem(1, 0))


@pytest.mark.parametrize("name", ALIGNED)
def test_steps_are_aligned_with_operations(name):
    """One operation of the prompt and one written value take the same number of tokens."""
    judge = make(name)
    for level in LEVELS:
        problem = judge.problem(level, 0)
        thinking = "".join(f"={step}" for step in judge.solve(problem).steps)
        assert len(problem.prompt) - len(thinking) == 4


@pytest.mark.parametrize("name", [name for name in WORKED if name not in WORDED])
def test_level_1_fits_the_miniature_recipe(name):
    """Its engine reads 32 tokens, the first of them <bos>, and writes 48."""
    judge = make(name)
    num_read = quickstart.quickstart().engine.prefill_lengths[-1]
    for seed in range(200):
        problem = judge.problem(1, seed)
        steps, answer = judge.solve(problem)
        written = render_response("".join(f"={step}" for step in steps), answer)
        assert 1 + len(TOKENIZER.encode(problem.prompt)) <= num_read == 32
        assert len(TOKENIZER.encode(written)) <= quickstart.MAX_NEW_TOKENS == 48


@every_environment
def test_one_answer_for_all_problems_is_seldom_right(name):
    judge, (_, best_guess) = make(name), ANSWERS[name]
    for level in (1, 5):
        golds = [judge.solve(judge.problem(level, seed)).answer for seed in range(500)]
        assert collections.Counter(golds).most_common(1)[0][1] < best_guess * 500 + 10


@every_environment
@every_level
def test_every_level_has_many_problems(name, level):
    """By how often draws meet; small additions, and small numbers in base 2, are few."""
    forms = {make(name).problem(level, seed).canonical for seed in range(1500)}
    assert 1500 - len(forms) <= (320 if name in ("addition", "bases") else 56)


@worked_or_puzzle
def test_every_name_is_posed_and_judged_by_one_contract(name):
    """In a stream, through one verifier, from a record; the table and the class agree."""
    judge, verifier = environments.get_environment(name), EnvironmentVerifier()
    assert isinstance(judge, environments.Environment)
    assert (judge.name, judge.levels) == (name, LEVELS)
    assert judge.domain in ("stem", "logic", "code")
    stream = ProblemStream(environment=judge, level_weights={1: 1.0}, split="train", seed=0)
    problem = Problem.from_json(json.loads(json.dumps(stream.problem_at(0).to_json())))
    assert (problem.verifier, problem.gold, problem.rubric) == ("environment", None, None)
    assert problem.arguments["environment"] == name
    assert judge.problem(2, 0).uid == f"{name}-1/2/0"
    gold = judge.solve(problem).answer
    assert verifier.verify(problem, render_response("so", gold)).is_correct
    assert verifier.verify(problem, render_response("so", f"{gold}{gold} 5")).outcome == "wrong"
    verifier.close()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="environment 'chess' is unknown"):
        environments.get_environment("chess")


def test_problems_of_older_runs_are_read():
    """Their uid holds a hash of source, puzzles name a task and modules the verifier `resyn`."""
    assert current_uid("vector_sum-0a1b2c3d/2/77") == "vector_sum-1/2/77"
    assert current_uid("gym/chain_sum-0a1b2c3d/1/5") == "gym/chain_sum-1/1/5"
    for other in ("vector_sum-1/2/77", "sum-0123456789abcdef/2/5", "file-0a1b2c3d", "p/0"):
        assert current_uid(other) == other
    puzzle, verifier = environments.get_environment("sudoku"), EnvironmentVerifier()
    problem = puzzle.problem(1, 3)
    record = problem.to_json() | {"uid": "sudoku-0a1b2c3d/1/3", "verifier": "logic"}
    record["arguments"] = {"task": "sudoku", "state": record["arguments"]["state"]}
    older = Problem.from_json(record)
    assert older.uid == problem.uid
    assert verifier.verify(older, puzzle.solve(older).answer).is_correct


SPLITS = ("train", "validation", "test")


def stream(name="vector_sum", *, levels=(1,), shares=None, split="train", seed=0):
    return ProblemStream(
        environment=environments.get_environment(name),
        level_weights=shares or dict.fromkeys(levels, 1.0),
        split=split,
        seed=seed,
    )


def canonical_forms(source, count):
    return {source.problem_at(cursor).canonical for cursor in range(count)}


@pytest.mark.parametrize("name", WORKED)
def test_splits_never_meet(name):
    drawn = {s: canonical_forms(stream(name, levels=LEVELS, split=s), 150) for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    assert all(split_of(form) == split for split, forms in drawn.items() for form in forms)


def test_splits_never_meet_where_problems_come_up_again(monkeypatch):
    """In a space of 1458 problems, which would show a split that leaks."""
    monkeypatch.setattr(chains, "NUM_OPERATIONS", {1: 1})
    monkeypatch.setattr(chains, "NUM_COORDINATES", 3)
    drawn = {s: canonical_forms(stream(split=s), 600) for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    other_seed = canonical_forms(stream(seed=1), 600)
    assert len(other_seed & drawn["train"]) > 100
    assert not other_seed & (drawn["test"] | drawn["validation"])


def test_shares_of_the_splits():
    counts = collections.Counter(split_of(f"gates:{number}") for number in range(20_000))
    assert counts["test"] == pytest.approx(2000, rel=0.1)
    assert counts["validation"] == pytest.approx(2000, rel=0.1)
    assert {split_of(str(n), held_out_share=0.0) for n in range(100)} == {"train"}
    assert {split_of(str(n), held_out_share=0.5) for n in range(100)} == {"validation", "test"}


def test_a_cursor_is_all_that_resumes():
    source, again = stream("gates", levels=LEVELS), stream("gates", levels=LEVELS)
    first = list(itertools.islice(source, 30))
    assert first[20:] == [again.problem_at(cursor) for cursor in range(20, 30)]
    other_seed = stream("gates", levels=LEVELS, seed=1)
    assert first[0] != other_seed.problem_at(0)


def test_levels_come_in_their_shares():
    source = stream("gates", shares={4: 3.0, 2: 1.0})
    levels = collections.Counter(problem.level for problem in itertools.islice(source, 800))
    assert set(levels) == {2, 4}
    assert levels[4] == pytest.approx(600, abs=50)


def test_take_distinct_repeats_nothing_and_keeps_the_order():
    source = stream(split="test")
    taken = source.take_distinct(300)
    forms = [problem.canonical for problem in taken]
    assert len(set(forms)) == 300
    in_order = dict.fromkeys(problem.canonical for problem in itertools.islice(source, 400))
    assert forms == list(in_order)[:300]


def test_take_distinct_ends_where_there_are_too_few(monkeypatch):
    monkeypatch.setattr(chains, "NUM_OPERATIONS", {1: 1})
    monkeypatch.setattr(chains, "NUM_COORDINATES", 1)  # 18 problems, on three sides
    with pytest.raises(ValueError, match=r"only \d+ of 19 distinct problems found"):
        stream().take_distinct(19)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "dev"}, "split='dev' is not train"),
        ({"levels": ()}, "must name levels with positive shares"),
        ({"levels": (1, 6)}, "level=6 is not in"),
        *(({"shares": {1: share}}, "positive shares") for share in (0.0, math.nan, math.inf)),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        stream(**changes)
