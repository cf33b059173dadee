import collections

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.formal import filters, formulas, proof_term
from loong_jax.synth.formal.problems import Theorems


def test_theorems_hold_and_are_worth_proving():
    """By truth tables, which know nothing of how a theorem was made."""
    rng = np.random.default_rng(0)
    sizes = collections.Counter()
    theorems = Theorems(min_size=2, max_size=8)
    for _ in range(300):
        posed, size = theorems.draw(rng)
        assert filters.look(posed, posed.atoms) == filters.KEPT
        assert len(posed.hypotheses) <= theorems.max_hypotheses
        assert formulas.is_implicational(posed.formula)
        sizes[size] += 1
        if size <= 5:
            assert proof_term.search(posed, size) is not None
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
