"""What charts are computed from, and that their SVG can live in a page."""

import numpy as np
import pytest

from loong_jax.report import charts, theme
from loong_jax.report.charts import Row, Series
from tests.report.test_overlap import decode, event


def test_moving_average_against_a_convolution():
    values = np.random.default_rng(0).normal(size=50)
    ones = np.ones(5)
    counts = np.convolve(np.ones(50), ones, "same")
    np.testing.assert_allclose(
        charts.smoothed(values, 5), np.convolve(values, ones, "same") / counts, rtol=1e-12
    )


def test_moving_average_skips_gaps():
    values = np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 5.0])
    smooth = charts.smoothed(values, 3)
    assert smooth[1] == 2.0
    assert np.isnan(smooth[4])


def test_limits_hold_every_interval():
    rows = [Row("SFT", 0.31, 0.28, 0.34, "before"), Row("x", 0.55, 0.52, 0.587, "own expert")]
    low, high = charts.fusion_limits({"stem": rows})
    assert (low, high > 58.7) == (20.0, True)
    assert charts.fusion_limits({}) == (0.0, pytest.approx(116))
    for value in (0.0, 1.0):  # an axis has a length where all are alike
        low, high = charts.fusion_limits({"stem": [Row("SFT", value, value, value, "before")]})
        assert low <= 100 * value < high
    assert charts.shared_limits([]) is None
    low, high = charts.shared_limits([[Series("a", [1, 2], [0.0, 1.0], "k")]])
    assert (low, high) == (-0.05, 1.05)


def test_metrics_over_steps_leave_out_what_was_not_written():
    lines = [
        {"step": 1, "clip": {"0": 0.1}},
        {"step": 2},
        {"step": 3, "clip": {"0": None, "10": 1}},
    ]
    assert charts.over_steps(lines, "clip", "0") == ([1.0], [0.1])
    assert charts.over_steps(lines, "absent") == ([], [])
    assert charts.keys_of([*lines, {"clip": {"2": 0}}], "clip") == ["0", "2", "10"]


def test_svg_is_inline_themed_and_repeatable():
    def draw():
        with theme.style():
            figure = charts.lines("a < b", [Series("x", [1.0, 2.0], [1.0, None], theme.PAGE.ink)])
            return theme.to_svg(figure, 'chart of "x"')

    svg = draw()
    assert svg == draw()
    assert svg.startswith('<svg role="img" aria-label="chart of &quot;x&quot;"')
    assert "var(--ink)" in svg
    assert not any(placeholder in svg for placeholder in theme.PAGE)
    assert 'id="figure' not in svg
    assert "a &lt; b" in svg
    assert "<?xml" not in svg


def test_every_domain_has_its_own_accent():
    colors = [theme.domain_color(domain) for domain in ("stem", "logic", "code")]
    assert len(set(colors)) == 3
    assert theme.domain_color("agentic") not in colors
    assert theme.lag_color(99) == theme.LAG_COLORS[-1]


def test_ticks_are_values_and_no_differences_from_an_offset():
    with theme.style():
        figure = charts.lines(
            "ratio", [Series("r", [1, 2, 3], [1.00001, 1.00002, 1.00003], "#3b82c4")]
        )
        (axes,) = figure.axes
        figure.draw_without_rendering()
    assert axes.yaxis.get_major_formatter().get_offset() == ""
    assert any("1.0000" in label.get_text() for label in axes.get_yticklabels())


def steps(count):
    return [event("train", 2.0 * s, 2.0 * s + 1, step=s) for s in range(count)]


def test_blocks_that_follow_each_other_are_joined():
    events = [
        decode(0, 0, 0.0, 1.0), decode(0, 0, 1.0, 2.0), decode(0, 1, 2.0, 3.0),
        decode(0, 1, 3.5, 4.0), decode(1, 0, 0.5, 1.5),
    ]  # fmt: skip
    joined = [(b["replica"], b["version"], b["start_s"], b["end_s"])
              for b in charts.merged_blocks(events)]  # fmt: skip
    assert joined == [(0, 0, 0.0, 2.0), (1, 0, 0.5, 1.5), (0, 1, 2.0, 3.0), (0, 1, 3.5, 4.0)]
    assert events[0]["end_s"] == 1.0  # the events themselves stay


def test_the_window_is_in_the_middle_and_bounded():
    assert charts.window(steps(20), num_steps=6) == (2.0 * 6 + 1, 2.0 * 12 + 1)
    start, end = charts.window(steps(20), num_steps=20, longest_s=10.0)
    assert end - start == 10.0
    assert charts.window([decode(0, 0, 1.0, 2.0)]) == (1.0, 2.0)
    assert charts.window([]) == (0.0, 0.0)


def test_lanes_and_idle_shares_are_written():
    with theme.style():
        figure = charts.timeline([decode(0, 3, 0.0, 8.0), decode(1, 4, 2.0, 6.0), *steps(4)], "t")
        svg = theme.to_svg(figure, "t")
    for text in ("replica 0", "replica 1", "trainer", "0 % idle", "50 % idle", ">3<"):
        assert text in svg
