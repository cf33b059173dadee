"""The datasets of reasoning-gym that are allowed, drawn by the package itself (extra `gym`)."""

import json
import os
import subprocess
import sys

import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS, gym
from loong_jax.errors import ConfigError
from loong_jax.verifiers import admission, attacks
from loong_jax.verifiers.environment import EnvironmentVerifier
from tests.environments.test_gym_answers import MANY_ANSWERS
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
