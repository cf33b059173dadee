"""Relations that a fusion keeps whatever the method, and what it refuses."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from loong_jax import merge
from loong_jax.errors import ConfigError
from loong_jax.merge import tree
from loong_jax.sharding import make_mesh
from tests.merge import examples
from tests.sweeps import thinned

METHODS = {
    name: method
    for name, method in examples.METHODS.items()
    if name not in ("nuslerp", "fisher_deltas")
} | {  # what is measured of every matrix of a stack
    "dare": merge.Dare(keep_rate=0.5, rescale="l1", combine="ties"),
    "della": merge.Della(keep_rate=0.5, rescale="l1"),
    "ram": merge.Ram(threshold=0.02, boost=0.5, scope="matrix"),
}
WEIGHTLESS = ("sce", "ram")


def flat(weights):
    return tree.flatten(weights)[0]


def only_matrices(weights):
    return {"embedding": weights["embedding"], "out": weights["layers"]["attention"]["out"][0]}


@pytest.fixture(scope="module")
def models():
    base, experts = examples.models()
    return examples.nest(base), {name: examples.nest(e) for name, e in experts.items()}


@pytest.mark.parametrize("name", thinned(METHODS, 1, 4, 9, 10, 11))
def test_stacked_equals_separate(name, models):
    base, experts = models
    stacked = merge.fuse(base, experts, method=METHODS[name], batch_axes=examples.STACKS)
    separate = merge.fuse(
        examples.nest(examples.apart(flat(base))),
        {n: examples.nest(examples.apart(flat(e))) for n, e in experts.items()},
        method=METHODS[name],
    )
    found, expected = flat(separate), examples.apart(flat(stacked))
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_allclose(found[path], leaf, rtol=0, atol=3e-7, err_msg=path)
    if name in ("longcat_l1", "ties"):
        whole = flat(merge.fuse(base, experts, method=METHODS[name]))
        key = "layers/experts/up"
        assert np.abs(whole[key] - flat(stacked)[key]).max() > 1e-3  # stacks do matter


@pytest.mark.parametrize("name", thinned(METHODS, 1, 4, 9, 10, 11))
def test_order_of_experts_does_not_matter(name, models):
    base, experts = models
    weights = {"expert0": 0.2, "expert1": 0.5, "expert2": 0.3} if name not in WEIGHTLESS else None
    settings = {"method": METHODS[name], "batch_axes": examples.STACKS}
    ordered = merge.fuse(base, experts, **settings, weights=weights)
    turned = merge.fuse(base, dict(reversed(experts.items())), **settings, weights=weights)
    listed, shares = [*experts.values()], weights and [*weights.values()]
    as_list = merge.fuse(base, listed, **settings, weights=shares)
    as_turned_list = merge.fuse(base, listed[::-1], **settings, weights=shares and shares[::-1])
    for one, other in ((ordered, turned), (as_list, as_turned_list)):
        for path, leaf in flat(one).items():
            assert np.array_equal(leaf, flat(other)[path]), path


def test_masks_depend_on_seed_path_and_expert_alone(models):
    base, experts = models
    method = merge.LongcatFusion(keep_rate=0.5, erase=False, normalise="none")
    alone = {"expert1": experts["expert1"]}
    survivors = lambda found: flat(found)["layers/experts/up"] != flat(base)["layers/experts/up"]  # noqa: E731
    first = survivors(merge.fuse(base, alone, method=method))
    zeros = {"expert0": base, "expert1": experts["expert1"]}
    assert np.array_equal(first, survivors(merge.fuse(base, zeros, method=method)))
    other_name = survivors(merge.fuse(base, {"x": experts["expert1"]}, method=method))
    other_seed = merge.LongcatFusion(keep_rate=0.5, erase=False, normalise="none", seed=1)
    other = survivors(merge.fuse(base, alone, method=other_seed))
    for mask in (first, other_name, other):
        assert 0.4 < mask.mean() < 0.6
    assert 0.4 < (first == other_name).mean() < 0.6
    assert 0.4 < (first == other).mean() < 0.6


def test_one_expert_without_dropout_and_erase_is_the_expert(models):
    base, experts = models
    method = merge.LongcatFusion(keep_rate=1.0, erase=False)
    found = flat(merge.fuse(base, {"a": experts["expert1"]}, method=method))
    for path, leaf in flat(experts["expert1"]).items():
        expected = flat(base)[path] if path.endswith("router/bias") else leaf
        np.testing.assert_allclose(found[path], expected, rtol=0, atol=3e-7, err_msg=path)


@pytest.mark.parametrize(("combine", "gain"), [("sum", 1.0), ("disjoint_mean", 1.75)])
@pytest.mark.filterwarnings("ignore:combine='disjoint_mean'")
def test_gain_of_identical_experts(combine, gain):
    """1.00 by the weighted sum; (1 - (1 - q)^3) / q by the mean over survivors, here 1.75."""
    draw = np.random.default_rng(0)
    base = {"w": draw.normal(size=(300, 300)).astype(np.float32)}
    expert = {"w": (base["w"] + 0.1 * draw.normal(size=(300, 300))).astype(np.float32)}
    method = merge.LongcatFusion(combine=combine, keep_rate=0.5)
    experts = {"a": expert, "b": expert, "c": expert}
    found, report = merge.fuse_with_report(base, experts, method=method)
    step, delta = found["w"] - base["w"], expert["w"] - base["w"]
    measured = np.sum(step * delta) / np.sum(delta * delta)
    assert measured == pytest.approx(gain, abs=0.01)
    assert report["global"]["gain"] == pytest.approx(measured, abs=1e-5)


def test_disjoint_mean_after_dropout_warns(models):
    with pytest.warns(UserWarning, match="disjoint_mean"):
        merge.fuse(*models, method=merge.LongcatFusion(combine="disjoint_mean"))


@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_leaves_are_merged_in_float32_and_cast_once(name, models):
    base, experts = models
    base, experts = only_matrices(base), {n: only_matrices(e) for n, e in experts.items()}
    low = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), (base, experts))
    found = merge.fuse(*low, method=METHODS[name])
    wide = jax.tree.map(lambda x: x.astype(np.float32), low)
    exact = merge.fuse(*wide, method=METHODS[name])
    for path, leaf in flat(found).items():
        assert leaf.dtype == ml_dtypes.bfloat16
        assert np.array_equal(leaf, flat(exact)[path].astype(ml_dtypes.bfloat16)), path


def test_experts_may_be_float32_masters_of_a_bfloat16_base(models):
    base, experts = models
    low = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), base)
    found = merge.fuse(low, experts, method=merge.TaskArithmetic())
    assert flat(found)["embedding"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("name", METHODS)
def test_router_biases_are_neither_dropped_nor_elected(name, models):
    base, experts = models
    path, settings = "layers/router/bias", {"method": METHODS[name], "batch_axes": examples.STACKS}
    kept = flat(merge.fuse(base, experts, **settings))[path]
    assert np.array_equal(kept, flat(base)[path])
    averages = {"rules": merge.PathRules(controller_value="average")}
    mean = flat(merge.fuse(base, experts, **settings, **averages))[path]
    expected = np.mean([flat(e)[path] for e in experts.values()], axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_routers_norms_and_embeddings_are_not_dropped_out(models):
    base, experts = models
    method = merge.LongcatFusion(keep_rate=0.3, erase=False)
    _, report = merge.fuse_with_report(base, experts, method=method, batch_axes=examples.STACKS)
    for path, record in report["tensors"].items():
        shares = record["kept"].values()
        if path in ("embedding", "layers/router/kernel", "layers/norm"):
            assert set(shares) == {1.0}
        else:
            assert max(shares) < 0.6


def test_integer_leaves_must_agree():
    base = {"w": np.ones(3, np.float32), "position": np.arange(3)}
    same = {"w": np.zeros(3, np.float32), "position": np.arange(3)}
    assert np.array_equal(merge.fuse(base, [same, base])["position"], np.arange(3))
    with pytest.raises(ConfigError, match="position"):
        merge.fuse(base, {"a": same | {"position": np.arange(1, 4)}})
    numbers = {"position": np.arange(3)}
    assert np.array_equal(merge.fuse(numbers, [numbers])["position"], np.arange(3))


def test_linear_needs_no_base(models):
    base, experts = models
    found = merge.fuse(None, experts, method=merge.Linear())
    with_base = merge.fuse(base, experts, method=merge.Linear())
    path = "layers/experts/up"
    assert np.array_equal(flat(found)[path], flat(with_base)[path])
    with pytest.raises(ConfigError, match="base"):
        merge.fuse(None, experts)


def refusals():
    one = {"w": np.ones((2, 3), np.float32)}
    nan = {"w": np.full((2, 3), np.nan, np.float32)}
    yield "lacks", [{"v": one["w"]}], {}
    yield "shape", [{"w": np.ones((3, 2), np.float32)}], {}
    yield "no experts", [], {}
    yield "NaN", [nan], {}
    yield "not finite", [nan], {"method": merge.TaskArithmetic()}
    yield "weights for", [one, one], {"weights": [1.0]}
    yield "weights for", {"a": one}, {"weights": {"b": 1.0}}
    yield "non-negative", [one], {"weights": [-1.0]}
    yield "sum to 0", [one, one], {"weights": [1.0, -1.0], "method": merge.Linear()}
    yield "takes no weights", [one, one], {"weights": [1.0, 2.0], "method": merge.Sce()}
    yield "batch_axes", [one], {"batch_axes": 3}
    yield "mask", [one], {"masks": [{"w": np.ones(3, bool)}]}
    mask = {"w": one["w"] > 0}
    for masks in ([mask, {}], [{}, mask]):
        yield r"lack \['w'\]", [one, one], {"masks": masks, "method": merge.Dare()}
    yield "drops nothing", [one], {"masks": [one], "method": merge.Ties()}
    turned, zero = {"w": -one["w"]}, {"w": np.zeros((2, 3), np.float32)}
    yield "Give 2,", [one, turned, one], {"method": merge.Slerp()}
    yield "Give 2,", [one], {"method": merge.NuSlerp()}
    yield "antipodal", [one, turned], {"method": merge.Slerp()}
    yield "antipodal", [one, turned], {"method": merge.NuSlerp()}
    yield "cancel", [one, turned], {"method": merge.Karcher()}
    yield "zero in some", [one, zero], {"method": merge.Slerp()}
    yield "takes no weights", [one, one], {"method": merge.Ram(), "weights": [1.0, 2.0]}
    yield "no importances", [one, one], {"method": merge.Fisher()}
    yield "takes no importances", [one], {"method": merge.Ties(), "importances": [one]}
    yield "lack", [one], {"method": merge.Fisher(), "importances": [{"v": one["w"]}]}
    cut = [{"w": np.ones(6, np.float32)}]
    yield "importance w of", [one], {"method": merge.Fisher(), "importances": cut}


@pytest.mark.parametrize(("message", "experts", "settings"), list(refusals()))
def test_refuses(message, experts, settings):
    base = {"w": np.zeros((2, 3), np.float32)}
    with pytest.raises(ConfigError, match=message):
        merge.fuse(base, experts, **settings)


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray], ids=["host", "device"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", METHODS)
def test_an_entry_that_is_not_finite_is_refused_though_it_would_be_left_out(name, bad, place):
    draw = np.random.default_rng(0)
    base = draw.normal(size=(6, 4)).astype(np.float32)
    experts = [base + draw.normal(size=(6, 4)).astype(np.float32) for _ in range(2)]
    experts[0][2, 1] = bad
    with pytest.raises(ConfigError, match="NaN"):
        merge.fuse({"w": place(base)}, [{"w": place(e)} for e in experts], method=METHODS[name])


def test_a_masked_entry_that_is_not_finite_is_refused():
    base, sound = {"w": np.zeros(3, np.float32)}, {"w": np.ones(3, np.float32)}
    damaged = {"w": np.array([1, np.nan, 1], np.float32)}
    masks = [{"w": np.array([True, False, True])}] * 2
    with pytest.raises(ConfigError, match="NaN"):
        merge.fuse(base, [damaged, sound], method=merge.Dare(), masks=masks)


def test_a_zero_delta_stays_zero():
    base = {"w": np.ones((8, 6), np.float32)}
    for method in METHODS.values():
        assert np.array_equal(merge.fuse(base, [base, base], method=method)["w"], base["w"])


# --- on eight devices


def on_mesh(weights):
    mesh = make_mesh(fsdp=4, expert=2)
    sharding = NamedSharding(mesh, PartitionSpec(None, "expert", "fsdp", None))
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), weights)


@pytest.fixture(scope="module")
def stacks():
    draw = np.random.default_rng(0)
    base = draw.normal(size=(2, 4, 8, 6)).astype(np.float32)
    deltas = {name: 0.01 * draw.normal(size=base.shape) for name in "abc"}
    return {"up": base}, {n: {"up": (base + d).astype(np.float32)} for n, d in deltas.items()}


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in ("linear", "task_arithmetic", "dare")]
)
def test_sharded_equals_whole(name, stacks):
    method = merge.Ram(threshold=5e-3, boost=0.1) if name == "ram" else METHODS[name]
    whole = merge.fuse(*stacks, method=method, batch_axes=2)
    sharded = on_mesh(stacks)
    found, report = merge.fuse_with_report(*sharded, method=method, batch_axes=2)
    assert found["up"].sharding == sharded[0]["up"].sharding
    differs = np.abs(np.asarray(found["up"]) - whole["up"]) > 1e-6
    # Two variances that differ by rounding alone may change places at the cut of SCE's selection.
    assert differs.sum() <= (1 if name == "sce" else 0)
    assert 0 < report["global"]["gain"] < 3


def test_names_of_unnamed_experts_do_not_depend_on_the_mesh(stacks):
    base, experts = stacks
    whole = merge.fuse(base, list(experts.values()), batch_axes=2)
    found = merge.fuse(*on_mesh((base, list(experts.values())[::-1])), batch_axes=2)
    np.testing.assert_allclose(np.asarray(found["up"]), whole["up"], rtol=0, atol=1e-6)
