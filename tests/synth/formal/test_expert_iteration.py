"""The loop with a prover that learns lengths: it proves what is one longer than all it has seen."""

import json
import multiprocessing
import os
import signal

import pytest

from loong_jax.errors import ConfigError
from loong_jax.problems import verdict
from loong_jax.synth.formal import expert_iteration
from loong_jax.synth.formal.expert_iteration import Goal, LoopSettings, Solution


def goal(size, number=0):
    return Goal(uid=f"{size}/{number}", text="x" * size, kin=f"{size}/{number}", level=size)


class Counter:
    """Proves `x` * n by `y` * n, for n up to one more than it was shown."""

    def __init__(self, kill_after=10**9):
        self.trained, self.attempted, self._left = [], [], kill_after
        self.longest = 0

    def train(self, examples, directory, *, seed):
        directory.mkdir(parents=True, exist_ok=True)
        self.longest = 1 + max(len(example.proof) for example in examples)
        self.trained.append((seed, sorted(example.goal.uid for example in examples)))

    def attempt(self, goals, num_samples, *, seed):
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.attempted.append([g.uid for g in goals])
        able = [g for g in goals if len(g.text) <= self.longest]
        return [
            ["no", *["y" * len(g.text)] * (num_samples - 1)] if g in able else ["no"] * num_samples
            for g in goals
        ]


def check(claims):
    return [
        verdict.ungradable("server")
        if claim.proof == "down"
        else verdict.correct()
        if claim.proof == "y" * len(claim.goal.text)
        else verdict.wrong("proof")
        for claim in claims
    ]


COLD = [Solution(goal(1), "y"), Solution(goal(2), "yy")]
POOL = [goal(size, number) for size in (3, 4, 5, 6) for number in range(3)]
HELD_OUT = [goal(size, 9) for size in (2, 3, 4, 5, 6, 7)]
SETTINGS = LoopSettings(num_rounds=4, num_samples=3, num_held_out_samples=3, chunk=2)


def run(directory, prover=None, *, settings=SETTINGS, held_out=HELD_OUT, cold=COLD, judge=check):
    return expert_iteration.run(
        directory, settings, prover or Counter(), judge,
        cold_start=cold, pool=POOL, held_out=held_out,
    )  # fmt: skip


def test_it_rises_by_what_it_proved_itself(tmp_path):
    prover = Counter()
    rounds = run(tmp_path, prover)
    assert [done.num_examples for done in rounds] == [2, 5, 8, 11]
    assert [done.num_solved for done in rounds] == [3, 6, 9, 12]
    assert [sum(a.is_solved for a in done.held_out) for done in rounds] == [2, 3, 4, 5]
    assert [len(done.pool) for done in rounds] == [12, 9, 6, 3], "solved ones are left alone"
    assert [seed for seed, _ in prover.trained] == [0, 1, 2, 3]
    held_out = {g.uid for g in HELD_OUT}
    assert not any(held_out & set(uids) for _, uids in prover.trained), "these only measure"
    counted = expert_iteration.counted(rounds, [*POOL, *HELD_OUT])
    assert len(counted) == 12 + 5
    assert all(v.is_correct for v in check(counted))
    [first, *_] = rounds[0].pool
    assert (first.num_samples, first.num_correct, first.reasons) == (3, 2, {"proof": 1})


def test_the_control_learns_nothing_new(tmp_path):
    rounds = run(tmp_path, settings=LoopSettings(num_rounds=3, num_samples=3, learns=False))
    assert [done.num_examples for done in rounds] == [2, 2, 2]
    assert [done.num_solved for done in rounds] == [3, 3, 3]


@pytest.mark.parametrize("kill_after", [0, 1, 4, 11, 17])
def test_killed_at_any_time_it_goes_on_where_it_stopped(tmp_path, kill_after):
    whole = run(tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=run, args=(tmp_path / "cut", Counter(kill_after)))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    kept = sorted((tmp_path / "cut").glob("round-*/*.jsonl"))
    done_before = sum(len(path.read_text().splitlines()) for path in kept)
    if kept:  # a line that the kill cut short
        with kept[-1].open("a") as file:
            file.write('{"uid": "3/')
    prover = Counter()
    assert run(tmp_path / "cut", prover) == whole
    attempted = sum(map(len, prover.attempted))
    assert attempted == sum(len(r.held_out) + len(r.pool) for r in whole) - done_before
    names = [str(p.relative_to(tmp_path / "whole")) for p in (tmp_path / "whole").rglob("*.json*")]
    for name in names:
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_what_cannot_be_judged_is_no_failure(tmp_path):
    class Down(Counter):
        def attempt(self, goals, num_samples, *, seed):
            return [["down"] * num_samples for _ in goals]

    [done] = run(tmp_path, Down(), settings=LoopSettings(num_rounds=1, num_samples=2))
    assert all(a.num_graded == 0 and not a.is_solved for a in done.held_out)
    record = json.loads((tmp_path / "round-0" / "round.json").read_text())
    assert record["held_out_graded"] == 0
    assert record["ungradable_samples"] == 6 * 8 + 12 * 2


def test_what_would_cheat_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="kin"):
        run(tmp_path / "a", held_out=[*HELD_OUT, goal(3, 1)])
    with pytest.raises(ConfigError, match="kin"):
        run(tmp_path / "b", held_out=[*HELD_OUT, goal(2)])
    with pytest.raises(ConfigError, match="twice"):
        run(tmp_path / "c", held_out=[*HELD_OUT, HELD_OUT[0]])
    with pytest.raises(ConfigError, match="not accepted"):
        run(tmp_path / "d", cold=[Solution(goal(1), "yy")])
    run(tmp_path / "e")
    with pytest.raises(ConfigError, match="held_out"):
        run(tmp_path / "e", held_out=HELD_OUT[1:])
