"""Reads the text of a compiled XLA program: computations, instructions, shapes, attributes.

The text of a scheduled module lists the instructions of a computation in the order in which they
are launched. Nothing here knows what an instruction costs.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_ITEM_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64,
    "f4e2m1fn": 4, "c64": 64, "c128": 128, "token": 0, "opaque": 0,
}  # fmt: skip
_LEAF = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[^\]]*)\](?:\{(?P<layout>[^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[^\s(]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[^\s=]+) = (?P<rest>.*)$")
_END = re.compile(r"^\}(, execution_thread=\S+)?\s*$")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][a-z0-9-]*)\(")
_NAME = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(
    r"(?P<role>calls|to_apply|body|condition|true_computation|false_computation)=%?(?P<name>[^\s,]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
HBM = 0  # the memory space of arrays that name none


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: a leaf of an instruction's type."""

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()  # of the most minor dimensions
    space: int = HBM

    @property
    def num_items(self) -> int:
        return math.prod(self.dims)

    @property
    def item_bits(self) -> int:
        return 8 if self.dtype.startswith("f8") else _ITEM_BITS[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Without padding."""
        return -(-self.num_items * self.item_bits // 8)

    @property
    def padded_bytes(self) -> int:
        """The bytes as stored: the most minor dimensions are rounded up to whole tiles."""
        order = self.minor_to_major or tuple(range(len(self.dims)))[::-1]
        physical = [self.dims[axis] for axis in reversed(order)]
        for i, size in enumerate(reversed(self.tile), start=1):
            if i <= len(physical):
                physical[-i] = -(-physical[-i] // size) * size
        return -(-math.prod(physical) * self.item_bits // 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # the leaves of its type
    operands: tuple[str, ...]
    called: tuple[tuple[str, str], ...]  # (role, computation)
    operand_text: str
    attributes: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The text of `name=...`: a braced group with its braces, else up to the next comma."""
        found = re.search(rf"(?:^|[\s,]){re.escape(name)}=", self.attributes)
        if found is None:
            return None
        rest = self.attributes[found.end() :]
        if rest.startswith("{"):
            return rest[: _closing(rest, 0) + 1]
        return re.split(r",(?=\s)", rest, maxsplit=1)[0]

    def whole_numbers(self, name: str) -> tuple[int, ...]:
        """`dimensions={0,1}` and its like."""
        return tuple(int(n) for n in re.findall(r"\d+", self.attribute(name) or ""))

    @functools.cached_property
    def op_name(self) -> str:
        """The scopes it comes from, as `jax.named_scope` wrote them; empty where unknown."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    def computation(self, role: str) -> str | None:
        return next((name for r, name in self.called if r == role), None)


@dataclasses.dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        return next(i for i in self.instructions if i.is_root)

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        found = (i for i in self.instructions if i.opcode == "parameter")
        return {int(i.operand_text): i for i in found}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {i.name: [] for i in self.instructions}
        for instruction in self.instructions:
            for operand in set(instruction.operands):
                users[operand].append(instruction)
        return users


@dataclasses.dataclass(frozen=True)
class Module:
    computations: dict[str, Computation]
    entry: Computation
    is_scheduled: bool

    def reached(self, start: str) -> Iterator[Instruction]:
        """The instructions of a computation and of all that it calls."""
        for instruction in self.computations[start].instructions:
            yield instruction
            for _, name in instruction.called:
                yield from self.reached(name)


def parse(text: str) -> Module:
    """Reads what `compiled.as_text()` returned.

    Raises ValueError where the text is no module.
    """
    computations: dict[str, Computation] = {}
    entry, name, instructions = None, None, []
    for line in _whole_lines(text):
        head = _HEAD.match(line)
        if head:
            name, instructions = head["name"], []
            entry = name if head["entry"] else entry
        elif _END.match(line) and name is not None:
            computations[name] = Computation(name, tuple(instructions))
            name = None
        elif name is not None:
            body = _LINE.match(line)
            if body:
                instructions.append(_instruction(body))
    if entry is None:
        raise ValueError("no ENTRY computation: pass what compiled.as_text() returned")
    return Module(computations, computations[entry], "is_scheduled=true" in text[:1000])


def _whole_lines(text: str) -> Iterator[str]:
    """Lines of a module; what a Pallas kernel says of itself may be written over several."""
    line = ""
    for part in text.splitlines():
        if line.startswith(" ") and not part.startswith(" ") and not _END.match(part):
            line += part  # attributes go on
            continue
        yield line.rstrip()
        line = part
    yield line.rstrip()


def shapes_of(text: str) -> tuple[Shape, ...]:
    """The leaves of a type, `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}` or a tuple of such."""
    return tuple(_shape(m["dtype"], m["dims"], m["layout"] or "") for m in _LEAF.finditer(text))


def _instruction(body: re.Match[str]) -> Instruction:
    rest = _COMMENT.sub("", body["rest"])
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise ValueError(f"instruction {body['name']} has no opcode: {rest[end : end + 60]!r}")
    close = _closing(rest, opcode.end() - 1)
    operands, attributes = rest[opcode.end() : close], rest[close + 1 :].lstrip(", ")
    called = [(m["role"], m["name"]) for m in _CALLED.finditer(attributes)]
    branches = _BRANCHES.search(attributes)
    if branches:
        names = branches[1].replace("%", "").split(",")
        called += [(f"branch {i}", name.strip()) for i, name in enumerate(names)]
    is_literal = opcode["opcode"] in ("constant", "parameter", "iota")
    return Instruction(
        name=body["name"],
        opcode=opcode["opcode"],
        shapes=shapes_of(rest[:end]),
        operands=() if is_literal else tuple(_NAME.findall(operands)),
        called=tuple(called),
        operand_text=operands,
        attributes=attributes,
        is_root=bool(body["root"]),
    )


@functools.lru_cache(maxsize=65536)
def _shape(dtype: str, dims: str, layout: str) -> Shape:
    order, _, rest = layout.partition(":")
    tile = _TILE.search(rest)
    space = _SPACE.search(rest)
    return Shape(
        dtype=dtype,
        dims=tuple(int(d.strip("<=")) for d in dims.split(",") if d),
        minor_to_major=tuple(int(d) for d in order.split(",") if d),
        tile=tuple(int(d) for d in tile[1].split(",")) if tile else (),
        space=int(space[1]) if space else HBM,
    )


def _closing(text: str, start: int) -> int:
    """The index of the bracket that closes that at `start`; brackets inside quotes do not count."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    opened, closing, depth, quoted = text[start], pairs[text[start]], 0, False
    for i in range(start, len(text)):
        c = text[i]
        if c == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted and c == opened:
            depth += 1
        elif not quoted and c == closing:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"bracket does not close: {text[start : start + 60]!r}")


def trip_count(module: Module, computation: Computation, loop: Instruction) -> float | None:
    """The trip count of a loop: as stated, or from a counter that steps by one up to a constant."""
    stated = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if stated:
        return float(stated[1])
    test = module.computations[loop.computation("condition") or ""].root
    direction = test.attribute("direction")
    if test.opcode != "compare" or direction not in ("LT", "LE", "GT", "GE"):
        return None
    start, bound = (_first_value(module, computation, loop, name) for name in test.operands)
    if start is None or bound is None:
        return None
    step = -1 if direction in ("GT", "GE") else 1
    return float(max(0, (bound - start) * step + (direction in ("LE", "GE"))))


def _first_value(
    module: Module, computation: Computation, loop: Instruction, name: str
) -> int | None:
    """The initial value of an operand of a loop's test, if it only counts or stays."""
    condition = module.computations[loop.computation("condition") or ""]
    value = _source(condition, name)
    if value.opcode != "get-tuple-element":
        return _integer(value)
    index = int(value.attribute("index") or 0)
    body = module.computations[loop.computation("body") or ""]
    begin = computation.by_name[loop.operands[0]]
    if begin.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    later = _source(body, body.root.operands[index])
    counts = later.opcode in ("add", "subtract", "fusion") and any(
        _is_element(body, operand, index) for operand in later.operands
    )
    if not counts and not _is_element(body, later.name, index):
        return None
    return _integer(_source(computation, begin.operands[index]))


def _source(computation: Computation, name: str) -> Instruction:
    """The instruction that makes a scalar, through copies."""
    value = computation.by_name[name]
    while value.opcode in ("copy", "bitcast", "convert") and value.operands:
        value = computation.by_name[value.operands[0]]
    return value


def _is_element(body: Computation, name: str, index: int) -> bool:
    value = _source(body, name)
    return value.opcode == "get-tuple-element" and int(value.attribute("index") or 0) == index


def _integer(value: Instruction) -> int | None:
    is_whole = value.opcode == "constant" and re.fullmatch(r"-?\d+", value.operand_text)
    return int(value.operand_text) if is_whole else None
