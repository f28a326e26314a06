"""pass@k of groups of runs: per puzzle, then averaged over the seeds of a group with intervals over seeds and puzzles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.read import Evaluation
from chessrl.errors import UserError
from chessrl.statistics import nested_differences, nested_means, pass_at_k
from chessrl.theory_weights import pass_at_k_objective


def sampled_by_puzzle(evaluation: Evaluation, ks: Sequence[int]) -> pd.DataFrame:
    """One row per puzzle: its bin, and pass@k of its samples for each of ``ks`` (columns named by k).

    Raises UserError where samples are too few for the largest k.
    """
    if evaluation.n_samples < max(ks):
        raise UserError(f"{evaluation.folder}: {evaluation.n_samples} samples a puzzle are too few for pass@{max(ks)}; lower ks=")
    counts = evaluation.samples().groupby("puzzle").agg(bin=("bin", "first"), n=("solved", "size"), c=("solved", "sum"))
    return pd.DataFrame({"bin": counts["bin"]} | {k: pass_at_k(counts["n"].to_numpy(), counts["c"].to_numpy(), k) for k in ks})


def exact_by_puzzle(exact: pd.DataFrame, ks: Sequence[int]) -> pd.DataFrame:
    """The same of known success probabilities, the table of ``Evaluation.exact``: 1 - (1 - p)^k."""
    table = exact.set_index("puzzle").sort_index()
    return table[["bin"]].join(pd.DataFrame(pass_at_k_objective(table["p"].to_numpy()[:, None], ks), index=table.index, columns=list(ks)))


def check_same_puzzles(tables: Sequence[tuple[str, pd.DataFrame]]) -> None:
    """Raises UserError unless all tables (each with a name for the message) have the same puzzles."""
    first, of_first = tables[0]
    for name, table in tables:
        if not table.index.equals(of_first.index):
            raise UserError(f"{first} and {name} were evaluated on different puzzles: evaluate all alike")


def bin_masks(bins: pd.Series) -> list[tuple[str, np.ndarray]]:
    """("all", every puzzle), then each bin in order with the mask of its puzzles."""
    return [("all", np.ones(len(bins), bool)), *((name, (bins == name).to_numpy()) for name in sorted(set(bins)))]


def passk_tables(
    values: Mapping[str, np.ndarray], bases: Mapping[str, np.ndarray], bins: pd.Series, ks: Sequence[int], seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """pass@k by group, bin and k, and the difference of each group in ``bases`` from its base, paired by seed and puzzle.

    values, bases: group -> (seeds, puzzles, ks), the puzzles those of ``bins``. Intervals are nested over seeds and puzzles; the lowest and highest
    seed stand beside. ``seed``: of the bootstrap.
    """
    rng = np.random.default_rng(seed)
    rows, differences = [], []
    for group, seeds in values.items():
        for name, mask in bin_masks(bins):
            chosen = seeds[:, mask]
            place = {"policy": group, "bin": name, "n_puzzles": int(mask.sum()), "seeds": len(seeds)}
            for at, (point, low, high) in enumerate(nested_means(chosen, rng)):
                each = chosen[:, :, at].mean(1)
                rows.append(
                    place | {"k": ks[at], "pass_at_k": point, "ci_low": low, "ci_high": high, "seed_low": each.min(), "seed_high": each.max()}
                )
            if group not in bases:
                continue
            base = bases[group][:, mask]
            for at, (point, low, high) in enumerate(nested_differences(base, chosen, rng)):
                each = (chosen - base)[:, :, at].mean(1)
                differences.append(
                    place | {"k": ks[at], "difference": point, "ci_low": low, "ci_high": high, "seed_low": each.min(), "seed_high": each.max()}
                )
    return pd.DataFrame(rows), pd.DataFrame(differences)
