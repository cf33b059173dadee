"""Meanings of words and LaTeX commands, from `tables.toml`."""

import re
import tomllib
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))


def by_word(table: str) -> dict[str, str]:
    """The key of every word of a table."""
    entries = (entry.strip().partition(" = ") for entry in TABLES["words"][table].split(";"))
    return {word: key.strip() for key, _, words in entries for word in words.split()}


def measures(table: str) -> dict[str, str]:
    """The meaning of each word in a table of units."""
    entries = (entry.partition("=") for entry in TABLES["measures"][table].split(";"))
    return {word: text.strip() for words, _, text in entries for word in words.split()}


def patterns(module: str, **known: str) -> types.SimpleNamespace:
    """The patterns of one module, each with those it is made of; some may be `known`."""
    found = known
    for name, text in TABLES["patterns"][module].items():
        found[name] = re.sub(r"<<(\w+)>>", lambda m: found[m[1]], text.replace("\n", ""))
    return types.SimpleNamespace(
        **{name: re.compile(found[name]) for name in TABLES["patterns"][module]}
    )


def rewrites(table: str) -> list[tuple[str, re.Pattern[str], str]]:
    """A hint without which there is nothing to do, what is replaced, and by what."""
    rules = []
    for hint, pattern, new in TABLES["rewrites"][table]:
        for word, meaning in TABLES["rewrites"]["WORDS"].items():
            pattern = pattern.replace(f"<{word}>", meaning)
        rules.append((hint, re.compile(pattern), new))
    return rules


def rewritten(text: str, rules: Iterable[tuple[str, re.Pattern[str], Any]]) -> str:
    for hint, pattern, new in rules:
        if hint in text:
            text = pattern.sub(new, text)
    return text


_SETS = {name: frozenset(words.split()) for name, words in TABLES["sets"].items()}
GREEK, ACCENTS, WRAPPERS = _SETS["GREEK"], _SETS["ACCENTS"], _SETS["WRAPPERS"]
PREFIX_FUNCTIONS, TEXT_WRAPPERS = _SETS["PREFIX_FUNCTIONS"], _SETS["TEXT_WRAPPERS"]
SPACING = _SETS["SPACING"] | {"\\ "}
MATRIX_ENVIRONMENTS, LIST_ENVIRONMENTS = _SETS["MATRIX_ENVIRONMENTS"], _SETS["LIST_ENVIRONMENTS"]
LEADING_WORDS, CHANGING_WORDS = _SETS["LEADING_WORDS"], _SETS["CHANGING_WORDS"]
VERBS_OF_WRITERS, COMMON_PRODUCTS = _SETS["VERBS_OF_WRITERS"], _SETS["COMMON_PRODUCTS"]
PRODUCTS, QUOTIENTS = _SETS["PRODUCTS"], _SETS["QUOTIENTS"]
_PHRASES = {name: frozenset(phrases) for name, phrases in TABLES["phrases"].items()}
NOTHING, EVERYTHING = _PHRASES["NOTHING"], _PHRASES["EVERYTHING"]
WORDS_OF_VALUES = _PHRASES["WORDS_OF_VALUES"]
RELATIONS, FUNCTIONS = by_word("relations"), by_word("functions")
INVERSES = {name: "a" + name for name in str.split("sin cos tan cot sec csc sinh cosh tanh")}

CONSTANTS = {"pi": "pi", "Pi": "pi", "infty": "inf", "infinity": "inf", "oo": "inf", "inf": "inf"}

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "==": "==", "~": "~"}

JOIN_WORDS = {"and": "and", "or": "or", "either": "", "both": "", "maybe": "or", "perhaps": "or",
              "possibly": "or", "alternatively": "or", "y": "and"}  # fmt: skip
MULTIPLIERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9,
               "trillion": 10**12, "dozen": 12, "dozens": 12, "millions": 10**6,
               "thousands": 10**3, "billions": 10**9}  # fmt: skip


def _pairs(table: str) -> dict[str, str]:
    """Characters and what LaTeX writes for them, commands with a space on either side."""
    words = TABLES["characters"][table].split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return {character: f" {text} " if text[0] == "\\" else text for character, text in pairs}


GREEK_LETTERS = _pairs("GREEK_LETTERS")
CHARACTERS = str.maketrans(_pairs("PAIRS") | TABLES["odd_characters"])
