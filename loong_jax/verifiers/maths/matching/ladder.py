"""The ladder of equality for two values, with units or without, and for two sets of reals."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import COLLECTIONS, ONE, Node, number
from loong_jax.verifiers.maths.matching import naming, nodes, real_sets
from loong_jax.verifiers.maths.units import NOTHING, UNITS, Unit
from loong_jax.verifiers.maths.values import EXACT, Tolerance

_OF_SETS = ("union", "intersection", "setminus")  # A and B of "A ∩ B = [1, 3)" are known
_SYMBOLIC = frozenset(("integral", "limit", "sum", "product"))
_STRUCTURES = frozenset(("chain", *COLLECTIONS))
Symbolic = Callable[[Node, Node], bool | None]


@dataclasses.dataclass
class Comparison:
    """One comparison, of parts of parts too. `rung` is the last step that was needed."""

    tolerance: Tolerance = EXACT
    symbolic: Symbolic | None = None  # decides in a child process what values cannot
    conventions: frozenset[str] = frozenset()  # "base", "percent": what the question asks for
    rung: str = "exact"
    note: str = ""

    def told(self, outcome: bool | None, note: str) -> bool | None:
        """An outcome, with what is to be said of it."""
        self.note = note
        return outcome

    def match(self, gold: Node, answer: Node) -> bool | None:
        """True, False, or None where it cannot be told. Raises CostError."""
        raise NotImplementedError

    def match_all(self, golds: Iterable[Node], answers: Iterable[Node]) -> bool | None:
        return all_of(itertools.starmap(self.match, zip(golds, answers, strict=True)))

    def equal(self, gold: Node, answer: Node) -> bool | None:
        outcome = values.equal(gold, answer, self.tolerance)
        if outcome is False:
            renamed = naming.with_one_constant(gold, answer)
            if renamed is not None and values.equal(*renamed, self.tolerance):
                return True
        if outcome is not None:
            self.rung = "numeric" if gold.is_constant else "identity"
            return (
                outcome
                or any(values.equal(gold, other) for other in naming.renamed(gold, answer))
                or naming.absorbed(gold, answer)
            )
        if (gold.heads | answer.heads) & _SYMBOLIC:
            return self.ask(gold, answer)
        return False if gold.heads & _STRUCTURES != answer.heads & _STRUCTURES else None

    def ask(self, gold: Node, answer: Node) -> bool | None:
        self.rung = "symbolic"
        return None if self.symbolic is None else self.symbolic(gold, answer)

    def same_set(self, gold: Node, answer: Node) -> bool | None:
        match answer:
            case Node("chain", (("=",), name, value)):
                if naming.names_something(name) or name.head in _OF_SETS:
                    answer = value
        left, right = real_sets.real_set(gold), real_sets.real_set(answer)
        if left is None or right is None:
            return False if nodes.is_value(answer) else None
        if gold.head == "tuple" and answer.head == "bracket":
            return False
        self.rung = "numeric"
        return real_sets.equal(left, right)


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """False at the first that is; None where one cannot be told."""
    unknown = False
    for outcome in outcomes:
        if outcome is False:
            return False
        unknown |= outcome is None
    return None if unknown else True


def temperature(matcher: Comparison, gold: Node, answer: Node, *kelvins: Node) -> bool | None:
    """On two scales: as temperatures, and undecided where only a difference could be meant."""
    if any(value.symbols for value in kelvins):
        return None
    if matcher.equal(*kelvins):
        return True
    if matcher.equal(*(naming.right_side(node).args[0] for node in (gold, answer))):
        return matcher.told(None, "the same number of degrees on another scale")
    return False


def quantity(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    value, unit = gold.args
    if answer.head != "quantity":
        converted = as_quantity(answer)
        if converted is not None and converted.args[1].dimensions == unit.dimensions:
            answer = converted
        elif answer.head in ("percent", "degree") or answer.symbols - value.symbols:
            return False
        else:
            return matcher.equal(value, answer)  # the unit was asked for
    other, other_unit = answer.args
    is_pound = unit == UNITS["pound_sterling"] and other_unit == UNITS["pound"]  # one word
    if not is_pound and unit.dimensions != other_unit.dimensions:
        return matcher.told(False, "the units measure different things")
    if is_pound or unit.factor == other_unit.factor:
        return matcher.equal(value, other)
    ratio = number(other_unit.factor / unit.factor)
    return matcher.equal(value, Node("mul", (other, ratio)))


def sum_of_quantities(matcher: Comparison, gold: Node, items: Sequence[Node]) -> bool | None:
    """3 hours and 5 minutes is one quantity; any other list is no value."""
    parts = [item.unlabelled for item in items]
    if gold.head != "quantity" or not all(part.head == "quantity" for part in parts):
        return False
    if len({part.args[1].dimensions for part in parts}) != 1:
        return False
    factors = [part.args[1].factor for part in parts]
    if sorted(factors, reverse=True) != factors or len(set(factors)) != len(factors):
        return False
    total = Node("add", tuple(Node("mul", (p.args[0], number(p.args[1].factor))) for p in parts))
    unit = Unit(gold.args[1].factor ** 0, parts[0].args[1].dimensions)
    return matcher.match(gold, Node("quantity", (total, unit)))


_KELVIN = UNITS["K"].dimensions
_SCALES = {  # kelvins of a degree, and where its zero is in such degrees above absolute zero
    "degreesC": (Fraction(1), Fraction("273.15")),
    "degreesF": (Fraction(5, 9), Fraction("459.67")),
}


def kelvins(node: Node) -> tuple[str, Node] | None:
    """The scale of a temperature, and what it is in kelvins; None for anything else."""
    match node:
        case Node("chain", (("=",), Node("symbol"), value)):
            return kelvins(value)
        case Node("labelled", (value, ("degreesC" | "degreesF" as scale,))):
            size, zero = _SCALES[scale]
        case Node("quantity", (value, unit)) if unit.dimensions == _KELVIN:
            scale, size, zero = "K", unit.factor, 0
        case _:
            return None
    return scale, Node("mul", (number(size), Node("add", (value, number(zero)))))


def as_quantity(node: Node) -> Node | None:
    """5 m or 25 N m, whose letters were read as variables, as a number and a unit."""
    found = _with_unit(node)
    if found is None or found[1] == NOTHING:
        return None
    return Node("quantity", found)


def _with_unit(node: Node) -> tuple[Node, Unit] | None:
    match node:
        case Node("quantity", (value, unit)):
            return value, unit
        case Node("symbol", (name,)):
            return (ONE, UNITS[name]) if name in UNITS else None
        case _ if not node.symbols and "quantity" not in node.heads:
            return node, NOTHING
        case Node("pow", (base, Node("number", (int(power), _)))) if abs(power) <= 9:
            found = _with_unit(base)
            if found is None or found[0] != ONE:
                return None
            return ONE, NOTHING.times(found[1], power)
        case Node("mul" | "div" as head, args):
            parts = [part for arg in args if (part := _with_unit(arg)) is not None]
            if len(parts) < len(args):
                return None
            (first, unit), *rest = parts
            for value, own in rest:
                unit = unit.times(own, -1 if head == "div" else 1)
                is_whole = head == "div" and value != ONE
                first = Node("div", (first, value)) if is_whole else nodes.product(first, value)
            return first, unit
    return None
