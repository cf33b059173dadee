"""An author that errs, and what of its errors is kept: nothing."""

import collections
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from loong_jax.synth.formal import backends, formalise, formulas
from loong_jax.synth.formal.formulas import Atom, Implies, Not, Theorems
from tests.synth.scripted import formal_roles, play, roles

KINDS = [d.name for d in formal_roles.DEFECTS if d.prompts == ("formal/formalise",)]
GLOSSARY = {"p": "the lamp is lit", "q": "the cat sleeps", "r": "the snow melts"}


def problems(count):
    rng = np.random.default_rng(5)
    return [formalise.told(Theorems(max_size=7).draw(rng)[0], rng) for _ in range(count)]


def test_words_are_read_back():
    for problem in problems(50):
        assert formal_roles.read(problem.text, problem.glossary) == problem.intended
    posed = formulas.of_parts(["~p -> ~(q -> r)", "((p -> q) -> r) -> q"], "~~p")
    words = formulas.tell(posed, GLOSSARY)
    assert words == (
        "Suppose that if it is false that the lamp is lit, then it is false that [if the cat "
        "sleeps, then the snow melts].\nSuppose that if [if [if the lamp is lit, then the cat "
        "sleeps], then the snow melts], then the cat sleeps.\n"
        "Show that it is false that [it is false that the lamp is lit]."
    )
    assert formal_roles.read(words, GLOSSARY) == posed
    assert formal_roles.read_glossary(formulas.glossary_text(GLOSSARY)) == GLOSSARY


@pytest.mark.parametrize(
    ("hypotheses", "goal", "stage"),
    [
        (["p", "p -> q"], "q", "kept"),
        (["p", "p -> q"], "(q", "syntax"),
        (["p", "p -> q and r"], "q", "syntax"),
        (["p", "p -> z"], "p", "foreign atom"),
        (["p", "~p"], "q", "contradictory"),
        (["p", "p -> q", "~q"], "r", "contradictory"),
        (["p"], "q -> q", "trivial"),
        (["p", "~~q"], "q", "trivial"),
        (["q -> p", "q"], "r", "refutable"),
    ],
)
def test_what_is_decided_by_tables(hypotheses, goal, stage):
    read = formalise.read(hypotheses, goal, backends.get_backend("metamath"))
    decision = read if isinstance(read, formalise.Decision) else formalise.look(read, GLOSSARY)
    assert decision.stage == stage
    assert stage in formalise.STAGES


@pytest.mark.parametrize("kind", KINDS)
def test_every_planted_kind_is_caught(scripted, author, kind):
    """With a judge that finds all the same, so that nothing rests on the judge."""
    server = scripted(rates={kind: 1.0, "lenient_formal_judge": 1.0}, table=roles.ROLES)
    made = formalise.formalise(problems(12), author(server), backends.get_backend("metamath"))
    planted = {entry["digest"]: entry["defect"] for entry in server.ledger.entries}
    first = [one.replies[0].transcript for one in made]
    defects = [planted[play.digest(call.messages, call.seed)] for call in first]
    spoilt = [one for one, defect in zip(made, defects, strict=True) if defect == kind]
    assert len(spoilt) >= 8
    assert not any(one.is_kept for one in spoilt)
    assert sum(formalise.funnel(made).values()) == 12


def test_an_author_that_errs_in_all_ways(scripted, author):
    server = scripted(rates=roles.RATES | {"timed_out": 0.0}, table=roles.ROLES)
    backend = backends.get_backend("metamath")
    made = formalise.formalise(problems(120), author(server), backend)
    counts = formalise.funnel(made)
    assert sum(counts.values()) == 120
    assert counts["kept"] > 50
    assert len([stage for stage, count in counts.items() if count]) >= 6
    for one in made:
        if one.is_kept:
            assert formulas.says_the_same(one.statement, one.problem.intended)
        assert one.record()["stage"] == one.decision.stage
        assert one.record()["calls"]
    num_calls = len(server.ledger.entries)
    again = formalise.formalise(problems(120), author(server, store="calls.jsonl2"), backend)
    assert [one.record() for one in again] == [one.record() for one in made]
    assert len(server.ledger.entries) > num_calls


def test_without_the_meaning_the_judge_decides(scripted, author):
    blind = [
        formalise.WordProblem(uid=p.uid, text=p.text, glossary=p.glossary) for p in problems(12)
    ]
    server = scripted(rates={"dropped_hypothesis": 1.0}, table=roles.ROLES)
    made = formalise.formalise(blind, author(server), backends.get_backend("metamath"))
    stages = collections.Counter(one.decision.stage for one in made)
    assert stages["judged different"] > 0
    assert not stages["not as intended"]
    assert not stages["kept"]


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
