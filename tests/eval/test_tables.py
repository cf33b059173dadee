"""Figures of an evaluation whose counts are known, and the tables made of them."""

import pytest
from rich.console import Console

from loong_jax.eval import tables
from loong_jax.eval.evaluation import DomainEvaluation
from tests.eval.test_metrics import enumerated

PART = DomainEvaluation(
    correct={"a": (0, 4), "b": (1, 4), "c": (4, 4), "d": (2, 3), "e": (0, 0)},
    well_formed=dict.fromkeys("abcde", 3),
    level={"a": 2, "b": 1, "c": 1, "d": 1, "e": 2},
    greedy={"a": 0, "b": 1},
    mean_length=7.4,
    num_ungradable=5,
)


def test_figures_are_those_of_counting():
    found = tables.figures(PART, (1, 2, 4))
    assert list(found) == ["mean@4", "pass@1", "pass@2", "pass@4", "greedy"]
    expected = {
        "mean@4": (0 + 1 / 4 + 1 + 2 / 3) / 4,
        "pass@2": (0 + float(enumerated(4, 1, 2)) + 1 + float(enumerated(3, 2, 2))) / 4,
        "pass@4": (0 + 1 + 1) / 3,  # d has three graded samples
        "greedy": 0.5,
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value), name
    assert tuple(found["pass@1"]) == pytest.approx(tuple(found["mean@4"]))
    assert (found["pass@4"].n, found["pass@2"].n) == (3, 4)


def test_levels_are_parts_of_the_whole():
    easy = tables.by_level(PART)[1]
    assert sorted(easy.correct) == ["b", "c", "d"]
    assert tables.figures(easy, (1,))["pass@1"].value == pytest.approx((1 / 4 + 1 + 2 / 3) / 3)
    record = tables.to_json({"stem": PART}, (2,))["stem"]
    assert sorted(record["by_level"]) == ["1", "2"]
    assert record["by_level"]["2"]["mean@4"]["value"] == 0.0
    assert record["correct_per_problem"]["d"] == [2, 3]
    assert record["pass@2"]["ci95"][0] <= record["pass@2"]["value"] <= record["pass@2"]["ci95"][1]


def test_the_table_has_a_row_for_every_level():
    console = Console(record=True, width=160)
    flat = DomainEvaluation(correct={"x": (1, 1)}, well_formed={"x": 1}, level={"x": 1})
    console.print(tables.overview({"stem": PART, "code": flat}, (1, 2)))
    text = console.export_text()
    rows = [line for line in text.splitlines() if line.startswith("│")]
    levels = [cell for row in rows if (cell := row.split("│")[2].strip())]
    assert levels == ["all", "1", "2", "all"]
    assert "47.9" in rows[0]
    assert rows[0].rstrip(" │").endswith("5")


def test_no_figure_is_cut_off_where_the_console_is_narrow():
    console = Console(record=True, width=40)
    tables.print_whole(console, tables.overview({"stem": PART}, (1, 2)))
    text = console.export_text()
    assert "…" not in text
    assert all(word in text for word in ("domain", "pass@2", "ungraded"))


def test_gains_are_paired_over_the_problems_of_both():
    """Against what `to_json` wrote; a problem without a graded sample is in neither."""
    before = {"stem": {"correct_per_problem": {"a": [2, 4], "b": [1, 4], "e": [1, 4], "z": [4, 4]}}}
    console = Console(record=True, width=100)
    console.print(tables.gains({"stem": PART, "code": PART}, before, "over start.json"))
    rows = [line.split() for line in console.export_text().splitlines() if "│" in line]
    (stem,) = (row for row in rows if "stem" in row)
    assert "2" in stem
    assert f"{100 * ((0 - 2 / 4) + (1 / 4 - 1 / 4)) / 2:+.1f}" in stem
    (code,) = (row for row in rows if "code" in row)
    assert {"0", "-"} <= set(code)
