"""How every figure of the project looks: its width, fonts, colours, grid of axes, legend, and how it is saved.

Figures are made without pyplot, so none is registered globally and none has to be closed; canvases are Agg and PDF.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import matplotlib
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_INCHES = 7.0  # text width of a two-column paper
DOTS_PER_INCH = 160
STYLE = {
    **seaborn.axes_style("ticks"),
    **seaborn.plotting_context("paper"),
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "lines.linewidth": 1.4,
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same figure on every machine
    "pdf.fonttype": 42,  # embedded TrueType, text stays text
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A drawing function that uses our style, whatever matplotlib's settings are."""

    @wraps(draw)
    def with_style(*arguments, **keywords) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*arguments, **keywords)

    return with_style


def palette(colours: int) -> list:
    """Colour-blind-safe for up to ten series, an ordered map beyond."""
    return seaborn.color_palette("colorblind", colours) if colours <= 10 else seaborn.color_palette("viridis", colours)


def axes_grid(panels: int, columns: int, row_inches: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, row by row, and their axes."""
    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH_INCHES * (0.62 if columns == 1 else 1.0), row_inches * rows), dpi=DOTS_PER_INCH, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def series_legend(figure: Figure, handles: Sequence, names: Sequence[str], place: str) -> None:
    """One legend for the whole figure, outside its axes; the figure grows by the legend's rows."""
    columns = max(1, min(len(names), 6, 108 // (max(len(name) for name in names) + 6)))
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(names) // columns))
    figure.legend(handles, names, loc=f"outside {place} center", ncols=columns)


def save_figure(figure: Figure, folder: Path, name: str) -> bytes:
    """Write name.png and name.pdf below `folder`, without dates so that equal input gives equal bytes; returns the PNG."""
    with matplotlib.rc_context(STYLE):
        png = folder / f"{name}.png"
        figure.savefig(png, format="png", dpi=DOTS_PER_INCH)
        figure.set_layout_engine("none")  # the PDF keeps the PNG's layout, which took a third of the time
        figure.savefig(folder / f"{name}.pdf", format="pdf", metadata={"CreationDate": None})
    return png.read_bytes()
