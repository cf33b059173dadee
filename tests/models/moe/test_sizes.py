"""Parameter counts of the family, as published, without making any array."""

import jax
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny


def test_flash_has_560_billion_parameters_and_27_active():
    config = moe.MoEConfig.flash()
    assert moe.num_params(config) == pytest.approx(560.665e9, rel=1e-6)
    for experts, active in ((0, 18.69e9), (8, 27.15e9), (12, 31.38e9)):
        assert moe.num_active_params(config, experts) == pytest.approx(active, rel=3e-4)
    assert moe.num_active_params(config) == moe.num_active_params(config, 8)
    with_head = moe.MoEConfig.flash(num_mtp_layers=1)
    assert moe.num_params(with_head) - moe.num_params(config) == pytest.approx(0.3926e9, rel=1e-4)
    assert moe.num_active_params(with_head) == moe.num_active_params(config)
    no_identity = moe.MoEConfig.flash(num_zero_experts=0)  # all K choices meet weights
    assert moe.num_active_params(no_identity) == moe.num_active_params(no_identity, 12)


@pytest.mark.parametrize("experts", [-1, 4, 99, float("nan")])
def test_more_experts_than_a_token_can_meet_are_refused(experts):
    config = tiny.smallest_config()
    assert moe.num_active_params(config, 3) > moe.num_active_params(config, 0)
    with pytest.raises(ConfigError, match=rf"ffn_experts={experts} is not in 0\.\.3"):
        moe.num_active_params(config, experts)
    few = tiny.smallest_config(num_experts=2)
    with pytest.raises(ConfigError, match=r"is not in 0\.\.2"):
        moe.num_active_params(few, 3)


def test_lite_has_37_billion_parameters_and_31_in_its_tables():
    config = moe.MoEConfig.lite()
    _, weights = moe.abstract_weights(config)
    tables = sum(leaf.size for leaf in jax.tree.leaves(weights["ngram"]))
    assert tables == pytest.approx(31.42e9, rel=2e-4)
    assert moe.num_params(config) - tables == pytest.approx(37.15e9, rel=2e-4)
    for experts, active in ((0, 2.9e9), (12, 4.5e9)):
        assert moe.num_active_params(config, experts) == pytest.approx(active, rel=0.02)


def test_abstract_weights_are_like_fresh_ones():
    config = tiny.smallest_config(num_mtp_layers=1)
    rules = ShardingRules(mesh=make_mesh(fsdp=2, expert=2))
    _, abstract = moe.abstract_weights(config, rules)
    _, fresh = moe.init_weights(config, jax.random.key(0), rules)
    fresh = parameters.by_path(fresh)
    for path, leaf in parameters.by_path(abstract).items():
        assert (leaf.shape, leaf.dtype) == (fresh[path].shape, fresh[path].dtype)
        assert leaf.sharding.is_equivalent_to(fresh[path].sharding, leaf.ndim)
    assert parameters.as_tree(fresh).keys() == abstract.keys()
