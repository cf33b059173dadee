"""Golds: a text with the type it declares, parsed once and kept."""

import dataclasses
import functools
import re

from loong_jax.verifiers.answers import extract, notations, prose
from loong_jax.verifiers.maths import languages, names, wording
from loong_jax.verifiers.maths.expression import BARE_LISTS, CostError, Node, ParseError
from loong_jax.verifiers.maths.matching import real_sets
from loong_jax.verifiers.maths.reading import numerals, readings, words

TYPES = tuple(
    str.split(
        "number expression equation interval set tuple list matrix relation choice text quantity "
        "percentage base-n date ratio"
    )
)
_IN_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|textrm)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z][A-Za-z' -]*")


@dataclasses.dataclass(frozen=True)
class Gold:
    """A gold answer, read. `readings` is empty where only words can match."""

    text: str  # the span that counts
    kind: str  # one of TYPES
    readings: tuple[Node, ...]
    problem: str = ""  # why there is no reading
    amounts: dict[str, Node] = dataclasses.field(default_factory=dict)  # by their names, if several


@functools.lru_cache(maxsize=16384)
def read_gold(text: str, kind: str | None = None) -> Gold:
    """Parses a gold, whose type is `kind` or else what its form says."""
    says_answer = len(text) > 60 and "answer" in text.lower()
    is_wrapped = "\\boxed" in text or "\\fbox" in text or says_answer
    span = next(extract.spans(text), None) if is_wrapped else None
    body = _bare(span.text if span else text)
    if not body.isascii() or any(money in body for money in ("dollars", "R$", "R\\$")):
        body = languages.translated(body).strip()
    if kind in ("text", "choice", "date"):
        return Gold(body, kind, ())
    if kind is None:
        if wording.is_choice(body) or wording.choices(body) is not None:
            return Gold(body, "choice", _readings(body))
        if wording.is_date(body):
            return Gold(body, "date", ())
        if _are_words(body) and numerals.based_text(body.strip(" $")) is None:
            return Gold(body, "text", _readings_of_words(body))
    found, problem = (), ""
    if kind is None and (parts := prose.labelled_parts(body)) is not None:
        found = _readings(" \\text{ and } ".join(parts))
        if len(found) == 1 and found[0].head in BARE_LISTS and len(found[0].args) == len(parts):
            return Gold(body, "tuple", (Node("tuple", found[0].args),))
    try:
        found = readings.of(body)
    except (CostError, ParseError) as error:
        problem = str(error)
        if isinstance(error, ParseError) and wording.date(body) is not None:
            return Gold(body, "date", ())
    may_name = not found or "..." in found[0].symbols
    named = notations.read_amounts(body, is_gold=True) if may_name else {}
    if len(named) == 1 and not body.isascii():
        found = tuple(named.values())
    elif len(named) > 1:
        return Gold(body, "text", (), problem, named)
    if not found:
        is_maths = "\\" in body.replace("\\text", "") or any(c in body for c in "=^<>+")
        return Gold(body, kind or ("expression" if is_maths else "text"), (), problem)
    found = tuple(_of_kind(node, kind) for node in found)
    return Gold(body, kind or type_of(found[0]), found)


def _of_kind(node: Node, kind: str | None) -> Node:
    """Brackets as what the record says they are: [-3, 3] alone may be an interval or a list."""
    head, args = node.unlabelled
    if kind == "interval" and head in ("bracket", "tuple") and len(args) == 2:
        return Node("interval", (*args, head == "tuple", head == "tuple"))
    if kind in ("list", "set", "tuple") and head in ("bracket", "tuple"):
        return Node(kind, args)
    return node


def _bare(text: str) -> str:
    text = text.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(opening) : -len(closing)]
        is_inside = text == opening + inner + closing
        if is_inside and opening not in inner and not inner.endswith("\\"):
            return inner.strip()
    return text


def _are_words(text: str) -> bool:
    stripped = wording.normal(text)
    if not stripped or not readings.LETTERS.search(stripped):
        return False
    bare = _IN_TEXT.sub(r" \1 ", text).strip(" $.")
    if not bare.isascii():
        return not any(character.isdigit() or character in "\\=+^_<>/*" for character in bare)
    if _WORD.fullmatch(bare) is None or len(bare) < 2:
        return False
    parts = bare.replace("-", " ").split()
    if all(len(part) == 1 or part in names.COMMON_PRODUCTS for part in parts):
        return False  # p - q
    if "-" in bare and all(len(part) < 3 and words.letters_of(part) for part in parts):
        return False  # ad - bc, where "no" and "go" are words
    return not any(part in names.PREFIX_FUNCTIONS or part in names.GREEK for part in parts)


def _readings_of_words(text: str) -> tuple[Node, ...]:
    """Readings of words such as "twelve", "no solution", "xy" or "pi", beside the words."""
    words_, letters = wording.normal(text), text.strip(" $.")
    is_row = letters.isalpha() and words.letters_of(letters) is not None and "\\text" not in text
    is_value = (
        is_row
        or letters in names.WORDS_OF_VALUES
        or wording.is_nothing(words_)
        or wording.is_everything(words_)
        or numerals.number_from_words(words_) is not None
    )
    return _readings(text) if is_value else ()


def _readings(text: str) -> tuple[Node, ...]:
    try:
        return readings.of(text)
    except (ParseError, CostError):
        return ()


def clear_caches() -> None:
    """Forgets all parsed texts; for measurements."""
    read_gold.cache_clear()
    readings.cached.cache_clear()


def type_of(node: Node) -> str:
    """The declared type of a parsed gold."""
    node = node.unlabelled
    if node.head == "chain":
        return "equation" if set(node.args[0]) <= {"=", "~"} else "relation"
    if real_sets.is_set(node) or (node.head == "bracket" and len(node.args) == 2):
        return "interval"
    if node.head in _TYPE_OF_HEAD:
        return _TYPE_OF_HEAD[node.head]
    return "expression" if node.heads & {"symbol", "apply"} else "number"


_TYPE_OF_HEAD = {
    "quantity": "quantity", "degree": "quantity", "percent": "percentage", "based": "base-n",
    "bracket": "list", "pm": "list", **dict.fromkeys(BARE_LISTS, "list"),
    **{head: head for head in ("set", "tuple", "matrix", "ratio")},
}  # fmt: skip
