"""The style of a report's charts, and figures as SVG that follows the page's theme.

Charts are drawn with placeholder colours for ink, muted text and rules. In a page those become CSS
variables, so one SVG serves light and dark; in a PNG they become the light colours.
"""

import html
import io
import re
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure


class Palette(NamedTuple):
    ink: str
    muted: str
    rule: str
    paper: str


PAGE = Palette("#010203", "#040506", "#070809", "#0a0b0c")  # placeholders for CSS variables
LIGHT = Palette("#1b1f24", "#656d76", "#d8dee4", "#ffffff")

# One accent per domain, everywhere. Distinct for common colour blindness, readable on both themes.
DOMAIN_COLORS = {"stem": "#3b82c4", "logic": "#d97a1f", "code": "#2f9e73"}
OTHER_COLORS = ("#9467bd", "#c44e80", "#8c8c3b")
LAG_COLORS = ("#8a99ad", "#8e6cc9", "#c8509b", "#e0524a", "#a33b20")  # staleness 0, 1, 2, ...


def domain_color(domain: str) -> str:
    """The accent of a domain; unknown domains share a few others."""
    if domain in DOMAIN_COLORS:
        return DOMAIN_COLORS[domain]
    return OTHER_COLORS[sum(domain.encode()) % len(OTHER_COLORS)]


def lag_color(lag: int) -> str:
    return LAG_COLORS[min(lag, len(LAG_COLORS) - 1)]


def css_color(color: str) -> str:
    """A colour as CSS: placeholders become the page's variables."""
    names = {placeholder: name for name, placeholder in PAGE._asdict().items()}
    return f"var(--{names[color]})" if color in names else color


def style(palette: Palette = PAGE):
    """Context in which figures must be made and saved."""
    return matplotlib.rc_context(_settings(palette))


def new_figure(width: int, height: int, columns: int = 1, **kwargs) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` CSS pixels, `columns` axes in a row; use inside `style`."""
    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.subplots(1, columns, squeeze=False, **kwargs)
    return figure, list(axes[0])


def to_svg(figure: Figure, label: str) -> str:
    """An inline `<svg>` without outside references; `label` says what it shows, for screen readers.

    The same figure gives the same text, byte for byte.
    """
    stream = io.StringIO()
    with matplotlib.rc_context({**_settings(PAGE), "svg.hashsalt": label}):
        figure.savefig(
            stream,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick|legend|'
                 r'PathCollection|LineCollection|PolyCollection|FillBetweenPolyCollection|'
                 r'QuadMesh)[\w.]*"', "", svg)  # fmt: skip
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", svg)
    head = re.match(r'<svg[^>]*?width="([\d.]+)pt"[^>]*>', svg)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert head, "matplotlib wrote an SVG of another form"
    assert box, "matplotlib wrote an SVG of another form"
    opening = (
        f'<svg role="img" aria-label="{html.escape(label)}" viewBox="{box[1]}" '
        f'style="max-width:{float(head[1]):.0f}px" xmlns="http://www.w3.org/2000/svg" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    svg = opening + svg[svg.index(">") + 1 :]
    for placeholder in PAGE:
        svg = svg.replace(placeholder, css_color(placeholder))
    return svg.strip()


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """A picture of a figure that was drawn under `style(LIGHT)`."""
    stream = io.BytesIO()
    with style(LIGHT):
        figure.savefig(stream, format="png", dpi=dpi, facecolor=LIGHT.paper)
    return stream.getvalue()


def _settings(palette: Palette) -> Any:  # names of settings are literals to a type checker
    return {
        "font.family": "DejaVu Sans",
        "font.size": 12,
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 8,
        "axes.labelsize": 11.5,
        "axes.labelcolor": palette.muted,
        "axes.titlecolor": palette.ink,
        "axes.edgecolor": palette.rule,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,  # every label is a value, not a difference from "+1"
        "grid.color": palette.rule,
        "grid.linewidth": 0.7,
        "text.color": palette.ink,
        "xtick.color": palette.rule,
        "ytick.color": palette.rule,
        "xtick.labelcolor": palette.muted,
        "ytick.labelcolor": palette.muted,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "ytick.left": False,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 11,
        "legend.handlelength": 1.3,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "figure.constrained_layout.use": True,
        "svg.fonttype": "none",
    }
