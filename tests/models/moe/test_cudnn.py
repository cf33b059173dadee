"""cuDNN's attention around a plain kernel: which rows it takes, and what it makes of them."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models.moe import core_attention
from loong_jax.models.moe.kernels import AttentionMask, blockwise, cudnn
from loong_jax.models.moe.kernels.blockwise import Blockwise
from loong_jax.models.moe.kernels.cudnn import Cudnn
from loong_jax.sharding import ShardingRules, make_mesh
from tests.models.moe.test_core_attention import assert_alike, in_order, random_operands
from tests.sweeps import thinned

LENGTH = 12
SIZES = Cudnn(others=Blockwise(query_block=4, key_block=4), packed=(2, 3))
WHOLE, UP_TO_2, UP_TO_3, BLOCKS = range(4)  # the ways of `SIZES`
way_of = jax.jit(cudnn.way_of, static_argnums=1)


def causal(query, key, value, *, narrow=True):
    """What the kernel computes: no segment is known to it."""
    return jax.nn.dot_product_attention(query, key, value, scale=1.0, is_causal=True)


def by_sequences(query, key, value, sequences):
    """What the packed kernel promises: of padding it neither reads nor writes anything."""
    at_BT1M = jnp.arange(query.shape[1])[None, :, None]
    start_B1M, length_B1M = sequences.start[:, None], sequences.length[:, None]
    is_of_BTM = (at_BT1M >= start_B1M) & (at_BT1M < start_B1M + length_B1M)
    number_BT = jnp.sum(
        jnp.where(is_of_BTM, 1 + jax.lax.broadcasted_iota(int, is_of_BTM.shape, 2), 0), axis=2
    )

    def of_tokens(a, otherwise):
        return jnp.where((number_BT > 0)[..., None, None], a, otherwise)

    def attend(query, key, value):
        pair_B1TS = number_BT[:, None, :, None] == number_BT[:, None, None]
        return jax.nn.dot_product_attention(
            query, key, value, mask=pair_B1TS, scale=1.0, is_causal=True
        )

    @jax.custom_vjp
    def run(*operands):
        return of_tokens(attend(*(of_tokens(a, 0) for a in operands)), jnp.nan)

    def backward(operands, grad):
        grads = jax.vjp(attend, *(of_tokens(a, 0) for a in operands))[1](of_tokens(grad, 0))
        return tuple(of_tokens(a, jnp.nan) for a in grads)

    run.defvjp(lambda *operands: (run(*operands), operands), backward)
    return run(query, key, value)


def some_operands(num_queries, widths=(5, 4, 7, 6)):
    operands = random_operands(1, num_queries, LENGTH, widths=widths)
    return jax.tree.map(jnp.asarray, operands)


def watch_blocks(monkeypatch):
    """The sizes with which blocks were asked for, from now on."""
    ran, attend = [], blockwise.attend
    monkeypatch.setattr(blockwise, "attend", lambda *a: ran.append(a[2]) or attend(*a))
    return ran


def rows(*lengths, left=0):
    """One row of segments of these lengths after `left` tokens of padding, and padding after."""
    segments = np.zeros((1, LENGTH), np.int32)
    at = left
    for number, length in enumerate(lengths, start=1):
        segments[0, at : at + length] = number
        at += length
    return segments


CASES = {
    "whole": (rows(LENGTH), WHOLE),
    "padded on the right": (rows(7), WHOLE),
    "nothing but padding": (rows(), WHOLE),
    "padded on the left": (rows(7, left=5), UP_TO_2),
    "two segments": (rows(5, 7), UP_TO_2),
    "two of falling numbers": (7 - rows(5, 7), UP_TO_2),
    "two with padding between": (np.where(np.arange(LENGTH) // 2 == 2, 0, rows(5, 6)), UP_TO_2),
    "three segments": (rows(1, 7, 2), UP_TO_3),
    "three up to the end": (rows(3, 4, 4, left=1), UP_TO_3),
    "four segments": (rows(1, 2, 3, 4), BLOCKS),
    "a hole": (np.where(np.arange(LENGTH) == 4, 0, rows(9)), BLOCKS),
    "one that goes on after another": (np.where(np.arange(LENGTH) < 9, rows(4, 8), 1), BLOCKS),
}


@functools.cache
def by_kernels_and_by_whole_scores():
    """Of all tokens a sum of squares and its gradient, as two compiled programs for every case."""

    def of_tokens(run):
        def loss(operands, mask):
            is_token = (mask.query_segment > 0)[..., None, None]
            return jnp.sum(jnp.where(is_token, run(operands, mask) ** 2, 0))

        return jax.jit(jax.value_and_grad(loss))

    kernels = dict(sizes=SIZES, kernel=causal, packed_kernel=by_sequences)
    return of_tokens(functools.partial(cudnn.attend, **kernels)), of_tokens(
        core_attention.whole_scores
    )


@jax.jit
def told_apart(operands, mask):
    """By kernels that make numbers of their own: one sees which way was gone."""
    return cudnn.attend(
        operands,
        mask,
        SIZES,
        kernel=lambda query, *_: jnp.full_like(query, 100),
        packed_kernel=lambda *a: jnp.full_like(a[0], a[-1].start.shape[1]),
    )


@pytest.mark.parametrize(("segments", "way"), CASES.values(), ids=CASES)
def test_rows_go_where_they_are_taken_and_all_tokens_come_out_right(segments, way):
    mask = in_order(segments)
    assert int(way_of(mask, SIZES)) == way
    operands = some_operands(LENGTH, widths=(5, 4, 7, 9))  # values as wide as keys
    told = np.asarray(told_apart(operands, mask))
    if way != BLOCKS:
        assert np.unique(told[0][segments[0] > 0]).tolist() in ([], [(100, 2, 3)[way]])
    found, wanted = (way(operands, mask) for way in by_kernels_and_by_whole_scores())
    assert_alike(found, wanted)


def test_a_batch_goes_the_way_of_its_longest_list_of_sequences():
    batch = np.concatenate([rows(LENGTH), rows(5, 7), rows(2, 2, 2)])
    assert int(way_of(in_order(batch), SIZES)) == UP_TO_3
    assert int(way_of(in_order(batch[:2]), SIZES)) == UP_TO_2
    assert int(way_of(in_order(batch[1:]), Cudnn(packed=()))) == 1
    sequences_of = jax.jit(cudnn.sequences_of, static_argnums=1)
    start, length = sequences_of(jnp.asarray(batch), 2)[1:]
    np.testing.assert_array_equal(start, [[0, LENGTH], [0, 5], [0, 2]])
    np.testing.assert_array_equal(length, [[LENGTH, 0], [5, 7], [2, 2]])


@pytest.mark.parametrize("length", thinned([LENGTH, LENGTH - 1], 1))
def test_packed_rows_on_a_mesh_go_each_device_its_way(monkeypatch, length):
    """Of four devices one has whole rows, two have packed ones, and one has too many sequences."""
    segments = np.concatenate([rows(LENGTH), rows(5, 7), rows(3, 4, left=2), rows(1, 1, 3, 7)])
    mask = in_order(segments[:, :length])
    operands = random_operands(4, length, length, heads=2, widths=(5, 4, 7, 9))
    monkeypatch.setattr(cudnn, "causal_attention", causal)
    monkeypatch.setattr(cudnn, "packed_attention", by_sequences)
    monkeypatch.setattr(cudnn, "fits", lambda *_: True)
    monkeypatch.setattr(cudnn, "version", lambda: 91000)
    monkeypatch.setattr(ShardingRules, "compute_capability", (9, 0))
    mesh = make_mesh(data=4, tensor=2)
    is_token = (segments[:, :length] > 0)[..., None, None]

    def loss_of(attend, rules):
        def loss(operands):
            return jnp.sum(jnp.where(is_token, attend(operands, mask, rules, SIZES) ** 2, 0))

        return jax.jit(jax.value_and_grad(loss))(operands)

    with jax.set_mesh(mesh):
        found = loss_of(core_attention.whole, ShardingRules(mesh=mesh))
    wanted = loss_of(lambda operands, mask, *_: core_attention.whole_scores(operands, mask), None)
    assert_alike(found, wanted)


def test_queries_out_of_order_or_among_other_keys_go_through_blocks(monkeypatch):
    whole = in_order(rows(LENGTH))
    assert not cudnn.one_sequence_each(whole._replace(query_index=whole.query_index[:, ::-1]))
    assert not cudnn.one_sequence_each(whole._replace(key_segment=whole.key_segment + 1))
    ran = watch_blocks(monkeypatch)
    some = AttentionMask(*(a[:, :4] for a in whole[:2]), *whole[2:])
    cudnn.attend(some_operands(4), some, SIZES, kernel=causal)
    assert ran == [SIZES.others]


@pytest.mark.parametrize(
    ("capability", "dtype", "head", "width", "fits"),
    [
        ((9, 0), jnp.bfloat16, 192, 128, True),
        ((9, 0), jnp.float16, 256, 256, True),
        ((8, 0), jnp.bfloat16, 128, 128, True),
        ((8, 0), jnp.bfloat16, 192, 128, False),
        ((7, 5), jnp.bfloat16, 64, 64, False),
        ((9, 0), jnp.float32, 192, 128, False),
        ((9, 0), jnp.bfloat16, 36, 32, False),
        ((9, 0), jnp.bfloat16, 48, 20, False),
        ((9, 0), jnp.bfloat16, 128, 192, False),  # values wider than keys
        (None, jnp.bfloat16, 192, 128, False),
    ],
)
def test_it_fits_heads_that_the_device_has_kernels_for(capability, dtype, head, width, fits):
    assert cudnn.fits(capability, dtype, head, width) is fits


def test_long_rows_on_a_gpu_that_fits_are_given_to_it():
    assert core_attention.choose(1024, 1024, "gpu", fused=True) == Cudnn()
    assert core_attention.choose(1024, 1024, "gpu") == Blockwise()
    assert core_attention.choose(512, 1024, "gpu", fused=True) == Blockwise()  # a part of a row
    assert core_attention.choose(64, 64, "gpu", fused=True) == core_attention.WholeScores()


def test_asked_for_where_it_does_not_fit_it_is_refused():
    with pytest.raises(
        ConfigError, match=r"attention=Cudnn\(\).*float32 and heads of 9 and 6.*Use"
    ):
        core_attention.whole(some_operands(LENGTH), in_order(rows(LENGTH)), ShardingRules(), SIZES)


def test_kernels_for_packed_rows_and_narrow_values_are_those_of_hopper(monkeypatch):
    plain = Cudnn(packed=(), narrow=False)
    monkeypatch.setattr(cudnn, "version", lambda: 0)
    assert Cudnn().on((9, 0)) == plain
    monkeypatch.setattr(cudnn, "version", lambda: 91000)
    assert Cudnn().on((9, 0)) == Cudnn().on((10, 0)) == Cudnn()
    assert Cudnn().on((8, 0)) == plain
    monkeypatch.setattr(cudnn, "version", lambda: 90800)
    assert Cudnn().on((9, 0)) == Cudnn(narrow=False)


def test_a_jax_without_the_private_functions_has_no_kernels_for_packed_rows(monkeypatch):
    monkeypatch.setattr(cudnn, "_jax_module", lambda: None)
    assert cudnn.version() == 0
    assert Cudnn().on((9, 0)) == Cudnn(packed=(), narrow=False)


@pytest.mark.parametrize("packed", [(8, 4), (8, 8), (1, 8)])
def test_numbers_of_sequences_that_make_no_sense_are_refused(packed):
    with pytest.raises(ConfigError, match=r"packed=.*must be numbers of sequences above 1"):
        Cudnn(packed=packed)


def test_over_a_cache_blocks_replace_it(monkeypatch):
    ran = watch_blocks(monkeypatch)
    core_attention.cached(some_operands(LENGTH), in_order(rows(LENGTH)), ShardingRules(), SIZES)
    assert ran == [SIZES.others]


@pytest.fixture
def pretended(monkeypatch):
    """JAX's own functions as if there were a Hopper, so that they can be traced."""
    pretend(monkeypatch, (9, 0))


def pretend(monkeypatch, capability):
    from jax._src.cudnn import fused_attention_stablehlo as fused

    def at_least(asked):
        return capability >= tuple(map(int, asked.split(".")))

    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(fused, "check_compute_capability", at_least)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda _: False)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
def test_what_fits_a_device_can_be_traced_for_it(monkeypatch, capability):
    """JAX refuses narrow values and packed rows before Hopper."""
    pretend(monkeypatch, capability)
    monkeypatch.setattr(ShardingRules, "platform", "gpu")
    monkeypatch.setattr(ShardingRules, "compute_capability", capability)
    operands = random_operands(1, 512, 512, heads=2, widths=(32, 16, 24, 32))
    operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), operands)
    mask = in_order(np.ones((1, 512)))

    def loss(operands):
        return core_attention.whole(operands, mask, ShardingRules()).astype(jnp.float32).sum()

    text = str(jax.make_jaxpr(jax.grad(loss))(operands))
    assert "dot_product_attention_bwd" in text
    assert ("PADDING_CAUSAL" in text) is (capability >= (9, 0))


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("length", [256, 301])
def test_there_is_a_gradient_of_every_length(length):
    widths = (128, 64, 32, 128)
    operands = random_operands(1, length, length, heads=1, widths=widths)
    operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), operands)
    mask = in_order(np.ones((1, length)))

    def loss(operands):
        mixed = cudnn.attend(operands, mask, Cudnn())
        assert mixed.shape == (1, length, 1, 128)
        return mixed.astype(jnp.float32).sum()

    assert "dot_product_attention_bwd" in str(jax.make_jaxpr(jax.grad(loss))(operands))


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("width", [128, 192], ids=("narrow values", "equal widths"))
def test_the_kernel_can_be_traced_and_its_results_are_kept(width):
    """Going back runs no forward kernel where they are."""
    query, key = (jax.ShapeDtypeStruct((1, 512, 2, 192), jnp.bfloat16) for _ in range(2))
    value = jax.ShapeDtypeStruct((1, 512, 2, width), jnp.bfloat16)

    def forward_kernels(policy):
        run = jax.checkpoint(
            lambda *a: jnp.sin(cudnn.causal_attention(*a)).astype(jnp.float32).sum(),
            policy=policy,
        )
        text = str(jax.make_jaxpr(jax.grad(run))(query, key, value))
        assert "dot_product_attention_bwd" in text
        return text.count("dot_product_attention_fwd_wrapper[")

    assert jax.eval_shape(cudnn.causal_attention, query, key, value).shape == value.shape
    assert forward_kernels(jax.checkpoint_policies.nothing_saveable) == 2
    assert forward_kernels(cudnn.is_forward_kernel) == 1


@pytest.mark.parametrize(
    ("at_once", "limit"), thinned([(1, 16), (2, 3), (3, 16), (4, 16), (9, 16), (16, 16)], 1, 4)
)
def test_so_many_rows_and_heads_at_once_change_nothing(monkeypatch, at_once, limit):
    segments = np.concatenate([rows(5, 7), rows(3, 4, left=2), rows(LENGTH), rows()])
    mask = in_order(segments)
    operands = random_operands(4, LENGTH, LENGTH, heads=4, widths=(5, 4, 7, 9))
    monkeypatch.setattr(cudnn, "_SCRATCH", at_once * 4 * 2 * LENGTH * 9)
    taken = []

    def kernel(query, *others):
        taken.append((query.shape[0], query.shape[2]))
        return by_sequences(query, *others)

    def loss_of(attend):
        def loss(operands):
            return jnp.sum(jnp.where((segments > 0)[..., None, None], attend(operands) ** 2, 0))

        return jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, operands))

    monkeypatch.setattr(cudnn, "_MOST_NUMBERS", limit * LENGTH * 9)
    found = loss_of(lambda a: cudnn.attend(a, mask, Cudnn(packed=(2,)), causal, kernel))
    sizes = {1: (1, 1), 2: (1, 2), 3: (1, 2), 4: (1, 4), 9: (2, 4), 16: (4, 4)}[at_once]
    assert taken[0] == {16: (4, 4), 3: (1, 2)}[limit]  # there
    assert taken[-1] == sizes  # and back
    wanted = loss_of(lambda operands: core_attention.whole_scores(operands, mask))
    assert_alike(found, wanted)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("by_policy", [False, True], ids=("all kept", "by policy"))
@pytest.mark.parametrize("length", [512, 301])
def test_of_packed_rows_nothing_is_kept_that_grows_with_the_number_of_sequences(length, by_policy):
    operands = random_operands(2, length, length, heads=1, widths=(128, 64, 32, 128))
    operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), operands)
    sizes = Cudnn(packed=(5,))

    def pull_back(segments):
        attend = functools.partial(cudnn.attend, mask=in_order_of(segments), sizes=sizes)
        policies = jax.checkpoint_policies
        policy = policies.save_from_both_policies(
            policies.save_only_these_names(cudnn.KEPT_AS), cudnn.is_forward_kernel
        )

        def with_more(operands):  # which needs what attention made on its way back
            return jnp.sin(attend(operands))

        return jax.vjp(
            jax.checkpoint(with_more, policy=policy) if by_policy else with_more, operands
        )[1]

    def in_order_of(segments):
        index = jnp.broadcast_to(jnp.arange(length), segments.shape)
        return AttentionMask(segments, index, segments, index)

    segments = jnp.ones((2, length), jnp.int32)
    shapes = [a.shape for a in jax.tree.leaves(jax.eval_shape(pull_back, segments))]
    even = length + length % 2
    assert (2, 1, even) in shapes  # of the kernel for whole rows, which is not run again
    assert not [shape for shape in shapes if shape[:1] == (2 * 5,)]
    text = str(jax.make_jaxpr(lambda s: pull_back(s)(operands.query[..., :128]))(segments))
    assert text.count("dot_product_attention_fwd_wrapper[") == 3  # whole, packed, packed again
    assert text.count("dot_product_attention_bwd_wrapper[") == 2


def test_the_packed_kernel_is_told_where_sequences_begin_and_how_long_they_are(monkeypatch):
    """As JAX wants it: -1 where there is none, one offset more than there can be sequences."""
    told = {}

    def function(query, key, value, **how):
        told.update(how, widths=(query.shape[-1], key.shape[-1], value.shape[-1]))
        return value

    monkeypatch.setattr(cudnn, "_jax_kernel", lambda mask: functools.partial(function, m=mask))
    sequences = cudnn.sequences_of(jnp.asarray([[0, 1, 1, 2, 0, 3], [4, 4, 4, 4, 0, 0]]), 4)
    query, value = jnp.ones((2, 6, 1, 5)), jnp.ones((2, 6, 1, 3))
    assert cudnn.packed_attention(query, query, value, sequences).shape == value.shape
    assert told.pop("m") == "PADDING_CAUSAL"
    assert told.pop("widths") == (5, 5, 5)
    told = {name: np.asarray(a).tolist() for name, a in told.items()}
    assert told["q_seqlen"] == told["kv_seqlen"] == [[2, 1, 1, -1], [4, -1, -1, -1]]
    assert told["q_offsets"] == told["kv_offsets"] == [[1, 3, 5, -1, -1], [0, -1, -1, -1, -1]]


def test_where_they_may_not_be_narrow_values_are_filled_up(monkeypatch):
    plain = jax.nn.dot_product_attention

    def public(query, key, value, *, implementation, **how):
        assert implementation == "cudnn"
        assert value.shape == key.shape
        return plain(query, key, value, **how)

    monkeypatch.setattr(jax.nn, "dot_product_attention", public)
    random = np.random.default_rng(0)
    query, key, value = (
        random.normal(size=(1, LENGTH, 3, width)).astype(np.float32) for width in (9, 9, 5)
    )
    operands = map(jnp.asarray, (query, key, value))
    found = cudnn.causal_attention(*operands, narrow=False)
    score = np.einsum("btnh,bsnh->bnts", query, key, dtype=np.float64)
    score = np.where(np.tri(LENGTH, dtype=bool), score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    expected = np.einsum("bnts,bsnu->btnu", weight / weight.sum(-1, keepdims=True), value)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_gpu_tells_its_capability_and_nothing_else_has_one(monkeypatch):
    rules = ShardingRules()
    assert rules.compute_capability is None
    monkeypatch.setattr(ShardingRules, "platform", "gpu")
    for told, expected in (("9.0", (9, 0)), ("10.3", (10, 3)), ("gfx942", None)):
        device = SimpleNamespace(compute_capability=told)
        monkeypatch.setattr(jax, "local_devices", lambda device=device: [device])
        assert rules.compute_capability == expected
