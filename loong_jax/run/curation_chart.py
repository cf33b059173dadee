"""The funnel of a curation as a picture."""

from pathlib import Path

from loong_jax.data.curation.chain import Funnel
from loong_jax.report import theme
from loong_jax.report.theme import LIGHT


def write_png(path: Path, counts: Funnel) -> None:
    """One bar a stage: kept, and beside it what it dropped."""
    names = [stage.name.replace("_", " ") for stage in counts.stages]
    kept = [stage.num_kept for stage in counts.stages]
    dropped = [stage.num_seen - stage.num_kept for stage in counts.stages]
    with theme.style(LIGHT):
        figure, (axes,) = theme.new_figure(900, 80 + 34 * len(names))
        axes.barh(names, kept, color=theme.DOMAIN_COLORS["stem"], height=0.7, label="kept")
        axes.barh(
            names, dropped, left=kept, color=theme.DOMAIN_COLORS["logic"], height=0.7,
            label="dropped here",
        )  # fmt: skip
        for place, stage in enumerate(counts.stages):
            text = f"{stage.num_kept:,}"
            if stage.reasons:
                text += f"   ({stage.shown_reasons})"
            axes.annotate(text, (stage.num_seen, place), (5, 0), textcoords="offset points",
                          va="center", fontsize=8)  # fmt: skip
        axes.invert_yaxis()
        axes.set_xlim(0, 1.9 * max(1, counts.num_records))
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.set_title(f"{counts.num_kept:,} of {counts.num_records:,} records kept")
        axes.legend(fontsize=8, frameon=False, loc="lower right")
        path.write_bytes(theme.to_png(figure))
