"""The reader against text of which every part is known, and against a program compiled here."""

import jax
import jax.numpy as jnp
import pytest

from loong_jax.plan import hlo

SMALL = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(bf16[8,128]{1,0})->bf16[8,128]{1,0}}

%fused (p.0: bf16[8,130], p.1: s32[]) -> bf16[8,130] {
  %p.0 = bf16[8,130]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  ROOT %neg = bf16[8,130]{1,0:T(8,128)(2,1)} negate(%p.0)
}

%sparse (a: bf16[4]) -> bf16[4] {
  ROOT %a = bf16[4]{0} parameter(0)
}, execution_thread="sparsecore"

ENTRY %main (x: bf16[8,130], i: s32[]) -> (bf16[8,130], /*index=1*/f32[3]) {
  %x = bf16[8,130]{1,0:T(8,128)(2,1)S(1)} parameter(0), sharding={devices=[2,1]<=[2]}
  %i = s32[]{:T(128)} parameter(1)
  %c = f32[3]{0:T(128)} constant({1, 2, 3})
  %start = ((bf16[8,130]{1,0}, s32[]), bf16[8,130]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %f = bf16[8,130]{1,0:T(8,128)(2,1)} fusion(%x, /*index=1*/%i), kind=kLoop, calls=%fused, \
metadata={op_name="jit(f)/moe/neg[a=\\"(\\"]" stack_frame_id=3}, backend_config={"n":"1, x=2"}
  %kernel = f32[4]{0} custom-call(%c), frontend_attributes={kernel_metadata={
"note":"{\\"block\\": 512}"
}}, metadata={op_name="jit(f)/attention_0/kernel"}
  ROOT %t = (bf16[8,130]{1,0}, f32[3]{0}) tuple(%f, %c)
}
"""


def test_every_part_of_a_module_is_read():
    module = hlo.parse(SMALL)
    assert module.is_scheduled
    assert set(module.computations) == {"fused", "sparse", "main"}
    assert module.entry.name == "main"
    fusion = module.entry.by_name["f"]
    assert fusion.opcode == "fusion"
    assert fusion.operands == ("x", "i")
    assert fusion.computation("calls") == "fused"
    assert fusion.attribute("kind") == "kLoop"
    assert fusion.attribute("missing") is None
    assert "moe/neg" in fusion.op_name
    assert [i.name for i in module.entry.instructions] == [*"xic", "start", "f", "kernel", "t"]
    assert module.entry.by_name["kernel"].op_name == "jit(f)/attention_0/kernel"  # of several lines
    assert module.entry.root.operands == ("f", "c")
    assert [s.dims for s in module.entry.root.shapes] == [(8, 130), (3,)]
    assert [s.dtype for s in module.entry.by_name["start"].shapes] == ["bf16", "s32", "bf16", "u32"]
    assert module.entry.parameters[1].name == "i"
    assert [user.name for user in module.entry.users["x"]] == ["start", "f"]
    assert [i.name for i in module.reached("main")][-3:] == ["neg", "kernel", "t"]


def test_bytes_with_and_without_tiles():
    (shape,) = hlo.shapes_of("bf16[8,130]{1,0:T(8,128)(2,1)S(1)}")
    assert (shape.num_bytes, shape.padded_bytes, shape.space) == (2 * 8 * 130, 2 * 8 * 256, 1)
    # the minor dimension is the first one here: 8 becomes 128 and 130 stays a multiple of 1
    (turned,) = hlo.shapes_of("f32[8,130]{0,1:T(1,128)}")
    assert turned.padded_bytes == 4 * 128 * 130
    assert hlo.shapes_of("pred[]")[0].num_bytes == 1
    assert hlo.shapes_of("s4[3]{0}")[0].num_bytes == 2
    assert hlo.shapes_of("f8e4m3fn[5]{0}")[0].num_bytes == 5


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="as_text"):
        hlo.parse("nothing")


def test_a_program_compiled_here_is_read():
    def step(x, w):
        return jax.lax.scan(lambda y, _: (jnp.tanh(y @ w), None), x, None, length=5)[0]

    x = jnp.ones((16, 32))
    text = jax.jit(step).lower(x, jnp.ones((32, 32))).compile().as_text()
    module = hlo.parse(text)
    assert any(i.opcode == "while" for i in module.entry.instructions)
    assert module.entry.root.shapes[0].dims == (16, 32)
