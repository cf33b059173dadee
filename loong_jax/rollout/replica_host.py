"""The inside of a host process: replicas in threads, the versions they serve, and what they say.

The driver's side is `hosted_replicas`; what carries the messages is `process_hosts` or `ray_hosts`.
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from loong_jax.errors import LoongError
from loong_jax.rollout import hosts as messages
from loong_jax.rollout.attempts import MigrationPayload, PartialReport, PartialRollout, to_host
from loong_jax.rollout.hosts import HostSetup, monotonic_clock_name
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.publishing import Staging
from loong_jax.rollout.records import Rollout
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.versions import VersionStore

logger = logging.getLogger(__name__)


class ReplicaHost:
    """Carries out commands in the thread that brings them, which never waits for a block.

    `send` takes reports and may be called from any thread.
    """

    def __init__(self, setup: HostSetup, send: Callable[[Any], None]):
        self._send = send
        self._setup = setup
        engine = setup.make_engine()
        # one more than in the driver's store: a retired version may be held a moment longer here
        # and as they came, for scores: replicas alone round them
        self._versions = VersionStore(
            setup.max_staleness + 1, offload=True, load=engine.devices.load
        )
        self._staging = Staging(self._versions)
        self._due_s: dict[int, float] = {}  # by replica: when it tells of its work again
        self._group = LocalReplicaGroup(
            engine,
            self._versions,
            num_replicas=setup.num_replicas,
            group_size=setup.group_size,
            sampling=setup.sampling,
            seed=setup.seed,
            groups_per_replica=setup.groups_per_replica,
            encode_prompt=setup.encode_prompt,
            agent=setup.make_agent and setup.make_agent(),
            first_number=setup.first_number,
            after_block=self._after_block,
            score_group=setup.make_scorer and setup.make_scorer(),
        )
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._group.start(self._send)
        self._send(messages.Ready(os.getpid(), monotonic_clock_name()))
        self._beat_once()
        self._heart.start()

    def handle(self, message: Any, data: np.ndarray | None = None) -> bool:
        """Carries out one command; False after `Close`. `data` are bytes that came beside it."""
        group = self._group
        match message:
            case messages.Call("publish", arguments, int(number)):
                self._answer(number, self._staging.handle(arguments["message"], data))
            case messages.Call(method, arguments, None):
                getattr(group, method)(**arguments)
            case messages.Call(method, arguments, int(number)):
                getattr(group, method)(**arguments, then=functools.partial(self._answer, number))
            case messages.Retire(version):
                self._versions.retire(version)
            case messages.Close(timeout_s):
                self._close(timeout_s)
                return False
            case _:
                raise AssertionError(f"unknown message {message!r}")
        return True

    def _answer(self, number: int, value: Any) -> None:
        if isinstance(value, MigrationPayload):
            to_host(value.attempts)
        self._send(messages.Answer(number, value))

    def _close(self, timeout_s: float) -> None:
        self._closing.set()
        try:
            self._group.close(timeout_s)
        except LoongError as error:  # the process ends, and its threads with it
            logger.warning("%s", error)
        self._heart.join(timeout_s)
        self._beat_once()

    def _beat(self) -> None:
        while not self._closing.wait(self._setup.heartbeat_s):
            self._beat_once()

    def _beat_once(self) -> None:
        counts, pressure = self._group.statistics(), self._group.cache_pressure()
        self._send(messages.Heartbeat(time.monotonic(), counts, pressure))

    def _after_block(self, replica: Replica) -> None:
        """In the replica's thread: tells of it, at most every `report_s`."""
        now_s = time.monotonic()
        if now_s < self._due_s.get(replica.number, 0.0):
            return
        self._due_s[replica.number] = now_s + self._setup.report_s
        if reports := news_of(replica):
            self._send(messages.Wrote(reports))


def news_of(replica: Replica) -> tuple[PartialReport | Rollout, ...]:
    """New parts of its responses since this was last asked, and those that have ended meanwhile."""
    reports: list[PartialReport | Rollout] = []
    for attempt in replica.under_way():
        tokens, log_probs = attempt.written(attempt.num_told)
        attempt.num_told = len(attempt.tokens)
        is_mixed = len(attempt.versions) > 1  # a partial has one version
        if not len(tokens) or replica.version is None or is_mixed or attempt.tool_turns:
            continue
        new = PartialRollout(tokens, log_probs, attempt.started_s)
        start, ticket = attempt.length - len(tokens), attempt.job.ticket.number
        reports.append(PartialReport(ticket, replica.version, attempt.number, start, new))
    for job in replica.jobs():
        reports += list(job.rollouts.values())[job.num_told :]
        job.num_told = len(job.rollouts)
    return tuple(reports)
