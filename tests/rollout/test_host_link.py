"""A host and its driver: times when messages are slow or clocks differ, and late beginnings."""

import queue
import threading
import time

import pytest

from loong_jax.rollout import hosts as messages
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import HostLink, HostSetup, monotonic_clock_name
from loong_jax.rollout.process_hosts import ProcessLauncher
from loong_jax.rollout.records import BlockDecoded, SamplingSettings, Ticket
from loong_jax.rollout.versions import VersionStore
from tests.doubles.fake_model import fake_engine, fake_problem, fake_weights

SLOW_S = 0.5  # that every message takes


class SilentHost:
    def start(self, receive, ended):
        self.receive, self.ended = receive, ended

    def send(self, message, data=None): ...

    def kill(self): ...

    def join(self, timeout_s):
        return True


@pytest.mark.parametrize("host_is_ahead_s", [0.0, 3600.0])
def test_times_are_those_of_our_clock(host_is_ahead_s):
    host, heard = SilentHost(), []
    link = HostLink("host 0", host, lambda link, report: heard.append(report), lambda *_: None)
    link._receive(messages.Ready(1, clock_of(host_is_ahead_s)))
    sent_s = time.monotonic() - SLOW_S
    link._receive(messages.Heartbeat(sent_s + host_is_ahead_s, {}))
    block = BlockDecoded(
        replica=0,
        version=0,
        start_s=sent_s + host_is_ahead_s - 1.0,
        end_s=sent_s + host_is_ahead_s,
        active_slots=1,
        num_tokens=1,
    )
    link._receive(block)
    (event,) = heard
    if host_is_ahead_s:  # another clock is known as well as messages are quick
        assert sent_s + SLOW_S <= event.end_s <= time.monotonic()
    else:
        assert event.end_s == sent_s
    assert event.end_s - event.start_s == pytest.approx(1.0)


def clock_of(host_is_ahead_s):
    return "another" if host_is_ahead_s else monotonic_clock_name()


SETUP = HostSetup(
    make_engine=fake_engine,
    group_size=2,
    sampling=SamplingSettings(max_new_tokens=4),
    seed=0,
    groups_per_replica=4,
    max_staleness=1,
)


class SlowStarter(SilentHost):
    """A host, and the placement that puts it anywhere. It answers what it is asked."""

    def __init__(self):
        self.heard, self.started = queue.Queue(), threading.Event()

    def new(self, number, setup):
        return self

    def share(self, data):
        return data

    def close(self): ...

    def start(self, receive, ended):
        super().start(receive, ended)
        self.started.set()

    def send(self, command, data=None):
        if isinstance(command, messages.Call) and command.number is not None:
            self.receive(messages.Answer(command.number, ""))
        else:
            self.heard.put(command)


def test_a_host_that_starts_slowly_is_spared_what_is_over_by_then():
    """Its first version was retired meanwhile, with the tickets that were for it."""
    host, store, events = SlowStarter(), VersionStore(1), queue.Queue()
    store.put(0, fake_weights(0))
    group = HostedReplicaGroup(host, store, SETUP, num_hosts=1)
    group.start(events.put)
    assert host.started.wait(30)
    group.assign(0, 0)
    group.dispatch(0, [Ticket(number=0, problem=fake_problem(0))], 0)
    group.cancel(0, [0])
    store.put(1, fake_weights(1))
    group.assign(0, 1)
    group.dispatch(0, [Ticket(number=1, problem=fake_problem(1))], 1)
    assert store.retire(0)
    host.receive(messages.Ready(1, monotonic_clock_name()))
    heard = [host.heard.get(timeout=30) for _ in range(4)]
    assert [type(command).__name__ for command in heard] == ["Call"] * 3 + ["Retire"]
    assert [call.method for call in heard[:3]] == ["cancel", "assign", "dispatch"]
    assert heard[1].arguments["version"] == 1
    assert [ticket.number for ticket in heard[2].arguments["tickets"]] == [1]
    assert events.empty(), "nothing was lost"
    group.close(1.0)


def test_a_process_that_is_killed_before_it_has_started_never_starts():
    reasons = []
    host = ProcessLauncher().new(0, SETUP)
    link = HostLink("host 0", host, lambda *_: None, lambda _, why: reasons.append(why))
    link.close(1.0)  # its thread comes to it too late
    link.start()
    link._thread.join(30)
    assert not link._thread.is_alive()
    assert host._process is None
    assert reasons == ["it was killed before it had started"]
