"""Peak rates of one TPU chip, and the slices it comes in.

Peaks, memory and interconnect are those of Google's tables: cloud.google.com/tpu/docs/v5e, /v5p,
/v6e and /tpu7x (the last one lists v5p, v6e and tpu7x side by side). "Bidirectional bandwidth per
chip" there is the sum over all links and both directions, so a link carries, one way, that figure
over twice the number of links. Clocks follow from the peak and the matrix units (128 x 128, four
per core, so the tables) where both are given.
"""

import dataclasses


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
