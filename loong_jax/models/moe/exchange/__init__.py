"""Three exchanges: dispatch of tokens to the experts of other devices, and combine of the outputs.

An expert group has P devices, and each of them N = T K choices of its own tokens. A row is a
dispatched token: its state, up to J choices among the experts of its destination, and their gates.
The destination multiplies gates in and sums the choices of a row, so rows come back weighted, and
the sender adds up the rows of each token.

With `dispatch_dtype` rows are dispatched in eight bits, each scaled to its largest value, and come
back, as do all gradients, in the dtype of activations.

Choices of zero-computation experts never become rows. Buffers have fixed sizes; rows that do not
fit wait for a later round, so no choice is ever lost. What is chosen here is done by `equal` and
`ragged`.
"""

import dataclasses
import math
from typing import Literal, TypeAlias

from loong_jax.errors import ConfigError, refuse_outside
from loong_jax.models.moe.exchange.buffers import round_up

# The dtype of dispatched rows; None for that of activations.
DispatchDtype: TypeAlias = Literal["float8_e4m3fn"] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherExchange:
    """An all-gather of the tokens of a group, and a reduce-scatter of the experts' outputs.

    Moves P - 1 rows per token each way whatever was chosen, so it suits groups of up to 8.
    """

    buffer_factor: float = 1.5  # room in the experts' products, in mean numbers of choices

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "buffer_factor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedExchange:
    """An all-to-all of equal buffers, the exchange that TPU compilers run beside other work.

    `choices_per_row` above 1 sends a token once for up to that many experts of one device: fewer
    bytes where groups are small, more room in the experts' products.
    """

    buffer_factor: float = 1.25  # of each pair's buffer, in mean numbers of rows
    choices_per_row: int = 1  # J
    dispatch_dtype: DispatchDtype = None

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "buffer_factor", "choices_per_row")
        _check_dtype(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaggedExchange:
    """An all-to-all of exactly the rows there are, into one buffer per device.

    CPU has no such collective and emulates it by an all-gather. tpu7x waits for one of eight-bit
    rows, where that of 16-bit rows is asynchronous (docs/measurements/plan.md).
    """

    buffer_factor: float = 1.25  # of the receiving buffer, in mean numbers of rows
    dispatch_dtype: DispatchDtype = None

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "buffer_factor")
        _check_dtype(self)


Exchange: TypeAlias = GatherExchange | PaddedExchange | RaggedExchange


def _check_dtype(exchange: PaddedExchange | RaggedExchange) -> None:
    if exchange.dispatch_dtype not in (None, "float8_e4m3fn"):
        raise ConfigError(
            f"dispatch_dtype={exchange.dispatch_dtype!r} is no dtype of dispatched rows: the "
            "numbers sent with them are exact in float8_e4m3fn alone. Use that, or None for the "
            "activations' dtype."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Static sizes of an exchange, of one device."""

    axes: tuple[str, ...]  # of the mesh, over which an expert group extends
    num_devices: int  # P, in an expert group
    num_tokens: int  # T, of one device
    num_chosen: int  # K
    num_local: int  # experts of one device
    mean_chosen: float  # experts with weights that a token meets
    width: int  # D
    platform: str

    @property
    def most_per_device(self) -> int:
        """Choices that a token can have among the experts of one device."""
        return min(self.num_chosen, self.num_local)

    def mean_rows(self, factor: float) -> int:
        """`factor` times the choices that a device's experts receive on average, in tiles of 16."""
        return round_up(math.ceil(factor * self.num_tokens * self.mean_chosen), 16)
