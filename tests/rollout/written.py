"""What replicas wrote, in a form to compare, and a group of replicas that is watched."""

import queue

from loong_jax.rollout.records import GroupGenerated, ReplicaFailed, Ticket
from tests.doubles.fake_model import fake_problem


def tickets(numbers):
    return [Ticket(number=n, problem=fake_problem(n)) for n in numbers]


def groups_of(events):
    return {e.group.ticket.number: e.group for e in events if isinstance(e, GroupGenerated)}


def content(groups):
    """Tokens and log-probabilities, to the last bit, by ticket and attempt."""
    return {
        (n, r.attempt): (r.tokens.tolist(), r.engine_logprob.tolist())
        for n, group in groups.items()
        for r in group.rollouts
    }


class Watched:
    """A started group, its store, and its events in order."""

    def __init__(self, group, store):
        self.group, self.store, self.events = group, store, queue.Queue()

    def __enter__(self):
        self.group.start(self.events.put)
        return self

    def __exit__(self, *_):
        self.group.close(30.0)

    def until(self, kind, count=1, allowed=()):
        """All events up to the `count`-th of `kind`; a failure is one of these or of `allowed`."""
        seen = []
        while sum(isinstance(event, kind) for event in seen) < count:
            seen.append(self.events.get(timeout=400))
            if not isinstance(seen[-1], (kind, *allowed)):
                assert not isinstance(seen[-1], ReplicaFailed), seen[-1]
        return seen

    def dispatch(self, replica, numbers, version):
        self.group.dispatch(replica, tickets(numbers), version)
