"""Run directories -> the tables that the scaling laws are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.read import Evaluation, Run, read_runs
from analysis.rl_laws import POINT_COLUMNS
from chessrl.errors import UserError
from chessrl.runs import load_runs
from chessrl.statistics import pass_at_k
from chessrl.theory_weights import pass_at_k_objective

CELL_COLUMNS = ("run", "parameters", "tokens", "loss")
SUCCESS_COLUMNS = ("run", "parameters", "tokens", "loss", "rl_flops", "step", "puzzle", "bin", "success")
MEASURES = ("exact", "test", "validation")
ALL_BINS = ("all",)


def pretraining_cells(outputs: Path) -> pd.DataFrame:
    """Every finished pretraining run below ``outputs``: CELL_COLUMNS, the loss in nats per validation move token."""
    table = load_runs(outputs)
    done = table[(table["stage"] == "pretrain") & (table["state"] == "completed")].dropna(subset=["pretrain_loss"])
    cells = done.rename(columns={"pretrain_tokens": "tokens_of_pretraining"})[["run", "parameters", "tokens_of_pretraining", "pretrain_loss"]]
    return cells.set_axis(list(CELL_COLUMNS), axis=1).reset_index(drop=True)


def rl_points(outputs: Path, measure: str = "exact", bins: Sequence[str] = ALL_BINS, k: int = 1) -> pd.DataFrame:
    """Rewards of every finished RL run below ``outputs``: POINT_COLUMNS, one row per measured step, rl_flops 0 for the policy that it began from.

    measure ``exact`` and ``test``: pass@k on the test split, as in ``success_table``. ``validation``: the pass@1 that RL logs itself.
    bins: difficulty bins whose puzzles count; "all" for the whole. Raises UserError on an unknown measure or where nothing was measured.
    """
    if measure != "validation":
        return points_of(success_table(rl_runs(outputs), measure, k), bins)
    if tuple(bins) != ALL_BINS or k != 1:
        raise UserError("measure=validation is the pass@1 over rl.bins that RL logs; bins= and k= need measure=exact or measure=test")
    rows = []
    for run in rl_runs(outputs):
        if "validation/pass_at_1" in run.run.metrics:
            logged = run.run.metrics.dropna(subset=["validation/pass_at_1"])
            rows += [(*run.cell(), *values) for values in zip(logged["flops"].astype(float), logged["validation/pass_at_1"].astype(float))]
    return pd.DataFrame(_found(rows, measure), columns=list(POINT_COLUMNS))


def points_of(success: pd.DataFrame, bins: Sequence[str] = ALL_BINS) -> pd.DataFrame:
    """POINT_COLUMNS: the mean of ``success_table`` over the puzzles of ``bins``. Raises UserError on a bin without puzzles."""
    present = sorted(set(success["bin"]))
    if unknown := sorted({*bins} - {*present, *ALL_BINS}):
        raise UserError(f"bins={','.join(bins)}: no puzzle of {unknown[0]}; expected all, or some of {', '.join(present)}")
    chosen = success if "all" in bins else success[success["bin"].isin(bins)]
    keys = ["run", "parameters", "tokens", "loss", "rl_flops"]
    return chosen.groupby(keys, as_index=False, sort=False)["success"].mean().set_axis(list(POINT_COLUMNS), axis=1)


def success_table(runs: Sequence[RlRun], measure: str = "exact", k: int = 1) -> pd.DataFrame:
    """SUCCESS_COLUMNS of RL runs: one row per measured step and puzzle of the test split, judged by the line.

    The policy that RL began from is step 0, with 0 rl_flops. success: pass@k, of exact probabilities under strict spelling (measure ``exact``,
    evaluate.exact) or of samples (``test``), at temperature 1; of several evaluations of a step the one of most puzzles, then samples.
    Raises UserError where nothing was measured, or runs on different puzzles.
    """
    if measure not in MEASURES[:2]:
        raise UserError(f"measure={measure}: expected one of {', '.join(MEASURES)}")
    parts = []
    for run in runs:
        flops = run.run.metrics.set_index("step")["flops"]
        steps = _measured(run.run, measure, k)
        tables = {float(flops[step]): (step, table) for step, table in steps.items() if step in flops.index}
        if run.start and tables and (before := _measured(run.start, measure, k)):
            tables[0.0] = (0, before[max(before)])
        for spent, (step, table) in sorted(tables.items()):
            cell = dict(zip(CELL_COLUMNS, run.cell()))
            parts.append(table.assign(**cell, rl_flops=spent, step=step))
    for part in _found(parts, measure):
        if not part["puzzle"].equals(parts[0]["puzzle"]):
            raise UserError(
                f"{part['run'].iloc[0]}, step {part['step'].iloc[0]}: measured on {len(part)} puzzles that are not the {len(parts[0])} of "
                f"{parts[0]['run'].iloc[0]}: evaluate all with the same evaluate.max_puzzles"
            )
    return pd.concat(parts, ignore_index=True)[list(SUCCESS_COLUMNS)]


def _found(rows: list, measure: str) -> list:
    """The rows. Raises UserError where there are none."""
    if not rows:
        remedy = {"exact": "evaluate with evaluate.exact=true, or give measure=test", "test": "evaluate with evaluate.split=test"}
        raise UserError(
            f"outputs: no finished RL run with measured steps (measure={measure}) and its pretraining run beside it"
            + (f"; {remedy[measure]}" if measure in remedy else "")
        )
    return rows


@dataclass(frozen=True, slots=True)
class RlRun:
    """A finished RL run, what it began from (None: not there), and N, T and L of its pretraining run."""

    run: Run
    start: Run | None
    parameters: float
    tokens: float
    loss: float

    @property
    def name(self) -> str:
        return self.run.run_id

    def cell(self) -> tuple[str, float, float, float]:
        """CELL_COLUMNS."""
        return self.name, self.parameters, self.tokens, self.loss


def rl_runs(outputs: Path) -> list[RlRun]:
    """Finished RL runs below ``outputs`` whose pretraining run is beside them, by size and tokens."""
    table = load_runs(outputs)
    done = table[table["state"] == "completed"].set_index("run")
    found = []
    for _, row in done[(done["stage"] == "rl") & done["pretrain_loss"].notna()].iterrows():
        start = read_runs([Path(done.loc[row["parent"], "directory"])])[0] if row["parent"] in done.index else None
        cell = (float(row[column]) for column in ("parameters", "pretrain_tokens", "pretrain_loss"))
        found.append(RlRun(read_runs([Path(row["directory"])])[0], start, *cell))
    return sorted(found, key=lambda run: (run.parameters, run.tokens, run.name))


def _usable(run: Run) -> list[Evaluation]:
    wanted = {"split": "test", "verifier": "line", "temperature": 1.0}
    return [evaluation for evaluation in run.evaluations if all(evaluation.labels[key] == value for key, value in wanted.items())]


def fewest_samples(runs: Sequence[RlRun]) -> int:
    """The largest k that pass@k of samples has for every run and what it began from; 0 where nothing was measured."""
    most = [max((evaluation.n_samples for evaluation in _usable(run)), default=0) for pair in runs for run in (pair.run, pair.start) if run]
    return min((samples for samples in most if samples), default=0)


def _measured(run: Run, measure: str, k: int) -> dict[int, pd.DataFrame]:
    """Step -> puzzle, bin, success, by puzzle."""
    best: dict[int, tuple[tuple[int, int], pd.DataFrame]] = {}
    for evaluation in _usable(run):
        table = _exact(evaluation, k) if measure == "exact" else _sampled(evaluation, k)
        step, size = int(evaluation.labels["step"]), (evaluation.n_puzzles, evaluation.n_samples)
        if table is not None and size > best.get(step, ((0, 0), table))[0]:
            best[step] = size, table
    return {step: table for step, (_, table) in best.items()}


def _exact(evaluation: Evaluation, k: int) -> pd.DataFrame | None:
    exact = evaluation.exact()
    if exact is None:
        return None
    exact = exact.sort_values("puzzle", ignore_index=True)
    return exact[["puzzle", "bin"]].assign(success=pass_at_k_objective(exact["p"].to_numpy(), k))


def _sampled(evaluation: Evaluation, k: int) -> pd.DataFrame | None:
    if evaluation.n_samples < k:
        return None
    counts = evaluation.samples().groupby("puzzle", as_index=False).agg(bin=("bin", "first"), n=("solved", "size"), c=("solved", "sum"))
    return counts[["puzzle", "bin"]].assign(success=pass_at_k(counts["n"].to_numpy(np.int64), counts["c"].to_numpy(np.int64), k))
