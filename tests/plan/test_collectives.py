"""Groups, axes and bytes of collectives: all spellings, by hand, and of a program compiled here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from loong_jax.models.moe.config import MoEConfig
from loong_jax.plan import collectives, hlo
from loong_jax.sharding import make_mesh

MESH = {"slice": 1, "data": 1, "fsdp": 2, "expert": 4, "tensor": 1, "context": 1}
ENTRY = """\
HloModule m, is_scheduled=true

ENTRY %main (x: bf16[16,8]) -> bf16[16,8] {{
  %x = bf16[16,8]{{1,0}} parameter(0), metadata={{op_name="w[\\'layers\\'][\\'experts\\']"}}
  %y = f32[4]{{0}} constant({{0,0,0,0}}), metadata={{op_name="jit(f)/ffn_0/mul"}}
  %z = bf16[8,8]{{1,0}} slice(%x), slice={{[0:8], [0:8]}}
  ROOT %c = bf16[16,8]{{1,0}} {call}
}}
"""


def read(call: str) -> collectives.Collective:
    module = hlo.parse(ENTRY.format(call=call))
    return collectives.read(module.entry.root, module.entry, MESH)


ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))
COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))
SPELLINGS = {
    "{{0,1,2,3},{4,5,6,7}}": (ROWS, ("expert",)),
    "[2,4]<=[8]": (ROWS, ("expert",)),
    "[4,2]<=[2,4]T(1,0)": (COLUMNS, ("fsdp",)),
    "mesh['fsdp'=2,'expert'=4] {'expert'}": (ROWS, ("expert",)),
    "mesh['a'=2,'b'=4,'c'=1] {'a','c'}": (COLUMNS, ("fsdp",)),
    "mesh['a'=8] {'a':(1)2}": (COLUMNS, ("fsdp",)),
    "mesh['a'=8] {'a':(2)2}": (((0, 2), (1, 3), (4, 6), (5, 7)), ("expert",)),
    "{}": ((tuple(range(8)),), ("fsdp", "expert")),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_groups_in_every_spelling(spelling):
    call = f"all-to-all(%x), channel_id=1, replica_groups={spelling}, dimensions={{0}}"
    found = read(call)
    assert (found.groups, found.axes) == SPELLINGS[spelling]


def test_bytes_that_a_device_sends():
    size, groups = 2 * 16 * 8, "replica_groups=[2,4]<=[8], dimensions={0}"
    assert read(f"all-gather(%x), {groups}").sent_bytes == 3 * size
    assert read(f"all-reduce(%x), {groups}").sent_bytes == 2 * size * 3 / 4
    assert read(f"reduce-scatter(%x), {groups}").sent_bytes == size * 3 / 4
    assert read(f"all-to-all(%x), {groups}").sent_bytes == size * 3 / 4
    pairs = "source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"
    moved = read(f"collective-permute(%x), {pairs}")
    assert (moved.sent_bytes, moved.groups, moved.axes) == (size, ROWS, ("expert",))


def test_a_sum_of_which_a_device_keeps_a_part_is_scattered():
    """TPUs have one fusion for both, in which the sum stands as that of all devices."""
    groups = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"
    module = hlo.parse(f"""\
HloModule m, is_scheduled=true

%all-reduce-scatter.1.clone.1 (p: bf16[16,8]) -> bf16[4,8] {{
  %p = bf16[16,8]{{1,0}} parameter(0)
  %sum = bf16[16,8]{{1,0}} all-reduce(%p), {groups}, to_apply=%add
  %at = s32[] constant(0)
  ROOT %part = bf16[4,8]{{1,0}} dynamic-slice(%sum, %at, %at), dynamic_slice_sizes={{4,8}}
}}

ENTRY %main (x: bf16[16,8]) -> bf16[4,8] {{
  %x = bf16[16,8]{{1,0}} parameter(0)
  ROOT %f = bf16[4,8]{{1,0}} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1.clone.1
}}
""")
    inner = collectives.find(module, module.entry.root)
    assert inner is not None
    found = collectives.read(*inner, MESH)
    assert (found.kind, found.axes) == ("reduce-scatter", ("expert",))
    assert found.sent_bytes == 2 * 16 * 8 * 3 / 4


def test_a_ragged_exchange_sends_rows_and_no_more_than_fit():
    """Its second operand is what the rows are written into, the others say where."""
    groups = "replica_groups=[2,4]<=[8]"
    for rows, into in (("x", "z"), ("z", "x")):
        text = f"ragged-all-to-all(%{rows}, %{into}, %y, %y, %y, %y), {groups}"
        assert read(text).sent_bytes == 2 * 8 * 8 * 3 / 4


def test_what_belongs_to_experts():
    groups = "replica_groups=[2,4]<=[8]"
    name = 'metadata={op_name="jit(f)/transpose(jvp())/while/body/moe/all_to_all"}'
    assert read(f"all-to-all(%x), {groups}, {name}").expert_share == 1
    assert read(f"all-to-all(%x), {groups}").expert_share == 1  # some lose their name
    assert read(f"all-to-all(%x), {groups}, {name.replace('moe', 'head')}").expert_share == 0
    assert read("all-to-all(%x), replica_groups=[4,2]<=[2,4]T(1,0)").expert_share == 0
    merged = read(f"all-reduce(%x, %y), {groups}, to_apply=%add")
    assert merged.expert_share == pytest.approx(256 / 272)  # by the names of what it reduces
    assert not collectives.of_experts("jit(f)/attention_0/moenia")
    assert not collectives.of_experts("jit(f)/moe/optimization_barrier")  # a dense weight waits


def test_weights_of_experts_are_known_by_their_dimensions_over_other_axes():
    config = MoEConfig.tiny(num_experts=16, hidden_size=32, expert_ffn_hidden_size=6)
    known = collectives.weights_of_experts(config, MESH)
    assert {(4, 16, 2, 6), (4, 32, 2, 6), (4, 6, 16), (2, 4, 6, 32)} <= known

    def share(dims, groups, name="jit(f)/while/body/jit"):
        text = ENTRY.format(
            call=f"all-gather(%w), replica_groups={groups}, dimensions={{1}}, "
            f'metadata={{op_name="{name}"}}'
        ).replace("%y = f32[4]{0} constant({0,0,0,0})", f"%w = bf16[{dims}] parameter(1)")
        module = hlo.parse(text)
        return collectives.read(module.entry.root, module.entry, MESH, known).expert_share

    assert share("1,4,16,2,6", "[4,2]<=[2,4]T(1,0)") == 1  # over fsdp
    assert share("1,4,16,2,6", "[2,4]<=[8]") == 0  # over expert: dense weights of that size
    assert share("4,16,2,7", "[4,2]<=[2,4]T(1,0)") == 0


def test_no_collective_is_refused():
    with pytest.raises(ValueError, match="no collective"):
        read("negate(%x)")


def test_axes_of_a_program_compiled_here():
    mesh = make_mesh(fsdp=2, expert=4)

    def on_one_device(x):
        gathered = jax.lax.all_gather(x, "fsdp", axis=0, tiled=True)
        return jax.lax.all_to_all(gathered, "expert", 0, 0, tiled=True)

    spec = PartitionSpec(("fsdp", "expert"))
    function = jax.shard_map(
        on_one_device, mesh=mesh, in_specs=spec, out_specs=PartitionSpec("expert"), check_vma=False
    )
    x = jax.device_put(jnp.ones((64, 8)), jax.NamedSharding(mesh, spec))
    module = hlo.parse(jax.jit(function).lower(x).compile().as_text())
    found = [
        collectives.read(i, c, dict(mesh.shape))
        for c in module.computations.values()
        for i in c.instructions
        if collectives.kind_of(i.opcode)
    ]
    assert {(c.kind, c.axes) for c in found} == {
        ("all-gather", ("fsdp",)),
        ("all-to-all", ("expert",)),
    }
    assert {c.kind: c.sent_bytes for c in found} == {"all-gather": 256, "all-to-all": 384}
