import numpy as np
import pytest

from loong_jax.synth.formal import backends, formulas, proof_term, propositional, statement
from loong_jax.synth.formal.expert_iteration import Solution
from loong_jax.synth.formal.problems import Theorems

CHAIN = statement.of_parts(["p", "p -> q", "p -> q -> r"], "r")
NESTED = statement.of_parts(["(p -> q) -> r", "s", "s -> p -> q"], "r")


def test_a_proof_is_read_and_written():
    node = proof_term.read("rC pA qB pA", CHAIN)
    assert node.size == 4
    assert proof_term.write(node) == "rC pA qB pA"
    assert proof_term.read("rCpAqBpA", CHAIN) == node
    assert proof_term.write(proof_term.read("rA D:p qC sB pD", NESTED)) == "rA D:p qC sB pD"


@pytest.mark.parametrize(
    "text",
    ["", "r", "rC", "qB pA", "rC pA qB", "rC pA qB pA pA", "rC qB pA pA", "rZ", "rA", "rC pA qB pB",
     "rC pA qB pD", "RC pA"],
)  # fmt: skip
def test_what_proves_nothing_is_refused(text):
    with pytest.raises(proof_term.NoProof):
        proof_term.read(text, CHAIN)


def test_an_assumption_ends_with_its_premise():
    posed = statement.of_parts(["(p -> q) -> r", "p -> q"], "r")
    proof_term.read("rA C:p qB pC", posed)
    outside = statement.of_parts(["(p -> q) -> p -> r", "p -> q"], "r")
    with pytest.raises(proof_term.NoProof, match="'C'"):
        proof_term.read("rA C:p qB pC pC", outside)


def test_search_finds_a_smallest_proof():
    found = proof_term.search(CHAIN, 4)
    assert found is not None
    assert proof_term.write(found) == "rC pA qB pA"
    assert proof_term.search(CHAIN, 3) is None
    nested = proof_term.search(NESTED, 4)
    assert nested is not None
    assert proof_term.write(nested) == "rA D:p qC sB pD"
    peirce = statement.of_formula(formulas.parse("((p -> q) -> p) -> p"))
    assert proof_term.search(peirce, 8) is None, "it is classical alone"


def test_sequents_are_read_back_and_variants_stay_proofs():
    rng = np.random.default_rng(1)
    check = propositional.TermChecker(backends.get_backend("metamath"))
    for _ in range(60):
        posed, size = Theorems(max_size=6).draw(rng)
        assert proof_term.is_in_fragment(posed)
        assert proof_term.read_sequent(proof_term.sequent(posed)) == posed
        node = proof_term.search(posed, size)
        assert node is not None
        assert node.size <= size, "a theorem's level bounds its smallest proof"
        other, moved = propositional.variant(posed, node, rng)
        [judged] = check([Solution(propositional.goal_of(other), proof_term.write(moved))])
        assert judged.is_correct, judged


def test_broken_sequents_are_malformed():
    for text in ("", "A:p", "B:p |-p", "A:p ->q", "A: |-p"):
        with pytest.raises(formulas.Malformed):
            proof_term.read_sequent(text)
