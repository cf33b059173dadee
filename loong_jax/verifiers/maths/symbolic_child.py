"""The child of symbolic.py: builds sympy objects node by node and answers yes, no or unknown.

sympy gets numbers and names only. No text is parsed here, by sympy or by anything else.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

import sympy

from loong_jax.verifiers.maths import symbolic
from loong_jax.verifiers.maths.expression import Node

_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec,
    "csc": sympy.csc, "asin": sympy.asin, "acos": sympy.acos, "atan": sympy.atan,
    "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh, "log": sympy.log,
    "ln": sympy.log,
    "sqrt": sympy.sqrt, "abs": sympy.Abs, "floor": sympy.floor, "ceiling": sympy.ceiling,
    "root": sympy.root, "gamma": sympy.gamma, "binomial": sympy.binomial,
    "factorial": sympy.factorial, "max": sympy.Max, "min": sympy.Min,
}  # fmt: skip
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}


class Unknown(Exception):
    """A node that sympy gets no counterpart of."""


def build(node: Node) -> Any:
    head, args = node
    if head == "number":
        return sympy.Rational(args[0].numerator, args[0].denominator)
    if head == "symbol":
        return sympy.Symbol(args[0], real=True)
    if head == "constant":
        return _CONSTANTS[args[0]]
    if head in ("sum", "product", "integral"):
        name, low, high, body = args
        bounds = (sympy.Symbol(name, real=True), build(low), build(high))
        kind = {"sum": sympy.Sum, "product": sympy.Product, "integral": sympy.Integral}[head]
        return kind(build(body), bounds).doit()
    if head == "limit":
        name, point, body = args
        return sympy.limit(build(body), sympy.Symbol(name, real=True), build(point))
    if head == "call":
        function = _FUNCTIONS.get(args[0])
        if function is None:
            raise Unknown(args[0])
        return function(*(build(arg) for arg in args[1:]))
    if head == "apply":
        return sympy.Function(args[0])(*(build(arg) for arg in args[1:]))
    parts = [build(arg) for arg in args if isinstance(arg, Node)]
    if head == "add":
        return sympy.Add(*parts)
    if head == "mul":
        return sympy.Mul(*parts)
    if head == "div":
        return parts[0] / parts[1]
    if head == "pow":
        return parts[0] ** parts[1]
    if head == "neg":
        return -parts[0]
    if head == "degree":
        return parts[0] * sympy.pi / 180
    if head == "percent":
        return parts[0] / 100
    raise Unknown(head)


def decide(gold: Node, answer: Node) -> bool | None:
    try:
        if gold.head == "chain" and answer.head == "chain":
            return _same_solutions(_numerator(gold), _numerator(answer))
        difference = sympy.simplify(build(gold) - build(answer))
        if difference == 0:
            return True
        if difference.is_number:
            return False if abs(difference.evalf(30)) > sympy.Float("1e-20") else None
        return None
    except (Unknown, TypeError, ValueError, NotImplementedError, ZeroDivisionError, AttributeError):
        return None


def _numerator(chain: Node) -> Any:
    left, right = chain.args[1:]
    numerator, _ = sympy.fraction(sympy.together(build(left) - build(right)))
    return sympy.expand(numerator)


def _same_solutions(gold: Any, answer: Any) -> bool | None:
    """Polynomial equations: equal up to a constant factor, or up to exponents of their factors."""
    if gold == 0 or answer == 0:
        return None
    ratio = sympy.cancel(gold / answer)
    if ratio.is_number:
        return True
    if gold.is_polynomial() and answer.is_polynomial():
        names = sorted(gold.free_symbols | answer.free_symbols, key=str)
        parts = [sympy.Poly(side, *names).sqf_part() for side in (gold, answer)]
        return bool(sympy.cancel(parts[0].as_expr() / parts[1].as_expr()).is_number)
    return None


def main(cpu_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (symbolic.MEMORY_BYTES, symbolic.MEMORY_BYTES))
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(stdout, b"true")
    while len(head := stdin.read(4)) == 4:
        gold, answer = json.loads(stdin.read(int.from_bytes(head, "little")))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        outcome = decide(symbolic.decode(gold), symbolic.decode(answer))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(stdout, json.dumps(outcome).encode())


def _send(stdout: Any, body: bytes) -> None:
    stdout.write(len(body).to_bytes(4, "little") + body)
    stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
