import itertools

import numpy as np
import pytest

from loong_jax.synth.formal import proof_term, propositional, reading
from loong_jax.synth.formal.problems import Theorems
from loong_jax.synth.formal.proof_term import NoProof


def drawn(text, seed=0):
    return reading.draw(proof_term.read_sequent(text), np.random.default_rng(seed))


def plain(text, letters="ABCDEFGH"):
    """The reading under which the statement keeps its names, and letters go as they are met."""
    seen = drawn(text)
    found = itertools.chain(*([r.letter, *assumed(r)] for r in seen.rules))
    letter_of = dict(zip(found, letters, strict=False))
    rules = tuple(relettered(rule, letter_of) for rule in seen.rules)
    return seen._replace(rules=rules, name_of={name: name for name in seen.posed.atoms})


def assumed(rule):
    return [letter for p in rule.premises for r in p.assumed for letter in (r.letter, *assumed(r))]


def relettered(rule, letter_of):
    premises = tuple(
        p._replace(assumed=tuple(relettered(r, letter_of) for r in p.assumed))
        for p in rule.premises
    )
    return rule._replace(letter=letter_of[rule.letter], premises=premises)


def test_a_rule_is_read_as_a_proof_uses_it():
    assert plain("A:p B:p>q C:p>q>r |-r").prompt == "rAqp.pB.qCp.r\n"
    assert plain("A:(p>q)>r B:q |-r").prompt == "rA(pB)q.qC.r\n"
    assert plain("A:((p>q)>r>s)>t |-t").prompt == "tA(qBp,rC)s.t\n"


def test_open_goals_stand_before_each_letter():
    seen = plain("A:p B:p>q C:p>q>r |-r")
    posed = seen.posed
    node = proof_term.read("rC pA qB pA", posed)
    assert seen.answer(node) == "rAqpBqCpB"
    assert seen.proof("rAqpBqCpB") == seen.proof("ABCB") == "rC pA qB pA", "letters alone count"
    nested = plain("A:(p>q)>r B:s C:s>p>q |-r")
    node = proof_term.read("rA D:p qC sB pD", nested.posed)
    assert nested.prompt == "rA(pB)q.qCps.sD.r\n"
    assert nested.answer(node) == "rAqCpsDpB"
    assert nested.proof("ACDB") == "rA D:p qC sB pD"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("ACD", "names no rule"),
        ("ACDBB", "follow"),
        ("ABDB", "proves p"),
        ("AXDB", "names no rule"),
    ],
)
def test_letters_that_prove_nothing_are_refused(answer, why):
    with pytest.raises(NoProof, match=why):
        plain("A:(p>q)>r B:s C:s>p>q |-r").proof(answer)


def test_what_is_assumed_holds_for_its_own_premise_alone():
    seen = plain("A:(p>q)>p>r B:q |-r")
    assert seen.prompt == "rAp(pB)q.qC.r\n"
    with pytest.raises(NoProof, match="'B' names no rule"):
        seen.proof("ACB")


def test_hypotheses_come_as_the_search_meets_them():
    seen = drawn("A:a B:x>y C:b>a>c D:a>b |-c")
    assert seen.places == (2, 3, 0, 1)


def test_proofs_go_there_and_back():
    rng = np.random.default_rng(0)
    for _ in range(80):
        posed, size = Theorems(max_size=6).draw(rng)
        node = proof_term.search(posed, size)
        assert node is not None
        seen = reading.draw(posed, rng)
        assert seen.proof(seen.answer(node)) == proof_term.write(node)
        assert proof_term.read(seen.proof(seen.answer(node)), posed) == node


def test_kin_read_alike_but_for_names_and_ties():
    rng = np.random.default_rng(1)
    chains = Theorems(max_size=6, pair_share=0.0, nested_share=0.0, max_idle=0)
    for _ in range(40):
        posed, size = chains.draw(rng)
        node = proof_term.search(posed, size)
        assert node is not None
        other, kin = propositional.variant(posed, node, rng)
        assert shape(reading.draw(other, rng).prompt) == shape(reading.draw(posed, rng).prompt)
        assert proof_term.read(proof_term.write(kin), other) == kin


def shape(prompt):
    """Letters and names numbered as they come."""
    seen: dict[str, int] = {}
    return [seen.setdefault(char, len(seen)) if char.isalpha() else char for char in prompt]


def test_every_letter_and_name_is_met_in_the_smallest_statements():
    text = "".join(drawn("A:p B:p>q |-q", seed).prompt for seed in range(200))
    assert {c for c in text if c.isupper()} == set("ABCDEFGHIJKL")
    assert {c for c in text if c.islower()} == set("pqrstuvw")
