"""Matching of an answer and a gold: by the kind of the gold, down the ladder of equality.

The gold decides what is compared, and the relation is not symmetric: "x = 11" and "11 cm" answer
the gold 11, while "1" does not answer the gold x + z = 1.
"""

import re

from loong_jax.verifiers.maths.comparing import ellipses, families, naming, nodes, real_sets
from loong_jax.verifiers.maths.expression import BARE_LISTS, COLLECTIONS, UNNAMED, Node
from loong_jax.verifiers.maths.matching import ladder, relations, several, single
from loong_jax.verifiers.maths.matching.ladder import Comparison

_POINT = re.compile("[A-Z]'{1,3}")
_FINITE = frozenset(("set", "builder", "list", "and"))


class Matcher(Comparison):
    """A comparison by the kind of the gold."""

    def match(self, gold: Node, answer: Node) -> bool | None:
        if gold == answer:
            return True
        self.rung = "canonical"
        gold, answer = ellipses.closed(gold), ellipses.closed(answer)
        if (classes := families.classes_of_gold(gold)) is not None:
            if nodes.domains(answer) and families.INTEGERS not in nodes.domains(answer):
                return False  # k counts from 0 or 1
            if (given := families.classes_of(answer)) is not None:
                self.rung = "numeric"
                return families.same_classes(classes, given)
        family = families.read(gold)
        if family is not None and (other := families.read(answer)) is not None:
            return families.equal(family, other)
        scales = ladder.scale(gold), ladder.scale(answer)
        if all(scales) and scales[0] != scales[1]:
            return ladder.temperature(self, gold, answer)
        gold_label, answer_label = nodes.label(gold), nodes.label(answer)
        if nodes.labels_conflict(gold_label, answer_label):
            return self.told(None, f"{' '.join(answer_label)} for {' '.join(gold_label)}")
        if nodes.denies(answer_label):
            return self.told(False, f"the answer says of it: {' '.join(answer_label)}")
        gold, answer = gold.unlabelled, answer.unlabelled
        if gold.head in ("tuple", "bracket", "interval", "union"):
            answer = _named_by(answer)
        if gold.head in _FINITE and answer.head in _FINITE:
            gold, answer = families.listed(gold), families.listed(answer)
        if gold.head == "modular":
            if answer.head == "modular" and not self.match(gold.args[1], answer.args[1]):
                return False
            gold = gold.args[0]
        if answer.head == "modular":
            if gold.head == "number" and families.is_open(answer):
                return self.told(False, "the remainder is not worked out")
            answer = families.residue(answer) if gold.head != "chain" else answer.args[0]
        if gold.head == "piecewise" or answer.head == "piecewise":
            return single.in_pieces(self, gold, answer)
        if "chain" in gold.heads and gold.args[0] != ("in",):
            answer = naming.as_values(answer)
        if gold.head == "chain":
            return relations.relation(self, gold, answer)
        if gold.head in BARE_LISTS and any(i.head == "chain" for i in gold.args):
            return relations.system(self, gold, answer)
        if real_sets.is_set(gold):
            return ladder.real_set(self, gold, answer)
        if gold.head in COLLECTIONS:
            return several.collection(self, gold, answer)
        if gold.head in ("add", "mul", "div", "neg") and "matrix" in gold.heads:
            gold = nodes.matrix_of(gold) or gold
        if gold.head == "matrix":
            return several.matrix(self, gold, answer)
        if gold.head not in COLLECTIONS and "pm" in gold.heads:
            return several.collection(self, Node("list", naming.spread(gold)), answer)
        if gold.head == "ratio":
            return several.ratio(self, gold, answer)
        return single.value(self, gold, answer)


def _named_by(node: Node) -> Node:
    """(3, -4) of P'(3, -4), and of 0 < xy + z < 1 the range of what has several variables."""
    match node:
        case Node("apply", (name, *parts)) if len(parts) > 1 and _POINT.fullmatch(str(name)):
            return Node("tuple", tuple(parts))
        case Node("chain", (operators, low, middle, high)) if (
            len(middle.symbols) > 1 and not low.symbols and not high.symbols
        ):
            return Node("chain", (operators, low, UNNAMED, high))
    return node
