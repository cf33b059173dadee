"""What can happen to a run that is nobody's fault: damaged checkpoints, a full disk, verifiers that
fail or sleep. It goes on, or it stops with an error that says what to do, and nothing is lost.
"""

import dataclasses
import errno
import json
import os
import shutil
import subprocess

import pytest

from loong_jax.errors import CheckpointError, DiskFullError
from loong_jax.orchestrator import journal
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.rl import checkpoint
from loong_jax.rollout import records
from loong_jax.rollout.records import Group
from loong_jax.rollout.versions import VersionStore
from loong_jax.verifiers.pool import LocalVerifierPool
from loong_jax.verifiers.worker import WorkerConfig
from tests.doubles import killable_run
from tests.doubles.fake_world import made_loop
from tests.processes import run_python

GROUP_SIZE = 5
STRANGE = WorkerConfig(table={"strange": "tests.doubles.strange_verifier:StrangeVerifier"})


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing happens to: its directory, and what it came to."""
    directory = tmp_path_factory.mktemp("straight")
    return directory, killable_run.run(directory)


# ---- checkpoints


def truncate(directory, step):
    """Every file of a checkpoint ends in its middle."""
    for file in (directory / "checkpoints" / str(step)).rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


def test_a_truncated_checkpoint_is_passed_over_for_the_one_before(straight):
    directory, expected = straight
    steps = checkpoint.steps(directory / "checkpoints")
    assert len(steps) == 2
    truncate(directory, steps[-1])
    before = (directory / "trained.jsonl").read_text().splitlines()
    assert killable_run.run(directory) == expected
    again = (directory / "trained.jsonl").read_text().splitlines()[len(before) :]
    assert [json.loads(line)[0] for line in again] == list(range(steps[0] + 1, steps[-1] + 1))
    assert set(again) <= set(before)  # the same batches, from the journal
    written = (directory / "generated.jsonl").read_text().splitlines()
    assert len(set(written)) == len(written)  # nothing was generated twice
    for step in checkpoint.steps(directory / "checkpoints"):
        truncate(directory, step)
    with pytest.raises(CheckpointError, match=r"damaged in .*checkpoint .*No other is left: del"):
        killable_run.run(directory)


# ---- full disks


class FullDisk:
    """`os`, on a disk with room for so many bytes: a write that does not fit is cut short."""

    def __init__(self, num_bytes):
        self.left = num_bytes

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, descriptor, view):
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fits = view[: self.left]
        self.left -= len(fits)
        return os.write(descriptor, fits)


@pytest.mark.parametrize("num_bytes", [900, 5000])
def test_a_run_whose_journal_finds_no_room_goes_on_later(
    straight, tmp_path, monkeypatch, num_bytes
):
    monkeypatch.setattr(journal, "os", FullDisk(num_bytes))
    with pytest.raises(DiskFullError, match=r"no room to write .*journal.*\d+ bytes are free"):
        killable_run.run(tmp_path)
    monkeypatch.undo()
    assert killable_run.run(tmp_path) == straight[1]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command mount")
    if done.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_a_full_disk_says_so_and_goes_on_later(straight, small_disk):
    """Less and less room, so that it ends in metrics, in the journal and within checkpoints."""
    command = ("-m", "tests.doubles.killable_run")
    num_full = 0
    for room in (4096, 16384, 40960, 65536):
        filler, run = small_disk / "filler", small_disk / str(room)
        run.mkdir()
        filler.write_bytes(bytes(max(0, free_bytes(small_disk) - room)))
        done = run_python(*command, run)
        filler.unlink()
        if done.returncode:
            num_full += 1
            last = done.stderr.strip().splitlines()[-1]
            assert "DiskFullError" in last
            assert str(run) in last
            assert "bytes are free" in last
        again = run_python(*command, run)
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout.splitlines()[-1]) == straight[1]
        assert not list((run / "checkpoints").glob("*tmp*"))
        shutil.rmtree(run)
    assert num_full >= 2


def free_bytes(path):
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


# ---- verifiers


class StrangeWorkers(killable_run.Workers):
    """Of the answers one in five breaks its verifier, and now and then one makes it sleep."""

    def dispatch(self, replica, tickets, version):
        for ticket in tickets:
            weights = self.store.get(version)["w"]
            plain = dataclasses.replace(ticket.problem, gold=None)
            asked = dataclasses.replace(ticket, problem=plain)
            rollouts = tuple(
                self.with_text(killable_run._rollout(asked, i, version, weights))
                for i in range(GROUP_SIZE)
            )
            group = Group(ticket=ticket, version=version, rollouts=rollouts)
            self.emit(records.GroupGenerated(group))

    def with_text(self, rollout):
        place = rollout.ticket * GROUP_SIZE + rollout.attempt
        broken = "sleep 10" if place % 50 == 7 else "raise"
        text = broken if place % 5 == 2 else ("right" if place % 2 else "wrong")
        return dataclasses.replace(rollout, text=text)


class Log(killable_run.NoLog):
    def __init__(self):
        self.groups = []

    def judged(self, group, disposition):
        self.groups.append((group, disposition))


def test_a_verifier_that_fails_or_sleeps_masks_answers_and_stops_nothing(tmp_path):
    policy = DoraPolicy(groups_per_step=3, max_staleness=1)
    store = VersionStore(policy.max_staleness)
    workers, log, pool = StrangeWorkers(tmp_path, store), Log(), LocalVerifierPool(2, STRANGE)
    store.put(0, {"w": workers.weights.copy()})

    def problem_at(cursor):
        plain = killable_run.problem_at(cursor)
        return dataclasses.replace(plain, verifier="strange", gold="right")

    run = made_loop(
        dict(num_steps=4, scheduler=policy, verdict_deadline_s=5.0, stall_timeout_s=120.0),
        trainer=workers,
        replicas=workers,
        verifiers=pool,
        tickets=TicketSource(problem_at),
        versions=store,
        log=log,
    )
    try:
        final = run.run()
    finally:
        pool.close(timeout_s=10.0)
    assert final.step == 4
    assert final.counts()["trained"] == 12
    rollouts = [r for group, _ in log.groups for r in group.rollouts]
    broken = [r for r in rollouts if r.text not in ("right", "wrong")]
    assert {r.text for r in broken} == {"raise", "sleep 10"}
    assert len(broken) == len(rollouts) // 5
    for rollout in broken:
        assert rollout.verdict.outcome == "ungradable"
        assert rollout.reward is None
    for rollout in rollouts:
        if rollout.text in ("right", "wrong"):
            assert rollout.reward == float(rollout.text == "right")
    assert {disposition for _, disposition in log.groups} == {"keep"}
