"""Code: tiny programs and machines, texts and digits after rules, and a shorter program."""

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


LENGTH = 6
PAIRS = ("aa", "ab", "ba", "bb")


class Rewriting(Generator):
    """Code: a text after rules of rewriting, `abbaba baaa bbab`.

    A rule (`baaa` writes aa for ba) is applied once, to the first place that it matches, and does
    nothing where it matches nowhere.

    State: {"start": "abbaba", "rules": [["ba", "aa"], ...]}; the two sides of a rule differ.
    """

    name, domain = "rewriting", "code"
    form = "[ab]{1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        return {
            "start": "".join(rng.choices("ab", k=LENGTH)),
            "rules": [rng.sample(PAIRS, 2) for _ in range(level + 3)],
        }

    def prompt(self, state: State) -> str:
        return " ".join([state["start"], *(left + right for left, right in state["rules"])])

    def steps(self, state: State) -> list[str]:
        found = itertools.accumulate(
            state["rules"], lambda text, rule: text.replace(*rule, 1), initial=state["start"]
        )
        return list(found)[1:]


LETTERS, MAX_RUN = "abcd", 6


class RunLength(Generator):
    """Code: the run-length code of a text, `aaabccdd` -> `3a1b2c2d`.

    Runs are as long as they can be, so the code is unique.

    State: {"text": "aaabccdd"}.
    """

    name, domain = "run_length", "code"
    template, form = "{text}", "(?:[1-9][a-z]){1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        text = ""
        for _ in range(level + 3):
            letter = rng.choice([one for one in LETTERS if one != text[-1:]])
            text += letter * rng.randint(1, MAX_RUN)
        return {"text": text}

    def steps(self, state: State) -> list[str]:
        return [f"{len(list(run))}{one}" for one, run in itertools.groupby(state["text"])]

    def answer(self, state: State) -> str:
        return "".join(self.steps(state))

    def flaw(self, state: State, answer: str) -> str | None:
        """Decodes the answer; neighbouring runs must differ, or they were one."""
        runs = re.findall("([0-9])([a-z])", answer)
        if any(one == other for (_, one), (_, other) in itertools.pairwise(runs)):
            return "two runs of one letter side by side"
        decoded = "".join(int(count) * letter for count, letter in runs)
        return None if decoded == state["text"] else f"it is the code of {decoded}"


CLOSER = {"(": ")", "[": "]", "{": "}"}
_MATCHED = re.compile(r"\(\)|\[\]|\{\}")


class Brackets(Generator):
    """Code: the closing brackets that a text lacks, `([]{(` -> `)})`.

    The text is the beginning of a balanced one; there is one shortest end.

    State: {"text": "([]{("}.
    """

    name, domain = "brackets", "code"
    template, form = "{text}", r"[)\]}]{1,40}"

    def draw(self, level: int, rng: random.Random) -> State:
        steps = [-1] * (level + 2) + [1] * (2 * level + 5)
        while True:  # until no bracket is closed before it opens
            rng.shuffle(steps)
            if all(sum(steps[:count]) >= 0 for count in range(1, len(steps))):
                break
        text, opened = "", ""
        for step in steps:
            if step > 0:
                opened += rng.choice(list(CLOSER))
                text += opened[-1]
            else:
                text += CLOSER[opened[-1]]
                opened = opened[:-1]
        return {"text": text}

    def steps(self, state: State) -> list[str]:
        """The text without its first matched pair, without the next, ... : what is left open."""
        text, found = state["text"], []
        while (shorter := _MATCHED.sub("", text, count=1)) != text:
            text = shorter
            found.append(text)
        return found

    def answer(self, state: State) -> str:
        return "".join(CLOSER[bracket] for bracket in reversed(self.steps(state)[-1]))

    def flaw(self, state: State, answer: str) -> str | None:
        """Reads text and answer with a stack: it ends empty, and was not empty before."""
        expected: list[str] = []
        for place, bracket in enumerate(state["text"] + answer):
            if bracket in CLOSER:
                expected.append(CLOSER[bracket])
            elif not expected:
                return f"nothing is open at {place}"
            elif (lacking := expected.pop()) != bracket:
                return f"{bracket} closes {lacking} at {place}"
        return f"{len(expected)} brackets are still open" if expected else None


def after_comparator(digits: str, comparator: str) -> str:
    i, j = (int(place) - 1 for place in comparator)
    low, high = sorted((digits[i], digits[j]))
    return f"{digits[:i]}{low}{digits[i + 1 : j]}{high}{digits[j + 1 :]}"


class Comparators(Generator):
    """Code: what a network of comparators makes of five digits, `83152:12 45 13 24`.

    A comparator `ij` (i < j, places counted from 1) swaps the digits at its places where they stand
    in the wrong order.

    State: {"digits": "83152", "comparators": ["12", "45", ...]}.
    """

    name, domain = "comparators", "code"
    form = "[0-9]{1,9}"

    def draw(self, level: int, rng: random.Random) -> State:
        pairs = list(itertools.combinations("12345", 2))
        comparators = ["".join(pair) for pair in rng.choices(pairs, k=level + 3)]
        return {
            "digits": "".join(rng.choices("0123456789", k=5)),
            "comparators": comparators,
        }

    def prompt(self, state: State) -> str:
        return f"{state['digits']}:{' '.join(state['comparators'])}"

    def steps(self, state: State) -> list[str]:
        return list(
            itertools.accumulate(state["comparators"], after_comparator, initial=state["digits"])
        )[1:]
