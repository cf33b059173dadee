r"""From text to tokens, in linear time, and a cursor over them, on which the grammar stands.

LaTeX, plain text and Python notation become one stream. Depth of brackets and of the tree is
bounded, so that no text exhausts the stack, here or later.

Before a value stands a name that the grammar does not read, [OH^-], \text{area}, Var(X), but
nothing that calculates; after it what is said of its letters: "where k \in Z", "(n >= 1)".
"""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError

MAX_CHARS = 4000  # of one expression
MAX_TOKENS = 2000
MAX_DIGITS = 2000  # of one number
MAX_DEPTH = 40  # of brackets


class Token(NamedTuple):
    kind: str  # number, word, text (a word inside \text), command, sign, end
    text: str
    spaced: bool = False  # white space stands before it

    @property
    def is_word(self) -> bool:
        return self.kind in ("word", "text")

    @property
    def word(self) -> str:
        """A word in lower case; nothing for other tokens."""
        return self.text.lower() if self.kind in ("word", "text") else ""


END = Token("end", "")

_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_OHM = re.compile("([kM]?)[\u03a9\u2126](?!\\s*\\()")


def raised(text: str) -> str:
    return _RAISED.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)


def plain(text: str) -> str:
    """ASCII-like text: full-width digits, superscripts and signs written as LaTeX would."""
    if text.isascii():
        return text
    text = re.sub("(?<=[\\d ])[\u03bc\u00b5](?=[mgsAFLHCVWJ]\\b)", "u", text)
    text = _OHM.sub(r" \1ohm ", text).replace("\u03a9", r" \Omega ")
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m[0].translate(LOWERED) + "}", raised(text))
    text = text.translate(names.CHARACTERS)
    for letter, name in names.GREEK_LETTERS.items():
        text = text.replace(letter, name)
    return unicodedata.normalize("NFKC", text).translate(names.CHARACTERS)


_MAY_GROUP = re.compile(  # some of it is in all of them
    r"\d(?:[~'_]|,\d|\s*(?:,\s*\\!|\{\s*[,:\\]|\\(?:[,;: !]|text|thin|med)))"
)
_SAID, SIDES = names.patterns("tokens"), names.patterns("sides")
_SIGNS, _IN_WORDS, _COMMANDS, _GROUPS = map(
    names.rewrites, ("SIGNS", "IN_WORDS", "COMMANDS", "GROUPS")
)
_ALIGNED = re.compile(r"\\begin\{(aligned|align\*?|split|gathered|gather\*?)\}.*?\\end", re.DOTALL)
_GOES_ON = re.compile(r"(?:\\\\\s*)?(?:&\s*)?(?==)")  # a row of them that begins with a sign
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<recurring>\d*\.\d*\(\d+\))
  | (?P<number>
        (?: \d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?
          | \d+\.\d+
          | \.\d+
          | \d*\.(?=\s*\\(?:overline|bar|dot)\b)
          | \d+
        )
        (?:[eE][-+]?\d+(?![A-Za-z\d]))?
    )
  | (?P<command>\\(?:[A-Za-z]+\*?|\\(?:\[[\d. ]+(?:pt|ex|em|mm|cm)\])?|.))
  | (?P<word>[A-Za-z]+\d*)
  | (?P<sign>\*\*|//|<=|>=|==|!=|<>|=<|=>|->|:=|\.\.\.+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKETS = {"\\lbrack": "[", "\\rbrack": "]"}
_OPENING = frozenset(("(", "[", "{", "\\{", "\\lbrace"))
_CLOSING = frozenset((")", "]", "}", "\\}", "\\rbrace"))
_TEXT_ARGUMENT = re.compile(r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}")


def prepare(text: str) -> str:
    """The input of the tokenizer: see `plain`, and digits of one number put together.

    "1 if n is even, 0 otherwise" becomes a cases environment.
    """
    if len(text) <= 400 and "\\" not in text and (" if " in text or " when " in text):
        pieces = _SAID.PIECES.fullmatch(" ".join(text.split()).rstrip(" ."))
        if pieces is not None:
            text = r"\begin{{cases}} {} & {} \\ {} & {} \end{{cases}}".format(*pieces.groups())
    if len(text) < 400 and (unit := _SAID.LETTER_UNIT.fullmatch(text)) is not None:
        text = f"{unit[1]} \\text{{{unit[2] or unit[3]}}}{unit[4] or ''}"
    text = _spelled_out(plain(text).strip())
    text = names.rewritten(text, _SIGNS)
    if len(text) > MAX_CHARS:
        raise CostError(f"{len(text)} characters are above {MAX_CHARS}")
    if _SAID.IN_WORDS.search(text):
        text = names.rewritten(text, _IN_WORDS)
    if "\\ne" in text or "!=" in text:
        text = _SAID.RESTRICTED.sub(r", \g<bare>", text)
    if "\\" in text or "{" in text:
        text = _SAID.GLUED.sub(r"\g<0> ", SIDES.LAYOUT.sub(" ", text))
        text = _ALIGNED.sub(lambda m: _GOES_ON.sub(" ", m[0]), text)
        text = names.rewritten(text, _COMMANDS)
        if "\\\\" in text and not re.search(r"\\begin\b|&", text):
            text = re.sub(r"\\\\(?=[A-Za-z]{2,}|[{},!;%$])", r"\\", text.removesuffix("\\\\"))
    if any(sign in text for sign in "\\{~_,"):
        text = with_groups(text)
    elif re.fullmatch(r"[-+]?\d{1,3}(?:(?: \d{3})+|(?:'\d{3})+)(?:\.\d+)?", text):
        text = text.replace(" ", "").replace("'", "")
    return text


def with_groups(text: str) -> str:
    """The text with 14,916 for 14{,}916 and 14916 for 14\\,916."""
    if _MAY_GROUP.search(text) is None:
        return text
    text = names.rewritten(text, _GROUPS)
    return _SAID.OTHER_GROUPS.sub(lambda m: m[0].replace(",", "").replace("_", ""), text)


def tokenize(text: str) -> list[Token]:
    """Tokens of a prepared text, END last; commands that only space out are dropped."""
    tokens: list[Token] = []
    position, spaced, inside, scan = 0, False, [], _TOKEN.match
    while position < len(text):
        match = scan(text, position)
        assert match is not None
        kind, value = match.lastgroup, match[0]
        position = match.end()
        if kind == "space":
            spaced = True
            continue
        if len(tokens) > MAX_TOKENS:
            raise CostError(f"more than {MAX_TOKENS} tokens")
        if kind in ("number", "recurring"):
            if kind == "number" and "," in value and inside and inside[-1] in "([S":
                value = value[: value.index(",")]  # (1,234) is a pair
                position = match.start() + len(value)
            if len(value) > MAX_DIGITS:
                raise CostError(f"a number of {len(value)} characters is above {MAX_DIGITS}")
        elif kind != "word":
            if value in names.SPACING:
                spaced = True
                continue
            if value in names.TEXT_WRAPPERS:
                if (argument := _TEXT_ARGUMENT.match(text, position)) is not None:
                    position = argument.end()
                    tokens += (  # words become texts, signs stay signs
                        Token("text" if token.kind == "word" else token.kind, token.text, True)
                        for token in tokenize(argument[1])[:-1]
                    )
                    spaced = True
                continue
            if value.startswith("\\\\"):
                value = "\\\\"
            elif value in _BRACKETS:
                kind, value = "sign", _BRACKETS[value]
            if value in _OPENING:
                before = tokens[-1] if tokens else Token("sign", "=")
                is_set = value == "{" and before.kind == "sign" and before.text in "=(,{["
                inside.append("S" if is_set or value[0] == "\\" else value)
            elif inside and value in _CLOSING:
                inside.pop()
        assert kind is not None
        tokens.append(Token(kind, value, spaced))
        spaced = False
    tokens.append(END)
    return tokens


def value_after(text: str) -> str | None:
    """The text after the one sign of equality that follows such a name; None for any other text."""
    if len(text) > 300 or not any(sign in text for sign in ("=", "\u2248", "\\approx")):
        return None
    parts = re.split(r"(?<![<>!=:\\])(?:=|\\approx\b|\u2248)(?![=>])", text)
    if not 2 <= len(parts) <= 3 or not parts[1].strip():
        return None
    if not SIDES.LEFT.match(parts[0]) or SIDES.CHANGES.search(parts[0]):
        return None
    return text[len(parts[0]) :].lstrip("=\u2248").removeprefix("\\approx").strip()


def with_concentrations(text: str) -> str:
    """[A] and [OH^-] as letters with a subscript, where at least two stand in a formula."""
    if text.count("[") < 2 or len(text) > 300 or ("/" not in text and "\\frac" not in text):
        return text
    signs = str.maketrans({"+": "plus", "-": "minus", **dict.fromkeys("_^{}", "")})
    lettered, count = SIDES.ONE_CONCENTRATION.subn(
        lambda m: f" c_{{{m[1].translate(signs)}}} ", text
    )
    return lettered if count == text.count("[") else text


_COUNTS = {"two": 2, "2": 2, "three": 3, "3": 3, "four": 4, "4": 4, "one": 1, "1": 1}
_REPEATED = ("multiplicity", "double", "twice", "repeated")


def _spelled_out(text: str) -> str:
    """The text with what has a multiplicity written so many times: "2, 2 and 5"."""
    if len(text) > 300 or not any(word in text for word in _REPEATED):
        return text
    for _ in range(4):
        match = SIDES.ITEM.match(text)
        if match is None:
            return text
        count = 2 if match["double"] else _COUNTS[match["count"]]
        item = match["item"].strip().rstrip("(").strip()
        value = item.rpartition("=")[2].strip()
        repeated = ", ".join([item, *[value] * (count - 1)])
        text = f"{match['before']} {repeated}{text[match.end() :]}"
    return text


_FORMULA_BEFORE = re.compile(r"(?:[\d)\]}!$'][a-z]?|[-=+*/^]\s*\\?\w|[A-Za-z]\w?\s*=[^=]*)\s*\Z")
_OF_ARGUMENT = re.compile(r"[A-Za-z](?:'*\(|_)[^=]*=|(?<![A-Za-z\\])y\s*=")
_LONE = re.compile(r"(?:\A|[$\s])[a-z]\$?\s*\Z")
MAX_CLAUSE_CHARS = 90  # of a clause


def at_end(text: str) -> tuple[str, str] | None:
    """The text before a clause on a letter that ends it, and ", n \\in \\mathbb{Z}" of an integer.

    None where there is none, or where the text before does not name the letter. A domain that
    leaves out more than single points and what is below 1 is no such clause: it stays.
    """
    start = max(0, len(text) - MAX_CLAUSE_CHARS)
    may_end = any(hint in text[start:] for hint in ("integer", "\\in", "\u2208", "\u00b1", "pm"))
    match = SIDES.CLAUSE.search(text, start) if may_end else None
    if match is None or not text[: match.start()].strip():
        return _without_domain(text, start)
    groups = ("after", "bare", "before", "element", "listed")
    letter, before = next(match[name] for name in groups if match[name]), text[: match.start()]
    if re.search(rf"(?<![A-Za-z\\]){letter}(?![a-z])", before[-200:]) is None:
        return None
    where = "N" if re.search("N|\u2115", match["set"] or "") else "Z"
    return _closed(before), f", {letter} \\in \\mathbb{{{where}}}"


def _closed(before: str) -> str:
    """With the mark of a formula that the clause was inside of, or took."""
    return before + next((mark for mark in ("$$", "$") if before.count(mark) % 2), "")


def _without_domain(text: str, start: int) -> tuple[str, str] | None:
    if SIDES.HINT.search(text, start) is None:
        return None
    for match in SIDES.DOMAIN.finditer(text, start):
        before, order, gap = text[: match.start()], match["order"], match["gap"]
        is_any = not match["all"] or re.search(r"\b(?:all|any|every|each|real)\b|forall", match[0])
        sentence = re.split(r"[.!?]\s|\n", before[-300:])[-1]
        letter = rf"(?<![A-Za-z\\]){match['letter']}(?![a-z])"
        is_formula = _FORMULA_BEFORE.search(sentence) and not _LONE.search(sentence)
        is_of_it = re.search(letter, re.sub(r"\\[A-Za-z]+", " ", sentence))
        if not is_any or not is_formula or not is_of_it or SIDES.RELATION.search(sentence):
            continue
        if order is None and "=" in sentence and not _OF_ARGUMENT.search(sentence):
            continue  # x = k pi with k in R is no function of k
        is_set = match["word"] is not None or "(" in gap
        if order and not re.search("ne|!=|\u2260", order):
            is_set = is_set or not re.search(r"\w(?:\(\w\)|_\w)?\s*=|\A[^=]*\Z", sentence)
            is_set = is_set and re.match(r"\\g|>|\u2265", order) and match["bound"] in ("0", "1")
        elif "," in gap or "quad" in gap:
            is_set = True
        if is_set:
            return _closed(before).rstrip(" ,;(\\"), ""
    return None


class Parser:
    """One pass over tokens; a subclass has the rules of the grammar, the loosest first."""

    items: Callable[..., Node]
    relation: Callable[..., Node]
    union: Callable[..., Node]
    sum: Callable[..., Node]
    product: Callable[..., Node]
    factor: Callable[..., Node]
    primary: Callable[..., Node]
    argument: Callable[..., Node]
    starters: set[str]  # commands that begin an operand

    def __init__(self, tokens: list[Token]):
        self._tokens = tokens
        self.position = 0
        self._depth = 0
        self.bars = 0  # open |...|, inside which a bar closes
        self.colon_is_ratio = True

    @property
    def token(self) -> Token:
        return self._tokens[self.position]

    def peek(self, ahead: int = 1) -> Token:
        position = self.position + ahead
        return self._tokens[position] if position < len(self._tokens) else END

    def take(self) -> Token:
        token = self._tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self._tokens[self.position]
        return token.text in texts and token.kind in ("sign", "command")

    def accept(self, *texts: str) -> bool:
        if self.at(*texts):
            self.position += 1
            return True
        return False

    def accept_word(self, word: str) -> bool:
        if self.token.is_word and self.token.text == word:
            self.position += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        if not self.at(*texts):
            raise ParseError(f"{self.token.text!r} stands where {texts[0]!r} belongs")
        return self.take().text

    def replace(self, *tokens: Token, ahead: int = 0, instead_of: int = 1) -> None:
        """Puts other tokens where the next one stands, or some that come `ahead`."""
        start = self.position + ahead
        self._tokens[start : start + instead_of] = tokens

    def inside(self) -> Node:
        """Items between brackets, where a bar opens what it would close outside of them."""
        saved, self.bars = self.bars, 0
        node = self.nested(self.items)
        self.bars = saved
        return node

    def attempt(self, rule: Callable[[], Node | None]) -> Node | None:
        """The node that a rule makes of the next tokens; None where it fails, which takes none."""
        mark = self.position, self.bars, self.colon_is_ratio
        try:
            node = rule()
        except ParseError:
            node = None
        if node is None:
            self.position, self.bars, self.colon_is_ratio = mark
        return node

    def nested(self, rule: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CostError(f"nested deeper than {MAX_DEPTH}")
        try:
            return rule()
        finally:
            self._depth -= 1
