"""Expert iteration: a prover learns from the proofs that it finds and a checker accepts.

Every round trains a prover from scratch on all proofs there are (the cold start and what earlier
rounds found), measures it on held-out statements, and lets it attempt the statements of the pool
that are still unsolved. Held-out statements are measured only: what is proved of them never trains.
Source: LongCat-Flash-Thinking 2.2.2, "Iterative Proof Synthesis".

Each attempt is on disk before the next; after a kill the same call goes on where it stopped. The
prover and the checker are handed in, and statements and proofs are texts, so the loop serves any
prover and any backend.
"""

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.problems.verdict import Verdict
from loong_jax.synth import authors


class Goal(NamedTuple):
    """A statement to prove. The prover reads `text`; equivalent goals share `kin`."""

    uid: str
    text: str
    kin: str
    level: int = 0


class Solution(NamedTuple):
    """A goal with what is said to be its proof."""

    goal: Goal
    proof: str


class Prover(Protocol):
    """The learner. Deterministic in its arguments, so that a resumed run repeats itself."""

    def train(self, examples: Sequence[Solution], directory: Path, *, seed: int) -> None:
        """Trains from scratch. `directory` holds its checkpoints; finished training is reused."""
        ...

    def attempt(self, goals: Sequence[Goal], num_samples: int, *, seed: int) -> list[list[str]]:
        """`num_samples` proofs of each goal, in order; they may be wrong."""
        ...


Check = Callable[[Sequence[Solution]], list[Verdict]]  # in order; what decides whether it counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopSettings:
    num_rounds: int = 4  # trainings, the one on the cold start alone included
    num_samples: int = 32  # of each unsolved statement, every round
    num_held_out_samples: int = 8
    chunk: int = 128  # statements that are attempted before results go to disk
    learns: bool = True  # False, the control: always trains on the cold start alone
    seed: int = 0

    def __post_init__(self):
        refuse_below(self, 1, "num_rounds", "num_samples", "num_held_out_samples", "chunk")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """Verdicts on the samples of one statement. Ungradable ones are in `num_ungradable`."""

    uid: str
    num_samples: int
    num_correct: int
    num_ungradable: int
    proof: str | None  # the shortest of the accepted
    reasons: dict[str, int]  # of samples that were not accepted

    @property
    def is_solved(self) -> bool:
        return self.num_correct > 0

    @property
    def num_graded(self) -> int:
        return self.num_samples - self.num_ungradable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    number: int  # from 0
    num_examples: int  # that it trained on
    held_out: tuple[Attempt, ...]
    pool: tuple[Attempt, ...]  # of statements that were unsolved before
    num_solved: int  # statements of the pool, all rounds up to this one


def run(
    directory: Path,
    settings: LoopSettings,
    prover: Prover,
    check: Check,
    *,
    cold_start: Sequence[Solution],
    pool: Sequence[Goal],
    held_out: Sequence[Goal],
    on_round: Callable[[Round], None] = lambda done: None,
) -> list[Round]:
    """Runs all rounds, each told to `on_round`; earlier ones are read from `directory`.

    Raises ConfigError where a held-out statement is kin to one that may train, where a proof of the
    cold start is not accepted, and where `directory` holds a run of other settings or statements.
    """
    shared = {goal.kin for goal in (*(p.goal for p in cold_start), *pool)}
    if shared := shared & {goal.kin for goal in held_out}:
        raise ConfigError(
            f"{len(shared)} held-out statements are kin to some that may train. Take them out of "
            "one side: what was trained on measures nothing."
        )
    if len({goal.uid for goal in held_out}) < len(held_out):
        raise ConfigError("a held-out statement stands there twice. Give each once.")
    record = {
        "settings": dataclasses.asdict(settings) | {"chunk": None},
        "cold_start": [[p.goal.uid, p.proof] for p in cold_start],
        "pool": [goal.uid for goal in pool],
        "held_out": [goal.uid for goal in held_out],
    }
    authors.claim(directory / "loop.json", record)
    if not (directory / "round-0").exists():
        for solution, judged in zip(cold_start, check(cold_start), strict=True):
            if not judged.is_correct:
                raise ConfigError(
                    f"the cold start's proof of {solution.goal.text!r} is not accepted: "
                    f"{judged.reason}, {judged.evidence}. Leave it out."
                )
    goal_of = {goal.uid: goal for goal in pool}
    found: dict[str, str] = {}
    rounds = []
    for number in range(settings.num_rounds):
        own = directory / f"round-{number}"
        learnt = [Solution(goal_of[uid], proof) for uid, proof in found.items()]
        examples = [*cold_start, *learnt] if settings.learns else list(cold_start)
        is_done = (own / "round.json").exists()
        seed = 1000 * settings.seed + number
        if not is_done:
            prover.train(examples, own / "prover", seed=seed)
        attempt = functools.partial(_attempts, prover, check, chunk=settings.chunk, seed=seed)
        measured = attempt(held_out, settings.num_held_out_samples, own / "held_out.jsonl")
        unsolved = [goal for goal in pool if goal.uid not in found]
        tried = attempt(unsolved, settings.num_samples, own / "pool.jsonl")
        found |= {one.uid: one.proof for one in tried if one.proof is not None}
        done = Round(
            number=number,
            num_examples=len(examples),
            held_out=tuple(measured),
            pool=tuple(tried),
            num_solved=len(found),
        )
        if not is_done:
            json_files.write_json(own / "round.json", summary(done))
        rounds.append(done)
        on_round(done)
    return rounds


def summary(done: Round) -> dict[str, Any]:
    return {
        "round": done.number,
        "num_examples": done.num_examples,
        "held_out_solved": sum(a.is_solved for a in done.held_out),
        "held_out_graded": sum(a.num_graded > 0 for a in done.held_out),
        "pool_attempted": len(done.pool),
        "pool_newly_solved": sum(a.is_solved for a in done.pool),
        "pool_solved": done.num_solved,
        "ungradable_samples": sum(a.num_ungradable for a in (*done.held_out, *done.pool)),
    }


def counted(rounds: Iterable[Round], goals: Iterable[Goal]) -> list[Solution]:
    """Every proof that any figure counts, once each."""
    goal_of = {goal.uid: goal for goal in goals}
    attempts = (attempt for done in rounds for attempt in (*done.held_out, *done.pool))
    proofs = ((a.uid, a.proof) for a in attempts if a.proof is not None)
    return [Solution(goal_of[uid], proof) for uid, proof in dict.fromkeys(proofs)]


def _attempts(
    prover: Prover, check: Check, goals: Sequence[Goal], num_samples: int, path: Path,
    *, chunk: int, seed: int,
) -> list[Attempt]:  # fmt: skip
    """One attempt a goal, in order, a line each in a file; those on file are not made again."""
    kept = json_files.read_jsonl(path)
    known = {record["uid"]: Attempt(**record) for record in kept}
    rest = [goal for goal in goals if goal.uid not in known]
    if rest:
        json_files.write_jsonl(path, kept)  # without what a kill left unfinished
        with open(path, "a", encoding="utf-8") as file:
            for start in range(0, len(rest), chunk):
                some = rest[start : start + chunk]
                for attempt in _judged(some, prover.attempt(some, num_samples, seed=seed), check):
                    known[attempt.uid] = attempt
                    file.write(json_files.json_line(dataclasses.asdict(attempt)))
                file.flush()
                os.fsync(file.fileno())
    return [known[goal.uid] for goal in goals]


def _judged(
    goals: Sequence[Goal], answers: Sequence[Sequence[str]], check: Check
) -> Iterator[Attempt]:
    pairs = zip(goals, answers, strict=True)
    distinct = list(
        dict.fromkeys(Solution(goal, answer) for goal, some in pairs for answer in some)
    )
    verdict_of = dict(zip(distinct, check(distinct), strict=True))
    for goal, some in zip(goals, answers, strict=True):
        verdicts = [verdict_of[Solution(goal, answer)] for answer in some]
        accepted = [a for a, v in zip(some, verdicts, strict=True) if v.is_correct]
        yield Attempt(
            uid=goal.uid,
            num_samples=len(some),
            num_correct=len(accepted),
            num_ungradable=sum(not v.is_graded for v in verdicts),
            proof=min(accepted, key=lambda proof: (len(proof), proof), default=None),
            reasons=dict(Counter(v.reason for v in verdicts if not v.is_correct)),
        )
