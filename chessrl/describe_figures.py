"""Figures of a data set, each from its table alone. Splits are the series: colours and markers by split, shares where sizes differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_RANKED = 40  # rows of a ranked figure; the table has all
_PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}%")
_WHOLE = FuncFormatter(lambda value, _: f"{value:,.0f}")


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the description under its file name, with what its numbers mean, and the figure drawn from it, if any."""

    name: str
    title: str
    table: pd.DataFrame
    draw: Callable[[pd.DataFrame], Figure] | None = None


@styled
def histogram_figure(table: pd.DataFrame, x_label: str, y_label: str) -> Figure:
    """Bins from ``low`` up to, not including, ``high``: bars of ``count`` for one split, outlines of ``share`` for several.

    table: split, low, high, count, share; of each split every bin of the range.
    """
    splits = list(dict.fromkeys(table["split"]))
    figure, (axes,) = _wide_axes(2.7)
    for split, colour in zip(splits, palette(len(splits))):
        rows = table[table["split"] == split]
        edges = [*rows["low"], rows["high"].iloc[-1]]
        values = rows["count"] if len(splits) == 1 else rows["share"]
        axes.stairs(values, edges, fill=len(splits) == 1, color=colour, linewidth=1.4, label=f"{split} (n = {rows['count'].sum():,})")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    _value_axis(axes, y_label, shares=len(splits) > 1)
    if len(splits) > 1:
        series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def bars_figure(table: pd.DataFrame, category: str, series: str, x_label: str, y_label: str) -> Figure:
    """Grouped bars of ``share`` per category, one colour per series; the order of both is the table's.

    table: ``category``, ``series``, share, count.
    """
    categories, names = (list(dict.fromkeys(table[column])) for column in (category, series))
    figure, (axes,) = _wide_axes(2.7)
    width = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, palette(len(names)))):
        rows = table[table[series] == name].set_index(category).reindex(categories)
        at = np.arange(len(categories)) + (number - (len(names) - 1) / 2) * width
        label = f"{name} (n = {int(rows['count'].sum()):,})" if series == "split" else str(name)
        axes.bar(at, rows["share"].fillna(0), width * 0.92, color=colour, label=label)
    axes.set_xticks(np.arange(len(categories)), [str(name) for name in categories])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label)
    _value_axis(axes, y_label, shares=True)
    if len(names) > 1:
        series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def ranked_figure(table: pd.DataFrame, category: str, x_label: str) -> Figure:
    """One row per category with a marker per split at its ``share``; the first MOST_RANKED categories in the table's order.

    table: ``category``, split, share, count.
    """
    categories = list(dict.fromkeys(table[category]))[:MOST_RANKED]
    splits = list(dict.fromkeys(table["split"]))
    figure, (axes,) = _wide_axes(0.9 + 0.17 * len(categories))
    for number, (split, colour) in enumerate(zip(splits, palette(len(splits)))):
        rows = table[table["split"] == split].set_index(category).reindex(categories)
        style = {"marker": MARKERS[number % len(MARKERS)], "s": 16, "color": colour, "zorder": 3, "clip_on": False}
        axes.scatter(rows["share"].fillna(0), np.arange(len(categories)), label=str(split), **style)
    axes.set_yticks(np.arange(len(categories)), categories)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.set_xlabel(x_label)
    if len(splits) > 1:
        series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


def _wide_axes(inches: float) -> tuple[Figure, list[Axes]]:
    figure, axes = axes_grid(1, 1, inches)
    figure.set_figwidth(WIDTH_INCHES)
    return figure, axes


def _value_axis(axes: Axes, label: str, shares: bool) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=not shares, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(_PERCENT if shares else _WHOLE)
    axes.set_ylabel(f"share of {label}" if shares else label)
