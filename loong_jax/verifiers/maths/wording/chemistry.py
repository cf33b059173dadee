r"""Formulas of chemistry in any notation: H2SO4, \ce{H2SO4}, \mathrm{H_2SO_4}, ions, reactions.

The same atoms in another order may be an isomer, so they decide nothing.
"""

import functools
import re
from collections import Counter
from typing import NamedTuple

from loong_jax.verifiers.maths import names

_ELEMENTS = frozenset(
    str.split(
        "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As "
        "Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu "
        "Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np "
        "Pu Am Cm Bk Cf Es Fm Md No Lr"
    )
)
_MOLECULES = frozenset(("O2", "N2", "H2", "Cl2", "F2", "Br2", "I2", "O3", "P4", "S8"))
_LOWERED = {ord(c): d for c, d in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)}
_RAISED = {ord(c): d for c, d in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True)}
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SAID = names.patterns("chemistry")
_CHARGE = re.compile(r"\^\s*\{?\s*(?:(\d*)\s*([+-])|([+-])\s*(\d*))\s*\}?")
_STATE = re.compile(r"\s*\((?:s|l|g|aq)\)\Z")
_DOT = re.compile(r"\\cdot|\\bullet|[\u00b7\u2022*]")
_ATOM = re.compile(r"([A-Z][a-z]?)(\d*)|([(\[])|([)\]])(\d*)|(\.)(\d*)")
_BARE_CHARGE = re.compile(r"(?<=[A-Za-z\d)])(\d?)([+-])\Z")
_TERM = re.compile(r"\s*(\d+(?:/\d+)?)?\s*(.+?)\s*\Z")
_MAY_BE = re.compile(r"[A-Z]")
MAX_CHARS = 200


class Formula(NamedTuple):
    atoms: tuple[tuple[str, int], ...]  # in the order written, brackets among them
    charge: int

    def composition(self) -> tuple:
        """How often each element stands in it, and the charge."""
        stack: list[Counter] = [Counter()]
        factor = 1  # of what follows a dot
        for name, count in self.atoms:
            if name == "(":
                stack.append(Counter())
            elif name == ")":
                inner = stack.pop()
                for element, often in inner.items():
                    stack[-1][element] += often * count
            elif name == ".":
                factor = count
            else:
                stack[-1][name] += count * factor
        return tuple(sorted(stack[0].items())), self.charge


class Chemical(NamedTuple):
    sides: tuple[tuple[tuple[str, Formula], ...], ...]  # terms, with factors; one side: a formula
    is_sure: bool  # nothing but a formula of chemistry is written so


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Chemical | None:
    """What a text names; None where it is no formula of chemistry, as far as can be told."""
    if len(text) > MAX_CHARS or not _MAY_BE.search(text):
        return None
    is_marked = "\\ce" in text or "\\mathrm" in text or "\\text" in text
    if text.startswith("\\") and not is_marked:
        return None
    plain = _SAID.COMMAND.sub(" ", text.translate(_LOWERED).replace("\u2212", "-"))
    plain = _RAISED_RUN.sub(lambda m: "^{" + m[0].translate(_RAISED) + "}", plain).strip(" .")
    sides = _SAID.ARROW.split(plain)
    if len(sides) > 2:
        return None
    found = [_side(side, is_reaction=len(sides) == 2) for side in sides]
    if any(side is None for side in found):
        return None
    kept = tuple(side for side in found if side is not None)
    if len(sides) == 2:
        return Chemical(kept, True)
    formula = kept[0][0][1]
    elements = [name for name, _ in formula.atoms if name in _ELEMENTS]
    counted = any(count > 1 for _, count in formula.atoms)
    is_sure = "\\ce" in text or (
        len(elements) > 1 and counted and ("\\mathrm" in text or text.strip(" $.").isalnum())
    )
    if not (is_sure or is_marked or len(elements) > 1 or formula.charge or plain in _MOLECULES):
        return None
    return Chemical(kept, is_sure)


def _side(text: str, *, is_reaction: bool) -> tuple[tuple[str, Formula], ...] | None:
    text = re.sub(r"[{}]", "", _CHARGE.sub(_marked, text))
    parts = re.split(r"\s\+\s|\+(?=\s*\d*\s*[A-Z])", text) if is_reaction else [text]
    terms = []
    for part in parts:
        match = _TERM.fullmatch(part) if is_reaction else None
        factor, body = (match[1] or "1", match[2]) if match else ("1", part)
        formula = _formula(body)
        if formula is None:
            return None
        terms.append((factor, formula))
    return tuple(sorted(terms, key=repr))


def _marked(match: re.Match[str]) -> str:
    size, sign = match[1] or match[4] or "1", match[2] or match[3]
    return f"<{sign}{size}>"


def _formula(text: str) -> Formula | None:
    text = _STATE.sub("", text)
    text = re.sub(r"[_{}\s]", "", _DOT.sub(".", text))
    charge = 0
    if (raised := re.search(r"<([+-]\d+)>\Z", text)) is not None:
        charge, text = int(raised[1]), text[: raised.start()]
    elif (bare := _BARE_CHARGE.search(text)) is not None:
        is_atom = text[: bare.start()] in _ELEMENTS  # Fe3+, but NO3-
        size = int(bare[1]) if is_atom and bare[1] else 1
        charge = size if bare[2] == "+" else -size
        text = text[: bare.start()] + ("" if is_atom else bare[1])
    atoms: list[tuple[str, int]] = []
    position = depth = 0
    while position < len(text):
        match = _ATOM.match(text, position)
        if match is None:
            return None
        position = match.end()
        element, count, opening, closing, times, dot, factor = match.groups()
        if element:
            if element not in _ELEMENTS:
                return None
            atoms.append((element, int(count or 1)))
        elif opening:
            depth += 1
            atoms.append(("(", 1))
        elif closing:
            depth -= 1
            atoms.append((")", int(times or 1)))
        else:
            atoms.append((dot, int(factor or 1)))
        if depth < 0:
            return None
    return Formula(tuple(atoms), charge) if atoms and not depth else None


def equal(gold: Chemical, answer: Chemical) -> bool | None:
    """Whether both say the same; None where the atoms are the same and their order is not."""
    if gold.sides == answer.sides:
        return True
    if len(gold.sides) != len(answer.sides):
        return False
    same = [_composition(one) == _composition(other)
            for one, other in zip(gold.sides, answer.sides, strict=True)]  # fmt: skip
    return None if all(same) else False


def _composition(side: tuple[tuple[str, Formula], ...]) -> list:
    return sorted((factor, formula.composition()) for factor, formula in side)
