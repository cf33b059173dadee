"""The datasets of reasoning-gym that are allowed, drawn by the package itself (extra `gym`)."""

import dataclasses
import json
import math
import os
import random
import re
import subprocess
import sys
from fractions import Fraction

import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS, gym
from loong_jax.environments.answers import Malformed
from loong_jax.errors import ConfigError
from loong_jax.verifiers import admission, attacks
from loong_jax.verifiers.admission import Case
from loong_jax.verifiers.environment import EnvironmentVerifier
from tests.doubles import fake_world
from tests.sweeps import thinned

try:
    from reasoning_gym import factory
except ImportError:
    factory = None
needs_package = pytest.mark.skipif(factory is None, reason=f"no reasoning-gym: {gym.REMEDY}")
every_dataset = pytest.mark.parametrize("dataset", thinned(gym.DATASETS, *range(0, 50, 7)))


@pytest.mark.skipif(factory is not None, reason="reasoning-gym is here")
def test_without_the_package_drawing_says_what_to_install():
    with pytest.raises(ConfigError, match=r"gym/gcd needs reasoning-gym .*extra `gym`"):
        environments.get_environment("gym/gcd").problem(1, 0)


@pytest.mark.peers
@needs_package
def test_every_dataset_of_the_package_is_allowed_or_refused():
    assert set(factory.DATASETS) == set(gym.DATASETS) | set(gym.REFUSED)


@pytest.mark.peers
@needs_package
@every_dataset
def test_golds_pass_and_perturbed_golds_fail(dataset):
    judge = environments.get_environment(f"gym/{dataset}")
    problems = [judge.problem(level, seed) for level in LEVELS for seed in range(2)]
    tried = accepted = 0
    for posed in problems:
        assert judge.verify(posed, judge.solve(posed).answer).is_correct
        assert judge.verify(posed, f"\n {judge.solve(posed).answer} ").is_correct
        for answer in attacks.perturbed(judge.solve(posed).answer):
            tried += 1
            accepted += judge.verify(posed, answer).is_correct
    assert tried >= len(problems)
    many = gym.DATASETS[dataset].judge in MANY_ANSWERS
    assert accepted <= (0.25 * tried if many else 0)


@pytest.mark.peers
@needs_package
@every_dataset
def test_levels_and_seeds_make_other_problems(dataset):
    judge = environments.get_environment(f"gym/{dataset}")
    problems = {(n, seed): judge.problem(n, seed) for n in (1, 5) for seed in range(4)}
    assert problems[1, 0] == judge.problem(1, 0)
    assert len({posed.canonical for posed in problems.values()}) >= 6
    assert len({posed.uid for posed in problems.values()}) == 8
    again = environments.Problem.from_json(json.loads(json.dumps(problems[5, 0].to_json())))
    assert judge.verify(again, judge.solve(again).answer).is_correct


@pytest.mark.peers
@needs_package
@every_dataset
def test_no_text_is_executed_and_none_of_the_attacks_is_rewarded(dataset):
    """The marker files, bombs and sprays of admission, on problems as the package draws them."""
    judge = environments.get_environment(f"gym/{dataset}")
    verifier = EnvironmentVerifier()
    try:
        cases = admission.environment_cases(judge, (2,), 1)
        report = admission.admit(verifier, cases, name=judge.name)
    finally:
        verifier.close()
    left = [failure for failure in report.failures if failure.check != "constant"]
    assert not left, "\n".join(map(str, left))


_DRAWS = """
import json, sys
from loong_jax import environments
from loong_jax.environments import gym
print(json.dumps({n: environments.get_environment(f"gym/{n}").problem(2, 1).to_json()
                  for n in gym.DATASETS}))
"""


@pytest.mark.peers
@needs_package
def test_another_process_draws_the_same_problems():
    """Whatever order its sets of strings have there."""
    drawn = []
    for hashing in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _DRAWS],
            env=os.environ | {"PYTHONHASHSEED": hashing, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        drawn.append(json.loads(done.stdout.splitlines()[-1]))
    assert [name for name in gym.DATASETS if drawn[0][name] != drawn[1][name]] == []


MANY_ANSWERS = ("palindrome", "arithmetic", "queens", "colouring")  # judges of several answers
BOARD = "_ _ _ _\n_ _ _ _\n_ _ _ Q\n_ Q _ _"
SQUARE = {"vertices": [0, 1, 2, 3], "edges": [[0, 1], [1, 2], [2, 3], [3, 0]], "colours": [1, 2]}

# dataset, gold, what else is known, right answers, wrong ones
POSED = [
    ("chain_sum", "-156", {}, ("-156", " \u2212156\n"), ("156", "-156.5", "--156", "- 156")),
    ("decimal_arithmetic", "35.043", {}, ("35.0430", "35043/1000"), ("35.04", "35,043", "3e1")),
    ("dice", "3/4", {}, ("3/4",), ("6/8", "0.75", "3/0", "4/3")),
    ("calendar_arithmetic", "Sunday", {}, ("sunday", "Sunday."), ("Sunday or Monday", "Sun")),
    ("spiral_matrix", "1 2 3 6 9", {}, ("1  2 3\n6 9",), ("1 2 3 9 6", "12369", "1,2,3,6,9")),
    ("rotate_matrix", "1 2\n3 4", {}, ("1 2\n\n3  4 ",), ("1 2 3 4", "1 3\n2 4", "1 2\n3 4\n5 6")),
    ("number_sorting", "['8.1', '2', '-3']", {}, ("8.1, 2, -3", '["8.1", "2", "-3"]'),
     ("2, 8.1, -3", "['8.1', '2']", "['8.1', '2', ['-3']]", "8.1 2 -3")),
    ("prime_factorization", "2 \u00d7 3 \u00d7 3", {}, ("3*2*3", "3 x 3 x 2"),
     ("18", "2 * 9", "6*3")),
    ("palindrome_generation", "abcba", {"letters": "bacab"}, ("bacab",),
     ("abba", "aabbc", "abcbaa")),
    ("countdown", "40*(94 - 90) + 83 - 74", {"numbers": [40, 94, 90, 83, 74], "target": 169},
     ("83-74+40*(94-90)", "((40*(94-90)))+83-74"),
     ("169", "40*94-90+83-74", "40*(94-90)+83-74+0", "40(94-90)+83-74", "(40*(94-90)+83-74")),
    ("puzzle24", "8/(3 - 8/3)", {"numbers": [3, 3, 8, 8], "target": 24}, ("8/(3-(8/3))",),
     ("24", "3*8", "3+3+8+8", "8/(3-3)*8", "8**3", "8//3")),
    ("n_queens", "_ _ Q _\nQ _ _ _\n_ _ _ Q\n_ Q _ _", {"board": BOARD}, (),
     (BOARD, "_ Q _ _\n_ _ _ Q\nQ _ _ _\n_ _ Q _", "Q _ _ _\n_ _ Q _\n_ _ _ Q\n_ Q _ _", "Q")),
    ("graph_color", '{"0": 1, "1": 2, "2": 1, "3": 2}', SQUARE, ('{"0":2,"1":1,"2":2,"3":1}',),
     ('{"0": 1, "1": 1, "2": 2, "3": 2}', '{"0": 1, "1": 2, "2": 1}', '{"0": 1, "1": 3}',
      '{"0": 3, "1": 2, "2": 3, "3": 2}', '{"0": 1, "0": 1, "1": 2, "2": 1, "3": 2}', "{}")),
]  # fmt: skip
posed = pytest.mark.parametrize(
    ("dataset", "gold", "known", "right", "wrong"), POSED, ids=[row[0] for row in POSED]
)


def problem(dataset, gold, known):
    return dataclasses.replace(
        fake_world.problem_at(0), domain=gym.DATASETS[dataset].domain,
        environment=f"gym/{dataset}", verifier="environment", gold=gold,
        arguments={"environment": f"gym/{dataset}", "state": known},
    )  # fmt: skip


def test_every_judge_is_tried_here():
    tried = {gym.DATASETS[row[0]].judge for row in POSED}
    assert tried == set(gym.JUDGES)
    assert {dataset.judge for dataset in gym.DATASETS.values()} == tried


@posed
def test_right_answers_are_right_and_wrong_ones_wrong(dataset, gold, known, right, wrong):
    judge = environments.get_environment(f"gym/{dataset}")
    asked = problem(dataset, gold, known)
    for answer in (gold, *right):
        assert judge.verify(asked, answer).is_correct, answer
    for answer in wrong:
        judged = judge.verify(asked, answer)
        assert judged.outcome == "wrong", answer
        assert judged.reason in ("format", "value")
    for answer in (None, 5, b"1", ["1"]):
        assert judge.verify(asked, answer).reason == "format"


@posed
def test_judges_withstand_the_attacks_of_admission(dataset, gold, known, right, wrong):
    """Payloads among them: no text is executed, none is rewarded, none takes long."""
    many = gym.DATASETS[dataset].judge in MANY_ANSWERS
    case = Case(
        problem=problem(dataset, gold, known),
        answer=gold,
        perturbed=wrong,
        render=admission.in_tags,
        has_others=many,
    )
    verifier = EnvironmentVerifier()
    try:
        report = admission.admit(verifier, [case], name=dataset, max_cost_s=5.0)
    finally:
        verifier.close()
    assert report.is_admitted, "\n".join(admission.rows(report))
    assert {"payload", "1 MB", "spray"} <= set(report.checks)


def test_expressions_are_worth_what_python_says():
    rng = random.Random(0)
    for _ in range(300):
        text = str(rng.randint(1, 20))
        for _ in range(rng.randint(1, 5)):
            text = f"{text} {rng.choice('+-*/')} {rng.randint(1, 20)}"
            text = f"({text})" if rng.random() < 0.4 else text
        exact = " ".join(
            f"Fraction({part})" if part.isdigit() else part
            for part in text.replace("(", "( ").replace(")", " )").split()
        )
        value, used = gym.evaluated(text)
        assert value == eval(exact, {"Fraction": Fraction}), text
        assert math.isclose(float(value), eval(text), rel_tol=1e-9, abs_tol=1e-9)
        assert used == [int(part) for part in re.findall(r"\d+", text)]


@pytest.mark.parametrize(
    "text",
    ["", "1+", "+1", "1 2", "(1", "1)", "()", "1/0", "1**2", "a+1", "1.5", "1e3", "-" * 10_000,
     "(" * 10_000, "\u0661+1", "9*" * 100 + "9", "(1+", "(1+2"],
)  # fmt: skip
def test_what_is_no_expression_is_malformed(text):
    with pytest.raises(Malformed):
        gym.evaluated(text)


def test_deep_brackets_do_not_recurse():
    assert gym.evaluated("(" * 5000 + "7" + ")" * 5000) == (7, [7])


def test_refused_and_unknown_datasets_are_named_with_the_reason():
    with pytest.raises(ConfigError, match=r"syllogism.*it has two or three possible answers"):
        environments.get_environment("gym/syllogism")
    with pytest.raises(ConfigError, match=r"'chess' of reasoning-gym is unknown\."):
        environments.get_environment("gym/chess")
    assert not set(gym.DATASETS) & set(gym.REFUSED)
    executing = {"binary_matrix", "spiral_matrix", "string_insertion", "n_queens", "countdown",
                 "puzzle24", "simple_integration", "intermediate_integration",
                 "polynomial_multiplication"}  # fmt: skip
    assert executing <= set(gym.DATASETS) | set(gym.REFUSED)


def test_another_environments_problem_and_a_level_that_is_none_are_refused():
    judge = environments.get_environment("gym/gcd")
    with pytest.raises(ValueError, match="belongs to 'gym/lcm', not 'gym/gcd'"):
        judge.verify(problem("lcm", "4", {}), "4")
    with pytest.raises(ValueError, match=r"level=6 is not in"):
        judge.problem(6, 0)
