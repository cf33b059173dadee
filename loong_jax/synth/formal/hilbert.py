"""Natural deduction into Hilbert's axioms: a proof as Metamath has it.

Every hypothesis is discharged by bracket abstraction (Curry's algorithm with the eta rule): what is
left is built from ax-1, ax-2 and modus ponens alone. Equal sub-proofs and formulas are written
once, in Metamath's compressed format.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Formula, Statement
from loong_jax.synth.formal.proofs import Node, Rule, rules_of

# The database names four variables; set.mm's names for more go into the theorem's frame.
_BUILT_IN = ("ph", "ps", "ch", "th")
_MORE = ("ta", "et", "ze", "si", "rh", "mu", "la", "ka")
VARIABLES = (*_BUILT_IN, *_MORE)


def theorem(statement: Statement, names: Mapping[str, str]) -> str:
    """`|- ( ph -> ... )` with the variables that `names` gives the atoms."""
    wff = formulas.fold(statement.formula, names.__getitem__, "-. {}".format, "( {} -> {} )".format)
    return f"|- {wff}"


def variables_of(statement: Statement) -> dict[str, str]:
    """A variable for each atom. Raises ValueError for more atoms than there are names."""
    atoms = statement.atoms
    if len(atoms) > len(VARIABLES):
        raise ValueError(f"{len(atoms)} atoms are more than the {len(VARIABLES)} variables.")
    return dict(zip(atoms, VARIABLES, strict=False))


def frame(num_atoms: int) -> str:
    """Declarations of the variables past the database's own."""
    more = VARIABLES[len(_BUILT_IN) : max(num_atoms, len(_BUILT_IN))]
    if not more:
        return ""
    return f"$v {' '.join(more)} $. " + " ".join(f"w{name} $f wff {name} $." for name in more)


def proof(statement: Statement, node: Node, names: Mapping[str, str]) -> str:
    """The compressed proof of `theorem(statement, names)`."""
    ledger = _Ledger(names)
    step = ledger.under(rules_of(statement), node)
    return _written(ledger.items, step, [names[atom] for atom in statement.atoms])


def wff_proof(formula: Formula, names: Mapping[str, str]) -> str:
    """The compressed proof of `wff ( ph -> ... )`: that the formula is well-formed."""
    ledger = _Ledger(names)
    whole = ledger.wff(formula)
    return _written(ledger.items, whole, [names[atom] for atom in formulas.atoms_of([formula])])


class _Item(NamedTuple):
    """A formula or a sub-proof: a label, and the items that must stand on the stack before it."""

    label: str
    parts: tuple[int, ...]
    shows: int  # the formula that a sub-proof proves; -1 for a formula


class _Ledger:
    """Formulas and sub-proofs by number; equal ones have one number, so that each is made once."""

    def __init__(self, names: Mapping[str, str]):
        self.items: list[_Item] = []
        self._number_of: dict[_Item, int] = {}
        self._names = names

    def wff(self, formula: Formula) -> int:
        return formulas.fold(
            formula,
            lambda name: self._number(f"w{self._names[name]}", (), -1),
            lambda inner: self._number("wn", (inner,), -1),
            self._implies,
        )

    def under(self, assumed: Sequence[Rule], node: Node) -> int:
        """The sub-proof of a node, with what was assumed for it discharged."""
        step = self._given(node.rule)
        for premise, argument in zip(node.rule.premises, node.arguments, strict=True):
            step = self._apply(step, self.under(premise.assumed, argument))
        for rule in reversed(assumed):
            step = self.discharge(self._given(rule), step, {})
        return step

    def _given(self, rule: Rule) -> int:
        """A hypothesis that is not discharged yet; its label is none of Metamath's."""
        return self._number(f"${rule.letter}", (), self.wff(rule.formula))

    def discharge(self, given: int, step: int, known: dict[int, int]) -> int:
        """A proof of `given -> what step shows` that rests on `given` no more."""
        if step in known:
            return known[step]
        item, assumed = self.items[step], self.items[given].shows
        if step == given:
            twice = self._implies(assumed, assumed)
            share = self._axiom_2(assumed, twice, assumed)
            share = self._apply(share, self._axiom_1(assumed, twice))
            found = self._apply(share, self._axiom_1(assumed, assumed))
        elif not self._rests_on(step, given, {}):
            found = self._apply(self._axiom_1(item.shows, assumed), step)
        else:
            _, _, minor, major = item.parts  # of modus ponens: nothing else rests on hypotheses
            if minor == given and not self._rests_on(major, given, {}):
                found = major  # eta
            else:
                share = self._axiom_2(assumed, self.items[minor].shows, item.shows)
                share = self._apply(share, self.discharge(given, major, known))
                found = self._apply(share, self.discharge(given, minor, known))
        known[step] = found
        return found

    def _rests_on(self, step: int, given: int, known: dict[int, bool]) -> bool:
        if step not in known:
            proofs = (part for part in self.items[step].parts if self.items[part].shows >= 0)
            known[step] = step == given or any(self._rests_on(p, given, known) for p in proofs)
        return known[step]

    def _axiom_1(self, a: int, b: int) -> int:
        return self._number("ax-1", (a, b), self._implies(a, self._implies(b, a)))

    def _axiom_2(self, a: int, b: int, c: int) -> int:
        first = self._implies(a, self._implies(b, c))
        then = self._implies(self._implies(a, b), self._implies(a, c))
        return self._number("ax-2", (a, b, c), self._implies(first, then))

    def _apply(self, major: int, minor: int) -> int:
        """Modus ponens."""
        premise, conclusion = self.items[self.items[major].shows].parts
        assert premise == self.items[minor].shows
        return self._number("ax-mp", (premise, conclusion, minor, major), conclusion)

    def _implies(self, a: int, b: int) -> int:
        return self._number("wi", (a, b), -1)

    def _number(self, label: str, parts: tuple[int, ...], shows: int) -> int:
        item = _Item(label, parts, shows)
        if item not in self._number_of:
            self._number_of[item] = len(self.items)
            self.items.append(item)
        return self._number_of[item]


# ---- writing


def _written(items: Sequence[_Item], whole: int, variables: Sequence[str]) -> str:
    """The compressed proof of an item: `( labels ) LETTERS`. What is used twice is saved (Z)."""
    mandatory = [f"w{name}" for name in VARIABLES if name in variables]
    uses, waiting = Counter({whole: 1}), [whole]
    while waiting:
        for part in items[waiting.pop()].parts:
            uses[part] += 1
            if uses[part] == 1:
                waiting.append(part)
    labels: dict[str, int] = {}
    saved: dict[int, int] = {}
    codes: list[int | str] = []  # a saved item counts from -1 downwards, until labels are known

    def write(number: int) -> None:
        if number in saved:
            codes.append(-1 - saved[number])
            return
        item = items[number]
        for part in item.parts:
            write(part)
        if item.label in mandatory:
            codes.append(mandatory.index(item.label))
        else:
            codes.append(len(mandatory) + labels.setdefault(item.label, len(labels)))
        if item.parts and uses[number] > 1:
            codes.append("Z")
            saved[number] = len(saved)

    write(whole)
    base = len(mandatory) + len(labels)
    letters = [
        code if isinstance(code, str) else _letters(code if code >= 0 else base - 1 - code)
        for code in codes
    ]
    return f"( {' '.join(labels)} ) {''.join(letters)}"


def _letters(number: int) -> str:
    """A number from 0 as a compressed proof writes it: A to T end it, U to Y are base-5 digits."""
    text = chr(ord("A") + number % 20)
    number //= 20
    while number:
        number -= 1
        text = chr(ord("U") + number % 5) + text
        number //= 5
    return text
