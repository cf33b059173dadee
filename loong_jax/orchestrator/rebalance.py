"""Algorithm 1 of DORA: which replica hosts which version, and who moves (arXiv:2604.26256).

1. If fewer groups are outstanding than wanted, prompts are injected into the newest version.
2. Replicas are shared out among versions in proportion to outstanding groups.
3. Weights and running groups move, as few as can be: a replica keeps its version where it may, and
   a replica that must change hands its groups to others of their version first.
4. Places left over are filled (see `dora`).

Pure functions of numbers; nothing here knows what a cache or a weight is.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from loong_jax.errors import ConfigError, refuse_no_share
from loong_jax.orchestrator.changes import Action, Assign, Balanced, Migrate
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.orchestrator.tickets import UNFINISHED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triggers:
    """Triggers of rebalancing, beside weight updates and changes of the replicas that generate."""

    period_s: float = 60.0
    cache_pressure: float = 0.9  # share of the fullest replica's cache
    least_gap_s: float = 5.0  # between two that pressure asked for

    def __post_init__(self):
        refuse_no_share(self, "cache_pressure")
        if not (self.period_s > 0 and self.least_gap_s > 0):
            raise ConfigError(
                f"period_s={self.period_s} and least_gap_s={self.least_gap_s} must be positive."
            )


def shares(work: Mapping[int, int], num_replicas: int) -> dict[int, int]:
    """Replicas per version in proportion to its work: largest remainder, at least one each.

    Versions without work get none. With more versions than replicas the oldest come first: their
    groups have the least time left.
    """
    versions = sorted(version for version, amount in work.items() if amount > 0)[:num_replicas]
    if not versions:
        return {}
    total = sum(work[version] for version in versions)
    spare = num_replicas - len(versions)  # beyond the one that each gets
    exact = {v: max(0.0, num_replicas * work[v] / total - 1) for v in versions}
    scale = spare / sum(exact.values()) if sum(exact.values()) else 0.0
    quota = {v: exact[v] * scale for v in versions}
    given = {v: 1 + int(quota[v]) for v in versions}
    by_remainder = sorted(versions, key=lambda v: (int(quota[v]) - quota[v], -work[v], -v))
    for version in by_remainder[: num_replicas - sum(given.values())]:
        given[version] += 1
    return given


class _Plan:
    """Loads and versions of replicas as they will be once the actions so far are carried out."""

    def __init__(self, view: Ledger, chosen: Sequence[int]):
        self.version = {number: view.replicas[number].version for number in chosen}
        self.groups = {number: view.tickets.decoding_on(number) for number in chosen}
        self.elastic = {number: view.replicas[number].elastic for number in chosen}
        self.newest = view.newest_version
        self.places = view.groups_per_replica
        self.actions: list[Action] = []

    def hosts(self, version: int | None) -> list[int]:
        """Replicas of `version`, those that should keep it first.

        Elastic ones should host the newest: the trainer will pause them, and the groups of older
        versions have the least time left. Otherwise the fullest stay, since moving costs.
        """
        mine = [number for number, v in self.version.items() if v == version]
        return sorted(mine, key=lambda n: (self.is_misplaced(n, version), -len(self.groups[n]), n))

    def is_misplaced(self, replica: int, version: int | None) -> bool:
        return self.elastic[replica] == (version != self.newest)

    def free(self, replica: int) -> int:
        return self.places - len(self.groups[replica])

    def move(self, source: int, target: int, count: int) -> None:
        if count > 0:
            moved, self.groups[source] = self.groups[source][-count:], self.groups[source][:-count]
            self.groups[target] = sorted(self.groups[target] + moved)
            self.actions.append(Migrate(source, target, tuple(moved)))

    def vacate(self, source: int, targets: list[int]) -> bool:
        """Moves all groups of `source` to the emptiest targets; without room False, and none."""
        if sum(self.free(target) for target in targets) < len(self.groups[source]):
            return False
        while self.groups[source]:
            level = sum(len(self.groups[n]) for n in [source, *targets]) / len(targets)
            target = min(targets, key=lambda number: (len(self.groups[number]), number))
            room = min(self.free(target), max(1, round(level) - len(self.groups[target])))
            self.move(source, target, min(room, len(self.groups[source])))
        return True

    def level(self, version: int | None) -> None:
        """Evens out the loads of the replicas of one version, one donor and receiver at a time."""
        hosts = self.hosts(version)
        while len(hosts) > 1:
            hosts.sort(key=lambda number: (-len(self.groups[number]), number))
            gap = len(self.groups[hosts[0]]) - len(self.groups[hosts[-1]])
            if gap <= max(1, len(self.groups[hosts[0]]) // 4):
                return
            self.move(hosts[0], hosts[-1], gap // 2)


def share_out(view: Ledger, triggers: Triggers, now: float, *, num_wanted: int) -> list[Action]:
    """Algorithm 1 whenever a trigger says so; `num_wanted` groups should be in flight."""
    generating = view.sets.generating
    update = (view.newest_version, len(generating)) != view.balance[:2]
    waited_s = now - view.balance.at_s
    pressed = view.cache_pressure > triggers.cache_pressure
    is_due = waited_s >= triggers.period_s or (pressed and waited_s >= triggers.least_gap_s)
    hosted = view.sets.hosts  # a queued group may have no replica of its version after a resume
    uncovered = any(version not in hosted for version in view.tickets.versions("queued"))
    if not generating or not (update or is_due or uncovered):
        return []
    injected = max(0, num_wanted - view.tickets.count(*UNFINISHED))
    actions = repartition(view, generating, injected=injected)
    moves = any(isinstance(action, Assign | Migrate) for action in actions)
    return [*actions, Balanced(now)] if update or is_due or moves else []


def repartition(view: Ledger, chosen: Sequence[int], *, injected: int) -> list[Action]:
    """Steps 2 and 3 for the replicas `chosen`; `injected` groups will join the newest version."""
    plan = _Plan(view, chosen)
    work: dict[int, int] = dict(view.tickets.versions("queued"))
    for number in chosen:
        version = plan.version[number]
        if version is not None:
            work[version] = work.get(version, 0) + len(plan.groups[number])
    work[view.newest_version] = work.get(view.newest_version, 0) + max(1, injected)
    wanted = shares(work, len(chosen))
    surplus = []
    for version in sorted({v for v in plan.version.values() if v is not None}):
        hosts = plan.hosts(version)
        surplus += [(number, hosts[: wanted.get(version, 0)]) for number in hosts][
            wanted.get(version, 0) :
        ]
    surplus += [(number, []) for number in plan.hosts(None)]
    surplus.sort(key=lambda pair: (plan.elastic[pair[0]], len(plan.groups[pair[0]])))
    missing = [
        version
        for version in sorted(wanted)
        for _ in range(wanted[version] - len(plan.hosts(version)))
    ]
    for number, keepers in surplus:
        if not missing:
            break
        if plan.vacate(number, keepers):
            version = plan.version[number] = missing.pop(0)
            plan.actions.append(Assign(number, version))
    for version in sorted({v for v in plan.version.values() if v is not None}):
        plan.level(version)
    return straight(plan.actions)


def straight(actions: Sequence[Action]) -> list[Action]:
    """The same with one move per group, from where it is to where it ends up.

    Replicas carry out moves in their own time: a group that is still on its way to one of them
    cannot be asked of it. Moves stay where their first leg stood, so before the change of the
    replica that they leave; a second leg stays among replicas that keep their version.
    """
    first: dict[int, tuple[int, int]] = {}  # position and source of a group's first leg
    last: dict[int, int] = {}  # target of its last one
    for position, action in enumerate(actions):
        if isinstance(action, Migrate):
            for number in action.tickets:
                first.setdefault(number, (position, action.source))
                last[number] = action.target
    found: list[Action] = []
    for position, action in enumerate(actions):
        if not isinstance(action, Migrate):
            found.append(action)
            continue
        own = [number for number in action.tickets if first[number] == (position, action.source)]
        for target in sorted({last[number] for number in own} - {action.source}):
            numbers = tuple(number for number in own if last[number] == target)
            found.append(Migrate(action.source, target, numbers))
    return found


def evacuate(view: Ledger, leaving: Sequence[int]) -> list[Action]:
    """Groups of replicas that the trainer takes back move to others of their version, as fit.

    What finds no place is paused with its cache, until the replica is lent again.
    """
    plan = _Plan(view, view.sets.generating)
    gone = set(leaving)
    for source in leaving:
        staying = [n for n in plan.hosts(plan.version[source]) if n not in gone]
        while plan.groups[source] and staying:
            target = min(staying, key=lambda number: (len(plan.groups[number]), number))
            if plan.free(target) < 1:
                break
            share = max(1, len(plan.groups[source]) // len(staying))
            plan.move(source, target, min(plan.free(target), share))
    return plan.actions
