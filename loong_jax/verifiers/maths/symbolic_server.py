"""The server of symbolic.py: builds sympy objects node by node and answers yes, no or unknown.

No text is parsed here, by sympy or by anything else. A process per question tells by its status.
"""

import functools
import gc
import json
import operator
import os
import resource
import select
import signal
from typing import Any

import sympy

from loong_jax.verifiers.maths import symbolic
from loong_jax.verifiers.maths.expression import ONE, ZERO, Node, call, constant, number, symbol

_COLD_S = 0.3  # more CPU time for a question, while sympy has not loaded all that it needs
_STATUS = {True: 10, False: 11, None: 12}
_FUNCTIONS = {
    name: getattr(sympy, name)
    for name in str.split(
        "sin cos tan cot sec csc asin acos atan sinh cosh tanh log sqrt floor ceiling root gamma "
        "binomial factorial"
    )
} | {"ln": sympy.log, "abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min}
_OPERATIONS = {
    "add": sympy.Add, "mul": sympy.Mul, "div": operator.truediv, "pow": operator.pow,
    "neg": operator.neg, "degree": lambda degrees: degrees * sympy.pi / 180,
    "percent": lambda value, parts=100: value / parts,
}  # fmt: skip
_SERIES = {"sum": sympy.Sum, "product": sympy.Product, "integral": sympy.Integral}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}


_symbol = functools.partial(sympy.Symbol, real=True)


class Unknown(Exception):
    """A node that sympy gets no counterpart of."""


def build(node: Node) -> Any:
    match node:
        case Node("number", (value, _)):
            return sympy.Rational(value.numerator, value.denominator)
        case Node("symbol", (name,)):
            return _symbol(name)
        case Node("constant", (name,)):
            return _CONSTANTS[name]
        case Node("sum" | "product" | "integral" as head, (name, low, high, body)):
            return _SERIES[head](build(body), (_symbol(name), build(low), build(high))).doit()
        case Node("limit", (name, place, body)):
            return sympy.limit(build(body), _symbol(name), build(place))
        case Node("call", (name, *args)) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(build, args))
        case Node("apply", (name, *args)):
            return sympy.Function(name)(*map(build, args))
        case Node(head, args) if head in _OPERATIONS:
            return _OPERATIONS[head](*(build(arg) for arg in args if isinstance(arg, Node)))
    raise Unknown(node.head)


def decide(gold: Node, answer: Node) -> bool | None:
    try:
        if gold.head == "chain" and answer.head == "chain":
            return _same_solutions(_numerator(gold), _numerator(answer))
        difference = sympy.simplify(build(gold) - build(answer))
        if difference == 0:
            return True
        is_clear = difference.is_number and abs(difference.evalf(30)) > sympy.Float("1e-20")
        return False if is_clear else None
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


def main() -> None:
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(stdout, b"true")
    warm_up = _warm_up()
    while True:
        if warm_up and not select.select([0], [], [], 0)[0]:
            decide(*warm_up.pop())  # in what would be idle time
            if not warm_up:
                gc.collect()
                gc.freeze()
            continue
        size = _read(4)
        if not size:
            return
        cpu_s, gold, answer = json.loads(_read(int.from_bytes(size, "little")))
        limit_s = cpu_s + (_COLD_S if warm_up else 0.0)
        outcome, used_s = _in_a_fork(symbolic.decode(gold), symbolic.decode(answer), limit_s)
        _send(stdout, json.dumps([outcome, min(used_s, cpu_s)]).encode())


def _in_a_fork(gold: Node, answer: Node, cpu_s: float) -> tuple[bool | None, float]:
    pid = os.fork()
    if pid == 0:
        status = _STATUS[None]
        try:
            gc.disable()  # it would copy the pages that all forks share
            memory = symbolic.MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            status = _STATUS[decide(gold, answer)]
        finally:
            os._exit(status)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    outcome = next((told for told, known in _STATUS.items() if known == code), None)
    used_s = usage.ru_utime + usage.ru_stime
    return outcome, max(used_s, cpu_s) if code == -signal.SIGPROF else used_s


def _warm_up() -> list[tuple[Node, Node]]:
    """One question of each kind: what sympy imports and caches late is shared by all forks."""
    x, n, two = symbol("x"), symbol("n"), number(2)
    sine = call("sin", x)
    decay = Node("pow", (constant("e"), Node("neg", (x,))))
    gauss = Node("div", (Node("mul", (n, Node("add", (n, ONE)))), two))
    return [
        (Node("limit", ("x", ZERO, Node("div", (sine, x)))), ONE),
        (Node("integral", ("x", ZERO, constant("inf"), decay)), ONE),
        (Node("sum", ("k", ONE, n, symbol("k"))), gauss),
        (Node("integral", ("x", ZERO, ONE, Node("pow", (sine, two)))), n),
        (Node("integral", ("x", ZERO, ONE, Node("mul", (two, x)))), ONE),
    ]


def _read(size: int) -> bytes:
    """So many bytes of stdin, none ahead; or none at its end."""
    read = b""
    while len(read) < size:
        part = os.read(0, size - len(read))
        if not part:
            return b""
        read += part
    return read


def _send(stdout: Any, body: bytes) -> None:
    stdout.write(len(body).to_bytes(4, "little") + body)
    stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # who asked is gone
        os._exit(0)
