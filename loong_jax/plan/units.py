"""Units in which a quantity can be read, whether of a pod or of a toy."""

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit that a table or a sentence keeps to."""

    name: str
    size: float  # in seconds, bytes or operations
    digits: int  # behind the point in a table

    def number(self, quantity: float, digits: int | None = None) -> str:
        """`quantity` in this unit, without its name."""
        return f"{quantity / self.size:.{self.digits if digits is None else digits}f}"

    def show(self, quantity: float, digits: int | None = None) -> str:
        return f"{self.number(quantity, digits)} {self.name}"


_TIME = (Unit("s", 1.0, 4), Unit("ms", 1e-3, 3), Unit("us", 1e-6, 2))
_SIZE = (Unit("GB", 1e9, 3), Unit("MB", 1e6, 3), Unit("KB", 1e3, 2))
_WORK = (Unit("TFLOP", 1e12, 2), Unit("GFLOP", 1e9, 2), Unit("MFLOP", 1e6, 2))


def of_time(largest_s: float) -> Unit:
    """The unit of durations up to this one: seconds from 10 ms on."""
    return _fitting(_TIME, 100 * largest_s)


def of_size(largest_bytes: float) -> Unit:
    """The unit of sizes up to this one: GB from 0.1 GB on."""
    return _fitting(_SIZE, 10 * largest_bytes)


def of_work(largest_flops: float) -> Unit:
    """The unit of operations up to this many: TFLOP from 0.01 TFLOP on."""
    return _fitting(_WORK, 100 * largest_flops)


def of_transfer_time(longest_s: float) -> Unit:
    """The unit of transfers of up to this duration: milliseconds from 0.1 ms on."""
    return _fitting((Unit("ms", 1e-3, 3), Unit("us", 1e-6, 2)), 10 * longest_s)


def of_transfer_size(largest_bytes: float) -> Unit:
    """The unit of transfers of up to this size: MB from 1 MB on."""
    return _fitting((Unit("MB", 1e6, 1), Unit("KB", 1e3, 1)), largest_bytes)


def _fitting(units: tuple[Unit, ...], quantity: float) -> Unit:
    """The largest unit of which there is one, the last where there is none; the first for none."""
    if quantity <= 0:
        return units[0]
    return next((unit for unit in units if quantity >= unit.size), units[-1])
