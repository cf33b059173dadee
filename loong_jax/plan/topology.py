"""Chips, slices of them (`v5p:4x4x8`, `2x v5p:4x4x4`), and the time of a collective on their links.

Peaks, memory and interconnect are those of Google's tables: cloud.google.com/tpu/docs/v5e, /v5p,
/v6e and /tpu7x (the last one lists v5p, v6e and tpu7x side by side). "Bidirectional bandwidth per
chip" there is the sum over all links and both directions, so a link carries, one way, that figure
over twice the number of links. Clocks follow from the peak and the matrix units (128 x 128, four
per core, so the tables) where both are given.

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
import re

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.launch.tpu_vm import GENERATIONS, parse_topology


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip; a chip may show itself as several JAX devices, which share its links."""

    name: str  # as JAX's topologies spell it
    bf16_flops: float  # per second, dense
    fp8_flops: float  # per second; the bf16 figure where fp8 is no faster
    hbm_bytes: float
    hbm_bandwidth: float  # bytes per second
    num_devices: int  # JAX devices per chip
    num_torus_axes: int  # 2: 4 links, 3: 6 links
    link_bandwidth: float  # bytes per second, one link, one way
    dcn_bandwidth: float  # bytes per second between slices, per chip
    wrap_multiple: int  # an axis closes to a ring where it is a multiple of this
    clock_hz: float | None  # of a core, where it is known

    @property
    def ici_bandwidth(self) -> float:
        """Bytes per second that a chip can send over all its links at once."""
        return 2 * self.num_torus_axes * self.link_bandwidth


GIB = 2.0**30

CHIPS = {  # the columns are the fields of `Chip`
    chip.name: chip
    for chip in (
        Chip("v5e", 197e12, 197e12, 16 * GIB, 819e9, 1, 2, 50e9, 25e9 / 8, 16, 1.5e9),
        Chip("v5p", 459e12, 459e12, 95 * GIB, 2765e9, 1, 3, 100e9, 50e9 / 8, 4, 1.75e9),
        Chip("v6e", 918e12, 918e12, 32 * GIB, 1638e9, 1, 2, 100e9, 100e9 / 8, 16, None),
        Chip("tpu7x", 2307e12, 4614e12, 192 * GIB, 7380e9, 2, 3, 100e9, 100e9 / 8, 4, None),
    )
}
_FORM = re.compile(r"(?:(?P<slices>\d+)x\s+)?(?P<chip>\w+):(?P<shape>\d+(?:x\d+)*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """`num_slices` equal slices; a slice is a torus, or a mesh where an axis does not close."""

    chip: Chip
    shape: tuple[int, ...]  # chips along each axis of a slice
    num_slices: int = 1

    @classmethod
    def parse(cls, text: str, *, num_slices: int | None = None) -> "Topology":
        """Reads `v6e:8x8` or `2x v5p:4x4x4`; `num_slices` may be given apart instead."""
        form = _FORM.fullmatch(text.strip())
        if form is None:
            raise ConfigError(
                f"topology {text!r} is not of the form CHIP:AxB[xC]. Write v6e:8x8, tpu7x:4x4x4 "
                "or, for two slices, '2x v5p:4x4x4'."
            )
        if form["chip"] not in CHIPS:
            raise ConfigError(f"chip {form['chip']!r} is unknown. Choose of {', '.join(CHIPS)}.")
        chip = CHIPS[form["chip"]]
        shape = tuple(int(size) for size in form["shape"].split("x"))
        in_text = int(form["slices"]) if form["slices"] else None
        if in_text and num_slices and in_text != num_slices:
            raise ConfigError(
                f"topology {text!r} names {in_text} slices and --num-slices {num_slices}. Give one."
            )
        for slices in (in_text, num_slices):
            if slices is not None and slices < 1:
                raise ConfigError(
                    f"topology {text!r} in {slices} slices: there must be at least 1. Raise it."
                )
        made = cls(chip=chip, shape=shape, num_slices=in_text or num_slices or 1)
        # A TPU VM comes in one shape for a number of chips; others of multiples of 4 exist as well.
        is_of_cubes = len(shape) == chip.num_torus_axes == 3 and not any(
            s % 4 or not s for s in shape
        )
        if not is_of_cubes or math.prod(shape) > GENERATIONS[chip.name].max_chips:
            parse_topology(made.slice_name)
        if len(shape) == 3 and any(side % 2 for side in shape[:2]):
            raise ConfigError(
                f"topology {made.slice_name!r}: a host has 2x2x1 chips, so the side of 1 comes "
                f"last. Write {chip.name}:2x2x1."
            )
        return made

    def __str__(self) -> str:
        slices = f"{self.num_slices}x " if self.num_slices > 1 else ""
        return slices + self.slice_name

    @property
    def slice_name(self) -> str:
        """One slice, as JAX's topologies spell it."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape) * self.num_slices

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.chip.num_devices

    @property
    def wraps(self) -> tuple[bool, ...]:
        """True for axes of a slice that close to rings."""
        return tuple(size > 2 and size % self.chip.wrap_multiple == 0 for size in self.shape)


# ---- links

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
        """Time of one collective of `kind`, of which each device sends `num_bytes`."""
        chip, size = self.topology.chip, len(groups[0])
        if num_bytes == 0 or size == 1:
            return 0.0
        across = len({self.coordinates[device][0] for device in groups[0]})  # slices
        if across > 1:
            per_device = chip.dcn_bandwidth / chip.num_devices
            return num_bytes / per_device + across * 10 * HOP_S
        link = chip.link_bandwidth * LINK_EFFICIENCY
        is_ring = kind == "collective-permute"
        if is_ring or kind in ("all-to-all", "ragged-all-to-all"):
            load, hops = _busiest_link(self, groups, is_ring)
            return num_bytes / (1 if is_ring else size - 1) * load / link + hops * HOP_S
        rings, steps = _rings(self, groups)
        if rings == 0:  # devices of one chip
            return HOP_S
        return num_bytes * chip.num_devices / (rings * link) + steps * HOP_S

    def all_to_all_bandwidth(self, groups: Groups) -> float:
        """Bytes per second and chip that an all-to-all over these groups reaches."""
        seconds = self.seconds("all-to-all", 1e9, groups)
        return 1e9 * self.topology.chip.num_devices / seconds if seconds else math.inf


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
    busiest, at, hops = 0.0, start.copy(), np.zeros(len(source), int)
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
    return busiest, int(hops.max(initial=0))


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
