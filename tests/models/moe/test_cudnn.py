"""cuDNN's attention around a plain kernel: which rows it takes, and what it makes of them."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models.moe import blockwise, cudnn, mixing
from loong_jax.models.moe.blockwise import Blockwise
from loong_jax.models.moe.cudnn import Cudnn
from loong_jax.models.moe.sight import Sight
from loong_jax.sharding import ShardingRules
from tests.models.moe.test_mixing import in_order, random_operands

LENGTH = 12
SIZES = Cudnn(others=Blockwise(query_block=4, key_block=4))


def causal(query, key, value):
    """What the kernel computes: no segment is known to it."""
    return jax.nn.dot_product_attention(query, key, value, scale=1.0, is_causal=True)


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
    "whole": (rows(LENGTH), True),
    "padded on the right": (rows(7), True),
    "nothing but padding": (rows(), True),
    "padded on the left": (rows(7, left=5), False),
    "two segments": (rows(5, 7), False),
    "a hole": (np.where(np.arange(LENGTH) == 4, 0, rows(9)), False),
}


@pytest.mark.parametrize(("segments", "taken"), CASES.values(), ids=CASES)
def test_rows_of_one_sequence_are_taken_and_all_tokens_come_out_right(segments, taken):
    """With a kernel that makes NaN, one sees which way was gone."""
    sight = in_order(segments)
    assert bool(cudnn.one_sequence_each(sight)) is taken
    operands = some_operands(LENGTH, widths=(5, 4, 7, 9))  # values as wide as keys
    attend = functools.partial(cudnn.attend, sight=sight, sizes=SIZES)
    poisoned = attend(operands, kernel=lambda query, *_: jnp.full_like(query, jnp.nan))
    assert bool(jnp.isnan(poisoned).all()) is taken
    is_token = segments[0] > 0

    def of_tokens(run):
        def loss(operands):
            return jnp.sum(jnp.where(is_token[None, :, None, None], run(operands) ** 2, 0))

        return jax.jit(jax.value_and_grad(loss))(operands)

    found = of_tokens(lambda operands: attend(operands, kernel=causal))
    wanted = of_tokens(lambda operands: mixing.whole_scores(operands, sight))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1, abs(b).max()))


def test_queries_out_of_order_or_among_other_keys_go_through_blocks(monkeypatch):
    whole = in_order(rows(LENGTH))
    assert not cudnn.one_sequence_each(whole._replace(query_index=whole.query_index[:, ::-1]))
    assert not cudnn.one_sequence_each(whole._replace(key_segment=whole.key_segment + 1))
    ran = watch_blocks(monkeypatch)
    some = Sight(*(a[:, :4] for a in whole[:2]), *whole[2:])
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
    assert mixing.choose(1024, 1024, "gpu", fused=True) == Cudnn()
    assert mixing.choose(1024, 1024, "gpu") == Blockwise()
    assert mixing.choose(512, 1024, "gpu", fused=True) == Blockwise()  # a part of a row
    assert mixing.choose(64, 64, "gpu", fused=True) == mixing.WholeScores()


def test_asked_for_where_it_does_not_fit_it_is_refused():
    with pytest.raises(ConfigError, match=r"mixing=Cudnn\(\).*float32 and heads of 9 and 6.*Use"):
        mixing.mix(some_operands(LENGTH), in_order(rows(LENGTH)), ShardingRules(), SIZES)


def test_over_a_cache_blocks_replace_it(monkeypatch):
    ran = watch_blocks(monkeypatch)
    mixing.mix_cached(some_operands(LENGTH), in_order(rows(LENGTH)), ShardingRules(), SIZES)
    assert ran == [SIZES.others]


@pytest.fixture
def pretended(monkeypatch):
    """JAX's own functions as if there were a GPU, so that they can be traced."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(fused, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda _: False)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("length", [256, 301])
def test_there_is_a_gradient_of_every_length(length):
    widths = (128, 64, 32, 128)
    operands = random_operands(1, length, length, heads=1, widths=widths)
    operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), operands)
    sight = in_order(np.ones((1, length)))

    def loss(operands):
        mixed = cudnn.attend(operands, sight, Cudnn())
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
            lambda *a: jnp.sin(cudnn.causal_attention(*a)).astype(jnp.float32).sum(), policy=policy
        )
        text = str(jax.make_jaxpr(jax.grad(run))(query, key, value))
        assert "dot_product_attention_bwd" in text
        return text.count("dot_product_attention_fwd_wrapper[")

    assert jax.eval_shape(cudnn.causal_attention, query, key, value).shape == value.shape
    assert forward_kernels(jax.checkpoint_policies.nothing_saveable) == 2
    assert forward_kernels(cudnn.is_forward_kernel) == 1


def test_without_the_private_function_values_are_filled_up(monkeypatch):
    monkeypatch.setattr(cudnn, "_private_kernel", lambda: None)
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
    found = cudnn.causal_attention(*map(jnp.asarray, (query, key, value)))
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
