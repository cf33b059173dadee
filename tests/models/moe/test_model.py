"""The whole model against a NumPy reference, and the relations between its ways in."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference
from tests.sweeps import thinned

CONFIG = tiny.smallest_config()
CAPACITY = 14  # of caches
MESHES = [
    dict(fsdp=2, tensor=2, expert=2),
    pytest.param(dict(slice=2, data=2, context=2), marks=pytest.mark.slow),
    dict(),
    dict(expert=4, context=2),
]


def perturbed(weights, scale=0.3):
    """Weights whose norms and router biases are not the ones and zeros of a fresh model."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(weights)
    random = np.random.default_rng(5)

    def change(path, a):
        if moe.is_controller_state(path):
            return a + jnp.asarray(random.normal(size=a.shape) * 0.05, a.dtype)
        if "norm" in str(path[-1]):
            return a + jnp.asarray(random.normal(size=a.shape) * scale, a.dtype)
        return a

    return jax.tree_util.tree_unflatten(tree, [change(path, leaf) for path, leaf in leaves])


@functools.cache
def fresh(config=CONFIG):
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    return graphdef, perturbed(weights)


@functools.cache
def call(graphdef, method="__call__"):
    """A compiled method of the model, as a function of weights and arguments."""

    def function(weights, *args, **kwargs):
        return getattr(nnx.merge(graphdef, nnx.State(weights)), method)(*args, **kwargs)

    return jax.jit(function)


def longer(cache, more):
    """With entries after its last that no token may read."""
    pad = [(0, 0)] * 3 + [(0, more), (0, 0)]
    return jax.tree.map(lambda a: np.pad(a, pad, constant_values=1e3), cache)


def random_tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape).astype(np.int32)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        tiny.smallest_config(
            vocab_size=40,
            num_layers=3,
            num_heads=3,
            q_lora_rank=40,  # a rank above the width: alpha_q < 1
            num_experts=5,
            num_zero_experts=3,
            num_chosen=5,
            target_ffn_experts=3.5,
            gate_scale=6.0,
            rms_norm_eps=1e-3,
            lora_norm_eps=1e-2,
            rope_theta=50.0,
            max_position=64,
        ),
        tiny.smallest_config(num_zero_experts=0, num_layers=1, num_chosen=1, target_ffn_experts=1),
    ],
    ids=["smallest", "every field", "no zero experts"],
)
def test_logits_and_loads_follow_the_equations(config):
    graphdef, weights = fresh(config)
    tokens = random_tokens(3, 12) % config.vocab_size
    output = call(graphdef)(weights, tokens)
    expected = [reference.model(weights, row, config) for row in tokens]
    logits = np.stack([logits for logits, _ in expected])
    assert output.logits.dtype == jnp.float32
    rms = np.sqrt((logits**2).mean())
    np.testing.assert_allclose(output.logits, logits, rtol=0, atol=2e-5 * max(1, rms))
    np.testing.assert_array_equal(output.load, sum(load for _, load in expected))


def test_gradient_follows_finite_differences_of_the_reference():
    graphdef, weights = fresh()
    tokens = random_tokens(1, 5)
    direction_TV = np.random.default_rng(1).normal(size=(1, 5, CONFIG.vocab_size))

    def loss(weights):
        return (call(graphdef)(weights, tokens).logits * direction_TV).sum()

    gradient = jax.jit(jax.grad(loss))(weights)
    step = 1e-6
    for name in ("embedding", "head", "final_norm"):
        check_direction(weights, gradient, (name,), tokens, direction_TV, step)
    for path in (
        ("attention_0", "query_down"),
        ("attention_0", "latent_up"),
        ("attention_1", "latent_norm"),
        ("router", "kernel"),
        ("experts", "gate_up"),
        ("experts", "down"),
        ("ffn_1", "gate"),
        ("ffn_norm_0",),
    ):
        check_direction(weights, gradient, ("layers", *path), tokens, direction_TV, step)
    assert not np.any(gradient["layers"]["router"]["bias"])


def check_direction(weights, gradient, path, tokens, direction_TV, step):
    """The derivative along one random direction of one tensor, by central differences."""
    leaf = functools.reduce(lambda tree, key: tree[key], path, weights)
    along = np.random.default_rng(len(str(path))).normal(size=leaf.shape)

    def value(amount):
        changed = jax.tree.map(lambda a: np.asarray(a, np.float64), weights)
        node = functools.reduce(lambda tree, key: tree[key], path[:-1], changed)
        node[path[-1]] = node[path[-1]] + amount * along
        return (reference.model(changed, tokens[0], CONFIG)[0] * direction_TV[0]).sum()

    expected = (value(step) - value(-step)) / (2 * step)
    got = (functools.reduce(lambda tree, key: tree[key], path, gradient) * along).sum()
    assert got == pytest.approx(expected, rel=3e-4, abs=3e-3), path


def test_decode_goes_on_after_right_padded_prefill():
    graphdef, weights = fresh()
    tokens, length = random_tokens(3, 12), np.array([3, 8, 1])
    mask = np.arange(8)[None] < length[:, None]
    whole = np.asarray(call(graphdef)(weights, tokens).logits)
    output, cache = call(graphdef, "prefill")(weights, tokens[:, :8], mask)
    np.testing.assert_allclose(np.asarray(output.logits)[mask], whole[:, :8][mask], atol=2e-5)
    cache = longer(cache, CAPACITY - 8)
    decode = call(graphdef, "decode")
    for at in (length, length + 1):
        logits, cache = decode(weights, tokens[np.arange(3), at], at, cache)
        np.testing.assert_allclose(logits, whole[np.arange(3), at], rtol=0, atol=2e-5)


def test_extend_equals_the_full_forward_and_one_token_at_a_time():
    graphdef, weights = fresh()
    tokens, start, num_tokens = random_tokens(3, 12), np.array([0, 3, 8]), 4
    whole = np.asarray(call(graphdef)(weights, tokens).logits)
    _, cache = call(graphdef, "prefill")(weights, tokens[:, :8], np.ones((3, 8), bool))
    cache = longer(cache, 3)  # too short by one for the last sequence
    at = start[:, None] + np.arange(num_tokens)[None]
    rows = np.arange(3)[:, None]
    extend = call(graphdef, "extend")
    logits, hidden, extended = jax.device_get(extend(weights, tokens[rows, at], start, cache))
    inside = at < 11
    np.testing.assert_allclose(logits[inside], whole[rows, at][inside], rtol=0, atol=2e-5)
    np.testing.assert_allclose(hidden @ weights["head"], logits, rtol=0, atol=2e-5)
    decode, one_by_one = call(graphdef, "decode"), cache
    for t in range(num_tokens):
        _, one_by_one = decode(weights, tokens[rows[:, 0], at[:, t]], at[:, t], one_by_one)
    for a, b, before in zip(extended, one_by_one, cache, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)
        np.testing.assert_array_equal(a[:, :, 0, num_tokens:], before[:, :, 0, num_tokens:])


def test_packed_equals_separate_and_padding_side_is_immaterial():
    graphdef, weights = fresh()
    model = call(graphdef)
    width, first, second = 12, random_tokens(7), random_tokens(4, seed=1)

    def row(tokens, start):
        """One row with the tokens somewhere in it, and its mask."""
        whole = random_tokens(1, width, seed=2)
        whole[0, start : start + len(tokens)] = tokens
        index = np.arange(width)[None]
        return whole, (index >= start) & (index < start + len(tokens))

    def logits_and_load(tokens, start):
        whole, mask = row(tokens, start)
        output = model(weights, whole, mask=mask)
        assert np.isfinite(output.logits).all()
        return np.asarray(output.logits)[mask], output.load

    (left_7, load_7), (left_4, load_4) = logits_and_load(first, 0), logits_and_load(second, 0)
    right_4, right_load = logits_and_load(second, width - 4)
    np.testing.assert_allclose(left_4, right_4, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(load_4, right_load)
    expected, _ = reference.model(weights, second, CONFIG)
    np.testing.assert_allclose(left_4, expected, rtol=0, atol=2e-5)

    packed = np.concatenate([first, second, first[:1]])[None]
    segments = np.array([[1] * 7 + [2] * 4 + [0]])
    positions = np.array([[*range(7), *range(4), 0]])
    for given in (positions, None):
        output = jax.device_get(model(weights, packed, given, segment_ids=segments))
        np.testing.assert_allclose(output.logits[0, :7], left_7, rtol=0, atol=2e-5)
        np.testing.assert_allclose(output.logits[0, 7:11], left_4, rtol=0, atol=2e-5)
        np.testing.assert_array_equal(output.load, np.add(load_7, load_4))


@pytest.mark.parametrize(
    "change",
    [
        dict(chunk_tokens=18),  # of 3 rows, 3 rows and 2 rows
        pytest.param(dict(unroll_layers=True), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_chunks_and_unrolled_layers_change_neither_loss_nor_gradient(change):
    _, weights = fresh()
    changed, _ = moe.abstract_weights(dataclasses.replace(CONFIG, **change))
    tokens, mask, expected = single_device()
    found = loss_and_gradient(changed)(weights, tokens, mask)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(a).max()))


@functools.cache
def loss_and_gradient(graphdef):
    def loss(weights, tokens, mask):
        output = nnx.merge(graphdef, nnx.State(weights))(tokens, mask=mask)
        logprob = jax.nn.log_softmax(output.logits)
        return jnp.sum(jnp.where(mask[..., None], logprob, 0)) / 1000, output

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_layers_that_are_cut_apart_keep_no_more_than_stacked_ones():
    config = dataclasses.replace(CONFIG, remat="layer", chunk_tokens=None)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    model = nnx.merge(graphdef, nnx.State(weights))
    tokens = random_tokens(1, 4)
    whole, cut = (
        str(jax.make_jaxpr(lambda tokens, one=one: one(tokens).logits)(tokens)).count("prevent_cse")
        for one in (model, model.layers_cut())
    )
    assert cut - whole == config.num_layers - 1  # those inside of a layer are the same programs


def test_padding_meets_no_expert():
    """Experts that it alone would choose make numbers that are none."""
    graphdef, weights = fresh()
    tokens = random_tokens(1, 12)
    mask = np.arange(12)[None] < 2
    free = call(graphdef)(weights, tokens, mask=mask)
    spoilt = _only_padding_chooses(np.asarray(free.target), mask)
    assert spoilt.any()
    found = call(graphdef)(_spoilt(weights, spoilt), tokens, mask=mask)
    np.testing.assert_array_equal(found.logits, free.logits)


def test_a_slot_without_a_sequence_meets_no_expert():
    graphdef, weights = fresh()
    tokens, mask = random_tokens(3), np.array([True, True, False])
    cache = moe.LatentCache.zeros(CONFIG, 3, CAPACITY)
    method = functools.partial(call, graphdef)
    _, target, _ = method("decode_routed")(weights, tokens, np.zeros(3, np.int32), cache)
    spoilt = _only_padding_chooses(np.asarray(target)[:, :, None], mask[:, None])
    assert spoilt.any()
    run = method("decode")
    expected, _ = run(weights, tokens, np.zeros(3, np.int32), cache, mask)
    logits, _ = run(_spoilt(weights, spoilt), tokens, np.zeros(3, np.int32), cache, mask)
    np.testing.assert_array_equal(logits, expected)


def _only_padding_chooses(target_LBTK, mask_BT):
    """[L, E]"""
    expert = np.arange(CONFIG.num_experts)
    chosen_LBTE = (target_LBTK[..., None] == expert).any(3)
    of_tokens = (chosen_LBTE & mask_BT[..., None]).any((1, 2))
    return chosen_LBTE.any((1, 2)) & ~of_tokens


def _spoilt(weights, spoilt_LE):
    layers = weights["layers"]
    experts = jax.tree.map(
        lambda a: jnp.where(spoilt_LE.reshape(*spoilt_LE.shape, *[1] * (a.ndim - 2)), jnp.nan, a),
        layers["experts"],
    )
    return {**weights, "layers": {**layers, "experts": experts}}


@pytest.mark.slow
def test_what_a_layer_keeps_saves_products_and_changes_no_gradient():
    weights, arguments = fresh()[1], (random_tokens(2, 12), np.ones((2, 12), bool))
    products, gradients = [], []
    for remat in ("layer", ("residual", "ffn_0", "ffn_1"), "off"):
        graphdef, _ = moe.abstract_weights(dataclasses.replace(CONFIG, remat=remat))
        both = loss_and_gradient(graphdef)
        products.append(str(jax.make_jaxpr(both)(weights, *arguments)).count("dot_general"))
        gradients.append(both(weights, *arguments)[1])
    assert products[0] > products[1] > products[2]
    for others in gradients[1:]:
        for a, b in zip(jax.tree.leaves(others), jax.tree.leaves(gradients[0]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    with pytest.raises(ConfigError, match="ffn_2"):
        dataclasses.replace(CONFIG, remat=("ffn_2",))


def test_logits_of_the_router_that_are_kept_are_not_made_again():
    weights, arguments = fresh()[1], (random_tokens(2, 12), np.ones((2, 12), bool))

    def exact_products(remat):
        graphdef, _ = moe.abstract_weights(dataclasses.replace(CONFIG, remat=remat))
        jaxpr = jax.make_jaxpr(loss_and_gradient(graphdef))(weights, *arguments)
        return str(jaxpr).count("Precision.HIGHEST, Precision.HIGHEST")

    kept, made_again = exact_products(("router",)), exact_products("layer")
    assert (kept, made_again) == (3, 4)  # of the loop's layer: the value and two gradients


def test_the_gradient_of_the_head_is_summed_where_it_is_scattered():
    rules = ShardingRules(mesh=make_mesh(fsdp=4, expert=2))
    with jax.set_mesh(rules.mesh):
        graphdef, weights = moe.abstract_weights(CONFIG, rules)
        tokens = rules.place(jnp.asarray(random_tokens(8, 6)), "act_batch", "act_length")
        mask = jnp.ones_like(tokens, bool)
        jaxpr = jax.make_jaxpr(loss_and_gradient(graphdef))(weights, tokens, mask)
    (program,) = jaxpr.eqns
    made = [v.aval for e in program.params["jaxpr"].eqns for v in e.outvars]
    of_head = [a for a in made if a.shape == (CONFIG.hidden_size, CONFIG.vocab_size)]
    assert {"fsdp", "expert"} <= frozenset().union(*(a.sharding.spec.unreduced for a in of_head))


@functools.cache
def single_device():
    graphdef, weights = fresh()
    tokens = random_tokens(8, 6)
    mask = np.arange(6)[None] < np.array([6, 4, 6, 1, 6, 6, 2, 6])[:, None]
    return tokens, mask, loss_and_gradient(graphdef)(weights, tokens, mask)


def assert_same_gradient(found, expected):
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(a).max() + 1e-9, err_msg=where)


@pytest.mark.parametrize("sizes", thinned(MESHES, 0, 1), ids=str)
def test_sharded_equals_single_device(sizes):
    rules = ShardingRules(mesh=make_mesh(**sizes))
    _, weights = fresh()
    graphdef, placed = tiny.on_mesh(CONFIG, rules, weights)
    tokens, mask, ((loss, output), gradient) = single_device()
    (sharded_loss, sharded), sharded_gradient = loss_and_gradient(graphdef)(placed, tokens, mask)
    assert float(sharded_loss) == pytest.approx(float(loss), rel=1e-6)
    logits = np.asarray(sharded.logits)
    np.testing.assert_allclose(logits[mask], output.logits[mask], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(sharded.load, output.load)
    assert_same_gradient(sharded_gradient, gradient)
    for a, b in zip(jax.tree.leaves(placed), jax.tree.leaves(sharded_gradient), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.parametrize("sizes", thinned(MESHES[::3], 0), ids=str)
def test_sharded_decode_equals_single_device(sizes):
    rules = ShardingRules(mesh=make_mesh(**sizes))
    _, weights = fresh()
    graphdef, placed = tiny.on_mesh(CONFIG, rules, weights)
    tokens, mask, ((_, output), _) = single_device()
    _, cache = call(graphdef, "prefill")(placed, tokens[:, :4], mask[:, :4])
    cache = jax.tree.map(
        lambda a, b: jnp.zeros_like(b).at[..., :4, :].set(a),
        cache,
        moe.LatentCache.zeros(CONFIG, 8, 6, rules),
    )
    decode = call(graphdef, "decode")
    for t in (4, 5):
        logits, cache = decode(placed, tokens[:, t], np.full(8, t), cache)
        np.testing.assert_allclose(
            np.asarray(logits)[mask[:, t]], output.logits[:, t][mask[:, t]], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(expert=8), r"'expert', where it has 4, over 8 devices \(expert=8\)"),
        (dict(tensor=4), r"'heads', where it has 2, over 4 devices \(tensor=4\)"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_refused(sizes, message):
    rules = ShardingRules(mesh=make_mesh(**sizes))
    with pytest.raises(ConfigError, match=message):
        moe.abstract_weights(CONFIG, rules)


def test_tokens_and_caches_that_the_mesh_does_not_divide_are_refused():
    rules = ShardingRules(mesh=make_mesh(data=2))
    graphdef, weights = moe.abstract_weights(CONFIG, rules)
    message = r"shape \(3, 8\) is cut along 'act_batch', where it has 3, over 2 devices"
    with jax.set_mesh(rules.mesh), pytest.raises(ConfigError, match=message):
        jax.eval_shape(call(graphdef), weights, jnp.zeros((3, 8), jnp.int32))
    with pytest.raises(ConfigError, match="'act_batch', where it has 3"):
        moe.LatentCache.zeros(CONFIG, 3, 8, rules)


def test_fresh_weights_do_not_depend_on_the_mesh():
    _, alone = moe.init_weights(CONFIG, jax.random.key(3))
    rules = ShardingRules(mesh=make_mesh(fsdp=2, tensor=2, expert=2))
    _, sharded = moe.init_weights(CONFIG, jax.random.key(3), rules)
    jax.tree.map(np.testing.assert_array_equal, alone, sharded)
