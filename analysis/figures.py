"""One figure per function: a table in, a matplotlib Figure out. Nothing is computed here that its table does not hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter, ScalarFormatter

from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled
from chessrl.statistics import FAILURES

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
FEW_POINTS = 40  # curves of fewer points show where they were measured


@dataclass(frozen=True, slots=True)
class Panel:
    """One axes of a curves figure: its y label with the unit, metric -> name in the legend, and whether the y axis starts at 0."""

    label: str
    metrics: dict[str, str]
    from_zero: bool = False


def _legend_above(axes: Axes, handles: list | None = None) -> None:
    place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0.2}
    axes.legend(handles=handles, ncols=2, columnspacing=0.8, handletextpad=0.4, **place)


def drawable(table: pd.DataFrame, panels: Sequence[Panel]) -> list[Panel]:
    """The panels with at least one logged metric, without the metrics that were not logged."""
    logged = set(table["metric"])
    present = [replace(panel, metrics={metric: name for metric, name in panel.metrics.items() if metric in logged}) for panel in panels]
    return [panel for panel in present if panel.metrics]


@styled
def curves_figure(table: pd.DataFrame, panels: Sequence[Panel], x: str) -> Figure:
    """Metrics over `x` ("step" or "tokens") from a `curves_table`; the running mean over the pale logged values.

    One run: a colour per metric. Several: a colour per run, a dash pattern per metric.
    """
    policies = list(dict.fromkeys(table["policy"]))
    figure, grid = axes_grid(len(panels), min(3, len(panels)), 2.35)
    for axes, panel in zip(grid, panels):
        colours = palette(len(policies) if len(policies) > 1 else len(panel.metrics))
        for place, (metric, name) in enumerate(panel.metrics.items()):
            for number, policy in enumerate(policies):
                curve = table[(table["policy"] == policy) & (table["metric"] == metric)]
                colour = colours[number if len(policies) > 1 else place]
                dash = DASHES[place % len(DASHES)] if len(policies) > 1 else "-"
                _draw_curve(axes, curve[x], curve, colour, dash, name, marker="o" if metric.startswith("validation/") else None)
        axes.set_ylabel(panel.label.replace(" (", "\n("))
        if panel.from_zero:
            axes.set_ylim(bottom=min(0.0, table[table["metric"].isin(list(panel.metrics))]["value"].min()))  # a reward may be negative
        axes.set_xlabel("training tokens" if x == "tokens" else "step")
        if x == "tokens":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if len(panel.metrics) > 1:
            names = enumerate(panel.metrics.values())
            black = [Line2D([], [], color="black", linestyle=DASHES[place % len(DASHES)], label=name) for place, name in names]
            _legend_above(axes, black if len(policies) > 1 else None)
    if len(policies) > 1:
        lines = [Line2D([], [], color=colour) for colour in palette(len(policies))]
        series_legend(figure, lines, policies, "lower")
    return figure


def _draw_curve(axes: Axes, x: pd.Series, curve: pd.DataFrame, colour, dash, name: str, marker: str | None) -> None:
    if not curve["value"].equals(curve["smoothed"]):
        axes.plot(x, curve["value"], color=colour, alpha=0.25, linewidth=0.7)
    shown = marker if len(curve) <= FEW_POINTS else None
    # Above the axes' frame: a curve that is 0 throughout lies on it where the axis starts at 0.
    over_frame = {"clip_on": False, "zorder": 3}
    axes.plot(x, curve["smoothed"], color=colour, linestyle=dash, label=name, marker=shown, markersize=3.5, **over_frame)


@styled
def passk_figure(table: pd.DataFrame) -> Figure:
    """pass@k over k (log2 axis) with 95 % bands: all puzzles first, then one panel per bin; one line per policy."""
    bins, policies = list(dict.fromkeys(table["bin"])), list(dict.fromkeys(table["policy"]))
    colours = palette(len(policies))
    figure, grid = axes_grid(len(bins), min(4, len(bins)), 2.0)
    for axes, name in zip(grid, bins):
        for number, policy in enumerate(policies):
            curve = table[(table["bin"] == name) & (table["policy"] == policy)].sort_values("k")
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(curve["k"], curve["pass_at_k"], color=colours[number], marker=marker, markersize=3.5, label=policy)
            axes.fill_between(curve["k"], curve["ci_low"], curve["ci_high"], color=colours[number], alpha=0.2, linewidth=0)
        ks = sorted(table["k"].unique())
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks[:: max(1, -(-len(ks) // 5))])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()
        _percent_axis(axes, table["ci_high"].max())
        axes.set_title(_bin_title(table, name))
        axes.set_xlabel("samples k")
    for axes in grid[:: min(4, len(bins))]:
        axes.set_ylabel("pass@k")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def thinking_figure(table: pd.DataFrame) -> Figure:
    """pass@k over the mean number of thinking tokens with 95 % bands: one line per k, one panel per way of thinking."""
    protocols, ks = list(dict.fromkeys(table["protocol"])), sorted(table["k"].unique())
    colours = palette(len(ks))
    figure, grid = axes_grid(len(protocols), min(3, len(protocols)), 2.6)
    for axes, protocol in zip(grid, protocols):
        for number, k in enumerate(ks):
            curve = table[(table["protocol"] == protocol) & (table["k"] == k)]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(curve["thinking_tokens"], curve["pass_at_k"], color=colours[number], marker=marker, markersize=3.5, label=f"k = {k}")
            axes.fill_between(curve["thinking_tokens"], curve["ci_low"], curve["ci_high"], color=colours[number], alpha=0.2, linewidth=0)
        _percent_axis(axes, table["ci_high"].max())
        axes.set_title(protocol)
        axes.set_xlabel("thinking tokens (mean)")
    grid[0].set_ylabel("pass@k")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


def _bin_title(table: pd.DataFrame, name: str) -> str:
    puzzles = table[table["bin"] == name]["n_puzzles"].max()
    return f"{'all puzzles' if name == 'all' else name} (n = {puzzles:,})"


def _percent_axis(axes: Axes, highest: float) -> None:
    """From 0 to a little above the highest interval (at least 5 %, at most 100 %), so that weak policies stay readable."""
    top = min(1.0, max(0.05, 1.05 * highest))
    axes.set_ylim(0, top * 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


@styled
def bars_figure(table: pd.DataFrame, value: str, label: str, group: str) -> Figure:
    """Grouped bars per bin ("all" set apart on the left), one colour per `group` value, with 95 % intervals.

    table: bin, `group`, `value`, ci_low, ci_high.
    """
    bins, groups = list(dict.fromkeys(table["bin"])), list(dict.fromkeys(table[group]))
    figure, (axes,) = axes_grid(1, 1, 2.9)
    figure.set_figwidth(WIDTH_INCHES)
    places = np.arange(len(bins), dtype=float) + np.array([0.0 if name == "all" else 0.3 for name in bins])
    width = 0.8 / len(groups)
    for number, (name, colour) in enumerate(zip(groups, palette(len(groups)))):
        rows = table[table[group] == name].set_index("bin").reindex(bins)
        at = places + (number - (len(groups) - 1) / 2) * width
        errors = np.stack([rows[value] - rows["ci_low"], rows["ci_high"] - rows[value]]).clip(min=0)
        error_style = {"elinewidth": 0.9, "ecolor": "#333333", "capsize": min(2.5, 14 * width)}
        axes.bar(at, rows[value], width * 0.92, color=colour, label=name, yerr=errors, error_kw=error_style)
    axes.set_xticks(places, ["all puzzles" if name == "all" else name for name in bins])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.set_axisbelow(True)
    _percent_axis(axes, table["ci_high"].max())
    axes.set_ylabel(label)
    axes.set_xlabel("difficulty bin")
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def failures_figure(table: pd.DataFrame) -> Figure:
    """Outcomes of all samples as one stacked bar per policy, from a `failures_table`."""
    policies = list(dict.fromkeys(table["policy"]))
    wide = table.pivot(index="policy", columns="outcome", values="share").loc[policies]
    outcomes = [name for name in ("solved", *FAILURES) if name in wide]
    colours = dict(zip(("solved", *FAILURES), ["#029e73", "#bdbdbd", "#d55e00", "#cc78bc", "#0173b2", "#ece133"]))
    figure, (axes,) = axes_grid(1, 1, 1.1 + 0.42 * len(policies))
    figure.set_figwidth(WIDTH_INCHES)
    left = np.zeros(len(policies))
    for outcome in outcomes:
        share = wide[outcome].to_numpy()
        bars = axes.barh(policies, share, left=left, height=0.68, color=colours[outcome], label=outcome.replace("_", " "))
        texts = [f"{100 * part:.0f}%" if part >= 0.05 else "" for part in share]
        dark = outcome in ("solved", "illegal", "unclosed")
        axes.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if dark else "black")
        left += share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("share of samples")
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def comparisons_figure(table: pd.DataFrame, ks: Sequence[int]) -> Figure:
    """Paired differences per bin with 95 % intervals, one panel per pair of policies, one marker per k of `ks`."""
    pairs = list(table[["a", "b"]].drop_duplicates().itertuples(index=False, name=None))
    bins = list(dict.fromkeys(table["bin"]))
    figure, grid = axes_grid(len(pairs), min(3, len(pairs)), 1.1 + 0.3 * len(bins))
    colours = palette(len(ks))
    for axes, (a, b) in zip(grid, pairs):
        axes.axvline(0, color="#444444", linewidth=0.8)
        for number, k in enumerate(ks):
            rows = table[(table["a"] == a) & (table["b"] == b) & (table["k"] == k)].set_index("bin").reindex(bins)
            at = np.arange(len(bins)) + (number - (len(ks) - 1) / 2) * 0.22
            errors = np.stack([rows["difference"] - rows["ci_low"], rows["ci_high"] - rows["difference"]]).clip(min=0)
            style = {"fmt": MARKERS[number], "markersize": 3.8, "elinewidth": 1.1, "color": colours[number]}
            axes.errorbar(rows["difference"], at, xerr=errors, label=f"k = {k}", **style)
        axes.set_yticks(np.arange(len(bins)), bins)
        axes.set_ylim(len(bins) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
        axes.set_title(f"{b}{chr(10) if len(a) + len(b) > 24 else ' '}− {a}")
        axes.set_xlabel("difference of pass@k (points)")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure
