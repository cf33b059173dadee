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

from loong_jax.plan import collectives, costs
from loong_jax.plan.collectives import Carried, Collective
from loong_jax.plan.costs import Cost
from loong_jax.plan.hlo import Computation, Instruction, Module, trip_count
from loong_jax.plan.times import Event, Inside, Loop, Model, Row, Segment

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclasses.dataclass
class _Transfer:
    name: str
    left_s: float
    seconds: float
    collective: Collective | None  # None: a copy, or work of a SparseCore
    launched_s: float
    ends_at: int  # where in the schedule
    inside: list[Inside] = dataclasses.field(default_factory=list)
    exposed_s: float = 0.0
    is_done: bool = False


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
        self.ends_at = _ends(computation) | _ends_of_carried(self.module, computation)
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
        opcode = instruction.opcode
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
            self.branch(instruction)
        elif opcode == "call":
            name = instruction.computation("to_apply")
            if name:
                self.repeat(instruction, self.walk_.segment(self.module.computations[name]), 1.0)
        elif collectives.kind_of(opcode):
            self.synchronous(instruction, instruction, self.computation)
        else:
            carried = collectives.carried(self.module, instruction)
            inner = collectives.find(self.module, instruction)
            if carried:
                self.carry(instruction, carried)
            elif inner:
                self.synchronous(instruction, *inner)
            self.compute(instruction)

    def carry(self, instruction: Instruction, carried: Carried) -> None:
        """A fusion that starts or ends a collective, or carries it on beside its own work."""
        if carried.part == "start":
            self.by_name[carried.channel] = self.begin(instruction)
        elif carried.part == "end":
            self.end(instruction, self.by_name.get(carried.channel))

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
        start = self.result.seconds
        self.result.seconds += work.seconds
        self.result.events.append(
            Event("compute", work.op_name or work.name, start, self.result.seconds)
        )
        self.result.idle_link_s += _serve(self.links, link_s)
        self.result.idle_hbm_s += _serve(self.copies, hbm_s)
        for transfer in self.links + self.copies:
            transfer.inside.append(work)

    # ---- transfers

    def read(self, instruction: Instruction, within: Computation) -> Collective:
        return collectives.read(instruction, within, self.model.mesh, self.model.expert_weights)

    def synchronous(
        self, instruction: Instruction, inner: Instruction, within: Computation
    ) -> None:
        collective = self.read(inner, within)
        collective = _named(collective, instruction)
        seconds = self.model.link_seconds(collective)
        self.expose(collective.kind, seconds)
        self.result.idle_hbm_s += _serve(self.copies, seconds)
        row = Row(instruction.name, collective, False, seconds, seconds, (), 1.0)
        self.result.rows.append(row)

    def expose(self, label: str, seconds: float) -> None:
        start = self.result.seconds
        self.result.seconds += seconds
        if seconds:
            self.result.events.append(Event("exposed", label, start, self.result.seconds))

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
        found: tuple[Instruction, Computation] | None
        if instruction.opcode == "recv" or collectives.kind_of(instruction.opcode):
            found = instruction, self.computation
        else:
            body = self._launched(instruction)
            found = collectives.find(self.module, body)
        if found:
            collective = _named(self.read(*found), instruction)
            seconds = self.model.link_seconds(collective)
            queue = self.links
        else:
            collective, queue = None, self.copies
            seconds = self.copy_seconds(self._launched(instruction))
        ends_at = self.ends_at.get(instruction.name, len(self.computation.instructions))
        transfer = _Transfer(
            instruction.name, seconds, seconds, collective, self.result.seconds, ends_at
        )
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
        if transfer.is_done:
            return
        waited = transfer.exposed_s = transfer.left_s
        transfer.is_done = True
        queue.remove(transfer)
        self.expose(transfer.collective.kind if transfer.collective else "copy", waited)
        other = self.copies if queue is self.links else self.links
        idle = _serve(other, waited)
        if transfer.collective is None:
            self.result.exposed_copy_s += waited
            self.result.idle_link_s += idle
            return
        self.result.idle_hbm_s += idle
        label = f"{transfer.collective.kind} {'+'.join(transfer.collective.axes)}"
        self.result.events.append(Event("link", label, transfer.launched_s, self.result.seconds))
        self.result.rows.append(
            Row(
                transfer.name,
                transfer.collective,
                True,
                transfer.seconds,
                transfer.exposed_s,
                tuple(transfer.inside),
                1.0,
            )
        )

    # ---- loops and branches

    def loop(self, instruction: Instruction) -> None:
        body = instruction.computation("body")
        trips = trip_count(self.module, self.computation, instruction)
        if trips is None:
            trips = self.model.default_trips(instruction)
        if trips is None:
            self.walk_.warn(
                f"the loop {instruction.name} ({instruction.op_name}) runs a number of times that "
                "the program decides: counted once"
            )
            trips = 1.0
        segment = self.walk_.segment(self.module.computations[body or ""])
        self.result.loops.append(Loop(instruction.name, trips, segment))
        self.repeat(instruction, segment, trips)

    def branch(self, instruction: Instruction) -> None:
        sides = [self.walk_.segment(self.module.computations[n]) for _, n in instruction.called]
        cheapest = min(sides, key=lambda side: side.seconds)
        self.repeat(instruction, cheapest, 1.0)

    def repeat(self, instruction: Instruction, segment: Segment, trips: float) -> None:
        self.result.add(segment, trips)
        work = Inside(
            instruction.name,
            instruction.op_name,
            trips * segment.cost.flops,
            trips * segment.seconds,
        )
        self.pass_time(work, trips * segment.idle_link_s, trips * segment.idle_hbm_s)


def _named(collective: Collective, outer: Instruction) -> Collective:
    """The collective, named after the instruction that wraps it where it has no name."""
    if collective.op_name or not outer.op_name:
        return collective
    share = max(collective.expert_share, float(collectives.of_experts(outer.op_name)))
    return dataclasses.replace(collective, op_name=outer.op_name, expert_share=share)


def _ends(computation: Computation) -> dict[str, int]:
    """The index in the schedule at which each transfer ends, by the name of what launches it."""
    found: dict[str, int] = {}
    for at, instruction in enumerate(computation.instructions):
        parts = instruction.operands[:1] if instruction.opcode.endswith("-done") else ()
        while parts and parts[0] in computation.by_name:
            part = computation.by_name[parts[0]]
            if part.opcode != "recv" and not part.opcode.endswith(("-start", "-update")):
                break
            found[part.name] = at
            parts = part.operands[:1]
    return found


def _ends_of_carried(module: Module, computation: Computation) -> dict[str, int]:
    """The ends of collectives that fusions carry, as `_ends`."""
    starts, ends = {}, {}
    for at, instruction in enumerate(computation.instructions):
        carried = collectives.carried(module, instruction)
        if carried and carried.part == "start":
            starts[carried.channel] = instruction.name
        elif carried and carried.part == "end":
            ends[carried.channel] = at
    return {name: ends[channel] for channel, name in starts.items() if channel in ends}


def _serve(queue: list[_Transfer], seconds: float) -> float:
    """Lets the transfers under way go on for some time; returns what no one needed."""
    for transfer in queue:
        used = min(seconds, transfer.left_s)
        transfer.left_s -= used
        seconds -= used
    return seconds
