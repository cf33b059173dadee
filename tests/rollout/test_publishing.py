"""Two-phase publishing: whatever is lost, repeated or killed, every host that lives serves the same
versions, and no version is put together from two.
"""

import concurrent.futures
from concurrent.futures import Future

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax.rollout.publishing import (
    Begin,
    HostLost,
    Publisher,
    PublishRefused,
    Staging,
    checksums_of,
)
from loong_jax.rollout.versions import VersionError, VersionStore, manifest_of


def weights(value):
    """Leaves of several sizes and types, all of one value; one has no elements."""
    return {
        "a": {"0": np.full((5, 3), value, np.float32), "b": np.full(7, value, ml_dtypes.bfloat16)},
        "scalar": np.array(value, np.int32),
        "nothing": np.zeros((0, 4), np.float32),
    }


def publish(publisher, version, hosts, **changes):
    tree = weights(version) | changes
    return publisher.publish(Begin.of(version, tree, manifest_of(tree)), tree, hosts)


class Now(Future):
    """A reply that is there, or will never come: nothing waits in these tests."""

    def result(self, timeout=None):
        if not self.done():
            raise concurrent.futures.TimeoutError
        return super().result(0)


class FakeHost:
    """A host whose n-th message meets the n-th of `fates`; `None` and what follows go well."""

    def __init__(self, name, fates=()):
        self.name, self.fates = name, list(fates)
        self.store = VersionStore(8)
        self.staging = Staging(self.store)
        self.is_alive, self.why = True, ""

    def ask(self, message, data=None):
        fate = self.fates.pop(0) if self.fates else None
        answer = Now()
        if fate == "killed":
            self.is_alive = False
        if not self.is_alive:
            answer.set_exception(HostLost(self.name))
            return answer
        if fate == "damaged" and data is not None and len(data):
            data = data.copy()
            data[0] ^= 1
        reply = self.staging.handle(message, data)
        if fate == "killed_after":  # carried out, but nobody hears of it
            self.is_alive = False
            answer.set_exception(HostLost(self.name))
        elif fate != "silent":
            answer.set_result(reply)
        return answer

    def lose(self, why):
        self.is_alive, self.why = False, why


def check_same(hosts, versions):
    """Every living host serves exactly these, each whole."""
    for host in hosts:
        if host.is_alive:
            assert set(host.store.numbers()) == versions, host.name
            for version in versions:
                found = host.store.get(version)
                assert manifest_of(found) == manifest_of(weights(version))
                assert checksums_of(found) == checksums_of(weights(version))


FATES = ["silent", "killed", "killed_after", "damaged"]
scripts = st.lists(
    st.lists(st.none() | st.sampled_from(FATES), max_size=14), min_size=1, max_size=3
)


@settings(max_examples=300)
@given(scripts=scripts, chunk_bytes=st.sampled_from([4, 16, 1000]), window=st.integers(1, 4))
def test_every_living_host_is_on_the_old_or_the_new_version(scripts, chunk_bytes, window):
    hosts = [FakeHost(f"host {i}") for i in range(len(scripts))]
    publisher = Publisher(chunk_bytes=chunk_bytes, window=window)
    publish(publisher, 0, hosts)
    for host, script in zip(hosts, scripts, strict=True):
        host.fates = script
    published = {0}
    for version in (1, 2):  # the second one after whatever became of the first
        alive = [host for host in hosts if host.is_alive]
        try:
            served = publish(publisher, version, alive)
            published.add(version)
            assert served == [host for host in alive if host.is_alive]
        except PublishRefused:
            pass
        check_same(hosts, published)
    for host in hosts:  # and once everything goes well again, it goes well
        host.fates = []
    alive = [host for host in hosts if host.is_alive]
    assert publish(publisher, 3, alive) == alive
    check_same(hosts, published | {3})


def test_a_damaged_leaf_is_sent_again_and_a_stubborn_one_is_named():
    good, bad = FakeHost("host 0"), FakeHost("host 1", [None, "damaged"])
    publisher = Publisher()
    assert publish(publisher, 0, [good, bad]) == [good, bad]
    bad.fates = [None, None, "damaged"] * 50
    with pytest.raises(PublishRefused, match=r"version 1 .* host 1: a/b: its checksum"):
        publish(publisher, 1, [good, bad])
    check_same([good, bad], {0})


def test_another_model_is_refused_by_the_host_and_silence_loses_it():
    host = FakeHost("host 0")
    publisher = Publisher()
    publish(publisher, 0, [host])
    with pytest.raises(PublishRefused, match=r"number of arrays|expected"):
        publish(publisher, 1, [host], scalar=np.zeros(3))
    check_same([host], {0})
    silent, well = FakeHost("host 1", ["silent"]), FakeHost("host 2")
    assert publish(publisher, 2, [silent, well]) == [well]
    assert silent.why == "no answer in 90 s of publishing"


def test_one_chunk_at_a_time_is_shared_by_all_hosts():
    shared = []
    publisher = Publisher(share=lambda data: shared.append(len(data)) or data, chunk_bytes=16)
    publish(publisher, 1, [FakeHost(f"host {i}") for i in range(3)])
    assert max(shared) == 16
    assert sum(shared) == publisher.num_bytes == 5 * 3 * 4 + 7 * 2 + 4


def test_a_put_that_is_not_published_is_undone():
    class Refuses:
        def on_put(self, version):
            raise PublishRefused(f"not {version}")

        def on_retire(self, version): ...

    store = VersionStore(1)
    store.put(0, weights(0))
    store.follow(Refuses())
    with pytest.raises(PublishRefused, match="not 1"):
        store.put(1, weights(1))
    assert store.numbers() == (0,)
    with pytest.raises(VersionError):
        store.get(1)
