"""A FakeWorld with weights and a disk, and a journal that dies on command.

The weights are a hash of all that was trained, so two runs that end with the same weights trained
the same groups in the same order; a life begins with nothing but disk and journal.
"""

import dataclasses
import hashlib

from loong_jax.orchestrator import changes
from loong_jax.orchestrator.journal import Journal
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.rl import events as rl_events
from loong_jax.rollout import records
from loong_jax.rollout.reuse import GroupReuse
from tests.doubles.fake_world import FakeWorld, loop_in, problem_at


class Killed(BaseException):
    """Stands for SIGKILL: nobody may catch it."""


@dataclasses.dataclass
class Disk:
    """What survives beside the journal."""

    checkpoints: dict = dataclasses.field(default_factory=dict)  # step -> weights, versions, record
    generated: set = dataclasses.field(default_factory=set)  # tickets whose group is in the journal
    history: dict = dataclasses.field(default_factory=dict)  # step -> batch, as last trained


class MortalJournal(Journal):
    """Killed at its record number `dies_at`: before it, inside it, or after it."""

    def __init__(self, directory, disk, dies_at=None, share=1.0):
        super().__init__(directory, fsync_every_s=1e9)
        self.disk, self.dies_at, self.share = disk, dies_at, share
        self.num_written = 0

    def sync(self):
        """Nothing loses power here."""

    def write(self, change):
        self.num_written += 1
        if self.num_written == self.dies_at and self.share < 1.0:
            path = self._path(self._segment, "log")
            before = path.read_bytes()
            super().write(change)
            line = path.read_bytes()[len(before) :]
            path.write_bytes(before + line[: int(len(line) * self.share)])
            raise Killed
        super().write(change)
        if isinstance(change, changes.Generated):
            self.disk.generated.add(change.ticket)
        if self.num_written == self.dies_at:
            raise Killed


class CrashWorld(FakeWorld):
    """Also the version store. Saving takes time, and a kill in between leaves no checkpoint."""

    def __init__(self, disk, *, save_s=0.3, other_hardware=False, **kwargs):
        super().__init__(**kwargs)
        self.disk, self.save_s = disk, save_s
        self.salt = "other" if other_hardware else ""
        self.weights, self.store = "initial", {0: "initial"}
        self.dispatched = []

    def dispatch(self, replica, tickets, version):
        assert version in self.store, "the weights of a dispatched version exist"
        self.dispatched += [ticket.number for ticket in tickets]
        super().dispatch(replica, tickets, version)

    def train(self, step, groups):
        batch = tuple((g.ticket.key, g.ticket.number, g.version) for g in groups)
        self.weights = hashlib.sha256(
            f"{self.weights}{step}{batch}{self.salt}".encode()
        ).hexdigest()
        self.disk.history[step] = batch
        super().train(step, groups)

    def publish(self, version):
        self.store[version] = self.weights
        super().publish(version)

    def save(self, step, control):
        record = records.encode(control)
        versions = {v: self.store[v] for v in control["versions"]}
        saved = (self.weights, versions, record)
        self.saved.append((step, control))

        def finish(start_s, end_s):
            self.disk.checkpoints[step] = saved
            return rl_events.Saved(step, "", start_s, end_s)

        self._command(self._draw(self.save_s), finish)

    def numbers(self):
        return tuple(self.store)

    def retire(self, version):
        self.store.pop(version, None)
        return True

    def checksum(self, version):
        return self.store[version]


def outcomes(uid, number, attempt):
    """One problem in four is too easy, one in eight cannot be graded."""
    kind = int(uid.split("/")[1]) % 8
    return {0: "right", 4: "right", 6: "timeout"}.get(kind, "mixed")


def open_run(
    directory,
    disk,
    *,
    seed,
    policy,
    total_steps=4,
    dies_at=None,
    share=1.0,
    reuse=None,
    curriculum=None,
    **world,
):
    """A new process: everything it knows comes from `disk` and `directory`."""
    world = CrashWorld(
        disk, seed=seed, group_size=2, outcome_of=outcomes, **({"num_replicas": 2} | world)
    )
    control, step = None, 0
    if disk.checkpoints:
        step = max(disk.checkpoints)
        world.weights, versions, record = disk.checkpoints[step]
        world.store = dict(versions) | {step: world.weights}
        control = records.decode(record)
    max_issues = 1 if getattr(policy, "deterministic", False) else 2
    run = loop_in(
        world,
        dict(
            num_steps=total_steps,
            scheduler=policy,
            checkpoint_every=2,
            reuse=reuse or GroupReuse(),
        ),
        tickets=TicketSource(problem_at, max_issues=max_issues, curriculum=curriculum),
        versions=world,
        journal=MortalJournal(directory, disk, dies_at, share),
    )
    run.restore(control)
    return run, world


def live(run):
    """Runs to the end or to the kill; returns whether it came to the end."""
    try:
        run.run()
        return True
    except Killed:
        return False
    finally:
        run.journal._close_files()
