"""Slices of chips: `v5p:4x4x8`, `2x v5p:4x4x4`."""

import dataclasses
import math
import re

from loong_jax.errors import ConfigError
from loong_jax.launch.tpu_vm.topology import GENERATIONS, parse_topology
from loong_jax.plan.chips import CHIPS, Chip

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
        if len(shape) != chip.num_torus_axes:
            raise ConfigError(
                f"topology {text!r} has {len(shape)} axes and {chip.name} has "
                f"{chip.num_torus_axes}. Write as many sizes."
            )
        if min(shape) < 1:
            raise ConfigError(
                f"topology {text!r} has a side of {min(shape)} chips. Write sides of at least 1."
            )
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
        is_of_cubes = len(self.shape) == 3 and not any(side % 4 for side in self.shape)
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
