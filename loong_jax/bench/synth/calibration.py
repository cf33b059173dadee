"""How often ReSyn's calibration decides rightly, on planted solve rates, and its power curve."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loong_jax.report import theme


def png(result: Mapping[str, Any]) -> bytes:
    """PNG: left, P(kept) by the true fall; right, right decisions on planted curves, by size."""
    with theme.style(theme.LIGHT):
        figure, (left, right) = theme.new_figure(900, 350, 2)
        for i, (size, shares) in enumerate(result["kept_by_drop"].items()):
            left.plot(result["drops"], np.array(shares) * 100, color=theme.lag_color(i), label=size)
        left.axvline(result["rule"]["min_drop"], color=theme.LIGHT.muted, lw=1, ls=":")
        left.set(
            title="Kept, by the true fall", ylabel="environments kept, %",
            xlabel="solve rate at level 1 minus at level 5",
        )  # fmt: skip
        left.legend(title="attempts per level")
        for i, (name, shares) in enumerate(result["planted"].items()):
            values = [100 * share for share in shares.values()]
            right.plot(list(shares), values, marker="o", ms=4, color=f"C{i}", label=name)
        right.axhline(95, color=theme.LIGHT.muted, lw=1, ls=":")
        right.set(
            title="Right decisions on planted curves", xlabel="attempts per level",
            ylabel="decisions, %",
        )  # fmt: skip
        right.legend(fontsize=9)
        return theme.to_png(figure)
