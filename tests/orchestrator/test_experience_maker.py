"""Generators that score: who gets which group, one event for all, and nothing lost with them."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax.orchestrator.experience_maker import TrainerWithGenerators, num_tokens, share_out
from loong_jax.rl.events import GroupsScored, StepTrained, WorkerFailed
from loong_jax.rollout.records import Group, Ticket
from tests.doubles.fake_model import fake_problem
from tests.doubles.fake_world import fake_rollout
from tests.doubles.scoring import scored_as_sampled
from tests.rollout import real_loop


class Trainer(real_loop.Trainer):
    """Answers at once, with one second of its own clock per command."""

    def __init__(self):
        self.asked, self.seconds = [], itertools.count()

    def score(self, groups):
        self.asked.append([group.ticket.number for group in groups])
        at_s = float(next(self.seconds))
        self.emit(GroupsScored(scored_as_sampled(groups), at_s, at_s + 1))


class Generators:
    """Two replicas of every version but `lacks`; they answer when they are told to."""

    def __init__(self, lacks=()):
        self.lacks, self.asked = lacks, {}

    def scorers(self, version):
        return () if version in self.lacks else (0, 1)

    def score(self, replica, groups, then):
        self.asked[replica] = groups, then

    def answer(self, replica):
        groups, then = self.asked.pop(replica)
        then(scored_as_sampled(groups))

    def fail(self, replica):
        self.asked.pop(replica)[1](None)


def fake_group(number, version, length):
    """One rollout of `length` tokens, prompt included, not scored."""
    ticket = Ticket(number=number, problem=fake_problem(number))
    tokens = np.full(length - 1, 2, np.int32)
    rollout = dataclasses.replace(
        fake_rollout(ticket, 0, version), tokens=tokens, behavior_logprob=None
    )
    return Group(ticket=ticket, version=version, rollouts=(rollout,))


def groups_of(*lengths, version=0):
    return [fake_group(number, version, length) for number, length in enumerate(lengths)]


@pytest.fixture
def scene():
    trainer, generators, events = Trainer(), Generators(), []
    both = TrainerWithGenerators(trainer, generators)
    both.start(events.append)
    return both, trainer, generators, events


def numbers(event):
    return [group.ticket.number for group in event.groups]


def is_scored(event):
    return all(r.behavior_logprob is not None for g in event.groups for r in g.rollouts)


def test_one_event_tells_of_all_groups_in_the_order_asked(scene):
    both, trainer, generators, events = scene
    both.score_everywhere(groups_of(9, 3, 8, 4, 7, 5))
    assert trainer.asked == [[0, 1]]  # 9 + 3, against 8 + 4 and 7 + 5
    generators.answer(1)
    assert not events
    generators.answer(0)
    assert [numbers(event) for event in events] == [[0, 1, 2, 3, 4, 5]]
    assert is_scored(events[0])
    assert both.num_scored == {"trainer": 2, "generators": 4}


def test_what_a_generator_loses_the_trainer_scores(scene):
    both, trainer, generators, events = scene
    both.score_everywhere(groups_of(9, 8, 7))
    generators.fail(0)
    generators.answer(1)
    assert trainer.asked == [[0], [1]]
    assert numbers(events[0]) == [0, 1, 2]
    assert is_scored(events[0])
    assert (events[0].start_s, events[0].end_s) == (0.0, 2.0)


def test_a_version_that_no_generator_has_is_the_trainers(scene):
    both, trainer, generators, events = scene
    generators.lacks = (0,)
    both.score_everywhere(groups_of(9, 8, 7))
    assert trainer.asked == [[0, 1, 2]]
    assert numbers(events[0]) == [0, 1, 2]


def test_other_events_pass_and_a_failed_trainer_is_told(scene):
    both, trainer, _, events = scene
    both.train(1, [])
    both.score(groups_of(4))
    trainer.score = lambda groups: trainer.emit(WorkerFailed("trainer/score", "no memory"))
    both.score_everywhere(groups_of(9, 8))
    kinds = [type(event) for event in events]
    assert kinds == [StepTrained, GroupsScored, WorkerFailed]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    replicas=st.lists(st.sets(st.integers(0, 4)), min_size=2, max_size=2),
)
def test_every_group_has_one_owner_who_can(lengths, replicas):
    groups = [fake_group(n, n % 2, length) for n, length in enumerate(lengths)]
    can = dict(enumerate(sorted(of) for of in replicas))
    shares = share_out(groups, can)
    assert shares[None]
    assert sorted(g.ticket.number for part in shares.values() for g in part) == list(
        range(len(groups))
    )
    for owner, part in shares.items():
        assert owner is None or all(owner in can[group.version] for group in part)
    if replicas[0] == replicas[1]:  # then nobody has more than another and one group
        load = {owner: sum(map(num_tokens, part)) for owner, part in shares.items()}
        least = min(load.get(owner, 0) for owner in (None, *replicas[0]))
        assert max(load.values()) <= least + max(map(num_tokens, groups))
