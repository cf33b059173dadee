"""Units of what a plan prints."""

import pytest

from loong_jax.plan import figures


@pytest.mark.parametrize(
    ("unit", "quantity", "shown"),
    [
        (figures.of_time, 5.96, "5.9600 s"),
        (figures.of_time, 0.0312, "0.0312 s"),
        (figures.of_time, 0.004, "4.000 ms"),
        (figures.of_time, 4.2e-5, "0.042 ms"),
        (figures.of_time, 4.2e-6, "4.20 us"),
        (figures.of_time, 1e-9, "0.00 us"),
        (figures.of_size, 95.5e9, "95.500 GB"),
        (figures.of_size, 0.1e9, "0.100 GB"),
        (figures.of_size, 2.1e7, "21.000 MB"),
        (figures.of_size, 512.0, "0.51 KB"),
        (figures.of_work, 13.1e12, "13.10 TFLOP"),
        (figures.of_work, 5.3e8, "0.53 GFLOP"),
        (figures.of_work, 0.0, "0.00 TFLOP"),
    ],
)
def test_what_is_small_has_a_small_unit(unit, quantity, shown):
    assert unit(quantity).show(quantity) == shown


def test_a_table_keeps_to_the_unit_of_its_largest():
    unit = figures.of_time(0.5)
    assert [unit.number(s) for s in (0.5, 0.0001)] == ["0.5000", "0.0001"]
