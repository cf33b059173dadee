"""Proofs as trees, as letters, and as a prover has them."""

import collections
import itertools

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.formal import backends, formalise, formulas, proofs
from loong_jax.synth.formal.expert_iteration import Solution
from loong_jax.synth.formal.formulas import ATOM_NAMES, Statement, Theorems

CHAIN = formulas.of_parts(["p", "p -> q", "p -> q -> r"], "r")
NESTED = formulas.of_parts(["(p -> q) -> r", "s", "s -> p -> q"], "r")
INNER = formulas.of_parts(["(p -> q) -> r", "p -> q"], "r")
OUTER = formulas.of_parts(["(p -> q) -> p -> r", "p -> q"], "r")


def drawn(count, seed=0, **settings):
    """Theorems, each with the proof that the search finds."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        posed, size = Theorems(max_size=6, **settings).draw(rng)
        node = proofs.search(posed, size)
        assert node is not None
        assert node.size <= size, "a theorem's level bounds its smallest proof"
        yield posed, node.letters, rng


def variant(posed: Statement, rng) -> Statement:
    """One of its kin, drawn at random: other names, another order of hypotheses."""
    names = [ATOM_NAMES[i] for i in rng.permutation(len(ATOM_NAMES))]
    name_of = dict(zip(posed.atoms, names, strict=False))
    goal, *hypotheses = (formulas.rename(f, name_of) for f in (posed.goal, *posed.hypotheses))
    order = rng.permutation(len(hypotheses))
    return Statement(tuple(hypotheses[i] for i in order), goal)


# ---- letters


@pytest.mark.parametrize(
    ("posed", "letters", "why"),
    [
        (CHAIN, "CABA", ""), (NESTED, "ACBD", ""), (INNER, "ABC", ""),
        (CHAIN, "", "names no rule"), (CHAIN, "C", "names no rule"), (CHAIN, "BA", "proves q"),
        (CHAIN, "CABAA", "follow"), (CHAIN, "CBAA", "proves q"), (CHAIN, "Z", "names no rule"),
        (CHAIN, "CABD", "names no rule"), (CHAIN, "CaBA", "names no rule"),
        (OUTER, "ABCC", "'C' names no rule"),  # what is assumed holds for its own premise alone
        (CHAIN, "A" * 501, "500 steps"),
    ],
)  # fmt: skip
def test_letters_are_a_proof_or_not(posed, letters, why):
    if why:
        with pytest.raises(proofs.NoProof, match=why):
            proofs.read(letters, posed)
    else:
        node = proofs.read(letters, posed)
        assert (node.letters, node.size) == (letters, len(letters))


def test_search_finds_a_smallest_proof():
    assert proofs.search(CHAIN, 4).letters == "CABA"
    assert proofs.search(CHAIN, 3) is None
    assert proofs.search(NESTED, 4).letters == "ACBD"
    peirce = formulas.of_parts([], "((p -> q) -> p) -> p")
    assert proofs.search(peirce, 8) is None, "it is classical alone"


def test_sequents_are_read_back_and_proofs_are_accepted():
    check = backends.ProofChecker(backends.get_backend("metamath"))
    for posed, letters, _ in drawn(60):
        assert proofs.read_sequent(proofs.sequent(posed)) == posed
        [judged] = check([Solution(proofs.goal_of(posed), letters)])
        assert judged.is_correct, judged
    for text in ("", "A:p", "B:p |-p", "A:p ->q", "A: |-p"):
        with pytest.raises(formulas.Malformed):
            proofs.read_sequent(text)


# ---- readings


def plain(text):
    """The reading under which rules and atoms keep their names."""
    posed = proofs.read_sequent(text)
    seen = proofs.draw(posed, np.random.default_rng(0))
    rule_of = {rule.formula: rule for rule in proofs.rules_of(posed)}
    return seen._replace(
        rules=tuple(rule_of[rule.formula] for rule in seen.rules),
        letter_of={letter: letter for letter in seen.letter_of.values()},
        name_of={name: name for name in posed.atoms},
    )


def test_a_rule_is_read_as_a_proof_uses_it():
    assert plain("A:p B:p>q C:p>q>r |-r").prompt == "rCqp.pA.qBp.r\n"
    assert plain("A:(p>q)>r B:q |-r").prompt == "rA(pC)q.qB.r\n"
    assert plain("A:((p>q)>r>s)>t |-t").prompt == "tA(qBp,rC)s.t\n"
    assert plain("A:(p>q)>p>r B:q |-r").prompt == "rAp(pC)q.qB.r\n"


def test_open_goals_stand_before_each_letter():
    seen = plain("A:p B:p>q C:p>q>r |-r")
    assert seen.answer("CABA") == "rCqpAqBpA"
    assert seen.proof("rCqpAqBpA") == seen.proof("CABA") == "CABA", "letters alone count"
    assert seen.proof("CXBA") == "C?BA", "which names no rule"
    assert plain("A:(p>q)>r B:s C:s>p>q |-r").answer("ACBD") == "rAqCpsBpD"


def test_hypotheses_come_as_the_search_meets_them():
    posed = proofs.read_sequent("A:a B:x>y C:b>a>c D:a>b |-c")
    seen = proofs.draw(posed, np.random.default_rng(0))
    assert [posed.hypotheses.index(rule.formula) for rule in seen.rules] == [2, 3, 0, 1]


def test_proofs_go_there_and_back():
    for posed, letters, rng in drawn(80):
        seen = proofs.draw(posed, rng)
        assert seen.proof(seen.answer(letters)) == letters


def test_kin_read_alike_but_for_names_and_ties():
    def shape(prompt):
        """Letters and names numbered as they come."""
        seen: dict[str, int] = {}
        return [seen.setdefault(char, len(seen)) if char.isalpha() else char for char in prompt]

    for posed, _, rng in drawn(40, seed=1, pair_share=0.0, nested_share=0.0, max_idle=0):
        other = variant(posed, rng)
        assert shape(proofs.draw(other, rng).prompt) == shape(proofs.draw(posed, rng).prompt)


def test_every_letter_and_name_is_met_in_the_smallest_statements():
    posed = proofs.read_sequent("A:p B:p>q |-q")
    rngs = map(np.random.default_rng, range(200))
    text = "".join(proofs.draw(posed, rng).prompt for rng in rngs)
    assert {c for c in text if c.isupper()} == set("ABCDEFGHIJKL")
    assert {c for c in text if c.islower()} == set("pqrstuvw")


# ---- statements


def of(*texts):
    return formulas.of_parts(texts[:-1], texts[-1])


def test_the_goal_is_no_implication():
    assert of("p", "q -> r") == of("p", "q", "r")
    assert formulas.show(of("p", "p -> q", "q").formula) == "p -> (p -> q) -> q"


def test_kin_are_those_that_differ_by_names_and_order():
    for posed, _, rng in drawn(40):
        assert variant(posed, rng).kin == posed.kin
    assert of("p", "p -> q", "q").kin == of("x -> a", "x", "a").kin
    for left, right in itertools.pairwise(
        [
            of("p", "p -> q", "q"), of("p", "q -> p", "p"),
            of("p -> q", "q -> r", "p", "r"), of("p -> q", "p -> r", "p", "r"),
            of("p -> q", "q -> r", "r -> p", "p"), of("p -> q", "q -> p", "r -> r", "p"),
        ]
    ):  # fmt: skip
        assert left.kin != right.kin


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (("p -> q", "p", "q"), True),
        (("p", "~q -> ~p", "q"), True),  # contraposed: equivalent
        (("p", "q -> p", "q"), False),
        (("p", "q"), False),
        (("p", "p -> q", "p", "q"), False),
        (("p", "p -> q", "p"), False),
        (("p -> q", "p -> q", "q"), False),
    ],
)
def test_says_the_same(other, is_same):
    assert formulas.says_the_same(of("p", "p -> q", "q"), of(*other)) == is_same
    assert formulas.says_the_same(of(*other), of("p", "p -> q", "q")) == is_same


def test_theorems_hold_and_are_worth_proving():
    """By truth tables, which know nothing of how a theorem was made."""
    rng = np.random.default_rng(0)
    sizes = collections.Counter()
    theorems = Theorems(min_size=2, max_size=8)
    for _ in range(300):
        posed, size = theorems.draw(rng)
        assert formalise.look(posed, posed.atoms) == formalise.KEPT
        assert len(posed.hypotheses) <= theorems.max_hypotheses
        assert "~" not in formulas.show(posed.formula)
        sizes[size] += 1
    assert set(sizes) == set(range(2, 9))
    assert min(sizes.values()) > 15


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="no derivation"):
        Theorems(min_size=9, max_hypotheses=3, pair_share=0.0, nested_share=0.0).draw(
            np.random.default_rng(0)
        )
    for wrong in ({"min_size": 0}, {"max_size": 1}, {"max_hypotheses": 99}, {"pair_share": 1.5},
                  {"max_idle": -1}):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Theorems(**wrong)
