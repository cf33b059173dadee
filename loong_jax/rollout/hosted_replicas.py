"""Replicas in other processes, as the orchestrator's `ReplicaGroup`.

Each host is a process with one or more replicas. Its commands wait in a queue of a thread of its
own, so a host that starts slowly, is sent weights or hangs delays nobody else. A host that ends,
or is silent for too long, is lost with its replicas: `ReplicaFailed` for each, and `mend` starts
another process. What it had told of its work is kept here, so its tickets go on from there.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from loong_jax.rollout import hosts as messages
from loong_jax.rollout import records
from loong_jax.rollout.attempts import MigrationPayload, PartialGroup, SentTickets
from loong_jax.rollout.hosts import HostLauncher, HostLink, HostSetup
from loong_jax.rollout.publishing import Begin, Publisher
from loong_jax.rollout.versions import VersionError, VersionStore

logger = logging.getLogger(__name__)


class HostedReplicaGroup:
    """`num_hosts` processes of `setup.num_replicas` replicas each, where `launcher` puts them.

    `versions` is followed: what is put there is published to all hosts before `put` returns.
    """

    def __init__(
        self,
        launcher: HostLauncher,
        versions: VersionStore,
        setup: HostSetup,
        *,
        num_hosts: int,
        start_timeout_s: float = 600.0,
        silence_timeout_s: float = 60.0,
        publisher: Publisher | None = None,
    ):
        """A host that is not ready after `start_timeout_s`, or not heard of for
        `silence_timeout_s` afterwards, is lost.
        """
        assert min(num_hosts, setup.num_replicas) >= 1, f"num_hosts={num_hosts}"
        is_patient = silence_timeout_s >= 3 * setup.heartbeat_s > 0
        assert is_patient, "a late heartbeat would end a host that works"
        self.num_replicas = num_hosts * setup.num_replicas
        self.groups_per_replica = setup.groups_per_replica
        self._launcher, self._versions, self._setup = launcher, versions, setup
        self._start_timeout_s, self._silence_timeout_s = start_timeout_s, silence_timeout_s
        self._publisher = publisher or Publisher(share=launcher.share)
        self._lock = threading.RLock()  # of what follows
        self._links: list[HostLink] = []  # by number of the host, once started
        self._failed: set[int] = set()  # replicas to mend
        self._held: dict[int, int] = {}  # version by replica
        self._sent = SentTickets()
        self._past: Counter[str] = Counter()  # counts of hosts that are gone
        self._say: records.Emit  # from `start` on
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_hosts, name="host-watch", daemon=True)

    # ---- commands, from the orchestrator's thread -----------------------------------------------

    def start(self, emit: records.Emit) -> None:
        """Starts the processes and returns; commands wait until they are ready."""
        assert not self._links, "the group was started before"
        self._say = emit
        self._versions.follow(self)
        for host in range(self.num_replicas // self._setup.num_replicas):
            self._start_host(host)
        self._watch.start()

    def assign(self, replica: int, version: int) -> None:
        """A host that lacks the version is sent it first, as one that was mended does."""
        self._take_up("assign", replica, version)

    def swap(self, replica: int, version: int, *, keep_cache: bool) -> None:
        """See `LocalReplicaGroup.swap`."""
        self._take_up("swap", replica, version, keep_cache=keep_cache)

    def _take_up(self, method: str, replica: int, version: int, **arguments: Any) -> None:
        self._versions.acquire(version, f"replica-{replica}")  # it can be sent again until released
        with self._lock:
            self._release(replica)
            self._held[replica] = version
        link = self._link(replica)

        def carry_out() -> None:
            try:
                self._bring(version, link)
            except VersionError:
                with self._lock:
                    if self._held.get(replica) == version:
                        raise
                return  # while the host started, another version took its place
            given = dict(replica=replica, version=version, **arguments)
            link.send(messages.Call(method, given))

        link.put(carry_out)

    def dispatch(self, replica: int, tickets: Sequence[records.Ticket], version: int) -> None:
        """Responses that a lost replica had begun under `version` go along."""
        self._sent.add(tickets, version)
        partials = self._sent.partials([ticket.number for ticket in tickets], version)
        self._post_tickets(replica, tickets, version, partials)

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None:
        with self._lock:  # before or after groups that arrive, never between two halves of that
            self._sent.forget(ticket_numbers)
            self._post(replica, "cancel", replica=replica, ticket_numbers=tuple(ticket_numbers))

    def migrate(self, source: int, target: int, ticket_numbers: Sequence[int]) -> None:
        """`LocalReplicaGroup.migrate`; between hosts the caches go through this process."""
        assert source != target, f"replica {source} cannot migrate to itself"
        numbers, to = tuple(ticket_numbers), self._link(target)
        if self._link(source) is to:
            self._post(source, "migrate", source=source, target=target, ticket_numbers=numbers)
            return
        given = self._link(source).call("give", replica=source, ticket_numbers=numbers)
        given.add_done_callback(lambda given: self._arrive(source, target, to, numbers, given))

    def scorers(self, version: int) -> tuple[int, ...]:
        """Replicas whose hosts are ready and serve this version; none without `make_scorer`."""
        if self._setup.make_scorer is None:
            return ()
        with self._lock:
            return tuple(
                replica
                for link in self._links
                if link.is_ready and version in link.versions
                for replica in self._of(link)
                if replica not in self._failed
            )

    def score(
        self, replica: int, groups: Sequence[records.Group], then: records.WhenScored
    ) -> None:
        """`LocalReplicaGroup.score`, for one of the `scorers` of all these versions."""
        scored = self._link(replica).call("score", replica=replica, groups=tuple(groups))
        scored.add_done_callback(
            lambda scored: None if self._closing.is_set() else then(_or_none(scored))
        )

    def mend(self, replica: int) -> None:
        """A new replica in the place of one that failed, in a new process where that has ended."""
        with self._lock:
            if replica not in self._failed or self._closing.is_set():
                return
            self._failed.discard(replica)
            if self._link(replica).is_lost:
                self._start_host(replica // self._setup.num_replicas)
            else:
                self._post(replica, "mend", replica=replica)

    def statistics(self) -> dict[str, int]:
        """Counters of all replicas, as of the last heartbeats; see `Replica.statistics`."""
        with self._lock:
            total = Counter(self._past)
            for link in self._links:
                total.update(link.counts)
        return dict(total)

    def cache_pressure(self) -> float:
        """The cache pressure of the fullest replica, as of the last heartbeats."""
        return max([link.cache_pressure for link in self._links if not link.is_lost], default=0.0)

    def pids(self) -> list[int | None]:
        """Process of each host; None while it starts."""
        return [link.pid for link in self._links]

    def close(self, timeout_s: float) -> None:
        """Ends the hosts after the blocks under way; kills those that take longer."""
        self._closing.set()
        deadline_s = time.monotonic() + timeout_s
        for link in self._links:
            link.close(max(0.0, deadline_s - time.monotonic()))
        for link in self._links:
            if not link.join(max(0.0, deadline_s - time.monotonic())):
                logger.warning("%s did not end within %.1f s and is killed", link.name, timeout_s)
                link.kill()
                link.join(5.0)
        if self._watch.is_alive():
            self._watch.join(5.0)
        with self._lock:
            for replica in list(self._held):
                self._release(replica)
        self._launcher.close()

    # ---- the version store's follower -----------------------------------------------------------

    def on_put(self, version: int) -> None:
        """Publishes to all hosts that are ready; the others are sent it when they need it."""
        with self._lock:
            ready = [link for link in self._links if link.is_ready]
        self._publish(version, ready)

    def on_retire(self, version: int) -> None:
        self._sent.forget_version(version)
        for link in self._links:
            link.put(lambda link=link: self._retire(version, link))

    def _publish(self, version: int, links: Sequence[HostLink]) -> None:
        """To all of them in two phases; returns once each has it or is lost."""
        manifest, weights = self._versions.manifest, self._versions.get(version)
        assert manifest is not None
        begin = Begin.of(version, weights, manifest, self._versions.leaf_checksums(version))
        for link in self._publisher.publish(begin, weights, links):
            assert isinstance(link, HostLink)
            link.versions.add(version)

    def _bring(self, version: int, link: HostLink) -> None:
        """To one that lacks it: it was mended, or started late."""
        with link.versions_lock:
            if version not in link.versions and not link.is_lost:
                self._publish(version, [link])

    def _retire(self, version: int, link: HostLink) -> None:
        link.versions.discard(version)
        link.send(messages.Retire(version))

    # ---- reports, in the threads of the hosts ---------------------------------------------------

    def _on_report(self, link: HostLink, report: Any) -> None:
        match report:
            case messages.Wrote(reports):
                for part in reports:
                    self._sent.report(part)
                return
            case records.GroupGenerated(group):
                self._sent.forget([group.ticket.number])
            case records.ReplicaFailed(replica):
                with self._lock:
                    self._failed.add(replica)
                    self._release(replica)
        self._say(report)

    def _arrive(
        self, source: int, target: int, to: HostLink, numbers: tuple[int, ...], given: Future[Any]
    ) -> None:
        """Hands over what one host gave, or begins again what was lost with it.

        `to` is the life of the target's host that the tickets were promised to.
        """
        if self._closing.is_set():
            return
        payload: MigrationPayload | None = _or_none(given)
        with self._lock:
            if to.is_lost:
                return  # the tickets were in the target's hands, and failed with it
            lost = self._sent.lost(numbers) if payload is None else []
            left = payload and payload.only(self._sent)
            if left and left.jobs:
                self._post(target, "take", replica=target, payload=left)
            elif left:  # all have ended, or were cancelled on the way
                self._say(records.GroupsMigrated(source, target, (), 0, 0))
        for ticket, version, partials in lost:
            num_tokens = sum(partial.num_tokens for partial in partials.values())
            self._post_tickets(target, [ticket], version, partials)
            self._say(records.GroupsMigrated(source, target, (ticket.number,), 0, num_tokens))

    def _on_lost(self, link: HostLink, why: str) -> None:
        """Called once for every life of a host."""
        if self._closing.is_set():
            return
        logger.warning("%s is lost: %s", link.name, why)
        with self._lock:
            self._past.update({k: n for k, n in link.counts.items() if "held" not in k})
            replicas = [number for number in self._of(link) if number not in self._failed]
            self._failed.update(self._of(link))
            for replica in replicas:
                self._release(replica)
        for replica in replicas:
            self._say(records.ReplicaFailed(replica, f"{link.name}: {why}"))

    def _watch_hosts(self) -> None:
        while not self._closing.wait(self._setup.heartbeat_s):
            for link in self._links:
                if link.is_lost:
                    continue
                silent_s = time.monotonic() - link.heard_s
                limit_s = self._silence_timeout_s if link.is_ready else self._start_timeout_s
                if silent_s > limit_s:
                    state = "silent" if link.is_ready else "not ready"
                    link.lose(f"{state} for {silent_s:.0f} s")

    # ---- parts ----------------------------------------------------------------------------------

    def _start_host(self, host: int) -> None:
        setup = self._setup._replace(first_number=host * self._setup.num_replicas)
        link = HostLink(
            f"host {host}", self._launcher.new(host, setup), self._on_report, self._on_lost
        )
        self._links[host : host + 1] = [link]
        link.start()

    def _of(self, link: HostLink) -> range:
        host = self._links.index(link)
        return range(host * self._setup.num_replicas, (host + 1) * self._setup.num_replicas)

    def _link(self, replica: int) -> HostLink:
        return self._links[replica // self._setup.num_replicas]

    def _post(self, at: int, method: str, **arguments: Any) -> None:
        """Calls a method of the group in which replica `at` is."""
        link = self._link(at)
        link.put(lambda: link.send(messages.Call(method, arguments)))

    def _post_tickets(
        self,
        replica: int,
        tickets: Sequence[records.Ticket],
        version: int,
        partials: dict[int, PartialGroup],
    ) -> None:
        """Sends tickets; those that are cancelled while the host starts are not sent at all."""
        link = self._link(replica)

        def carry_out() -> None:
            wanted = tuple(ticket for ticket in tickets if ticket.number in self._sent)
            if wanted:
                given = dict(replica=replica, tickets=wanted, version=version, partials=partials)
                link.send(messages.Call("dispatch", given))

        link.put(carry_out)

    def _release(self, replica: int) -> None:
        """The caller has the lock."""
        version = self._held.pop(replica, None)
        if version is not None:
            self._versions.release(version, f"replica-{replica}")


def _or_none(answer: Future[Any]) -> Any:
    """None where the host was lost before."""
    return None if answer.exception() else answer.result()
