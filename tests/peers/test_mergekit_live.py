"""Our fusions against mergekit itself, run here and now; see mergekit_cases for the differences."""

import numpy as np
import pytest

from tests.merge import examples, mergekit_settings
from tests.peers import mergekit_cases
from tests.sweeps import thinned

pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def _needs_mergekit():
    pytest.importorskip("mergekit", reason="mergekit comes with the extra `peers`")


@pytest.mark.parametrize("name", thinned(sorted(mergekit_cases.CASES), 3, 5, 11, 17, 19, 23))
def test_agrees_with_mergekit(name):
    case = mergekit_cases.run(name)
    weights = list(mergekit_cases.WEIGHTS)
    found = mergekit_settings.fuse(name, case.base, case.experts, case.masks, weights)
    for leaf, fused in case.fused.items():
        experts = [expert[leaf] for expert in case.experts]
        assert examples.worst(found[leaf], fused, case.base[leaf], experts) < 1e-4, leaf


def test_rescale_is_where_dare_differs():
    """With the paper's 1/q the merges of a small tensor differ: the comparison above can fail."""
    from loong_jax import merge

    case = mergekit_cases.run("dare_linear")
    found = merge.fuse(
        case.base,
        case.experts,
        method=merge.Dare(keep_rate=0.4, scale=0.9),
        weights=list(mergekit_cases.WEIGHTS),
        masks=case.masks,
    )
    experts = [expert["vector"] for expert in case.experts]
    error = examples.worst(found["vector"], case.fused["vector"], case.base["vector"], experts)
    assert error > 1e-2
    assert np.isfinite(error)
