"""Trip counts of loops in a compiled program."""

import re

from loong_jax.plan.hlo import Computation, Instruction, Module


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
