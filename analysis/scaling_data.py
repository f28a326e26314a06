"""Run directories -> the tables that the scaling laws are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.read import Run, read_runs
from analysis.rl_laws import POINT_COLUMNS
from chessrl.errors import UserError
from chessrl.runs import load_runs

CELL_COLUMNS = ("run", "parameters", "tokens", "loss")
MEASURES = ("test", "validation")


def pretraining_cells(outputs: Path) -> pd.DataFrame:
    """Every finished pretraining run below ``outputs``: CELL_COLUMNS, the loss in nats per validation move token."""
    table = load_runs(outputs)
    done = table[(table["stage"] == "pretrain") & (table["state"] == "completed")].dropna(subset=["pretrain_loss"])
    cells = done.rename(columns={"pretrain_tokens": "tokens_of_pretraining"})[["run", "parameters", "tokens_of_pretraining", "pretrain_loss"]]
    return cells.set_axis(list(CELL_COLUMNS), axis=1).reset_index(drop=True)


def rl_points(outputs: Path, measure: str = "test", bins: Sequence[str] = ("all",), k: int = 1) -> pd.DataFrame:
    """Rewards of every finished RL run below ``outputs``: POINT_COLUMNS, one row per measured step, rl_flops 0 for the policy that it began from.

    measure ``test``: pass@k of the evaluations of its exported steps on the test split, by the line; their parents' evaluations give the
    start. ``validation``: the pass@1 that RL logs itself. bins: difficulty bins, averaged by their puzzles; "all" for the whole.
    Raises UserError on an unknown measure or where nothing was measured.
    """
    if measure not in MEASURES:
        raise UserError(f"measure={measure}: expected one of {', '.join(MEASURES)}")
    if measure == "validation" and (tuple(bins) != ("all",) or k != 1):
        raise UserError("measure=validation is the pass@1 over rl.bins that RL logs; bins= and k= need measure=test")
    table = load_runs(outputs)
    done = table[table["state"] == "completed"].set_index("run")
    rows = []
    for name, row in done[done["stage"] == "rl"].iterrows():
        if pd.isna(row["pretrain_loss"]):
            continue  # its pretraining run is not below this folder
        ancestor = (row["parameters"], row["pretrain_tokens"], row["pretrain_loss"])
        run = read_runs([Path(row["directory"])])[0]
        start = read_runs([Path(done.loc[row["parent"], "directory"])])[0] if row["parent"] in done.index else None
        measured = _validation(run) if measure == "validation" else _evaluations(run, start, bins, k)
        rows += [(name, *ancestor, spent, reward) for spent, reward in measured]
    if not rows:
        raise UserError(f"outputs={outputs}: no finished RL run with measured steps ({measure}) and its pretraining run beside it")
    return pd.DataFrame(rows, columns=list(POINT_COLUMNS))


def _validation(run: Run) -> list[tuple[float, float]]:
    logged = run.metrics.dropna(subset=["validation/pass_at_1"]) if "validation/pass_at_1" in run.metrics else run.metrics[:0]
    return list(zip(logged["flops"].astype(float), logged.get("validation/pass_at_1", pd.Series(dtype=float)).astype(float)))


def _evaluations(run: Run, start: Run | None, bins: Sequence[str], k: int) -> list[tuple[float, float]]:
    flops = run.metrics.set_index("step")["flops"]
    found = [(float(flops[step]), reward) for step, reward in _rewards(run, bins, k) if step in flops.index]
    before = [(0.0, reward) for _, reward in _rewards(start, bins, k)[-1:]] if start else []
    return before + found


def _rewards(run: Run, bins: Sequence[str], k: int) -> list[tuple[int, float]]:
    """(step, pass@k) on the test split by the line; of several evaluations of a step the one with the most samples."""
    best: dict[int, tuple[int, float]] = {}
    for evaluation in run.evaluations:
        if (evaluation.labels["split"], evaluation.labels["verifier"]) != ("test", "line"):
            continue
        rows = evaluation.passk[evaluation.passk["bin"].isin(bins) & (evaluation.passk["k"] == k)]
        if len(rows):
            reward = float(np.average(rows["pass_at_k"], weights=rows["n_puzzles"]))
            size = evaluation.n_puzzles * evaluation.n_samples
            step = int(evaluation.labels["step"])
            best[step] = max(best.get(step, (0, 0.0)), (size, reward))
    return [(step, reward) for step, (_, reward) in sorted(best.items())]
