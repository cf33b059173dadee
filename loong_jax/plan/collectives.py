"""Collectives in a compiled program: what kind, over which mesh axes, how many bytes."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from loong_jax.models.families import ModelConfig
from loong_jax.models.moe.config import MoEConfig
from loong_jax.plan.hlo import Computation, Instruction, Module
from loong_jax.plan.topology import Groups

ExpertWeights: TypeAlias = frozenset[tuple[int, ...]]

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_SCATTERED = "all-reduce-scatter"  # so TPUs name what a fusion does that sums and keeps a part
_CARRIED = '"async_collective_fusion_config"'
_EXPERTS = re.compile(r"(?:^|[/(\[;'\"])(?:moe|experts)(?:[/)\];'\"\\]|$)")
_MESH_GROUPS = re.compile(r"mesh\[(?P<sizes>[^\]]*)\]\s*\{(?P<axes>[^}]*)\}")
_IOTA_GROUPS = re.compile(r"\[(?P<shape>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective instruction; bytes are those of one run on one device."""

    kind: str
    axes: tuple[str, ...]  # mesh axes along which the members of a group differ
    groups: Groups
    sent_bytes: float  # sent, and received, by one device
    expert_share: float  # of the bytes: those that move because an expert lives elsewhere
    op_name: str

    @property
    def group_size(self) -> int:
        return len(self.groups[0])


def kind_of(opcode: str) -> str | None:
    """`all-gather` of `all-gather`, `all-gather-start`; None of anything else."""
    plain = opcode.removesuffix("-start")
    return plain if plain in KINDS else None


class Carried(NamedTuple):
    """A part of a collective that fusions carry: one starts it, others move it on, one ends it."""

    part: Literal["start", "step", "end"]
    channel: str  # of all parts of one


def carried(module: Module, instruction: Instruction) -> Carried | None:
    """The part of an asynchronous collective that a fusion carries, None where there is none.

    So TPUs gather over few devices: products that stand between the start and the end also move
    rows on. The same collective is written out in every part.
    """
    body = instruction.computation("calls") if instruction.opcode == "fusion" else None
    if body is None:
        return None
    fused = module.computations[body]
    parts = (i for i in fused.instructions if kind_of(i.opcode) and _CARRIED in i.attributes)
    if (found := next(parts, None)) is None:
        return None
    target = fused.root.attribute("custom_call_target") or ""
    part = "start" if "CollectiveStart" in target else "end" if "CollectiveDone" in target else None
    return Carried(part or "step", found.attribute("channel_id") or "")


def find(module: Module, instruction: Instruction) -> tuple[Instruction, Computation] | None:
    """The collective inside an asynchronous call or a fusion, None where there is none."""
    for _, name in instruction.called:
        computation = module.computations[name]
        for inner in computation.instructions:
            if kind_of(inner.opcode):
                return inner, computation
            deeper = find(module, inner)
            if deeper:
                return deeper
    return None


def read(
    instruction: Instruction,
    computation: Computation,
    mesh: dict[str, int],
    expert_weights: ExpertWeights = frozenset(),
) -> Collective:
    """The collective that an instruction performs on a mesh of these axis sizes, in its order."""
    if instruction.opcode == "recv":
        return _between_slices(instruction, mesh, expert_weights)
    kind = kind_of(instruction.opcode)
    if kind is None:
        raise ValueError(f"{instruction.name} is {instruction.opcode}, no collective of {KINDS}")
    if computation.name.startswith(_SCATTERED):
        kind = "reduce-scatter"
    num_devices = math.prod(mesh.values())
    groups = _groups(instruction, num_devices)
    operands = [computation.by_name[n] for n in instruction.operands if n in computation.by_name]
    sizes = [sum(shape.num_bytes for shape in operand.shapes) for operand in operands]
    if kind == "ragged-all-to-all":  # rows, what they are written into, offsets and sizes
        operands, sizes = operands[:1], [min(sizes[:2])]  # no more leave than may arrive
    operand_bytes, axes = float(sum(sizes)), _axes(groups, tuple(mesh.items()))
    along_experts = "expert" in axes
    known = frozenset() if along_experts else expert_weights  # no weight of theirs moves so
    # Some exchanges lose their name in the compiler; no other rows are dealt out along `expert`.
    is_exchange = along_experts and kind.endswith("all-to-all") and not instruction.op_name
    return Collective(
        kind=kind,
        axes=axes,
        groups=groups,
        sent_bytes=_sent_bytes(kind, operand_bytes, len(groups[0])),
        expert_share=1.0 if is_exchange else _expert_share(instruction, operands, sizes, known),
        op_name=instruction.op_name,
    )


def _between_slices(
    instruction: Instruction, mesh: dict[str, int], expert_weights: ExpertWeights
) -> Collective:
    """The transfer from another slice, which the compiler writes as a pair of send and recv."""
    num_devices, slices = math.prod(mesh.values()), mesh["slice"]
    ids = np.arange(num_devices).reshape(slices, -1).T
    is_theirs = _without_ones(instruction.shapes[0].dims) in expert_weights
    return Collective(
        kind="recv",
        axes=("slice",),
        groups=_tuples(ids),
        sent_bytes=float(instruction.shapes[0].num_bytes),
        expert_share=float(is_theirs or of_experts(instruction.op_name)),
        op_name=instruction.op_name,
    )


def of_experts(op_name: str) -> bool:
    """True if an instruction comes from the experts: their exchange, weights or gradients.

    A barrier moves nothing; what bears its name are the dense weights that wait at it.
    """
    return bool(_EXPERTS.search(op_name)) and not op_name.endswith("/optimization_barrier")


def weights_of_experts(config: ModelConfig, mesh: Mapping[str, int]) -> ExpertWeights:
    """Dimensions of the experts' weights on a device, whole or cut over `fsdp` and `tensor`.

    By these their gathers and the sums of their gradients are known, which lose the experts' scope
    on the way through the compiler. No weight of theirs moves along `expert`.
    """
    if not isinstance(config, MoEConfig):
        return frozenset()
    experts, layers = config.num_experts // mesh["expert"], config.num_layers
    widths = {config.hidden_size, config.hidden_size // mesh["fsdp"]}
    inner = {config.expert_ffn_hidden_size, config.expert_ffn_hidden_size // mesh["tensor"]}
    return frozenset(
        _without_ones((*lead, experts, *dims))
        for lead in ((), (layers,))
        for width, ffn in itertools.product(widths, inner)
        for dims in ((width, 2, ffn), (ffn, width))
    )


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)


def _expert_share(
    instruction: Instruction,
    operands: list[Instruction],
    sizes: list[int],
    expert_weights: ExpertWeights,
) -> float:
    """XLA merges small collectives and keeps one name, so every operand is asked."""
    if len(operands) == 1 and of_experts(instruction.op_name):
        return 1.0
    if not sum(sizes):
        return float(of_experts(instruction.op_name))

    def is_theirs(operand: Instruction) -> bool:
        name = operand.op_name or instruction.op_name
        named = len(operands) > 1 and of_experts(name)
        return named or _without_ones(operand.shapes[0].dims) in expert_weights

    moved = sum(size for size, operand in zip(sizes, operands, strict=True) if is_theirs(operand))
    return moved / sum(sizes)


def _sent_bytes(kind: str, operand_bytes: float, size: int) -> float:
    others = size - 1
    if kind == "all-gather":
        return operand_bytes * others
    if kind == "all-reduce":
        return 2 * operand_bytes * others / size
    if kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return operand_bytes * others / size
    return operand_bytes


@functools.lru_cache(maxsize=4096)
def _parse_groups(text: str, num_devices: int) -> Groups:
    mesh = _MESH_GROUPS.search(text)
    if mesh:
        return _mesh_groups(mesh["sizes"], mesh["axes"], num_devices)
    iota = _IOTA_GROUPS.search(text)
    if iota:
        shape, dims = (tuple(map(int, iota[key].split(","))) for key in ("shape", "dims"))
        ids = np.arange(math.prod(dims)).reshape(dims)
        if iota["order"]:
            ids = ids.transpose(tuple(map(int, iota["order"].split(","))))
        return _tuples(ids.reshape(shape))
    rows = re.findall(r"\{([\d,\s]+)\}", text)
    if rows:
        return tuple(tuple(int(n) for n in row.split(",")) for row in rows)
    return (tuple(range(num_devices)),)  # none named: all of them


def _mesh_groups(sizes: str, axes: str, num_devices: int) -> Groups:
    """`'a'=2,'b'=8` and `'b':(2)4`: all of an axis, or the part of it from 2 on of size 4."""
    dims: list[int] = []
    chosen = {name: part for name, part in re.findall(r"'([^']+)'(?::\((\d+\)\d+))?", axes)}
    moved: dict[str, int] = {}
    for name, size in re.findall(r"'([^']+)'=(\d+)", sizes):
        before, width = 1, int(size)
        if chosen.get(name):
            before, width = (int(n) for n in chosen[name].split(")"))
        dims += [before, width, int(size) // (before * width)]
        if name in chosen:
            moved[name] = len(dims) - 2
    last = [moved[name] for name in chosen]
    kept = [i for i in range(len(dims)) if i not in last]
    ids = np.arange(num_devices).reshape(dims).transpose(kept + last)
    return _tuples(ids.reshape(-1, math.prod(dims[i] for i in last)))


def _tuples(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(i) for i in row) for row in ids)


def _groups(instruction: Instruction, num_devices: int) -> Groups:
    pairs = instruction.attribute("source_target_pairs")
    if pairs:
        return _cycles(tuple(tuple(map(int, p)) for p in re.findall(r"\{(\d+),(\d+)\}", pairs)))
    # up to the comma before the next attribute
    found = re.search(r"replica_groups=(.*?)(?:,\s+\w+=|$)", instruction.attributes)
    return _parse_groups(found[1] if found else "", num_devices)


@functools.lru_cache(maxsize=4096)
def _cycles(pairs: tuple[tuple[int, int], ...]) -> Groups:
    """Chains of a permutation, each in the order in which data travels."""
    to = dict(pairs)
    starts = [s for s in to if s not in set(to.values())] + list(to)
    seen: set[int] = set()
    chains = []
    for start in starts:
        chain, at = [], start
        while at in to and at not in seen:
            seen.add(at)
            chain.append(at)
            at = to[at]
        if chain:
            chains.append(tuple(chain if at in chain else [*chain, at]))
    longest = max(map(len, chains))
    return tuple(chain for chain in chains if len(chain) == longest)


@functools.lru_cache(maxsize=4096)
def _axes(groups: Groups, sizes: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    place = np.stack(np.unravel_index(np.asarray(groups), [size for _, size in sizes]))
    differs = (place != place[:, :, :1]).any(axis=(1, 2))
    return tuple(name for (name, _), found in zip(sizes, differs, strict=True) if found)
