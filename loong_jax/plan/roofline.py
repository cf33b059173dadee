"""A lower bound of a program's time: its schedule, walked in order.

A fusion takes max(operations / 0.75 peak, HBM bytes / 0.8 bandwidth). A synchronous collective
takes its whole time. An asynchronous one runs beside the work between its launch and its end, and
takes what is left when its end is reached. Link time is never used twice: of the transfers under
way the one that must end first is served first, and all rest while a synchronous collective runs.
The same holds of copies and SparseCore work, which are served by the HBM bandwidth that fusions
leave over. Loops count as often as they run; a branch counts as its cheapest side.
"""

import bisect
import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from loong_jax.plan import collectives, costs
from loong_jax.plan.collectives import Collective, ExpertWeights
from loong_jax.plan.costs import Cost
from loong_jax.plan.hlo import Computation, Instruction, Module, trip_count
from loong_jax.plan.topology import Chip

PEAK_SHARE = 0.75  # of the operations that a chip can do
HBM_SHARE = 0.8  # of its memory bandwidth
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


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
        products = (slow + cost.fp8_flops / chip.fp8_flops) * chip.num_devices / PEAK_SHARE
        return products, cost.hbm_bytes * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE)


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


@dataclasses.dataclass(eq=False)
class _Transfer:
    name: str
    left_s: float
    seconds: float
    collective: Collective | None  # None: a copy, or work of a SparseCore
    launched_s: float
    ends_at: int  # where in the schedule
    inside: list[Inside] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Walk:
    """Walks a module; `warnings` collects what had to be guessed."""

    module: Module
    model: Model
    warnings: list[str] = dataclasses.field(default_factory=list)
    _done: dict[str, Segment] = dataclasses.field(default_factory=dict)

    def entry(self) -> Segment:
        return self.segment(self.module.entry)

    def segment(self, computation: Computation) -> Segment:
        """Walks a computation once, nothing under way at its start and at its end."""
        if computation.name not in self._done:
            self._done[computation.name] = _Walker(self, computation).walk()
        return self._done[computation.name]

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class _Walker:
    """The state of one walk through one computation."""

    def __init__(self, walk: Walk, computation: Computation):
        self.walk_, self.computation = walk, computation
        self.module, self.model = walk.module, walk.model
        self.result = Segment()
        self.ends_at = _ends(self.module, computation)
        self.links: list[_Transfer] = []  # under way, in the order in which they must end
        self.copies: list[_Transfer] = []
        self.by_name: dict[str, _Transfer] = {}

    def walk(self) -> Segment:
        for instruction in self.computation.instructions:
            self.step(instruction)
        for queue in (self.links, self.copies):
            for transfer in list(queue):
                self.finish(transfer, queue)
        return self.result

    # ---- one instruction

    def step(self, instruction: Instruction) -> None:
        opcode, computations = instruction.opcode, self.module.computations
        if opcode in ("send", "send-done"):
            pass  # its other end, the recv, is what takes time
        elif opcode.endswith("-done"):
            started = (self.by_name.get(name) for name in instruction.operands)
            self.end(instruction, next(filter(None, started), None))
        elif opcode.endswith(("-start", "-update")) or opcode == "recv":
            self.launch(instruction)
        elif opcode == "while":
            self.loop(instruction)
        elif opcode == "conditional":
            sides = [self.walk_.segment(computations[name]) for _, name in instruction.called]
            self.repeat(instruction, min(sides, key=lambda side: side.seconds), 1.0)
        elif opcode == "call":
            if name := instruction.computation("to_apply"):
                self.repeat(instruction, self.walk_.segment(computations[name]), 1.0)
        elif collectives.kind_of(opcode):
            self.synchronous(instruction, instruction, self.computation)
        else:
            carried = collectives.carried(self.module, instruction)
            if carried and carried.part == "start":
                self.by_name[carried.channel] = self.begin(instruction)
            elif carried and carried.part == "end":
                self.end(instruction, self.by_name.get(carried.channel))
            elif not carried and (inner := collectives.find(self.module, instruction)):
                self.synchronous(instruction, *inner)
            self.compute(instruction)

    def compute(self, instruction: Instruction) -> None:
        cost = costs.cost(self.module, self.computation, instruction)
        is_kernel = "tpu_custom_call" in instruction.attributes
        if is_kernel and not cost.flops and cost.hbm_bytes > 1e7:
            self.walk_.warn(f"the kernel {instruction.name} states no operations: counted by bytes")
        products_s, traffic_s = self.model.fusion_seconds(cost)
        seconds = max(products_s, traffic_s)
        cycles = _CYCLES.search(instruction.attributes)
        self.result.cost += cost
        self.result.compute_s += seconds
        self.result.product_s += products_s if products_s >= traffic_s else 0.0
        self.result.estimated_cycles += int(cycles[1]) if cycles else 0
        if seconds:
            work = Inside(instruction.name, instruction.op_name, cost.flops, seconds)
            self.pass_time(work, seconds, seconds - traffic_s)

    def pass_time(self, work: Inside, link_s: float, hbm_s: float) -> None:
        """Work goes on; links are free for `link_s` of it and HBM bandwidth for `hbm_s`."""
        self.spend("compute", work.op_name or work.name, work.seconds)
        self.result.idle_link_s += _serve(self.links, link_s)
        self.result.idle_hbm_s += _serve(self.copies, hbm_s)
        for transfer in self.links + self.copies:
            transfer.inside.append(work)

    # ---- transfers

    def read(self, outer: Instruction, inner: Instruction, within: Computation) -> Collective:
        """A collective, named after the instruction that wraps it where it has no name."""
        found = collectives.read(inner, within, self.model.mesh, self.model.expert_weights)
        if found.op_name or not outer.op_name:
            return found
        share = max(found.expert_share, float(collectives.of_experts(outer.op_name)))
        return dataclasses.replace(found, op_name=outer.op_name, expert_share=share)

    def synchronous(
        self, instruction: Instruction, inner: Instruction, within: Computation
    ) -> None:
        collective = self.read(instruction, inner, within)
        seconds = self.model.link_seconds(collective)
        self.expose(collective.kind, seconds)
        self.result.idle_hbm_s += _serve(self.copies, seconds)
        rows = self.result.rows
        rows.append(Row(instruction.name, collective, False, seconds, seconds, (), 1.0))

    def expose(self, label: str, seconds: float) -> None:
        if seconds:
            self.spend("exposed", label, seconds)

    def spend(self, lane: str, label: str, seconds: float) -> None:
        start = self.result.seconds
        self.result.seconds += seconds
        self.result.events.append(Event(lane, label, start, self.result.seconds))

    def launch(self, instruction: Instruction) -> None:
        first = self.by_name.get(instruction.operands[0]) if instruction.operands else None
        if first is not None and instruction.opcode.endswith("-update"):
            self.by_name[instruction.name] = first  # already under way
            return
        if instruction.opcode == "call-start" and not instruction.operands:
            return  # loads the SparseCore's program; its call-update launches
        self.by_name[instruction.name] = self.begin(instruction)

    def begin(self, instruction: Instruction) -> _Transfer:
        """Puts what an instruction launches under way."""
        collective, body = None, self._launched(instruction)
        if instruction.opcode == "recv" or collectives.kind_of(instruction.opcode):
            collective = self.read(instruction, instruction, self.computation)
        elif found := collectives.find(self.module, body):
            collective = self.read(instruction, *found)
        seconds = self.model.link_seconds(collective) if collective else self.copy_seconds(body)
        ends_at = self.ends_at.get(instruction.name, len(self.computation.instructions))
        now = self.result.seconds
        transfer = _Transfer(instruction.name, seconds, seconds, collective, now, ends_at)
        queue = self.links if collective else self.copies
        bisect.insort(queue, transfer, key=lambda other: other.ends_at)
        return transfer

    def _launched(self, instruction: Instruction) -> Instruction:
        """The instruction that names the computation: of a call-update, its call-start."""
        at = instruction
        while not at.called and at.operands:
            before = self.computation.by_name.get(at.operands[0])
            if before is None or not before.opcode.endswith(("-start", "-update")):
                break
            at = before
        return at

    def copy_seconds(self, instruction: Instruction) -> float:
        """The time of a copy to or from on-chip memory, or of work on a SparseCore."""
        if not instruction.called:
            moved = min((s.padded_bytes for s in instruction.shapes[:2]), default=0)
            in_hbm = sum(shape.space == 0 for shape in instruction.shapes[:2])
            return self.model.fusion_seconds(Cost(hbm_bytes=float(moved * in_hbm)))[1]
        cost = costs.cost(self.module, self.computation, instruction)
        return max(self.model.fusion_seconds(cost))

    def end(self, instruction: Instruction, transfer: _Transfer | None) -> None:
        if transfer is None:
            self.walk_.warn(f"{instruction.name} ends what {self.computation.name} did not launch")
            return
        self.finish(transfer, self.links if transfer.collective else self.copies)

    def finish(self, transfer: _Transfer, queue: list[_Transfer]) -> None:
        """Waits until the transfer is through, which no other under way must be before it."""
        if transfer not in queue:  # it is through
            return
        queue.remove(transfer)
        waited, found, made = transfer.left_s, transfer.collective, self.result
        self.expose(found.kind if found else "copy", waited)
        if found is None:
            made.exposed_copy_s += waited
            made.idle_link_s += _serve(self.links, waited)
            return
        made.idle_hbm_s += _serve(self.copies, waited)
        label = f"{found.kind} {'+'.join(found.axes)}"
        made.events.append(Event("link", label, transfer.launched_s, made.seconds))
        inside = tuple(transfer.inside)
        made.rows.append(Row(transfer.name, found, True, transfer.seconds, waited, inside, 1.0))

    # ---- loops and branches

    def loop(self, instruction: Instruction) -> None:
        body = instruction.computation("body")
        trips = trip_count(self.module, self.computation, instruction)
        trips = self.model.default_trips(instruction) if trips is None else trips
        if trips is None:
            self.walk_.warn(
                f"the loop {instruction.name} ({instruction.op_name}) runs a number of times that "
                "the program decides: counted once"
            )
            trips = 1.0
        segment = self.walk_.segment(self.module.computations[body or ""])
        self.result.loops.append(Loop(instruction.name, trips, segment))
        self.repeat(instruction, segment, trips)

    def repeat(self, instruction: Instruction, segment: Segment, trips: float) -> None:
        self.result.add(segment, trips)
        flops, seconds = trips * segment.cost.flops, trips * segment.seconds
        work = Inside(instruction.name, instruction.op_name, flops, seconds)
        self.pass_time(work, trips * segment.idle_link_s, trips * segment.idle_hbm_s)


def _ends(module: Module, computation: Computation) -> dict[str, int]:
    """The index in the schedule at which each transfer ends, by the name of what launches it."""
    found: dict[str, int] = {}
    starts, ends = {}, {}  # of collectives that fusions carry, by channel
    for at, instruction in enumerate(computation.instructions):
        carried = collectives.carried(module, instruction)
        if carried and carried.part == "start":
            starts[carried.channel] = instruction.name
        elif carried and carried.part == "end":
            ends[carried.channel] = at
        parts = instruction.operands[:1] if instruction.opcode.endswith("-done") else ()
        while parts and parts[0] in computation.by_name:
            part = computation.by_name[parts[0]]
            if part.opcode != "recv" and not part.opcode.endswith(("-start", "-update")):
                break
            found[part.name] = at
            parts = part.operands[:1]
    return found | {starts[channel]: ends[channel] for channel in starts.keys() & ends.keys()}


def _serve(queue: list[_Transfer], seconds: float) -> float:
    """Lets the transfers under way go on for some time; returns what no one needed."""
    for transfer in queue:
        used = min(seconds, transfer.left_s)
        transfer.left_s -= used
        seconds -= used
    return seconds
