"""How much verifier a policy needs before its gap closes, from the verdicts of ``python -m chessrl.verifier_nodes``.

Writes ``verifier_nodes.csv``, by policy, limit and bin: what is right and accepted, their gap, FPR and J = 1 - FPR (the reward refuses nothing that
is right), precision, and the engine's own recall; and the figure ``verifier_nodes``. Intervals: bootstrap over puzzles.

Examples:
    python -m analysis.verifier_nodes verdicts=outputs/verifiers/verdicts.parquet out=outputs/verifiers
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import MARKERS
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import axes_grid, palette, save_figure, series_legend, styled
from chessrl.statistics import LEVEL, RESAMPLES

COLUMNS = ("policy", "stage", "step", "mode", "limit", "puzzle", "bin", "right", "accepted", "recalled")
MODES = {"searchmoves": "nodes per move", "depth": "depth (plies)"}


@dataclass(frozen=True, slots=True)
class NodesFigureSettings:
    """Keys of the command."""

    verdicts: str  # verdicts.parquet of python -m chessrl.verifier_nodes
    out: str  # folder for the table and the figure
    seed: int = 0  # of the bootstrap


def read_verdicts(path: Path) -> pd.DataFrame:
    """The table. Raises UserError naming what is missing."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; make it with python -m chessrl.verifier_nodes")
    table = pd.read_parquet(path)
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UserError(f"{path}: column {missing[0]} is missing, expected {', '.join(COLUMNS)}; make it again with python -m chessrl.verifier_nodes")
    return table


def measures(right: np.ndarray, accepted: np.ndarray, recalled: np.ndarray) -> dict[str, np.ndarray]:
    """Of means over puzzles (any shape): the verifier's rates on the policy's answers. NaN where nothing is accepted, or right."""
    with np.errstate(divide="ignore", invalid="ignore"):
        false_positive = (accepted - right) / (1 - right)
        return {
            "gap": accepted - right, "false_positive": false_positive, "j": 1 - false_positive, "precision": right / accepted,
            "engine_recall": recalled / right,
        }  # fmt: skip


def nodes_table(verdicts: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row per policy, limit and bin ("all" first): ``measures`` with 95 % bootstrap intervals over puzzles of gap, FPR and precision."""
    rng, rows = np.random.default_rng(seed), []
    for (policy, stage, step, mode, limit), whole in verdicts.groupby(["policy", "stage", "step", "mode", "limit"], sort=False):
        for name, part in [("all", whole), *whole.groupby("bin")]:
            values = part[["right", "accepted", "recalled"]].to_numpy(np.float64)
            drawn = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES) @ values / len(values)
            point, spread = measures(*values.mean(0)), measures(*drawn.T)
            row = {"policy": policy, "stage": stage, "step": step, "mode": mode, "limit": limit, "bin": name, "puzzles": len(values)}
            row |= {"right": values[:, 0].mean(), "accepted": values[:, 1].mean()} | {key: float(value) for key, value in point.items()}
            for key in ("gap", "false_positive", "precision"):
                row[f"{key}_low"], row[f"{key}_high"] = np.nanquantile(spread[key], [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
            rows.append(row)
    return pd.DataFrame(rows)


@styled
def nodes_figure(table: pd.DataFrame) -> Figure:
    """Gap and precision over the limit, one column of panels per kind of limit, a line per policy, which is a run at a step."""
    overall = table[table["bin"] == "all"]
    policies = list(dict.fromkeys(zip(overall["policy"], overall["step"])))
    modes = [mode for mode in MODES if (overall["mode"] == mode).any()]
    colours = dict(zip(policies, palette(len(policies))))
    figure, panels = axes_grid(2 * len(modes), len(modes), 2.0)
    for at, mode in enumerate(modes):
        for row, (measure, label) in enumerate((("gap", "accepted less right"), ("precision", "precision (the ceiling)"))):
            axes = panels[row * len(modes) + at]
            for place, policy in enumerate(policies):
                of_policy = (overall["policy"] == policy[0]) & (overall["step"] == policy[1])
                lines = overall[(overall["mode"] == mode) & of_policy].sort_values("limit")
                axes.plot(lines["limit"], lines[measure], color=colours[policy], marker=MARKERS[place % len(MARKERS)], markersize=3.5)
                axes.fill_between(lines["limit"], lines[f"{measure}_low"], lines[f"{measure}_high"], color=colours[policy], alpha=0.12, linewidth=0)
            axes.set_xscale("log", base=10 if mode == "searchmoves" else 2)
            axes.set_xlabel(MODES[mode])
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
    names = [f"{row.stage} step {row.step}: {row.right:.1%} right" for row in overall.drop_duplicates(["policy", "step"]).itertuples()]
    marks = [Line2D([], [], color=colours[policy], marker=MARKERS[place % len(MARKERS)], markersize=3.5) for place, policy in enumerate(policies)]
    series_legend(figure, marks, names, "upper")
    return figure


def main(arguments: list[str]) -> None:
    settings = parse_settings(NodesFigureSettings, arguments)
    table = nodes_table(read_verdicts(Path(settings.verdicts)), settings.seed)
    out = make_folder(settings.out, "out")
    table.to_csv(out / "verifier_nodes.csv", index=False)
    save_figure(nodes_figure(table), out, "verifier_nodes")
    shown = ["policy", "step", "mode", "limit", "puzzles", "right", "accepted", "gap", "false_positive", "precision", "engine_recall"]
    print(table[table["bin"] == "all"][shown].to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    print(f"{len(table.drop_duplicates(['policy', 'step']))} policies -> {out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
