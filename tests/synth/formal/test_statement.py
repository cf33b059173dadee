import numpy as np
import pytest

from loong_jax.synth.formal import formulas, proof_term, propositional, statement
from loong_jax.synth.formal.problems import Theorems

SMALL = Theorems(max_size=5)


def of(*texts):
    return statement.of_parts(texts[:-1], texts[-1])


def test_the_goal_is_no_implication():
    assert of("p", "q -> r") == of("p", "q", "r")
    assert formulas.show(of("p", "p -> q", "q").formula) == "p -> (p -> q) -> q"


def test_kin_are_those_that_differ_by_names_and_order():
    rng = np.random.default_rng(0)
    drawn = [SMALL.draw(rng)[0] for _ in range(40)]
    for posed in drawn:
        node = proof_term.search(posed, 5)
        assert node is not None
        other, _ = propositional.variant(posed, node, rng)
        assert other.kin == posed.kin
    assert of("p", "p -> q", "q").kin == of("x -> a", "x", "a").kin
    assert of("p", "p -> q", "q").kin != of("p", "q -> p", "p").kin
    assert of("p -> q", "q -> r", "p", "r").kin != of("p -> q", "p -> r", "p", "r").kin
    assert of("p -> q", "q -> r", "r -> p", "p").kin != of("p -> q", "q -> p", "r -> r", "p").kin


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
    assert statement.says_the_same(of("p", "p -> q", "q"), of(*other)) == is_same
    assert statement.says_the_same(of(*other), of("p", "p -> q", "q")) == is_same
