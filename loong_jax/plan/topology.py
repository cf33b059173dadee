"""Chips and their peak rates, and slices of them: `v5p:4x4x8`, `2x v5p:4x4x4`.

Peaks, memory and interconnect are those of Google's tables: cloud.google.com/tpu/docs/v5e, /v5p,
/v6e and /tpu7x (the last one lists v5p, v6e and tpu7x side by side). "Bidirectional bandwidth per
chip" there is the sum over all links and both directions, so a link carries, one way, that figure
over twice the number of links. Clocks follow from the peak and the matrix units (128 x 128, four
per core, so the tables) where both are given.
"""

import dataclasses
import math
import re

from loong_jax.errors import ConfigError
from loong_jax.launch.tpu_vm import GENERATIONS, parse_topology


@dataclasses.dataclass(frozen=True, kw_only=True)
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

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v5e",
            bf16_flops=197e12,
            fp8_flops=197e12,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=819e9,
            num_devices=1,
            num_torus_axes=2,
            link_bandwidth=50e9,
            dcn_bandwidth=25e9 / 8,
            wrap_multiple=16,
            clock_hz=1.5e9,
        ),
        Chip(
            name="v5p",
            bf16_flops=459e12,
            fp8_flops=459e12,
            hbm_bytes=95 * GIB,
            hbm_bandwidth=2765e9,
            num_devices=1,
            num_torus_axes=3,
            link_bandwidth=100e9,
            dcn_bandwidth=50e9 / 8,
            wrap_multiple=4,
            clock_hz=1.75e9,
        ),
        Chip(
            name="v6e",
            bf16_flops=918e12,
            fp8_flops=918e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1638e9,
            num_devices=1,
            num_torus_axes=2,
            link_bandwidth=100e9,
            dcn_bandwidth=100e9 / 8,
            wrap_multiple=16,
            clock_hz=None,
        ),
        Chip(
            name="tpu7x",
            bf16_flops=2307e12,
            fp8_flops=4614e12,
            hbm_bytes=192 * GIB,
            hbm_bandwidth=7380e9,
            num_devices=2,
            num_torus_axes=3,
            link_bandwidth=100e9,
            dcn_bandwidth=100e9 / 8,
            wrap_multiple=4,
            clock_hz=None,
        ),
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
        made._check_slice()
        return made

    def _check_slice(self) -> None:
        """Raises ConfigError where there is no such slice.

        A TPU VM comes in one shape for a number of chips; other shapes whose sides are multiples
        of 4 exist as well.
        """
        has_axes = len(self.shape) == self.chip.num_torus_axes == 3
        is_of_cubes = has_axes and all(side and side % 4 == 0 for side in self.shape)
        largest = GENERATIONS[self.chip.name].max_chips
        if not is_of_cubes or math.prod(self.shape) > largest:
            parse_topology(self.slice_name)
        if len(self.shape) == 3 and any(side % 2 for side in self.shape[:2]):
            raise ConfigError(
                f"topology {self.slice_name!r}: a host has 2x2x1 chips, so the side of 1 comes "
                f"last. Write {self.chip.name}:2x2x1."
            )

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
