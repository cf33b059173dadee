"""The time of a collective on a torus of links, from the places of its groups on it.

The model, stated so that it can be doubted: a chip has one link in each direction of each axis of
the torus; messages take the shortest way, axis by axis, half each way round where both are equal.
Every group works at the same time, and the busiest link decides. An axis that is too short to
close to a ring is a line. An all-to-all sends each pair its part. All-gathers and reduce-scatters
go in rings along each axis that a group spans, all axes at once, each carrying an equal part: a
closed ring uses both directions, and `stride` groups that interleave along an axis share its links.
Devices of one chip share its links, and what they tell each other is free. Between slices every
chip has its share of the data-centre network. Each step of a ring, and each hop of the longest way
of an all-to-all, costs `HOP_S`.
"""

import dataclasses
import functools
import math

import numpy as np

from loong_jax.plan.topology import Topology

HOP_S = 1e-6
LINK_EFFICIENCY = 0.9  # of the link's rate, for packets' heads and flow control

Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Network:
    """Links of a topology, and where each device, in the order of the mesh, stands.

    `coordinates` has a row (slice, x, y[, z]) per device.
    """

    topology: Topology
    coordinates: tuple[tuple[int, ...], ...]

    def seconds(self, kind: str, num_bytes: float, groups: Groups) -> float:
        """Time of one collective of `kind` whose operand and result are as `moved_bytes` says.

        `num_bytes` is what each device sends.
        """
        if num_bytes == 0 or len(groups[0]) == 1:
            return 0.0
        across = self._across_slices(groups)
        if across > 1:
            per_chip = self.topology.chip.dcn_bandwidth / self.topology.chip.num_devices
            return num_bytes / per_chip + across * 10 * HOP_S
        link = self.topology.chip.link_bandwidth * LINK_EFFICIENCY
        if kind in ("all-to-all", "ragged-all-to-all", "collective-permute"):
            size = len(groups[0])
            load, hops = _busiest_link(self, groups, kind == "collective-permute")
            part = num_bytes / (1 if kind == "collective-permute" else size - 1)
            return part * load / link + hops * HOP_S
        rings, steps = _rings(self, groups)
        if rings == 0:  # devices of one chip
            return HOP_S
        return num_bytes * self.topology.chip.num_devices / (rings * link) + steps * HOP_S

    def all_to_all_bandwidth(self, groups: Groups) -> float:
        """Bytes per second and chip that an all-to-all over these groups reaches."""
        num_bytes = 1e9
        seconds = self.seconds("all-to-all", num_bytes, groups)
        return num_bytes * self.topology.chip.num_devices / seconds if seconds else math.inf

    def _across_slices(self, groups: Groups) -> int:
        return len({self.coordinates[device][0] for device in groups[0]})


@functools.lru_cache(maxsize=4096)
def _busiest_link(network: Network, groups: Groups, is_ring: bool) -> tuple[float, int]:
    """Messages over the busiest link when each pair of a group exchanges one, and longest way.

    With `is_ring`, each device sends to the next of its group instead.
    """
    place = np.asarray(network.coordinates)
    members = np.asarray(groups)
    if is_ring:
        source, target = members.reshape(-1), np.roll(members, -1, axis=1).reshape(-1)
    else:
        size = members.shape[1]
        source = np.repeat(members, size, axis=1).reshape(-1)
        target = np.tile(members, (1, size)).reshape(-1)
    start, end = place[source, 1:], place[target, 1:]
    shape, wraps = network.topology.shape, network.topology.wraps
    slices = place[source, 0]
    busiest, longest, at = 0.0, 0, start.copy()
    hops = np.zeros(len(source), int)
    for axis, (size, wrap) in enumerate(zip(shape, wraps, strict=True)):
        delta = end[:, axis] - start[:, axis]
        load = np.zeros((2, network.topology.num_slices, *shape))
        if wrap:
            forward = delta % size
            distance = np.minimum(forward, size - forward)
            share = np.where(2 * forward == size, 0.5, (2 * forward < size).astype(float))
        else:
            distance, share = np.abs(delta), (delta > 0).astype(float)
        hops += distance
        for direction, part in ((1, share), (-1, 1 - share)):
            for step in range(int(distance.max(initial=0))):
                moving = (distance > step) & (part > 0)
                link = at[moving].copy()
                link[:, axis] = (link[:, axis] + direction * step) % size
                index = (int(direction < 0), slices[moving], *link.T)
                np.add.at(load, index, part[moving])
        busiest = max(busiest, float(load.max()))
        at[:, axis] = end[:, axis]
    longest = int(hops.max(initial=0))
    return busiest, longest


@functools.lru_cache(maxsize=4096)
def _rings(network: Network, groups: Groups) -> tuple[float, int]:
    """Link-widths that a chip sends over in all-gathers of these groups, and steps of the ring."""
    place = np.asarray(network.coordinates)[np.asarray(groups[0])]
    rings, steps = 0.0, 0
    for axis, (size, wrap) in enumerate(
        zip(network.topology.shape, network.topology.wraps, strict=True), start=1
    ):
        held = np.unique(place[:, axis])
        if len(held) == 1:
            continue
        stride = int(np.min(np.diff(held)))
        closes = wrap and len(held) * stride == size
        rings += (2.0 if closes else 1.0) / stride
        steps += len(held) - 1
    return rings, steps
