"""The walk through schedules that are short enough to time by hand."""

import pytest

from loong_jax.plan import hlo
from loong_jax.plan.roofline import HBM_SHARE, PEAK_SHARE, Model, Segment, Walk
from loong_jax.plan.topology import CHIPS

CHIP = CHIPS["v5p"]
MESH = {"slice": 1, "data": 1, "fsdp": 1, "expert": 4, "tensor": 1, "context": 1}
LINK_S = 1e-3  # of every collective
DOT_S = 2 * 4096**3 / (CHIP.bf16_flops * PEAK_SHARE)  # 0.4 ms, bound by operations

SHORT = {
    "PAIR": "(bf16[4096,4096], bf16[4096,16384])",
    "TRIPLE": "(bf16[4096,4096], bf16[4096,4096], bf16[4096,16384])",
    "GATHERED": "all-gather(%p), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={1}, "
    'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}',
}


def spelled(text: str) -> str:
    """HLO of which long words are written out."""
    for word, meaning in SHORT.items():
        text = text.replace(word, meaning)
    return text


HEAD = spelled(
    """\
HloModule m, is_scheduled=true

%body (s: (s32[], bf16[4096,4096])) -> (s32[], bf16[4096,4096]) {
  %s = (s32[], bf16[4096,4096]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %w = bf16[4096,4096]{1,0} get-tuple-element(%s), index=1
  %d = bf16[4096,4096]{1,0} dot(%w, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = (s32[], bf16[4096,4096]{1,0}) tuple(%next, %d)
}

%condition (s: (s32[], bf16[4096,4096])) -> pred[] {
  %s = (s32[], bf16[4096,4096]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(7)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%cheap (s: bf16[4096,4096]) -> bf16[4096,4096] {
  ROOT %s = bf16[4096,4096]{1,0} parameter(0)
}

%dear (s: bf16[4096,4096]) -> bf16[4096,4096] {
  %s = bf16[4096,4096]{1,0} parameter(0)
  ROOT %d = bf16[4096,4096]{1,0} dot(%s, %s), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%exchange (x: bf16[4096,4096]) -> bf16[4096,4096] {
  %x = bf16[4096,4096]{1,0} parameter(0)
  ROOT %a = bf16[4096,4096]{1,0} all-to-all(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}, execution_thread="sparsecore"

%carried_start (p: bf16[4096,4096]) -> PAIR {
  %p = bf16[4096,4096]{1,0} parameter(0)
  %g = bf16[4096,16384]{1,0} GATHERED
  ROOT %c = PAIR custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%carried_step (p: bf16[4096,4096], q: bf16[4096,16384], y: bf16[4096,4096]) -> TRIPLE {
  %p = bf16[4096,4096]{1,0} parameter(0)
  %q = bf16[4096,16384]{1,0} parameter(1)
  %y = bf16[4096,4096]{1,0} parameter(2)
  %g = bf16[4096,16384]{1,0} GATHERED
  %d = bf16[4096,4096]{1,0} dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = TRIPLE tuple(%d, %p, %g)
}

%carried_end (p: bf16[4096,4096], q: bf16[4096,16384]) -> bf16[4096,16384] {
  %p = bf16[4096,4096]{1,0} parameter(0)
  %q = bf16[4096,16384]{1,0} parameter(1)
  %g = bf16[4096,16384]{1,0} GATHERED
  ROOT %c = bf16[4096,16384]{1,0} custom-call(%p, %q, %g), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: bf16[4096,4096]) -> bf16[4096,4096] {
  %x = bf16[4096,4096]{1,0:S(1)} parameter(0)
"""
)
DOT = "bf16[4096,4096]{1,0:S(1)} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
START = (
    "((bf16[4096,4096]), bf16[4096,4096]) all-to-all-start(%x), replica_groups={{0,1,2,3}}, "
    'metadata={op_name="jit(f)/moe/all_to_all"}'
)
GATHER = "bf16[4096,4096]{1,0:S(1)} all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}"


def walk(*lines: str) -> tuple[Segment, Walk]:
    module = hlo.parse(HEAD + spelled("".join(f"  {line}\n" for line in lines)) + "}\n")
    model = Model(CHIP, MESH, lambda collective: LINK_S)
    walked = Walk(module, model)
    return walked.entry(), walked


def done(name: str, start: str) -> str:
    return f"%{name} = bf16[4096,4096]{{1,0:S(1)}} all-to-all-done(%{start})"


def test_a_fusion_takes_the_longer_of_operations_and_traffic():
    segment, _ = walk(f"ROOT %a = {DOT}")
    assert segment.seconds == pytest.approx(DOT_S)
    assert segment.product_s == segment.compute_s == segment.seconds
    copy, _ = walk("ROOT %c = bf16[4096,4096]{1,0} copy(%x)")
    assert copy.seconds == pytest.approx(2 * 4096**2 / (CHIP.hbm_bandwidth * HBM_SHARE))
    assert copy.product_s == 0


def test_a_synchronous_collective_takes_its_whole_time():
    segment, _ = walk(f"%a = {DOT}", f"ROOT %g = {GATHER}")
    assert segment.seconds == pytest.approx(DOT_S + LINK_S)
    (row,) = segment.rows
    assert (row.is_asynchronous, row.exposed_s, row.collective.kind) == (
        False,
        LINK_S,
        "all-gather",
    )


def test_an_asynchronous_collective_takes_what_exceeds_its_window():
    few, _ = walk(f"%s = {START}", f"%a = {DOT}", done("e", "s"))
    assert few.seconds == pytest.approx(LINK_S)
    (row,) = few.rows
    assert row.exposed_s == pytest.approx(LINK_S - DOT_S)
    assert [work.name for work in row.inside] == ["a"]
    assert sum(work.flops for work in row.inside) == 2 * 4096**3
    assert row.collective.expert_share == 1
    many, _ = walk(f"%s = {START}", *(f"%a{i} = {DOT}" for i in range(4)), done("e", "s"))
    assert many.seconds == pytest.approx(4 * DOT_S)
    assert many.rows[0].exposed_s == 0
    late, _ = walk(f"%s = {START}", done("e", "s"), f"%a = {DOT}")
    assert late.seconds == pytest.approx(LINK_S + DOT_S)


def test_a_collective_that_fusions_carry_is_one_and_asynchronous():
    """As TPUs gather weights over few devices; what a step hands on is no traffic of its own."""
    segment, walked = walk(
        "%s = PAIR fusion(%x), kind=kCustom, calls=%carried_start",
        "%p = bf16[4096,4096] get-tuple-element(%s), index=0",
        "%q = bf16[4096,16384] get-tuple-element(%s), index=1",
        "%c = TRIPLE fusion(%p, %q, %x), kind=kOutput, calls=%carried_step",
        "ROOT %e = bf16[4096,16384] fusion(%p, %q), kind=kCustom, calls=%carried_end",
    )
    (row,) = segment.rows
    assert row.is_asynchronous
    assert row.collective.kind == "all-gather"
    assert [work.name for work in row.inside] == ["c"]
    assert row.exposed_s == pytest.approx(LINK_S - DOT_S)
    assert segment.seconds == pytest.approx(LINK_S)
    assert segment.cost.flops == 2 * 4096**3
    assert segment.cost.hbm_bytes == 2 * 4096**2  # what the product writes; %x is on the chip
    assert not walked.warnings


def test_link_time_is_not_used_twice():
    dots = [f"%a{i} = {DOT}" for i in range(4)]  # 1.6 ms of work for 2 ms of transfers
    both, _ = walk(f"%s = {START}", f"%t = {START}", *dots, done("e", "s"), done("f", "t"))
    assert both.seconds == pytest.approx(2 * LINK_S)
    assert [row.exposed_s for row in both.rows] == pytest.approx([0, 2 * LINK_S - 4 * DOT_S])
    blocked, _ = walk(f"%s = {START}", f"%g = {GATHER}", *dots[:2], done("e", "s"))
    assert blocked.seconds == pytest.approx(LINK_S + LINK_S)


def test_a_short_window_does_not_take_from_a_long_one():
    segment, _ = walk(
        f"%s = {START}",
        "%g = (bf16[1024,4096], bf16[4096,4096]) all-gather-start(%x), replica_groups={{0,1,2,3}}",
        f"%a = {DOT}",
        "%h = bf16[4096,4096]{1,0:S(1)} all-gather-done(%g)",
        *(f"%b{i} = {DOT}" for i in range(3)),
        done("e", "s"),
    )
    gather, exchange = segment.rows
    assert gather.exposed_s == pytest.approx(LINK_S - DOT_S)
    assert exchange.exposed_s == 0
    assert segment.seconds == pytest.approx(LINK_S + 3 * DOT_S)


def test_a_sparse_core_call_is_launched_by_its_update():
    segment, _ = walk(
        "%p = ((), (), s32[]) call-start(), to_apply=%exchange",
        f"%a = {DOT}",
        "%u = ((bf16[4096,4096]), bf16[4096,4096]) call-update(%p, %x)",
        f"%b = {DOT}",
        "ROOT %e = bf16[4096,4096]{1,0:S(1)} call-done(%u)",
    )
    (row,) = segment.rows
    assert [work.name for work in row.inside] == ["b"]
    assert segment.seconds == pytest.approx(DOT_S + LINK_S)


def test_between_slices_what_is_received_takes_time():
    segment, _ = walk(
        "%t = token[] after-all()",
        "%s = (bf16[4096,4096], u32[], token[]) send(%x, %t), channel_id=1",
        "%r = (bf16[4096,4096], u32[], token[]) recv(%t), channel_id=1",
        f"%a = {DOT}",
        "%d = (bf16[4096,4096]{1,0:S(1)}, token[]) recv-done(%r), channel_id=1",
        "%e = token[] send-done(%s), channel_id=1",
    )
    (row,) = segment.rows
    assert (row.collective.kind, row.collective.axes) == ("recv", ("slice",))
    assert row.collective.sent_bytes == 2 * 4096**2
    assert segment.seconds == pytest.approx(LINK_S)


LOOP = (
    "%w = bf16[4096,4096]{1,0} copy(%x)",
    "%z = s32[] constant(0)",
    "%t = (s32[], bf16[4096,4096]{1,0}) tuple(%z, %w)",
)


def test_loops_count_as_often_as_they_run():
    body = "(s32[], bf16[4096,4096]{1,0}) while(%t), condition=%condition, body=%body"
    segment, walked = walk(*LOOP, f"%l = {body}")
    assert segment.cost.flops == 7 * 2 * 4096**3
    assert [loop.trips for loop in segment.loops] == [7]
    assert walked.warnings == []
    known = ', backend_config={"known_trip_count":{"n":"3"}}'
    stated, _ = walk(*LOOP, f"%l = {body}{known}")
    assert stated.cost.flops == 3 * 2 * 4096**3


def test_a_window_reaches_over_a_loop():
    body = "(s32[], bf16[4096,4096]{1,0}) while(%t), condition=%condition, body=%body"
    segment, _ = walk(*LOOP, f"%s = {START}", f"%l = {body}", done("e", "s"))
    assert segment.rows[0].exposed_s == 0
    assert segment.rows[0].window_s == pytest.approx(7 * DOT_S, rel=0.01)


def test_of_a_branch_the_cheapest_side_counts():
    segment, _ = walk(
        "%p = s32[] constant(0)",
        "%b = bf16[4096,4096]{1,0} conditional(%p, %x, %x), branch_computations={%dear, %cheap}",
        f"ROOT %a = {DOT}",
    )
    assert segment.seconds == pytest.approx(DOT_S)


def test_what_has_to_be_guessed_is_said():
    _, walked = walk("%e = bf16[4096,4096]{1,0} all-to-all-done(%x)")
    assert "did not launch" in walked.warnings[0]
