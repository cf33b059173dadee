"""Notations that are no arithmetic: propositional logic by its truth tables, abelian groups.

Amounts by their names: 鸡23只,兔12只; the maximum 5 and the minimum -3; quotient and remainder.
Formulas of chemistry in any notation; the same atoms in another order decide nothing.
"""

import ast
import functools
import itertools
import math
import operator
import re
from collections import Counter
from typing import NamedTuple

from loong_jax import syntax
from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError
from loong_jax.verifiers.maths.reading import LOWERED, raised, readings
from loong_jax.verifiers.maths.units import UNITS

MAX_FORMULA_CHARS = 200
MAX_LETTERS = 6
_ARROW = r"\\(?:long)?rightarrow\b|\\(?:Long)?Rightarrow\b|\\to\b|\\implies\b"
_BOTH_WAYS = r"\\(?:long)?leftrightarrow\b|\\(?:Long)?Leftrightarrow\b|\\iff\b"
_SPELLINGS = {
    "not": r"\\neg\b|\\lnot\b|\\sim\b|\u00ac|~(?=\s*[A-Za-z(~])",
    "iff": rf"{_BOTH_WAYS}|\u2194|\u21d4|<[-=]+>",
    "implies": rf"{_ARROW}|\u2192|\u21d2|[-=]>",
    "xor": r"\\oplus\b|\u2295",
    "and": r"\\land\b|\\wedge\b|\u2227",
    "or": r"\\lor\b|\\vee\b|\u2228",
}
_WORDS = r"(?P<said>(?<![A-Za-z])(?:not|and|or|implies|iff|if and only if)(?![A-Za-z]))"
_TOKEN = re.compile(
    r"\s+|\$|\\[ ,;:!]|\\q?quad\b|\\(?:text|mathrm)\{\s*(?=(?:and|or|not|implies|iff)\s*\})|\}|"
    + "|".join(f"(?P<{name}>{pattern})" for name, pattern in _SPELLINGS.items())
    + r"|(?P<open>\\left\s*[(\[]|[(\[])|(?P<close>\\right\s*[)\]]|[)\]])"
    + f"|{_WORDS}|(?P<letter>[A-Za-z])(?![A-Za-z])"
)
_CONNECTIVE = re.compile("|".join(_SPELLINGS.values()))
_PYTHON = {"not": "~", "iff": "or", "if and only if": "or", "implies": "and", "xor": "^",
           "and": "&", "or": "|", "open": "(", "close": ")"}  # fmt: skip
_BINARY = {ast.BitXor: operator.xor, ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_OF_LOGIC = (ast.Name, ast.UnaryOp, ast.Invert, ast.BinOp, *_BINARY, ast.BoolOp, ast.And, ast.Or,
             ast.Load)  # fmt: skip


@functools.lru_cache(maxsize=512)
def read_formula(text: str, *, is_gold: bool = False) -> ast.expr | None:
    """The formula that is all of a text; None else. A gold has a connective's sign.

    Its tree is that of Python's operators, which bind as the connectives do: "and" stands for
    "implies", "or" for "if and only if".
    """
    text = text.strip().rstrip(".")
    is_none = is_gold and _CONNECTIVE.search(text) is None
    if len(text) > MAX_FORMULA_CHARS or is_none or _TOKEN.sub("", text):
        return None
    tokens = ((match.lastgroup, match[0]) for match in _TOKEN.finditer(text))
    signs = (_PYTHON.get(said if kind == "said" else kind, said) for kind, said in tokens if kind)
    try:
        formula = syntax.parse_expression(" ".join(signs))
    except syntax.UNREADABLE:
        return None
    is_one = all(isinstance(node, _OF_LOGIC) for node in ast.walk(formula))
    return formula if is_one and len(_letters(formula)) <= MAX_LETTERS else None


def equivalent(one: ast.expr, other: ast.expr) -> bool | None:
    """True if both have one truth table; None where that has too many letters."""
    letters = sorted(_letters(one) | _letters(other))
    if len(letters) > MAX_LETTERS:
        return None
    values = itertools.product((False, True), repeat=len(letters))
    rows = (dict(zip(letters, row, strict=True)) for row in values)
    return all(_holds(one, row) == _holds(other, row) for row in rows)


def _letters(formula: ast.expr) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(formula) if isinstance(node, ast.Name))


def _holds(formula: ast.expr, row: dict[str, bool]) -> bool:
    match formula:
        case ast.UnaryOp(operand=inner):
            return not _holds(inner, row)
        case ast.BinOp(left=left, op=sign, right=right):
            return _BINARY[type(sign)](_holds(left, row), _holds(right, row))
        case ast.BoolOp(op=sign, values=parts):
            values = [_holds(part, row) for part in parts]
            if isinstance(sign, ast.Or):
                return functools.reduce(operator.eq, values)
            return functools.reduce(lambda then, when: not when or then, reversed(values))
        case ast.Name(id=letter):
            return row[letter]
    raise TypeError(type(formula))


_JOIN = re.compile(r"\s*(?:\\times|\\oplus|\u00d7|\u2295|\bx\b)\s*")
_SAID = names.patterns("notations")
MAX_CHARS = 160


@functools.lru_cache(maxsize=512)
def may_be_group(text: str) -> bool:
    """True if a gold may be such a group: C_4 alone may be anything."""
    return "Z" in text or "\u2124" in text or _JOIN.search(text) is not None


def read_group(text: str) -> Counter | None:
    """The orders of its cyclic factors of prime power order, 0 for Z; None where it is no group."""
    if len(text) > MAX_CHARS:
        return None
    text = _SAID.LEFT.sub("", text).strip(" .")
    text = _SAID.NAMED.sub("", text, count=1)
    found: Counter = Counter()
    parts = _JOIN.split(text)
    factors = [match for match in map(_SAID.FACTOR.fullmatch, parts) if match is not None]
    if len(factors) < len(parts) or all(match["free"] for match in factors):
        return None
    for match in factors:
        power = int(match["power"] or 1)
        if match["free"]:
            found[0] += power
        elif match["klein"]:
            found[2] += 2 * power
        else:
            order = next(int(match[group]) for group in (1, 2, 3) if match[group])
            for prime in range(2, math.isqrt(order) + 1):  # 8 and 3 of 24
                prime_power = math.gcd(order, prime**20)
                order //= prime_power
                found[prime_power] += power
            found[order] += power
    found.pop(1, None)
    return found


class Proposition(NamedTuple):
    quantifier: str  # with what it ranges over
    name: str
    body: Node  # an equation or inequality


@functools.lru_cache(maxsize=512)
def read_proposition(text: str) -> Proposition | None:
    """The statement with one quantifier that ends a text."""
    found = _SAID.QUANTIFIED.search(text) if len(text) < MAX_QUANTIFIED else None
    before = "" if found is None else text[: found.start()]
    if found is None or _SAID.NOT.search(before) or _QUANTIFIER.search(before + found["body"]):
        return None
    try:
        name, body = (readings.of(found[part].strip())[0] for part in ("name", "body"))
    except (ParseError, CostError):
        return None
    domain = re.sub(r"\\math\w+|\\left|\\right|(?<=\\[gln]e)q|[{}\s]", "", found["domain"])
    sign = "\u2203" if re.search("\u2203|存在|exist", found["sign"]) else "\u2200"
    is_one = name.head == "symbol" and body.head == "chain"
    quantifier = sign + domain.replace("\u2208", "\\in")
    return Proposition(quantifier, name.args[0], body) if is_one else None


_QUANTIFIER = re.compile(r"\\exists|\\forall|[\u2203\u2200]")
MAX_QUANTIFIED = 400


def read_amounts(text: str, *, is_gold: bool = False) -> dict[str, Node]:
    """Values by name; of a gold nothing where it says anything else."""
    text = _SAID.AROUND.sub(r"\1", text).strip()
    if len(text) > 200:
        return {}
    if (divided := _SAID.DIVIDED.fullmatch(text)) is not None:
        text = f"quotient {divided[1]}, remainder {divided[2]}"
    for kind, pattern in names.TABLES["amounts"]["KINDS"].items():
        text = re.sub(pattern, f" {kind} ", text)
    found: dict[str, Node] = {}
    rest = _SAID.AMOUNT.sub(" ", text)
    for match in _SAID.AMOUNT.finditer(text):
        name = _SAID.EDGES.sub("", _SAID.EDGES.sub("", match["name"].strip())).strip().lower()
        word = re.split("[^a-z]", text[match.end() :], maxsplit=1)[0]
        unit = word if word in UNITS or word == "items" else ""
        rest = rest.replace(f" {unit}", "", 1)
        value = f"{match['value']} \\text{{{unit}}}" if unit else match["value"]
        try:
            found[name] = readings.of(value)[0]
        except (ParseError, CostError):
            return {}
    is_whole = _SAID.BESIDE.fullmatch(rest) and "" not in found and not _SAID.NO_NAME.search(text)
    return found if found and (is_whole or not is_gold) else {}


def paired(wanted: dict[str, Node], given: dict[str, Node]) -> list[tuple[Node, Node]] | None:
    """The values of each name of a gold; None where one of them is not named, or twice."""
    named = [[v for other, v in given.items() if other and (name in other or other in name)]
             for name in wanted]  # fmt: skip
    pairs = zip(wanted.values(), named, strict=True)
    return [(v, own[0]) for v, own in pairs] if all(len(own) == 1 for own in named) else None


_ELEMENTS = frozenset(
    str.split(
        "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As "
        "Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu "
        "Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np "
        "Pu Am Cm Bk Cf Es Fm Md No Lr"
    )
)
_MOLECULES = frozenset(("O2", "N2", "H2", "Cl2", "F2", "Br2", "I2", "O3", "P4", "S8"))
_CHEMISTRY = names.patterns("chemistry")
_CHARGE = re.compile(r"\^\s*\{?\s*(?:(\d*)\s*([+-])|([+-])\s*(\d*))\s*\}?")
_ATOM = re.compile(r"([A-Z][a-z]?)(\d*)|([(\[])|([)\]])(\d*)|(\.)(\d*)")
MAX_CHEMICAL_CHARS = 200


class Compound(NamedTuple):
    atoms: tuple[tuple[str, int], ...]  # in the order written, brackets among them
    charge: int
    composition: tuple[tuple[str, int], ...]  # the number of atoms of each element


class Chemical(NamedTuple):
    sides: tuple[tuple[tuple[str, Compound], ...], ...]  # terms, with factors; one side: a formula
    is_sure: bool  # nothing but a formula of chemistry is written so


@functools.lru_cache(maxsize=4096)
def read_chemical(text: str) -> Chemical | None:
    """The formula of chemistry that a text names; None for other texts, as far as can be told."""
    is_marked = any(mark in text for mark in ("\\ce", "\\mathrm", "\\text"))
    may_be_one = re.search("[A-Z]", text) and (is_marked or not text.startswith("\\"))
    if len(text) > MAX_CHEMICAL_CHARS or not may_be_one:
        return None
    plain = raised(text.translate(LOWERED)).replace("\u2212", "-")
    plain = _CHEMISTRY.COMMAND.sub(" ", plain).strip(" .")
    sides = _CHEMISTRY.ARROW.split(plain, maxsplit=2)
    found = (_side(side, is_reaction=len(sides) == 2) for side in sides if len(sides) <= 2)
    kept = tuple(side for side in found if side is not None)
    if len(kept) < len(sides) or len(sides) == 2:
        return Chemical(kept, True) if len(kept) == len(sides) else None
    formula = kept[0][0][1]
    has_several = sum(name in _ELEMENTS for name, _ in formula.atoms) > 1
    is_counted = has_several and any(count > 1 for _, count in formula.atoms)
    is_alone = "\\mathrm" in text or text.strip(" $.").isalnum()
    is_sure = "\\ce" in text or (is_counted and is_alone)
    is_one = is_sure or is_marked or has_several or formula.charge or plain in _MOLECULES
    return Chemical(kept, is_sure) if is_one else None


def _side(text: str, *, is_reaction: bool) -> tuple[tuple[str, Compound], ...] | None:
    text = _CHARGE.sub(lambda m: f"<{m[2] or m[3]}{m[1] or m[4] or 1}>", text)
    text = re.sub(r"[{}]", "", text)
    terms = []
    for part in re.split(r"\s\+\s|\+(?=\s*\d*\s*[A-Z])", text) if is_reaction else [text]:
        match = re.fullmatch(r"\s*(\d+(?:/\d+)?)?\s*(.+?)\s*\Z", part) if is_reaction else None
        factor, body = (match[1] or "1", match[2]) if match else ("1", part)
        if (formula := _formula(body)) is None:
            return None
        terms.append((factor, formula))
    return tuple(sorted(terms, key=repr))


def _formula(text: str) -> Compound | None:
    text = _SAID.STATE.sub("", text)
    text = re.sub(r"[_{}\s]", "", re.sub(r"\\cdot|\\bullet|[\u00b7\u2022*]", ".", text))
    charge = 0
    if (raised := re.search(r"<([+-]\d+)>\Z", text)) is not None:
        charge, text = int(raised[1]), text[: raised.start()]
    elif (bare := re.search(r"(?<=[A-Za-z\d)])(\d?)([+-])\Z", text)) is not None:
        is_atom = text[: bare.start()] in _ELEMENTS  # Fe3+, but NO3-
        size = int(bare[1]) if is_atom and bare[1] else 1
        charge = size if bare[2] == "+" else -size
        text = text[: bare.start()] + ("" if is_atom else bare[1])
    atoms, open_, factor = [], [Counter()], 1  # of what follows a dot
    for element, count, opening, closing, times, dot, parts in _ATOM.findall(text):
        often = int(count or times or parts or 1)
        atoms.append((element or dot or ("(" if opening else ")"), often))
        if opening:
            open_.append(Counter())
        elif closing and len(open_) > 1:
            inner = open_.pop()
            open_[-1].update({name: number * often for name, number in inner.items()})
        elif dot:
            factor = often
        elif element in _ELEMENTS:
            open_[-1][element] += often * factor
        else:
            return None
    is_one = atoms and len(open_) == 1 and not _ATOM.sub("", text)
    return Compound(tuple(atoms), charge, tuple(sorted(open_[0].items()))) if is_one else None


def same_chemical(gold: Chemical, answer: Chemical) -> bool | None:
    """True if both say the same; None where the atoms are the same and their order is not."""
    one, other = (
        [sorted((factor, *formula[1:]) for factor, formula in side) for side in said.sides]
        for said in (gold, answer)
    )
    return gold.sides == answer.sides or (None if one == other else False)
