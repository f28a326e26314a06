"""Reports of tabular runs (``python -m rl.tabular``): what the run directory's table holds, drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.figures import DASHES, MARKERS
from analysis.sections import Section
from chessrl.errors import UserError
from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled

NETWORK = ", network"  # ends the name of a variant whose inner maximisations moved a network
VARIANTS = {  # of the success recursion, in the figure's order, each of tables and then of a network
    "std": "divided by the std,\nKL to the start",
    "groups": "groups of G samples",
    "no_std": "no std",
    "mirror": "KL to the\nprevious policy",
    "forward_kl": "forward KL (k3)",
}
Z_95 = 1.96


def is_tabular(run: Path) -> bool:
    """Whether a run directory is a tabular run's, by its summary."""
    summary = run / "summary.json"
    return run.name.startswith("tabular-") and summary.is_file()


def tabular_sections(runs: Sequence[Path]) -> list[Section]:
    """The sections of each run, in the given order. Raises UserError naming the run and the file that is missing."""
    studies = {"train": _train_sections, "clip_bias": _clip_sections, "success_recursion": _recursion_sections}
    sections = []
    for number, run in enumerate(runs):
        summary = json.loads((run / "summary.json").read_text())
        table = run / summary["table"]
        if not table.is_file():
            raise UserError(f"{table}: the file is missing; run python -m rl.tabular again, or leave the run out of runs=")
        suffix = f"_{number + 1}" if len(runs) > 1 else ""
        left_out = ", ".join(f"{reason}: {count:,}" for reason, count in summary["left_out"].items())
        notes = (f"{summary['puzzles']:,} puzzles." + (f" Left out: {left_out}." if left_out else ""),)
        sections += studies[summary["study"]](run, pd.read_csv(table), suffix, notes)
    return sections


# ---- one run ----------------------------------------------------------------------------------------------------------------------------


def _train_sections(run: Path, table: pd.DataFrame, suffix: str, notes: tuple[str, ...]) -> list[Section]:
    measured = pd.DataFrame([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    measured = measured.drop(columns=["tokens", "loss_tokens", "flops", "flops_with_attention"])
    return [
        Section(
            f"tabular_success{suffix}", "Success by tier of the start policy",
            "Mean probability of a solving move over the puzzles of each tier: as it came out (solid), and along the expected gradient (dashed, "
            "where one update follows each rollout). What they differ by is the noise of finite groups, and the extinction of moves that it "
            "stops sampling.",
            "success.csv", table, success_figure(table), notes,
        ),
        Section(
            f"tabular_measures{suffix}", "Exact pass@k, entropy and divergence",
            "pass@k = 1 − (1 − p)^k of every puzzle, averaged; entropy, the likeliest move's probability and both KL divergences to the start "
            "policy, in nats, averaged over puzzles.",
            "metrics.jsonl", measured, passk_steps_figure(measured), notes,
        ),
    ]  # fmt: skip


@styled
def success_figure(table: pd.DataFrame) -> Figure:
    """Success over steps, one colour per group of puzzles; dashed: predicted."""
    groups = list(dict.fromkeys(table["group"]))
    figure, (axes,) = axes_grid(1, 1, 2.9)
    figure.set_figwidth(WIDTH_INCHES)  # five names stand in the legend
    for colour, group in zip(palette(len(groups)), groups):
        rows = table[table["group"] == group]
        axes.plot(rows["step"], rows["measured"], color=colour)
        axes.plot(rows["step"], rows["predicted"], color=colour, linestyle=DASHES[1], linewidth=1.0)
    axes.set_xlabel("step")
    axes.set_ylabel("success probability")
    axes.set_ylim(-0.02, 1.02)
    sizes = table.drop_duplicates("group").set_index("group")["puzzles"]
    lines = [Line2D([], [], color=colour) for colour in palette(len(groups))]
    series_legend(figure, lines, [f"{group} (n = {sizes[group]:,})" for group in groups], "upper")
    return figure


@styled
def passk_steps_figure(measured: pd.DataFrame) -> Figure:
    """pass@k over k at the start, in the middle and at the end."""
    ks = sorted(int(name.removeprefix("pass_at_")) for name in measured.columns if name.startswith("pass_at_"))
    figure, (axes,) = axes_grid(1, 1, 2.9)
    steps = [0, len(measured) // 2, len(measured) - 1]
    for colour, marker, place in zip(palette(len(steps)), MARKERS, steps):
        row = measured.iloc[place]
        axes.plot(ks, [row[f"pass_at_{k}"] for k in ks], color=colour, marker=marker, markersize=3.5, label=f"step {int(row['step'])}")
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("samples k")
    axes.set_ylabel("pass@k (exact)")
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


# ---- clip bias --------------------------------------------------------------------------------------------------------------------------


def _clip_sections(run: Path, table: pd.DataFrame, suffix: str, notes: tuple[str, ...]) -> list[Section]:
    clipped = table[table["clip"].notna()]
    shown = []
    for (updates, rate), cells in clipped.groupby(["updates", "lr"]):
        if _beyond_noise(cells, 1) or _beyond_noise(cells, -1):
            shown.append(cells)
        else:
            size = "is exactly 0 throughout" if not cells["top_clip_effect"].any() else "is nowhere beyond its interval"
            notes += (f"M = {updates}, lr = {rate:g}: the effect {size}, so it has no panel.",)
    active = pd.concat(shown) if shown else clipped.iloc[:0]
    return [
        Section(
            f"clip_bias{suffix}", "What clipping does under random reward",
            "Change of the likeliest move's probability after all rollouts with the clip, less that without it, paired by seed (the first rollout "
            "draws the same samples), means with 95 % intervals. The reward is random. Dotted: 1 / (1 + eps), from where on the window's upper "
            "edge cannot be reached. Predicted: nothing at M = 1, where the policy is the sampler; else up where the policy is peaked.",
            "clip_bias.csv", table, clip_figure(active) if len(active) else None, notes + sign_changes(active),
        )
    ]  # fmt: skip


def _beyond_noise(cells: pd.DataFrame, sign: int) -> bool:
    """Whether some cell's effect has this sign beyond its 95 % interval."""
    return bool((sign * cells["top_clip_effect"] > Z_95 * cells["top_clip_effect_se"]).any())


def sign_changes(clipped: pd.DataFrame) -> tuple[str, ...]:
    """The top probability at which the clip's effect turns from below to above 0, by linear interpolation.

    For every (M, lr, eps) with effects of both signs beyond their intervals.
    """
    found = []
    for (updates, rate, clip), rows in clipped.groupby(["updates", "lr", "clip"]):
        if not (_beyond_noise(rows, 1) and _beyond_noise(rows, -1)):
            continue
        rows = rows.sort_values("top_probability")
        x, y = rows["top_probability"].to_numpy(), rows["top_clip_effect"].to_numpy()
        turns = np.flatnonzero((y[:-1] < 0) & (y[1:] > 0))
        places = ", ".join(f"{x[at] - y[at] * (x[at + 1] - x[at]) / (y[at + 1] - y[at]):.2f}" for at in turns)
        if places:
            found.append(f"M = {updates}, lr = {rate:g}, eps = {clip:g}: {places} (1 / (1 + eps) = {1 / (1 + clip):.2f})")
    return ("The effect turns from negative to positive at: " + "; ".join(found) + ".",) if found else ()


@styled
def clip_figure(clipped: pd.DataFrame) -> Figure:
    """The clip's paired effect over the start's top probability; a panel per (M, lr), a colour per eps."""
    cells = list(clipped[["updates", "lr"]].drop_duplicates().itertuples(index=False, name=None))
    clips = sorted(clipped["clip"].unique())
    figure, grid = axes_grid(len(cells), min(2, len(cells)), 2.3)
    for axes, (updates, rate) in zip(grid, cells):
        axes.axhline(0, color="#444444", linewidth=0.8)
        for colour, marker, clip in zip(palette(len(clips)), MARKERS, clips):
            rows = clipped[(clipped["updates"] == updates) & (clipped["lr"] == rate) & (clipped["clip"] == clip)]
            style = {"color": colour, "marker": marker, "markersize": 3.5, "elinewidth": 0.9, "label": f"eps = {clip:g}"}
            axes.errorbar(rows["top_probability"], rows["top_clip_effect"], yerr=Z_95 * rows["top_clip_effect_se"], **style)
            axes.axvline(1 / (1 + clip), color=colour, linestyle=":", linewidth=0.9)
        axes.set_title(f"M = {updates} updates per rollout, lr = {rate:g}")
        axes.set_xlabel("likeliest move's probability at the start")
    for axes in grid[:: min(2, len(cells))]:
        axes.set_ylabel("clip's effect on it")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


# ---- success recursion ------------------------------------------------------------------------------------------------------------------


def _recursion_sections(run: Path, table: pd.DataFrame, suffix: str, notes: tuple[str, ...]) -> list[Section]:
    return [
        Section(
            f"success_recursion{suffix}", "GRPO's success recursion, predicted and measured",
            "Mean success of puzzles with like success at the start (colours), over outer iterations: the recursion of each puzzle from its own "
            "start (lines), and what gradient ascent reached (markers). Rows: GRPO by exact gradients; by sampled groups, predicted with the "
            "weight of groups; without the division by the std; with the KL to the previous policy; with the forward KL; of tables, and of a "
            "network whose puzzles share their weights, over its legal moves and one outcome for anything else.",
            "success_recursion.csv", table, recursion_figure(table), notes + convergence(table),
        )
    ]  # fmt: skip


def convergence(table: pd.DataFrame) -> tuple[str, ...]:
    """How near a network's inner maximisations came to their maximiser, by beta: the worst iteration's mean over puzzles."""
    notes = []
    for variant, rows in table[table["variant"].str.endswith(NETWORK) & (table["step"] > 0)].groupby("variant"):
        away = rows.assign(total=rows["kl_to_maximiser"] * rows["puzzles"]).groupby(["beta", "step"])[["total", "puzzles"]].sum()
        worst = (away["total"] / away["puzzles"]).groupby("beta").max()
        values = ", ".join(f"{nats:.2g} (beta {beta:g})" for beta, nats in worst.items())
        notes.append(f"{variant}: mean KL to the maximiser at the end of an inner maximisation, nats, of the worst iteration: {values}.")
    return tuple(notes)


@styled
def recursion_figure(table: pd.DataFrame) -> Figure:
    """Predicted lines and measured markers over outer iterations; a row of panels per variant, a column per beta."""
    variants = [name for variant in VARIANTS for name in (variant, variant + NETWORK) if name in set(table["variant"])]
    betas, groups = sorted(table["beta"].unique()), list(dict.fromkeys(table["group"]))
    figure, grid = axes_grid(len(variants) * len(betas), len(betas), 1.35)
    colours = _ordered(len(groups))
    for axes, (variant, beta) in zip(grid, [(variant, beta) for variant in variants for beta in betas]):
        for colour, group in zip(colours, groups):
            rows = table[(table["variant"] == variant) & (table["beta"] == beta) & (table["group"] == group)]
            axes.plot(rows["step"], rows["predicted"], color=colour, linewidth=1.1)
            axes.plot(rows["step"], rows["measured"], color=colour, linestyle="", marker="o", markersize=2.8)
        _recursion_axes(axes, variant, beta, first_row=variant == variants[0], last_row=variant == variants[-1], first_column=beta == betas[0])
    lines = [Line2D([], [], color=colour) for colour in colours]
    marks = [Line2D([], [], color="black", linewidth=1.1), Line2D([], [], color="black", linestyle="", marker="o", markersize=2.8)]
    series_legend(figure, [*lines, *marks], [*(f"p {group}" for group in groups), "predicted", "measured"], "upper")
    return figure


def _ordered(count: int) -> list:
    """Colours that go from dark to light as the groups go from hard to easy."""
    return seaborn.color_palette("viridis", count)


def _recursion_axes(axes: Axes, variant: str, beta: float, *, first_row: bool, last_row: bool, first_column: bool) -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks(np.linspace(0, 1, 3))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if first_row:
        axes.set_title(f"beta = {beta:g}")
    if first_column:
        label = VARIANTS[variant.removesuffix(NETWORK)]
        axes.set_ylabel(f"{label},\nnetwork" if variant.endswith(NETWORK) else label, fontsize=7.5)
    if last_row:
        axes.set_xlabel("outer iteration")
    else:
        axes.tick_params(labelbottom=False)
