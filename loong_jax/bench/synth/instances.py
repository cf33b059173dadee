"""Instances of environment packages, drawn in batches, as lines of a file of problems.

Which side of the split an instance is on is decided by its question, as for every such file.
"""

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loong_jax.bench.synth.settings import HELD_OUT_SHARE, Habits
from loong_jax.data import problem_files
from loong_jax.data.packages import Package
from loong_jax.data.response import NUM_MARKS, Response, render_response
from loong_jax.environments import modules
from loong_jax.environments.environment import LEAP
from loong_jax.environments.modules import ModuleRunner
from loong_jax.environments.problem import split_of
from loong_jax.errors import ConfigError, VerifierError

BATCH = 400  # draws of one process
MAX_DRAWS = 2000  # of one level
LABELLED = """
def levels():
    return [1]


def generate(level, seed):
    return {"label": ""}


def question(state):
    return "What does the label say?"


def reward(state, answer):
    return answer == state["label"]


def reference(state):
    return state["label"]
"""  # a module for answers that somebody wrote beside a question


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """A problem of an environment, without the text of its module."""

    package: Package
    level: int
    seed: int
    prompt: str
    state: Any

    @property
    def uid(self) -> str:
        return f"{self.package.uid}/{self.level}/{self.seed}"

    @property
    def canonical(self) -> str:
        return problem_files.canonical(self.prompt)

    @property
    def side(self) -> str:
        """Where a file of problems puts it: train, validation or test."""
        return split_of(self.canonical, HELD_OUT_SHARE)

    def line(self, domain: str) -> dict[str, Any]:
        """As `data.problem_files` reads it; without a gold, since the module judges."""
        return {
            "uid": self.uid,
            "prompt": self.prompt,
            "verifier": "resyn",
            "arguments": {"module": self.package.module.source, "state": self.state},
            "domain": domain,
            "level": self.level,
            "origin": f"resyn, written by {self.package.author}",
            "licence": self.package.licence,
        }


def draw(
    runner: ModuleRunner,
    package: Package,
    level: int,
    wanted: Mapping[str, int],
    taken: Container[str] = (),
) -> dict[str, list[Instance]]:
    """By side of the split, up to `wanted[side]` instances with different questions.

    A level that has fewer gives fewer. Seeds are tried from 0; questions in `taken`, as
    `Instance.canonical` has them, are passed over.
    """
    found: dict[str, dict[str, Instance]] = {side: {} for side in wanted}
    for first in range(0, MAX_DRAWS, BATCH):
        seeds = range(first, first + BATCH)
        posed = runner.run(package.module, [("pose", (level, seed)) for seed in seeds])
        for seed, outcome in zip(seeds, posed, strict=True):
            if outcome.status != "ok":
                raise VerifierError(f"{package.uid} drew nothing: {outcome.detail}. Make it anew.")
            state, prompt = outcome.value
            one = Instance(package=package, level=level, seed=seed, prompt=prompt, state=state)
            side = found.get(one.side, {})
            if len(side) < wanted.get(one.side, 0) and one.canonical not in taken:
                side.setdefault(one.canonical, one)
        if all(len(found[side]) == count for side, count in wanted.items()):
            break
    return {side: list(ones.values()) for side, ones in found.items()}


def spread(by_level: Sequence[Sequence[Instance]], count: int) -> list[Instance]:
    """`count` instances, of the levels by turns; where one has no more, of the others.

    ConfigError where all together have fewer.
    """
    chosen: list[Instance] = []
    for place in range(max(map(len, by_level), default=0)):
        chosen += [level[place] for level in by_level if place < len(level)]
    if len(chosen) < count:
        raise ConfigError(f"{count} instances were asked for, and there are {len(chosen)}.")
    return chosen[:count]


def demonstrations(
    runner: ModuleRunner,
    instances: Iterable[Instance],
    max_tokens: int,
    habits: Habits,
    domain: str,
) -> list[dict[str, Any]]:
    """Lines with worked solutions; those longer than `max_tokens` are left out.

    The mark of the thought tells careful from hurried. A guess is the answer to another instance of
    the same environment and level, so it has the form and is seldom right. As in a corpus that
    nobody checked, a line says that its answer is right: it is judged against that label. The
    module's own reference is tried in the same process, and one that it rejects is refused.
    """
    found = []
    alike: dict[tuple[str, int], list[Instance]] = {}
    for one in instances:
        alike.setdefault((one.package.uid, one.level), []).append(one)
    for ones in alike.values():
        for first in range(0, len(ones), BATCH // 2):
            part = ones[first : first + BATCH // 2]
            for one, written in zip(part, _written(runner, part, habits), strict=True):
                if NUM_MARKS + len(written.thinking) + len(written.answer) <= max_tokens:
                    label = {"module": LABELLED, "state": {"label": written.answer}}
                    solution = render_response(*written)
                    found.append(one.line(domain) | {"arguments": label, "solution": solution})
    return found


def _written(runner: ModuleRunner, part: Sequence[Instance], habits: Habits) -> list[Response]:
    module, found = part[0].package.module, []
    steps = runner.run(module, [("steps", (one.state,)) for one in part])
    known = runner.run(module, [("reference", (one.state,)) for one in part])
    judged = runner.run(
        module, [("reward", (one.state, k.value)) for one, k in zip(part, known, strict=True)]
    )
    for one, thought, reference, verdict in zip(part, steps, known, judged, strict=True):
        rng = np.random.default_rng((one.level, one.seed))
        if verdict.value is not True:
            raise VerifierError(f"{one.uid} rejects its own reference. Make the package anew.")
        careful = modules.worked(one.uid, thought, reference, rng, "careful")
        is_hurried, is_guess = rng.random(2) < (1 - habits.careful_share, habits.guess_share)
        at_once = known[rng.integers(len(known))] if is_guess else reference
        found.append(Response(LEAP, at_once.value) if is_hurried else careful)
    return found
