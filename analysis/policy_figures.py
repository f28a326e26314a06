"""Figures of how policies changed: measures over checkpoints, families, categories, moved mass. A table in, a Figure out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.figures import MARKERS
from analysis.sharpening import CATEGORIES
from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled

CATEGORY_COLOURS = dict(zip(CATEGORIES, ["#029e73", "#0173b2", "#56b4e9", "#d55e00", "#de8f05", "#bdbdbd"]))


def _errors(rows: pd.DataFrame) -> np.ndarray:
    return np.nan_to_num(np.stack([rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]])).clip(min=0)


def _transition_axis(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(np.arange(len(names)), names, rotation=30, ha="right", fontsize=7)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="x", visible=False)


@styled
def measures_figure(table: pd.DataFrame, panels: dict[str, tuple[str, float | None]]) -> Figure:
    """One panel per measure (name -> label and the value of no change, if any), by transition; a colour per bin, "all" in black, 95 % intervals."""
    names, bins = list(dict.fromkeys(table["transition"])), list(dict.fromkeys(table["bin"]))
    colours = dict(zip(bins, ["black", *palette(max(1, len(bins) - 1))]))
    figure, grid = axes_grid(len(panels), min(2, len(panels)), 2.5)
    for axes, (measure, (label, neutral)) in zip(grid, panels.items()):
        if neutral is not None:
            axes.axhline(neutral, color="#444444", linewidth=0.8, linestyle=(0, (1, 1)))
        for number, bin in enumerate(bins):
            rows = table[(table["measure"] == measure) & (table["bin"] == bin)].set_index("transition").reindex(names)
            at = np.arange(len(names)) + (number - (len(bins) - 1) / 2) * 0.7 / len(bins)
            marker = MARKERS[number % len(MARKERS)]
            style = {"fmt": marker, "markersize": 3.6, "elinewidth": 0.9, "color": colours[bin], "linestyle": ""}
            axes.errorbar(at, rows["value"], yerr=_errors(rows), label="all puzzles" if bin == "all" else bin, **style)
        axes.set_ylabel(label)
        _transition_axis(axes, names)
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def families_figure(table: pd.DataFrame, measures: dict[str, str], label: str) -> Figure:
    """Bars of several measures (name -> legend) by transition, over all puzzles, with 95 % intervals."""
    names = list(dict.fromkeys(table["transition"]))
    figure, (axes,) = axes_grid(1, 1, 2.9)
    figure.set_figwidth(WIDTH_INCHES)
    width = 0.8 / len(measures)
    for number, ((measure, legend), colour) in enumerate(zip(measures.items(), palette(len(measures)))):
        rows = table[(table["measure"] == measure) & (table["bin"] == "all")].set_index("transition").reindex(names)
        at = np.arange(len(names)) + (number - (len(measures) - 1) / 2) * width
        axes.bar(at, rows["value"], width * 0.92, color=colour, label=legend, yerr=_errors(rows), error_kw={"elinewidth": 0.9, "capsize": 2})
    axes.set_ylabel(label)
    axes.set_axisbelow(True)
    _transition_axis(axes, names)
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def categories_figure(table: pd.DataFrame) -> Figure:
    """Shares of states by category as one stacked bar per bin, a panel per transition."""
    names, bins = list(dict.fromkeys(table["transition"])), list(dict.fromkeys(table["bin"]))
    figure, grid = axes_grid(len(names), min(2, len(names)), 0.8 + 0.24 * len(bins))
    for axes, name in zip(grid, names):
        wide = table[table["transition"] == name].pivot(index="bin", columns="category", values="value").loc[bins]
        left = np.zeros(len(bins))
        labels = ["all puzzles" if bin == "all" else bin for bin in bins]
        for category in CATEGORIES:
            share = wide[category].to_numpy()
            axes.barh(labels, share, left=left, height=0.72, color=CATEGORY_COLOURS[category], label=category)
            left += share
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("share of decisions")
        axes.set_title(name)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def redistribution_figure(table: pd.DataFrame) -> Figure:
    """Mass after by initial (rows) and final rank (columns), a heat map per transition on one colour scale."""
    names, ranks = list(dict.fromkeys(table["transition"])), list(dict.fromkeys(table["initial_rank"]))
    columns = min(3, len(names))
    figure, grid = axes_grid(len(names), columns, 2.5 if columns > 1 else 3.4)
    norm = PowerNorm(0.5, 0, table["value"].max())
    for place, (axes, name) in enumerate(zip(grid, names)):
        cells = table[table["transition"] == name].pivot(index="initial_rank", columns="final_rank", values="value").loc[ranks, ranks]
        image = axes.imshow(cells.to_numpy(), norm=norm, cmap="viridis", aspect="equal")
        shown = np.arange(0, len(ranks), 1 if columns == 1 else 2)
        axes.set_xticks(shown, [ranks[at] for at in shown], fontsize=7)
        axes.set_yticks(shown, [ranks[at] for at in shown], fontsize=7)
        axes.grid(visible=False)
        axes.set_title(name)
        axes.set_xlabel("final rank")
        if place % columns == 0:
            axes.set_ylabel("initial rank")
    figure.colorbar(image, ax=grid, label="mean probability after", shrink=0.8, format=PercentFormatter(1, decimals=0))
    return figure


@styled
def mass_figure(table: pd.DataFrame, key: str, label: str) -> Figure:
    """Mean mass before and after by ``key``, over all puzzles, a panel per transition, with 95 % intervals."""
    rows = table[table["bin"] == "all"]
    names, places = list(dict.fromkeys(rows["transition"])), list(dict.fromkeys(rows[key]))
    figure, grid = axes_grid(len(names), min(3, len(names)), 2.3)
    highest = rows[rows["mass"] != "change"]["ci_high"].fillna(rows["value"]).max()
    for place, (axes, name) in enumerate(zip(grid, names)):
        for number, (when, colour) in enumerate(zip(("before", "after"), seaborn.color_palette("colorblind", 2))):
            of_one = rows[(rows["transition"] == name) & (rows["mass"] == when)].set_index(key).reindex(places)
            at = np.arange(len(places)) + (number - 0.5) * 0.4
            axes.bar(at, of_one["value"], 0.38, color=colour, label=when, yerr=_errors(of_one), error_kw={"elinewidth": 0.8})
        axes.set_xticks(np.arange(len(places)), places, fontsize=7, rotation=45 if max(map(len, places)) > 4 else 0)
        axes.set_ylim(0, highest * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(axis="x", visible=False)
        axes.set_axisbelow(True)
        axes.set_title(name)
        axes.set_xlabel(label)
        if place % min(3, len(names)) == 0:
            axes.set_ylabel("mean probability")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure
