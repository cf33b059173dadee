"""The cost of an instruction: floating-point operations of its products, bytes of HBM traffic.

Only matrix products and convolutions count as operations; element-wise work is bound by memory
traffic in what we plan. A product in float32 at high precision takes several bf16 passes of the
matrix unit. Bytes are those that an instruction reads from and writes to HBM as it is stored,
tiles included: what lives in on-chip memory (memory space 1 in the text) costs nothing, of a
stacked operand only the slice that is used counts, and an update in place writes its slice only.
"""

import functools
import math
import re
from typing import NamedTuple

import numpy as np

from loong_jax.plan import collectives
from loong_jax.plan.hlo import HBM, Computation, Instruction, Module, Shape

# Passes of the matrix unit over float32 operands.
_PASSES = {"default": 1, "high": 3, "highest": 6}
# The attribute of an operand that a fusion relabels in place, to read or write other tiles.
_RELABELS = "output_to_operand_aliasing={{}: (0, {})}"
_VIEWS = ("bitcast", "get-tuple-element", "tuple", "parameter", "constant", "after-all", "iota")
_RENAMES = ("bitcast", "reshape", "copy", "convert")
_READS_PART = ("dynamic-slice", "slice", "gather")
_MOVES_NOTHING = ("AsyncCall", "Assume", "Sharding", "AllocateBuffer")  # targets of custom calls


class Cost(NamedTuple):
    """The cost of one run of an instruction on one device."""

    flops: float = 0.0  # multiplications and additions of products
    unit_flops: float = 0.0  # the same weighted with passes; fp8 counts as bf16
    fp8_flops: float = 0.0  # the part of `unit_flops` with fp8 operands
    hbm_bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


def product_flops(instruction: Instruction, computation: Computation) -> float:
    """Operations of one `dot` or `convolution`: two for every pair that meets."""
    lhs, rhs = (computation.by_name[name].shapes[0] for name in instruction.operands[:2])
    out = instruction.shapes[0]
    if instruction.opcode == "dot":
        contracted = instruction.whole_numbers("lhs_contracting_dims")
        return 2.0 * out.num_items * math.prod(lhs.dims[axis] for axis in contracted)
    return _convolution_flops(instruction, lhs, rhs, out)


def _convolution_flops(instruction: Instruction, lhs: Shape, rhs: Shape, out: Shape) -> float:
    """On TPU every product is a convolution; batches of products are spatial dimensions whose
    dilations and paddings let exactly one kernel position meet each output position."""
    labels = instruction.attribute("dim_labels") or ""
    lhs_labels, rest = labels.split("_")
    rhs_labels, out_labels = rest.split("->")
    groups = int(instruction.attribute("batch_group_count") or 1)
    feature_groups = int(instruction.attribute("feature_group_count") or 1)
    window = _window(instruction.attribute("window") or "")
    total = 2.0 * lhs.dims[lhs_labels.index("f")] / feature_groups
    total *= out.dims[out_labels.index("f")]
    total *= lhs.dims[lhs_labels.index("b")] / groups
    for axis, label in enumerate(sorted(c for c in out_labels if c.isdigit())):
        sizes = (
            lhs.dims[lhs_labels.index(label)],
            rhs.dims[rhs_labels.index(label)],
            out.dims[out_labels.index(label)],
        )
        stride, pad_low, lhs_dilate, rhs_dilate = (
            window[key][axis] if key in window else default
            for key, default in (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))
        )
        total *= _count_meetings(sizes, stride, pad_low, lhs_dilate, rhs_dilate)
    return total


def _window(text: str) -> dict[str, list[int]]:
    """`{size=3x5 pad=1_2x0_0}` by key and spatial dimension; of a padding the low end."""
    found = re.findall(r"(\w+)=([-\d_x]+)", text)
    return {key: [int(v.split("_")[0]) for v in value.split("x")] for key, value in found}


@functools.lru_cache(maxsize=4096)
def _count_meetings(
    sizes: tuple[int, int, int], stride: int, pad_low: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Pairs of output and kernel positions of one spatial dimension that meet an input value."""
    size_in, size_kernel, size_out = sizes
    kernel = np.arange(size_kernel)[None] * rhs_dilate
    position = np.arange(size_out)[:, None] * stride + kernel - pad_low
    inside = (position >= 0) & (position <= (size_in - 1) * lhs_dilate)
    return int(np.sum(inside & (position % lhs_dilate == 0)))


def _passes(instruction: Instruction, computation: Computation) -> int:
    operands = (computation.by_name[name].shapes[0] for name in instruction.operands[:2])
    if any(shape.dtype != "f32" for shape in operands):
        return 1
    asked = re.findall(r"[a-z]+", instruction.attribute("operand_precision") or "default")
    return max((_PASSES.get(word, 1) for word in asked), default=1)


def products(module: Module, name: str) -> Cost:
    """The products of a computation and of all that it calls, without bytes."""
    total = Cost()
    computation = module.computations[name]
    for instruction in computation.instructions:
        if instruction.opcode in ("dot", "convolution"):
            flops = product_flops(instruction, computation)
            unit = flops * _passes(instruction, computation)
            lhs = computation.by_name[instruction.operands[0]].shapes[0]
            total += Cost(flops, unit, unit if lhs.dtype.startswith("f8") else 0.0)
        for _, called in instruction.called:
            total += products(module, called)
    return total


def kernel_flops(computation: Computation, instruction: Instruction) -> float | None:
    """Operations of a Pallas kernel: what it states, or those of splash attention, else None."""
    stated = _STATED.search(instruction.attributes)
    if stated:
        return float(stated[1])
    named = f"{instruction.name} {instruction.op_name}"
    kind = next((kind for kind in _SPLASH if kind in named), None)
    if kind is None:
        return None
    operands = (computation.by_name[name].shapes[0] for name in instruction.operands)
    wide = [shape.dims for shape in operands if len(shape.dims) >= 3 and "f" in shape.dtype]
    (*lead, num_queries, key_width), (*_, num_keys, _), (*_, value_width) = wide[:3]
    blocks = max(1, num_keys // _SPLASH_BLOCK)
    visited = (blocks + 1) / (2 * blocks) * num_queries * num_keys * math.prod(lead)
    over_keys, over_values = _SPLASH[kind]
    return 2 * visited * (over_keys * key_width + over_values * value_width)


# A kernel's own statement: operations, and bytes if not 0.
_STATED = re.compile(
    r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"\d+","bytes_accessed":"(\d+)"'
)

# How many products over the width of keys and of values each kernel of splash attention does for
# every pair of a query and a key in the blocks that causality leaves.
_SPLASH = {"splash_mha_fwd": (1, 1), "splash_mha_dkv": (2, 2), "splash_mha_dq": (2, 1)}
_SPLASH_BLOCK = 512


def cost(module: Module, computation: Computation, instruction: Instruction) -> Cost:
    """The cost of an instruction that is neither loop nor branch; of a launch, what it launches."""
    if instruction.opcode in _VIEWS or instruction.opcode.endswith("-done"):
        return Cost()
    if instruction.opcode.endswith(("-start", "-update")):
        total = Cost()
        for _, name in instruction.called:
            inner = module.computations[name]
            for work in inner.instructions:
                total += cost(module, inner, work)
        return total
    if instruction.opcode in ("dot", "convolution"):
        flops = product_flops(instruction, computation)
        work = Cost(flops, flops * _passes(instruction, computation))
    elif instruction.opcode == "custom-call":
        flops = kernel_flops(computation, instruction) or 0.0
        work = Cost(flops, flops)
    else:
        work = Cost()
        for _, name in instruction.called:
            work += products(module, name)
    return work._replace(hbm_bytes=hbm_bytes(module, computation, instruction))


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """The bytes that an instruction reads and writes, see the head of this module."""
    target = instruction.attribute("custom_call_target") or ""
    if instruction.opcode == "custom-call" and any(word in target for word in _MOVES_NOTHING):
        return 0.0
    stated = _STATED.search(instruction.attributes)
    if stated and int(stated[2]):
        return float(stated[2])
    body = instruction.computation("calls")
    if body is None:
        return _plain_bytes(computation, instruction)
    fused = module.computations[body]
    carried = collectives.carried(module, instruction)
    if carried and carried.part != "step":
        return 0.0
    passing = _passing(fused) if carried else frozenset()
    results = _results(fused)
    updates = [_update_in_place(fused, name) if name else None for name in results]
    unread = {index for index, _ in filter(None, updates)}  # updated in place
    unread |= {index for index, parameter in fused.parameters.items() if parameter.name in passing}
    total = 0.0
    for index, name in enumerate(instruction.operands):
        operand = computation.by_name.get(name)
        if operand is not None and index not in unread:
            whole = float(sum(s.padded_bytes for s in operand.shapes if s.space == HBM))
            total += min(whole, _slices_read(module, fused, index)) if whole else 0.0
    for shape, name, update in zip(instruction.shapes, results, updates, strict=True):
        if shape.space == HBM and name not in passing:
            total += update[1] if update else shape.padded_bytes
    return total


def _passing(fused: Computation) -> frozenset[str]:
    """The instructions of a fusion that only pass on a collective beside its own work."""

    def is_passed(instruction: Instruction) -> bool:
        if instruction.opcode == "parameter":
            users = fused.users[instruction.name]
            return all(u.opcode == "tuple" or collectives.kind_of(u.opcode) for u in users)
        return collectives.kind_of(instruction.opcode) is not None

    return frozenset(i.name for i in fused.instructions if is_passed(i))


def _plain_bytes(computation: Computation, instruction: Instruction) -> float:
    written = sum(s.padded_bytes for s in instruction.shapes if s.space == HBM)
    operands = [computation.by_name[n] for n in instruction.operands if n in computation.by_name]
    if instruction.opcode in _READS_PART:
        return 2.0 * written
    if instruction.opcode == "dynamic-update-slice":
        return 2.0 * sum(s.padded_bytes for s in operands[1].shapes if s.space == HBM)
    return written + sum(s.padded_bytes for o in operands for s in o.shapes if s.space == HBM)


def _slices_read(module: Module, fused: Computation, index: int) -> float:
    """Bytes of the slices of a parameter that are all that is read of it, else infinite."""
    if index not in fused.parameters:
        return 0.0
    parameter, total = fused.parameters[index], 0.0
    for reader in _readers(fused, parameter):
        nested = reader.computation("calls") if reader.opcode == "fusion" else None
        if nested is not None:
            for position, name in enumerate(reader.operands):
                if _origin(fused, name) is parameter:
                    total += _slices_read(module, module.computations[nested], position)
        elif reader.opcode in _READS_PART and _origin(fused, reader.operands[0]) is parameter:
            total += reader.shapes[0].padded_bytes
        else:
            return math.inf
    return total


def _readers(fused: Computation, source: Instruction) -> list[Instruction]:
    """Who looks at a value, through bitcasts and copies of its name."""
    found = []
    for user in fused.users[source.name]:
        if user.opcode in ("bitcast", "reshape") or _relabels(user):
            found += _readers(fused, user)
        else:
            found.append(user)
    return found


def _origin(fused: Computation, name: str) -> Instruction:
    instruction = fused.by_name[name]
    while instruction.opcode in _RENAMES or _relabels(instruction):
        instruction = fused.by_name[instruction.operands[0]]
    return instruction


def _relabels(instruction: Instruction) -> bool:
    return len(instruction.operands) == 1 and _RELABELS in instruction.attributes


def _results(fused: Computation) -> list[str | None]:
    """Names of the leaves of what a fusion returns, None of one that has no name of its own."""

    def leaves(name: str) -> list[str | None]:
        instruction = fused.by_name[name]
        if instruction.opcode == "tuple":
            return [leaf for operand in instruction.operands for leaf in leaves(operand)]
        return [name] if len(instruction.shapes) == 1 else [None] * len(instruction.shapes)

    return leaves(fused.root.name)


def _update_in_place(fused: Computation, result: str) -> tuple[int, float] | None:
    """The parameter that a result updates in place and the bytes written, None where neither."""
    update = _origin(fused, result)
    position = {"dynamic-update-slice": 1, "scatter": 2}.get(update.opcode)
    if position is None:
        return None
    buffer = _origin(fused, update.operands[0])
    if buffer.opcode != "parameter":
        return None
    written = fused.by_name[update.operands[position]].shapes[0].padded_bytes
    return int(buffer.operand_text), float(written)
