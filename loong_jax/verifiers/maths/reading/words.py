"""Words and commands in formulas: variables, operands, and just words."""

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.reading import integrals
from loong_jax.verifiers.maths.reading.parser import Parser
from loong_jax.verifiers.maths.reading.tokens import Token

_SHORT_WORDS = frozenset(
    str.split("is of in to or an at by if we be it so no do me go us as on am up he my ok vs sq")
)
_PRODUCTS = frozenset(str.split("abc abcd abcde xyz bac acb cab"))
_VOWELS = frozenset("aeiou")
OBJECTS = frozenset(
    str.split(
        "Interval Union Intersection Complement FiniteSet Matrix ImmutableMatrix "
        "MutableDenseMatrix Eq Ne Lt Le Gt Ge And Or Tuple Point Point2D Point3D EmptySet "
        "Reals S Symbol array Set set tuple list frozenset StrictLessThan LessThan "
        "GreaterThan StrictGreaterThan Equality Unequality Poly Piecewise"
    )
)


def letters_of(word: str) -> tuple[str, ...] | None:
    """Names of the variables a plain word is the product of; None if it is just a word."""
    letters = word.rstrip("0123456789")
    if len(letters) == 1:
        return (word,)
    if letters != word:
        return (word,) if len(letters) <= 2 and letters not in _SHORT_WORDS else None
    if word in names.GREEK or word in ("pH", "pOH", "pK"):
        return (word,)
    if word.isupper() and len(word) <= 4:
        return (word,)
    if word in _PRODUCTS or (
        word.lower() not in _SHORT_WORDS
        and (len(word) == 2 or (len(word) <= 4 and not _VOWELS & set(word.lower())))
    ):
        return tuple(word)
    return None


def is_before_power(word: str, following: Token) -> bool:
    """Whether Be^x is B times e^x, though "be" is a word."""
    return len(word) == 2 and word[1] == "e" and following.text == "^" and word[0].isalpha()


def is_operand(token: Token) -> bool:
    """Whether a factor can start with this word."""
    word = token.text
    if token.kind == "text":
        return len(word) == 1 or word in names.PREFIX_FUNCTIONS
    if word in names.JOIN_WORDS:
        return word == "y"
    if word in names.FUNCTIONS or word in names.CONSTANTS or word in OBJECTS:
        return True
    return letters_of(word) is not None


def is_leading(token: Token, following: Token) -> bool:
    """Whether this word stands before the expression and is no part of it."""
    if token.kind not in ("word", "text"):
        return False
    word = token.text.lower()
    if (
        token.kind == "word"
        and len(word) == 1
        and not (word == "a" and (following.kind == "number" or following.text == "total"))
    ):
        return False
    return word in names.LEADING_WORDS or (word == "either")


FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac")
BINOMIALS = ("\\binom", "\\dbinom", "\\tbinom")
_STARTERS = frozenset(
    (*FRACTIONS, *BINOMIALS, *integrals.BIG, "\\sqrt", "\\begin", "\\{", "\\lbrace", "\\langle",
     "\\lfloor",
     "\\lceil", "\\lvert", "\\lVert", "\\|", "\\infty", "\\emptyset", "\\varnothing", "\\mathbb",
     "\\ldots", "\\dots", "\\cdots", "\\lim", "\\log", "\\$", "\\angle", "\\triangle", "\\circ",
     "\\vert", "\\pounds", "\\euro", "\\prime", "\\substack")
) | names.WRAPPERS | names.ACCENTS  # fmt: skip
PLAIN_FUNCTIONS = frozenset("\\" + name for name in names.PREFIX_FUNCTIONS)


def starts_command(text: str) -> bool:
    return (
        text in _STARTERS
        or text in PLAIN_FUNCTIONS
        or text[1:] in names.GREEK
        or (text[1:] in names.CONSTANTS)
    )


def starts_operand(parser: Parser, token: Token) -> bool:
    if token.kind in ("number", "recurring"):
        return True
    if token.kind in ("word", "text"):
        return is_operand(token)
    if token.kind == "sign":
        return token.text in ("(", "[", "{", "-", "+", "$") or (
            token.text == "|" and not parser.bars
        )
    return token.kind == "command" and starts_command(token.text)
