"""Code: what tiny programs and machines compute, and a shorter program for the same."""

import functools
import itertools
import operator
import random
import re
from collections.abc import Sequence

import numpy as np

from loong_jax.environments.environment import INTEGER, Generator, State, array_rng, shared_sandbox
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict

FIRST_CONDITIONAL_LEVEL = 3
VARIABLES, DIGITS = "ab", "123456789"
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
PLAIN = tuple(
    [f"{v}{sign}={x}" for v in VARIABLES for sign in "+-" for x in (*VARIABLES, *DIGITS)]
    + [f"{v}*={x}" for v in VARIABLES for x in DIGITS[1:]]
)
CONDITIONS = ("", "if a>b:", "if a<b:")
_STATEMENT = re.compile(r"(?:if (a[<>]b):)?([ab])([-+*])=([ab1-9])")


def after_statement(values: tuple[int, int], statement: str) -> tuple[int, int]:
    """Both variables after one statement of the kind above; nothing else is understood."""
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise ValueError(f"{statement!r} is no statement of this environment.")
    condition, target, sign, operand = match.groups()
    a, b = values
    if condition and not (a > b if condition == "a>b" else a < b):
        return values
    by = values[VARIABLES.index(operand)] if operand in VARIABLES else int(operand)
    new = OPERATIONS[sign](values[VARIABLES.index(target)], by)
    return (new, b) if target == "a" else (a, new)


class Program(Generator):
    """Code: what a tiny Python program prints, `a=7` `b=3` `a+=b` `b-=4` `a*=2` `print(a)`.

    From level 3 on a statement may hang on a comparison.

    State: {"start": [7, 3], "statements": ["a+=b", ...], "printed": "a"}.
    """

    name, domain = "program", "code"
    form = INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        conditions = CONDITIONS if level >= FIRST_CONDITIONAL_LEVEL else CONDITIONS[:1]
        return {
            "start": [int(rng.choice(DIGITS)) for _ in VARIABLES],
            "statements": [rng.choice(conditions) + rng.choice(PLAIN) for _ in range(level + 2)],
            "printed": rng.choice(VARIABLES),
        }

    def prompt(self, state: State) -> str:
        a, b = state["start"]
        return "\n".join([f"a={a}", f"b={b}", *state["statements"], f"print({state['printed']})"])

    def trace(self, state: State) -> list[tuple[int, int]]:
        a, b = state["start"]
        return list(itertools.accumulate(state["statements"], after_statement, initial=(a, b)))

    def steps(self, state: State) -> list[str]:
        return [f"{a},{b}" for a, b in self.trace(state)[1:]]

    def answer(self, state: State) -> str:
        return str(self.trace(state)[-1][VARIABLES.index(state["printed"])])


REGISTERS, NUM_PASSES, MODULUS = "abc", 3, 10


class Registers(Generator):
    """Code: registers of a small machine after a loop, `257 3[b+a c-b]`.

    Registers a, b and c hold one digit each and count modulo 10; the instructions in brackets add
    one register to another or subtract it, three times over.

    State: {"start": "257", "loop": ["b+a", "c-b"]}; no instruction names a register twice.
    """

    name, domain = "registers", "code"
    form = "[0-9]{3}"

    def draw(self, level: int, rng: random.Random) -> State:
        loop = []
        for _ in range(level + 1):
            target, source = rng.sample(REGISTERS, 2)
            loop.append(target + rng.choice("+-") + source)
        return {"start": "".join(str(rng.randrange(MODULUS)) for _ in REGISTERS), "loop": loop}

    def prompt(self, state: State) -> str:
        return f"{state['start']} {NUM_PASSES}[{' '.join(state['loop'])}]"

    def steps(self, state: State) -> list[str]:
        held = dict(zip(REGISTERS, map(int, state["start"]), strict=True))
        found = []
        for target, sign, source in state["loop"] * NUM_PASSES:
            held[target] = (held[target] + int(f"{sign}1") * held[source]) % MODULUS
            found.append("".join(map(str, held.values())))
        return found


class Postfix(Generator):
    """Code: the value of an expression in postfix form, `73+2*85-+`.

    Digits are pushed on a stack; an operator takes two numbers off it and pushes its result.

    State: {"text": "73+2*85-+"}.
    """

    name, domain = "postfix", "code"
    template, form = "{text}", INTEGER

    def draw(self, level: int, rng: random.Random) -> State:
        """One of all shapes, equally likely: exactly one rotation of any order is well formed."""
        count = level + 3
        steps = [1] * (count + 1) + [-1] * count  # changes of the stack's height
        rng.shuffle(steps)
        heights = [sum(steps[: place + 1]) for place in range(len(steps))]
        start = max(place for place, height in enumerate(heights) if height == min(heights)) + 1
        rotated = steps[start:] + steps[:start]
        return {"text": "".join(rng.choice(DIGITS if s > 0 else list(OPERATIONS)) for s in rotated)}

    def steps(self, state: State) -> list[str]:
        stack: list[int] = []
        found = []
        for symbol in state["text"]:
            if symbol in DIGITS:
                stack.append(int(symbol))
            else:
                b, a = stack.pop(), stack.pop()
                stack.append(OPERATIONS[symbol](a, b))
                found.append(str(stack[-1]))
        return found


NUM_BITS = 4
BITWISE = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
SHARES = (0.25, 0.25, 0.5)
ONES = {"&": 0.75, "|": 0.25, "^": 0.5}  # share of ones in a mask, so that bits of x survive
MAX_OPERATORS = 2
INPUTS = range(2**NUM_BITS)
# A bit as a function of the bit of x (`0`, `1`, `x`, `n` = not x) where a mask has a 0, or a 1.
_AFTER = {
    "&": ({s: "0" for s in "01xn"}, {s: s for s in "01xn"}),
    "|": ({s: s for s in "01xn"}, {s: "1" for s in "01xn"}),
    "^": ({s: s for s in "01xn"}, {"0": "1", "1": "0", "x": "n", "n": "x"}),
}


def symbols_after(symbols: str, statement: Sequence[str]) -> str:
    """The bits after one more statement, an operator and a mask in binary."""
    sign, mask = statement
    return "".join(_AFTER[sign][int(bit)][s] for s, bit in zip(symbols, mask, strict=True))


class Masks(Generator):
    """Code: shorten a program of bit masks to one expression, `xxxx&1101|0010^1000^0110&1011`.

    The specification is a straight-line program on the four low bits of x; its operators apply from
    left to right, its masks are binary. The answer is a Python expression in x, such as
    `x&0b1001^0b0010`, that must agree with the program wherever both are run, with at most two
    operators, so a copy of the program does not fit. A guess is right in 1 of 256, the best one in
    1 of 35 to 65.

    State: {"statements": [["&", "1101"], ...]}.
    """

    name, domain = "masks", "code"
    form = r"[0-9bx&|^()]+"
    max_answer_chars = 16
    rng = array_rng

    def draw(self, level: int, rng: np.random.Generator) -> State:
        count = level + 3
        signs = rng.choice(list(BITWISE), count, p=SHARES).tolist()
        draws = rng.random((count, NUM_BITS))
        statements = [
            [sign, "".join(str(int(draw < ONES[sign])) for draw in row)]
            for sign, row in zip(signs, draws, strict=True)
        ]
        return {"statements": statements}

    def prompt(self, state: State) -> str:
        return "x" * NUM_BITS + "".join(sign + mask for sign, mask in state["statements"])

    def steps(self, state: State) -> list[str]:
        start = "x" * NUM_BITS
        return [*itertools.accumulate(state["statements"], symbols_after, initial=start)][1:]

    def answer(self, state: State) -> str:
        symbols = self.steps(state)[-1]
        kept = "".join("1" if symbol in "xn" else "0" for symbol in symbols)
        flipped = "".join("1" if symbol in "1n" else "0" for symbol in symbols)
        return f"x&0b{kept}^0b{flipped}"

    def flaw(self, state: State, answer: str) -> str | Verdict | None:
        """Runs the answer on every input of four bits; right is agreement on all of them."""
        if sum(map(answer.count, BITWISE)) > MAX_OPERATORS:
            return verdict.wrong("format", f"more than {MAX_OPERATORS} operators")
        run = self._run or shared_sandbox().values
        (found,) = run([(answer, [{"x": x} for x in INPUTS])])
        if isinstance(found, str):
            return verdict.wrong("error", found)
        for x, value in zip(INPUTS, found, strict=True):
            expected = functools.reduce(
                lambda bits, said: BITWISE[said[0]](bits, int(said[1], 2)), state["statements"], x
            )
            if value != expected or isinstance(value, bool):
                return f"x={x}: {value!r}, not {expected}"
        return None
