"""Formulas against Python's own `not` and `<=` on truth values."""

import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Atom, Implies, Not

ATOMS = st.sampled_from("pqr").map(Atom)
FORMULAS = st.recursive(
    ATOMS, lambda inner: st.builds(Not, inner) | st.builds(Implies, inner, inner), max_leaves=8
)


def as_python(formula):
    match formula:
        case Atom(name):
            return name
        case Not(inner):
            return f"(not {as_python(inner)})"
        case Implies(premise, conclusion):
            return f"(({as_python(premise)}) <= ({as_python(conclusion)}))"


def table(formula):
    code = compile(as_python(formula), "formula", "eval")
    rows = itertools.product((False, True), repeat=3)
    return [bool(eval(code, {}, dict(zip("pqr", row, strict=True)))) for row in rows]


@hypothesis.given(FORMULAS)
def test_what_is_shown_is_read_back(formula):
    assert formulas.parse(formulas.show(formula)) == formula
    assert formulas.implication(*formulas.premises_of(formula)) == formula


@hypothesis.given(FORMULAS, FORMULAS)
def test_truth_tables(left, right):
    assert formulas.are_equivalent(left, right) == (table(left) == table(right))
    assert formulas.is_satisfiable([left, right]) == any(map(min, table(left), table(right)))
    assert formulas.follows([left], right) == all(map(bool.__le__, table(left), table(right)))


def test_brackets_group_to_the_right():
    assert formulas.parse("p->q->r") == formulas.parse("p -> (q -> r)")
    assert formulas.parse("(p -> q) -> r") != formulas.parse("p -> q -> r")
    assert formulas.show(formulas.parse("((p) -> ~(~q))")) == "p -> ~~q"


@pytest.mark.parametrize(
    "text",
    ["", "(p", "p)", "p -> ", "-> p", "p q", "~", "p & q", "p - > q", "(" * 99 + "p" + ")" * 99,
     "p -> " * 2000 + "p"],
)  # fmt: skip
def test_what_is_no_formula_is_malformed(text):
    with pytest.raises(formulas.Malformed):
        formulas.parse(text)
