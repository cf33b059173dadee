"""What it costs to drive replicas in other processes: start, bytes of commands and reports.

    loong bench placement --hosts 1 2 4 8 16 --place processes --json placement.json

Each host runs a null engine, so what is measured is import, connection, messages and the driver's
own work. On one machine the start is shared by its cores; on many it is not.
"""

import dataclasses
import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import tyro

from loong_jax.bench import record
from loong_jax.bench.null_engine import NullEngine
from loong_jax.environments.problem import Problem
from loong_jax.errors import ConfigError, LoongError
from loong_jax.launch import places
from loong_jax.rollout.events import BlockDecoded, GroupGenerated, ReplicaFailed
from loong_jax.rollout.host_messages import HostSetup
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import Placement
from loong_jax.rollout.process_hosts import ProcessPlacement
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.versions import VersionStore

GROUP_SIZE = 4
_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Start time and control-plane bytes against the number of hosts."""

    hosts: tuple[int, ...] = (1, 2, 4, 8, 16)
    place: Literal["processes", "ray"] = "processes"
    groups_per_host: int = 8  # of 4 responses each
    num_tokens: int = 257  # of a response
    weight_mib: int = 16  # published once to all hosts
    json: Path | None = None

    def __post_init__(self):
        if not self.hosts:
            raise ConfigError("hosts names no number of hosts. Name one or more.")
        if min(*self.hosts, self.groups_per_host, self.num_tokens, self.weight_mib) < 1:
            raise ConfigError(f"{self}: every number must be at least 1.")


def main(arguments: Sequence[str]) -> int:
    chosen = tyro.cli(Options, args=list(arguments), prog="loong bench placement")
    places.prepare_files(json=chosen.json)
    rows, save = [], record.saver(chosen.json, chosen)
    print(f"{'hosts':>6}{'start':>9}{'command':>10}{'report':>9}{'driver':>12}{'publish':>10}")
    for num_hosts in chosen.hosts:
        rows.append(measure(num_hosts, chosen))
        row = rows[-1]
        print(
            f"{num_hosts:>6}{row['start_s']:>7.1f} s{row['bytes_per_command']:>8.0f} B"
            f"{row['bytes_per_report']:>7.0f} B{row['driver_us_per_report']:>9.0f} us"
            f"{row['publish_s']:>8.2f} s"
        )
        save({"place": chosen.place, "rows": rows})
    return 0


def measure(num_hosts: int, chosen: Options) -> dict[str, Any]:
    """One size: seconds to the first and the last host, bytes, and the driver's CPU time.

    `driver_us_per_report` is of all threads of this process, from the first command to the last
    report. Raises LoongError where a host fails.
    """
    store = VersionStore(1)
    weights = [{"w": np.full(chosen.weight_mib * 2**18, n, np.float32)} for n in range(2)]
    store.put(0, weights[0])
    setup = HostSetup(
        make_engine=cast(Any, NullEngine),  # all that a replica asks of an engine
        group_size=GROUP_SIZE,
        sampling=SamplingSettings(max_new_tokens=chosen.num_tokens),
        seed=0,
        groups_per_replica=chosen.groups_per_host,
        max_staleness=1,
    )
    place = _place(chosen)
    group = HostedReplicaGroup(place, store, setup, num_hosts=num_hosts, start_timeout_s=_TIMEOUT_S)
    events: queue.Queue[Any] = queue.Queue()
    began_s = time.monotonic()
    group.start(events.put)
    try:
        starts_s = _wait_until_ready(group, began_s)
        before, cpu_s = group.traffic(), time.process_time()
        tickets = iter(range(num_hosts * chosen.groups_per_host))
        for replica in range(num_hosts):
            group.assign(replica, 0)
            for _ in range(chosen.groups_per_host):
                group.dispatch(replica, [_ticket(next(tickets))], 0)
        num_blocks = _wait_for_groups(events, num_hosts * chosen.groups_per_host)
        cpu_s = time.process_time() - cpu_s
        traffic = {name: n - before[name] for name, n in group.traffic().items()}
        published_s = time.monotonic()
        store.put(1, weights[1])
        published_s = time.monotonic() - published_s
    finally:
        group.close(30.0)
    num_responses = num_hosts * chosen.groups_per_host * GROUP_SIZE
    return {
        "num_hosts": num_hosts,
        "start_s": max(starts_s),
        "first_start_s": min(starts_s),
        "bytes_per_command": traffic["command_bytes"] / traffic["num_commands"],
        "bytes_per_report": traffic["report_bytes"] / traffic["num_reports"],
        "report_bytes_per_token": traffic["report_bytes"] / (num_responses * chosen.num_tokens),
        "driver_us_per_report": 1e6 * cpu_s / traffic["num_reports"],
        "publish_s": published_s,
        "num_blocks": num_blocks,
        **traffic,
    }


def _place(chosen: Options) -> Placement:
    if chosen.place == "processes":
        return ProcessPlacement()
    from loong_jax.rollout.ray_hosts import RayPlacement

    return RayPlacement(num_cpus=0.01)


def _wait_until_ready(group: HostedReplicaGroup, began_s: float) -> list[float]:
    """Seconds after which each host was ready."""
    ready: dict[int, float] = {}
    while len(ready) < group.num_replicas:
        now_s = time.monotonic()
        for number, pid in enumerate(group.pids()):
            if pid is not None:
                ready.setdefault(number, now_s - began_s)
        if now_s - began_s > _TIMEOUT_S:
            raise LoongError(
                f"{len(ready)} of {group.num_replicas} hosts were ready after {_TIMEOUT_S:.0f} s. "
                "Ask for fewer."
            )
        time.sleep(0.01)
    return list(ready.values())


def _wait_for_groups(events: "queue.Queue[Any]", num_groups: int) -> int:
    num_blocks = num_done = 0
    while num_done < num_groups:
        event = events.get(timeout=_TIMEOUT_S)
        if isinstance(event, ReplicaFailed):
            raise LoongError(f"replica {event.replica} failed: {event.error}")
        num_blocks += isinstance(event, BlockDecoded)
        num_done += isinstance(event, GroupGenerated)
    return num_blocks


def _ticket(number: int) -> Ticket:
    problem = Problem(
        uid=f"null/1/{number}",
        domain="stem",
        environment="null",
        level=1,
        seed=number,
        canonical=str(number),
        prompt=f"{number}" * 8,
        verifier="math",
    )
    return Ticket(number=number, problem=problem)
