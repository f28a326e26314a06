"""Start and RL policy at equal cost: pass@1, and pass@k and maj@k of as many samples as a budget of tokens or FLOPs buys each (science 6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.coverage import matched_samples
from analysis.evaluations import last_evaluation, start_of
from analysis.passk_data import majority
from analysis.read import Evaluation, Run
from chessrl.statistics import bootstrap_means, paired_differences, pass_at_k

METRICS = ("pass@1", "pass@k", "maj@k")


def aligned_table(runs: Sequence[Run], split: str, rng: np.random.Generator) -> pd.DataFrame:
    """By RL run, budget (equal tokens, equal FLOPs) and metric: the start's value, the RL policy's, their paired difference with its interval.

    The budget of a puzzle is the largest that both evaluations can answer for: the smaller of samples x mean cost of one. A sample costs its
    sampled tokens, or 2N times these. Runs whose start is missing, or evaluated under other settings, have no row.
    """
    rows = []
    for run in (run for run in runs if run.stage == "rl"):
        start = start_of(run, runs)
        own = last_evaluation(run, split)
        of_start = last_evaluation(start, split, like=own) if start and own else None
        if of_start is None:
            continue
        pair = (of_start, own)
        flops = tuple(2 * policy.summary["parameters"]["without_embeddings"] for policy in (start, run))
        for budget, prices in (("tokens", (1, 1)), ("FLOPs", flops)):
            rows += [{"run": run.run_id, "start": start.run_id, "split": split} | row for row in _rows(pair, budget, prices, rng)]
    return pd.DataFrame(rows)


def _rows(pair: tuple[Evaluation, Evaluation], budget: str, prices: tuple[int, int], rng: np.random.Generator) -> list[dict[str, object]]:
    tables = [evaluation.samples("tokens") for evaluation in pair]
    puzzles = sorted(set(tables[0]["puzzle"]) & set(tables[1]["puzzle"]))
    if not puzzles:
        return []
    tables = [table[table["puzzle"].isin(puzzles)].sort_values(["puzzle", "sample"]) for table in tables]
    costs = [price * table["tokens"].mean() for price, table in zip(prices, tables)]
    spent = min(evaluation.n_samples * cost for evaluation, cost in zip(pair, costs))
    ks = [min(matched_samples(spent, cost), evaluation.n_samples) for evaluation, cost in zip(pair, costs)]
    values = [_values(table, evaluation, k, rng) for table, evaluation, k in zip(tables, pair, ks)]
    rows = []
    for place, metric in enumerate(METRICS):
        before, after = (table[:, [place]] for table in values)
        [(a, *_)], [(b, *_)] = bootstrap_means(before, rng), bootstrap_means(after, rng)
        [(difference, low, high)] = paired_differences(before, after, rng)
        cost = {"budget": budget, "budget_per_puzzle": spent, "cost_start": costs[0], "cost_rl": costs[1], "k_start": ks[0], "k_rl": ks[1]}
        row = {"metric": metric, "n_puzzles": len(puzzles), "start_value": a, "rl_value": b, "difference": difference}
        rows.append(cost | row | {"ci_low": low, "ci_high": high})
    return rows


def _values(table: pd.DataFrame, evaluation: Evaluation, k: int, rng: np.random.Generator) -> np.ndarray:
    """(puzzles of the table, METRICS)."""
    samples = evaluation.n_samples
    count = table["solved"].to_numpy(bool).reshape(-1, samples).sum(1)
    kept = np.isin(np.unique(evaluation.samples()["puzzle"].astype(str)), table["puzzle"].unique())
    columns = (pass_at_k(samples, count, 1), pass_at_k(samples, count, k), majority(evaluation, [k], rng)[kept, 0])
    return np.clip(np.stack(columns, axis=1), 0.0, 1.0)
