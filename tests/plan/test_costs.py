"""Operations and bytes against hand counts and against XLA's own count of CPU programs."""

import jax
import jax.numpy as jnp
import pytest

from loong_jax.plan import costs, hlo

HEAD = "HloModule m, is_scheduled=true\n\n"


def entry_costs(text: str) -> dict[str, costs.Cost]:
    module = hlo.parse(HEAD + text)
    return {i.name: costs.cost(module, module.entry, i) for i in module.entry.instructions}


def compiled_flops(function, *arguments) -> tuple[float, float]:
    """Ours, of the products, and XLA's."""
    compiled = jax.jit(function).lower(*arguments).compile()
    module = hlo.parse(compiled.as_text())
    return costs.products(module, module.entry.name).flops, compiled.cost_analysis()["flops"]


PRODUCTS = {
    "matrix": (lambda a, b: a @ b, (24, 40), (40, 56)),
    "batch": (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), (6, 24, 40), (6, 56, 40)),
    "two contracted": (lambda a, b: jnp.einsum("ijk,jkl->il", a, b), (24, 5, 8), (5, 8, 56)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_count_as_xla_counts_them(name):
    function, *shapes = PRODUCTS[name]
    ours, xla = compiled_flops(function, *(jnp.ones(shape) for shape in shapes))
    assert ours == pytest.approx(xla)


@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 2), (2, 0))])
@pytest.mark.parametrize(("dilation", "stride"), [((1, 1), (1, 1)), ((2, 1), (1, 3))])
def test_convolutions_count_as_xla_counts_them(padding, dilation, stride):
    def function(x, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, stride, padding, lhs_dilation=dilation, dimension_numbers=dimensions
        )

    x, kernel = jnp.ones((2, 9, 11, 4)), jnp.ones((3, 5, 4, 8))
    ours, xla = compiled_flops(function, x, kernel)
    assert ours == pytest.approx(xla)


BATCH_AS_SPACE = """\
ENTRY %main (q: bf16[64,32,128], k: bf16[64,48,128]) -> bf16[64,32,48] {
  %q = bf16[64,32,128]{2,1,0} parameter(0)
  %k = bf16[64,48,128]{2,1,0} parameter(1)
  ROOT %c = bf16[64,32,48]{2,1,0} convolution(%q, %k), \
window={size=64 stride=63 pad=0_0 lhs_dilate=64}, dim_labels=0bf_0oi->0bf
}
"""


def test_a_batch_that_became_a_spatial_dimension_counts_once():
    assert entry_costs(BATCH_AS_SPACE)["c"].flops == 2 * 64 * 32 * 48 * 128


HIGHEST = """\
ENTRY %main (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16,4]{1,0} parameter(1)
  ROOT %c = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
operand_precision={highest,highest}
}
"""


def test_float32_at_highest_precision_takes_six_passes():
    cost = entry_costs(HIGHEST)["c"]
    assert (cost.flops, cost.unit_flops) == (2 * 8 * 16 * 4, 6 * 2 * 8 * 16 * 4)
    assert cost.hbm_bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)


STACKED = """\
%slice (stack: bf16[4,8,128], i: s32[]) -> bf16[8,128] {
  %stack = bf16[4,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %s = bf16[1,8,128]{2,1,0} dynamic-slice(%stack, %i, %z, %z), dynamic_slice_sizes={1,8,128}
  ROOT %b = bf16[8,128]{1,0} bitcast(%s)
}

%within (stack: bf16[4,8,128], i: s32[]) -> bf16[8,128] {
  %stack = bf16[4,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %s = bf16[8,128]{1,0} fusion(%stack, %i), kind=kLoop, calls=%slice
  ROOT %n = bf16[8,128]{1,0} negate(%s)
}

%tiles (stack: bf16[4,8,128]) -> bf16[4,8,128] {
  %stack = bf16[4,8,128]{2,1,0:T(16,128)(2,1)} parameter(0)
  ROOT %c = bf16[4,8,128]{2,1,0:T(8,128)(2,1)} copy(%stack)
}

%retiled (stack: bf16[4,8,128], i: s32[], x: bf16[8,128]) -> bf16[4,8,128] {
  %stack = bf16[4,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = bf16[8,128]{1,0} parameter(2)
  %z = s32[] constant(0)
  %v = bf16[4,8,128]{2,1,0} fusion(%stack), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, \
calls=%tiles
  %s = bf16[1,8,128]{2,1,0} dynamic-slice(%v, %i, %z, %z), dynamic_slice_sizes={1,8,128}
  ROOT %u = bf16[4,8,128]{2,1,0} dynamic-update-slice(%v, %s, %i, %z, %z)
}

%update (stack: bf16[4,8,128], i: s32[], x: bf16[8,128]) -> (bf16[4,8,128], bf16[8,128]) {
  %stack = bf16[4,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = bf16[8,128]{1,0} parameter(2)
  %z = s32[] constant(0)
  %n = bf16[8,128]{1,0} negate(%x)
  %b = bf16[1,8,128]{2,1,0} bitcast(%n)
  %u = bf16[4,8,128]{2,1,0} dynamic-update-slice(%stack, %b, %i, %z, %z)
  ROOT %t = (bf16[4,8,128]{2,1,0}, bf16[8,128]{1,0}) tuple(%u, %n)
}

ENTRY %main (stack: bf16[4,8,128], i: s32[]) -> (bf16[4,8,128], bf16[8,128]) {
  %stack = bf16[4,8,128]{2,1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %x = bf16[8,128]{1,0} fusion(%stack, %i), kind=kLoop, calls=%slice
  %w = bf16[8,128]{1,0} fusion(%stack, %i), kind=kOutput, calls=%within
  %near = bf16[8,128]{1,0:S(1)} copy(%x)
  %r = bf16[4,8,128]{2,1,0} fusion(%stack, %i, %near), kind=kLoop, calls=%retiled
  ROOT %u = (bf16[4,8,128]{2,1,0}, bf16[8,128]{1,0}) fusion(%stack, %i, %near), kind=kLoop, \
calls=%update
}
"""


def test_of_a_stack_only_the_slice_that_is_used_moves():
    found, one = entry_costs(STACKED), 2 * 8 * 128
    assert found["x"].hbm_bytes == 2 * one  # reads a slice, writes it
    assert found["w"].hbm_bytes == 2 * one  # the same from a fusion within a fusion
    assert found["near"].hbm_bytes == one  # on-chip memory costs nothing
    assert found["r"].hbm_bytes == one  # of a stack in other tiles as well
    assert found["u"].hbm_bytes == 2 * one  # writes a slice in place, and the second result


KERNEL = """\
ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  ROOT %k = bf16[8,128]{1,0} custom-call(%a), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"body":"x","cost_estimate":{"flops":"1200",\
"transcendentals":"0","bytes_accessed":"77"}}}
}
"""


def test_a_kernel_costs_what_it_states():
    cost = entry_costs(KERNEL)["k"]
    assert cost.flops == 1200
    assert cost.hbm_bytes == 77  # of operands that it may read in part or twice
