"""Judges of answers to problems of reasoning-gym, in place of its own scorers.

Nine of its scorers execute Python found in an answer, others give part of a reward for a text that
contains the gold. Here a judge reads the answer by a small grammar in linear time and says what is
wrong with it, or None; `Malformed` where it cannot be read. Most compare with the gold; those of
`known` check the rules of the problem, since it has many right answers.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed

Judge = Callable[[str, str, Mapping[str, Any]], str | None]  # answer, gold, known -> flaw
MAX_DIGITS = 40
MAX_OPERANDS = 100  # of an expression, so that its value stays cheap
_MINUS = r"[-\u2212]"  # some of its questions write a real minus
_WHOLE = rf"(?:0|[1-9][0-9]{{0,{MAX_DIGITS}}})"
_TOKEN = re.compile(r"\d{1,12}|[-+*/()]", re.ASCII)


def integer(text: str) -> int:
    """Without leading zeros; there is no -0."""
    if not re.fullmatch(rf"(?!{_MINUS}0){_MINUS}?{_WHOLE}", text, re.ASCII):
        raise Malformed(f"{text[:20]!r} is no integer")
    return int(text.replace("\u2212", "-"))


def number(text: str) -> Fraction:
    """A decimal or a fraction, exactly."""
    form = rf"{_MINUS}?{_WHOLE}(?:\.[0-9]{{1,{MAX_DIGITS}}}|/{_WHOLE})?"
    if not re.fullmatch(form, text, re.ASCII) or re.fullmatch(f"{_MINUS}0", text):
        raise Malformed(f"{text[:20]!r} is no number")
    top, _, bottom = text.replace("\u2212", "-").partition("/")
    if bottom and not int(bottom):
        raise Malformed("a fraction of zero")
    return Fraction(top) / int(bottom or 1)


def reduced(text: str) -> tuple[int, int]:
    """`3/4`, with no factor in common; `3` is 3/1."""
    found = number(text)
    if str(found) != text and f"{found}/1" != text:
        raise Malformed(f"{text[:20]!r} is not in lowest terms")
    return found.numerator, found.denominator


def word(text: str) -> str:
    """Without regard to case, one full stop at the end left out."""
    return " ".join(text.split()).removesuffix(".").casefold()


def words(text: str) -> list[str]:
    """Parts between spaces and line ends."""
    return text.split()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in answers.lines(text)]


def items(text: str) -> list[str]:
    """Parts between commas, with or without brackets around all and quotes around each."""
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1]
    quoted = re.compile(r"""(['"]?)([^'"\[\]]*)\1""")
    found = []
    for part in text.split(",") if text.strip() else []:
        match = quoted.fullmatch(part.strip())
        if match is None:
            raise Malformed(f"{part[:20]!r} is no item of a list")
        found.append(match[2])
    return found


def same(read: Callable[[str], Any]) -> Judge:
    """Compares what `read` makes of answer and gold."""

    def judge(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
        del known
        expected = read(gold)
        return None if read(answer) == expected else f"not {str(expected)[:80]}"

    return judge


def factors(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """Primes, in any order, whose product is that of the gold's."""
    del known
    wanted, found = (
        sorted(integer(part) for part in re.split(r"\s*[\u00d7*x]\s*", text))
        for text in (gold, answer)
    )
    return None if found == wanted else "not its prime factors"


def palindrome(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    letters = sorted(known["letters"])
    if sorted(answer) != letters:
        return "not all of the letters, each once"
    return None if answer == answer[::-1] else "not a palindrome"


def arithmetic(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """An expression of exactly the numbers given, worth the target."""
    value, used = evaluated(answer)
    if Counter(used) != Counter(known["numbers"]):
        return "not each of the numbers, once"
    return None if value == known["target"] else f"it is worth {value}"


def queens(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """All queens that the board shows still stand, and none attacks another."""
    board, found = rows(known["board"]), rows(answer)
    size = len(board)
    if len(found) != size or any(len(row) != size or set(row) - {"Q", "_"} for row in found):
        raise Malformed(f"not {size} rows of {size} of Q and _")
    places = [(r, c) for r in range(size) for c in range(size) if found[r][c] == "Q"]
    if any(board[r][c] == "Q" != found[r][c] for r in range(size) for c in range(size)):
        return "a queen of the board was moved"
    lines = ({r for r, _ in places}, {c for _, c in places}, {r + c for r, c in places},
             {r - c for r, c in places})  # fmt: skip
    if len(places) != size or any(len(line) != size for line in lines):
        return "not a queen in every row, none attacked"
    return None


def colouring(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """`{"0": 1, ...}`: a colour of those allowed for every vertex, two at every edge."""
    found: dict[str, str] = {}
    text = answer.strip()
    if text[:1] != "{" or text[-1:] != "}":
        raise Malformed("no JSON object")
    for part in text[1:-1].split(","):
        match = re.fullmatch(r'\s*"([0-9]{1,6})"\s*:\s*([0-9]{1,6})\s*', part, re.ASCII)
        if match is None or match[1] in found:
            raise Malformed(f'{part[:20]!r} is not "VERTEX": COLOUR of another vertex')
        found[match[1]] = match[2]
    if set(found) != {str(vertex) for vertex in known["vertices"]}:
        return "not every vertex"
    if set(found.values()) - {str(colour) for colour in known["colours"]}:
        return "a colour that is not allowed"
    clash = [edge for edge in known["edges"] if found[str(edge[0])] == found[str(edge[1])]]
    return f"both ends of {clash[0]} alike" if clash else None


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of integers, + - * / and brackets, and the integers in it.

    By operator precedence with two stacks, so that no nesting recurses.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"[ \t]", "", text) or not tokens:
        raise Malformed("not an expression of integers, + - * / and brackets")
    if sum(token.isdigit() for token in tokens) > MAX_OPERANDS:
        raise Malformed(f"more than {MAX_OPERANDS} numbers")
    values: list[Fraction] = []
    pending: list[str] = []
    used: list[int] = []

    def reduce_while(least: int) -> None:
        while pending and pending[-1] != "(" and _STRENGTH[pending[-1]] >= least:
            values.append(_applied(pending.pop(), values))

    expects_value = True
    for token in tokens:
        if token.isdigit() if expects_value else token in _STRENGTH:
            if expects_value:
                values.append(Fraction(token))
                used.append(int(token))
            else:
                reduce_while(_STRENGTH[token])
                pending.append(token)
            expects_value = not expects_value
        elif expects_value and token == "(":
            pending.append(token)
        elif not expects_value and token == ")":
            reduce_while(0)
            if not pending:
                raise Malformed("a bracket closes that was not opened")
            pending.pop()
        else:
            raise Malformed(f"{token!r} out of place")
    if expects_value:
        raise Malformed("the expression does not end")
    reduce_while(0)
    if pending:
        raise Malformed("a bracket is not closed")
    return values[0], used


_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


def _applied(sign: str, values: list[Fraction]) -> Fraction:
    b, a = values.pop(), values.pop()
    if sign == "/":
        if not b:
            raise Malformed("a division by zero")
        return a / b
    return a + b if sign == "+" else a - b if sign == "-" else a * b


JUDGES: dict[str, Judge] = {
    "integer": same(integer),
    "number": same(number),
    "reduced": same(reduced),
    "word": same(word),
    "words": same(words),
    "rows": same(rows),
    "items": same(items),
    "factors": factors,
    "palindrome": palindrome,
    "arithmetic": arithmetic,
    "queens": queens,
    "colouring": colouring,
}
