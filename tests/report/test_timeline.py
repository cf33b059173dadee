"""Which window is shown, and how blocks are joined."""

from loong_jax.report import theme, timeline


def decode(version, start, end, replica=0):
    return {"kind": "decode", "replica": replica, "version": version, "start_s": start,
            "end_s": end, "num_tokens": 1}  # fmt: skip


def steps(count):
    return [
        {"kind": "train", "step": s, "start_s": 2.0 * s, "end_s": 2.0 * s + 1} for s in range(count)
    ]


def test_blocks_that_follow_each_other_are_joined():
    events = [
        decode(0, 0.0, 1.0), decode(0, 1.0, 2.0), decode(1, 2.0, 3.0), decode(1, 3.5, 4.0),
        decode(0, 0.5, 1.5, replica=1),
    ]  # fmt: skip
    joined = [(b["replica"], b["version"], b["start_s"], b["end_s"])
              for b in timeline.merged_blocks(events)]  # fmt: skip
    assert joined == [(0, 0, 0.0, 2.0), (1, 0, 0.5, 1.5), (0, 1, 2.0, 3.0), (0, 1, 3.5, 4.0)]
    assert events[0]["end_s"] == 1.0  # the events themselves stay


def test_the_window_is_in_the_middle_and_bounded():
    assert timeline.window(steps(20), num_steps=6) == (2.0 * 6 + 1, 2.0 * 12 + 1)
    start, end = timeline.window(steps(20), num_steps=20, longest_s=10.0)
    assert end - start == 10.0
    assert timeline.window([decode(0, 1.0, 2.0)]) == (1.0, 2.0)
    assert timeline.window([]) == (0.0, 0.0)


def test_lanes_and_idle_shares_are_written():
    with theme.style():
        figure = timeline.timeline([decode(3, 0.0, 8.0), decode(4, 2.0, 6.0, 1), *steps(4)], "t")
        svg = theme.to_svg(figure, "t")
    for text in ("replica 0", "replica 1", "trainer", "0 % idle", "50 % idle", ">3<"):
        assert text in svg
