"""The parts of a program's time: a model of the chip, and the records of a walk."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

from loong_jax.plan.collectives import Collective, ExpertWeights
from loong_jax.plan.costs import Cost
from loong_jax.plan.hlo import Instruction
from loong_jax.plan.topology import Chip

PEAK_SHARE = 0.75  # of the operations that a chip can do
HBM_SHARE = 0.8  # of its memory bandwidth


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a chip for times; `link_seconds` times a collective."""

    chip: Chip
    mesh: dict[str, int]
    link_seconds: Callable[[Collective], float]
    default_trips: Callable[[Instruction], float | None] = lambda _: None
    expert_weights: ExpertWeights = frozenset()  # see collectives.weights_of_experts

    def fusion_seconds(self, cost: Cost) -> tuple[float, float]:
        """Time of the products, time of the HBM traffic, on one device."""
        chip = self.chip
        slow = (cost.unit_flops - cost.fp8_flops) / chip.bf16_flops
        fast = cost.fp8_flops / chip.fp8_flops
        return (
            (slow + fast) * chip.num_devices / PEAK_SHARE,
            cost.hbm_bytes * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE),
        )


class Inside(NamedTuple):
    """Work scheduled between the launch of a transfer and its end."""

    name: str
    op_name: str
    flops: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One transfer between devices; figures are of one run, `trips` says how often it runs."""

    name: str
    collective: Collective
    is_asynchronous: bool
    seconds: float  # on the links
    exposed_s: float
    inside: tuple[Inside, ...]
    trips: float

    @property
    def window_s(self) -> float:
        return sum(work.seconds for work in self.inside)


class Event(NamedTuple):
    """An event of the timeline: a lane's work from start to end, in seconds of one run."""

    lane: str  # "compute", "link", "exposed"
    label: str
    start_s: float
    end_s: float


@dataclasses.dataclass
class Segment:
    """The sums over a computation, walked once."""

    seconds: float = 0.0
    compute_s: float = 0.0  # fusions, with nothing exposed
    product_s: float = 0.0  # the part of `compute_s` that products bound
    exposed_copy_s: float = 0.0
    idle_link_s: float = 0.0  # could still serve transfers launched outside
    idle_hbm_s: float = 0.0
    estimated_cycles: float = 0.0  # the compiler's, of its fusions
    cost: Cost = Cost()
    rows: list[Row] = dataclasses.field(default_factory=list)
    events: list[Event] = dataclasses.field(default_factory=list)
    loops: list["Loop"] = dataclasses.field(default_factory=list)

    def add(self, other: "Segment", trips: float) -> None:
        """Adds what `trips` runs of another computation come to, but for their time."""
        for name in ("compute_s", "product_s", "exposed_copy_s", "estimated_cycles"):
            setattr(self, name, getattr(self, name) + trips * getattr(other, name))
        self.cost += Cost(*(trips * part for part in other.cost))
        self.rows += [dataclasses.replace(row, trips=row.trips * trips) for row in other.rows]


@dataclasses.dataclass(frozen=True)
class Loop:
    name: str
    trips: float
    segment: Segment  # one run of its body


def one_after_the_other(parts: Iterable[tuple[float, Segment]]) -> Segment:
    """Programs of a step, each with how often it runs."""
    step = Segment()
    for runs, segment in parts:
        step.add(segment, runs)
        step.seconds += runs * segment.seconds
        step.loops += [Loop(loop.name, runs * loop.trips, loop.segment) for loop in segment.loops]
    return step
