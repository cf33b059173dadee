import collections
import itertools

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.run import tiny_prover
from loong_jax.run.synth import StatementSettings
from loong_jax.run.tiny_prover import ProverSettings
from loong_jax.synth.formal import proofs, statement
from loong_jax.synth.formal.expert_iteration import Solution


def solved(*texts, proof):
    posed = statement.of_parts(texts[:-1], texts[-1])
    return Solution(proofs.goal_of(posed), proof)


def test_what_it_is_shown_proves_what_it_is_asked():
    examples = [
        solved("p", "p -> q", "p -> q -> r", "r", proof="CABA"),
        solved("(p -> q) -> r", "s", "s -> p -> q", "t -> r", "r", proof="ACBE"),
    ]
    shown = list(itertools.islice(tiny_prover.pairs(examples, seed=0), 40))
    counts = collections.Counter(prompt.count(".") for prompt, _ in shown)
    assert counts == {3: 20, 4: 20}, "each equally often"
    assert len(set(shown)) == 40, "under names of its own each time"
    for prompt, response in shown:
        letters = "".join(c for c in response if c.isupper())
        assert len(letters) == 4
        assert set(letters) <= set(prompt)
    assert list(itertools.islice(tiny_prover.pairs(examples, seed=0), 40)) == shown
    assert list(itertools.islice(tiny_prover.pairs(examples, seed=1), 40)) != shown


def test_theorems_and_their_proofs_fit_the_model():
    rng = np.random.default_rng(0)
    settings, theorems = ProverSettings(), StatementSettings().theorems
    for _ in range(300):
        posed, size = theorems.draw(rng)
        node = proofs.search(posed, size)
        assert node is not None
        seen = proofs.draw(posed, rng)
        assert len(seen.prompt) < settings.prompt_length
        assert len(seen.answer(node.letters)) < settings.max_new_tokens


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"temperature": 0.0}, {"pair_rows": -1}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProverSettings(**wrong)
