"""Topologies of TPU slices: what a text such as v5e:4x4 is to Cloud and to JAX.

Sources: Google's pages on each TPU generation for accelerator types, shapes and runtime versions.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

from loong_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of chips: its names at Google Cloud, and how they are counted there."""

    accelerator: str  # prefix of an accelerator type
    counted_per_chip: int  # its number counts cores where 2
    devices_per_chip: int  # as JAX sees them
    runtime_version: str
    flat_shapes: tuple[tuple[int, int], ...] = ()  # all there are; () for shapes of three sides
    max_chips: int
    note: str = ""


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # larger ones have multiples of 4 as sides
CHIPS_PER_HOST = 4  # a flat slice of 8 chips or fewer is one host

GENERATIONS = {
    "v5e": Generation(
        accelerator="v5litepod",
        counted_per_chip=1,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv5-lite",
        flat_shapes=_FLAT,
        max_chips=256,
    ),
    "v6e": Generation(
        accelerator="v6e",
        counted_per_chip=1,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv6e",
        flat_shapes=_FLAT,
        max_chips=256,
    ),
    "v5p": Generation(
        accelerator="v5p",
        counted_per_chip=2,
        devices_per_chip=1,
        runtime_version="v2-alpha-tpuv5",
        max_chips=8960,
    ),
    "tpu7x": Generation(
        accelerator="tpu7x",
        counted_per_chip=2,
        devices_per_chip=2,
        runtime_version="v2-alpha-tpu7-ubuntu2404",
        max_chips=9216,
        note="Google documents tpu7x for GKE; as a TPU VM it is for projects that were given it",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A topology such as v5e:4x4, as Cloud and JAX see it."""

    generation: Generation
    num_chips: int

    @property
    def accelerator_type(self) -> str:
        counted = self.num_chips * self.generation.counted_per_chip
        return f"{self.generation.accelerator}-{counted}"

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.generation.devices_per_chip

    @property
    def num_hosts(self) -> int:
        if self.generation.flat_shapes and self.num_chips <= 8:
            return 1
        return self.num_chips // CHIPS_PER_HOST


def parse_topology(text: str) -> Slice:
    """The slice that a text such as v5e:4x4 or v5p:4x4x8 names.

    An accelerator type holds the number of chips and no shape, so of the shapes with that number
    only the one that Cloud gives can be asked for.

    Raises ConfigError for anything else, naming what would do.
    """
    name, _, shape = text.partition(":")
    if name not in GENERATIONS:
        raise ConfigError(
            f"topology={text!r} starts with none of {', '.join(GENERATIONS)}. Write for example "
            "v5e:4x4 or v5p:4x4x4."
        )
    generation = GENERATIONS[name]
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", shape):
        raise ConfigError(f"topology={text!r} has no shape such as 4x4. Write {name}:4x4 or so.")
    sides = tuple(sorted(int(side) for side in shape.split("x")))
    num_chips = math.prod(sides)
    if num_chips > generation.max_chips:
        raise ConfigError(
            f"topology={text!r} has {num_chips} chips, and a pod of {name} has "
            f"{generation.max_chips}. Choose a smaller shape."
        )
    if generation.flat_shapes:
        if sides not in generation.flat_shapes:
            shapes = ", ".join(_shape(known) for known in generation.flat_shapes)
            raise ConfigError(f"topology={text!r} does not exist. {name} has {shapes}.")
    elif (given := _given_shape(num_chips)) != sides:
        hint = (
            f"{num_chips} chips come as {name}:{_shape(given)}" if given
            else "sides are 2x2x1, 2x2x2, 2x2x4, 2x4x4 or multiples of 4"
        )  # fmt: skip
        raise ConfigError(f"topology={text!r} cannot be asked for: {hint}. Use such a shape.")
    return Slice(generation=generation, num_chips=num_chips)


def _given_shape(num_chips: int) -> tuple[int, ...] | None:
    """The shape of three sides that Cloud gives for a number of chips: the nearest to a cube."""
    sides = range(4, num_chips // 16 + 1, 4)
    cubes = [
        (a, b, num_chips // (a * b))
        for a, b in itertools.combinations_with_replacement(sides, 2)
        if a * b * b <= num_chips and num_chips % (a * b * 4) == 0
    ]
    small = [tuple(sorted(shape)) for shape in _SMALL if math.prod(shape) == num_chips]
    return min(small or cubes, key=sum, default=None)


def _shape(sides: Sequence[int]) -> str:
    ordered = sorted(sides) if min(sides) > 1 else sorted(sides, reverse=True)  # 2x2x1, as written
    return "x".join(map(str, ordered))
