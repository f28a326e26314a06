"""Has the policy seen the test? Leaks and the corpus's account, the prefix-completion test, and pass@1 on slices beside the test set."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.evaluations import alike, solved_share
from analysis.read import Run
from chessrl.config import SLICES
from chessrl.errors import UserError
from chessrl.statistics import LEVEL, RESAMPLES, bootstrap_means, paired_differences, wilson_interval

MIRRORED_SUFFIX = "-mirrored"


def account_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: puzzles leaked on purpose, and what the corpus's manifest says of games kept off the puzzles (NaN: manifest not found)."""
    rows = []
    for run in runs:
        leak = run.summary.get("leak")
        row = {"run": run.run_id, "stage": run.stage, "leaked_puzzles": len(leak["puzzles"]) if leak else 0}
        if manifest := _manifest(run):
            account = manifest.get("decontamination") or {}
            row |= {"games_read": manifest["games"]["read"], "games_kept": manifest["games"]["kept"]}
            row |= {"puzzles_checked": account.get("puzzles"), "games_dropped_for_puzzles": account.get("games_dropped")}
        rows.append(row)
    columns = ["run", "stage", "leaked_puzzles", "games_read", "games_kept", "puzzles_checked", "games_dropped_for_puzzles"]
    return pd.DataFrame(rows).reindex(columns=columns)


def _manifest(run: Run) -> dict | None:
    """The manifest of the corpus that a pretraining run was trained on, beside the run or as its prefix test recorded it."""
    wanted = run.summary.get("data")
    if run.stage != "pretrain" or not wanted:
        return None
    for path in sorted(run.path.parent.glob("data/games-*/manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest.get("hash") == wanted:
            return manifest
    for path in sorted(run.path.glob("prefixes/*/prefixes.json")):
        corpus = json.loads(path.read_text(encoding="utf-8"))["corpus"]
        if corpus.get("hash") == wanted:
            return corpus
    return None


# ---- prefix completion ------------------------------------------------------------------------------------------------------------------


def read_prefixes(run: Run) -> pd.DataFrame:
    """The rows of the run's prefix tests on the corpus that it was trained on; empty without one."""
    for path in sorted(run.path.glob("prefixes/*/prefixes.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["corpus"].get("hash") == record["trained_on"]:
            try:
                return pd.read_parquet(path.with_name("prefixes.parquet"))
            except (OSError, ValueError) as error:
                raise UserError(f"{path.parent}: prefixes.parquet is unreadable ({error}); delete the folder and test again") from None
    return pd.DataFrame()


def prefix_table(run: Run, prefixes: pd.DataFrame) -> pd.DataFrame:
    """By source and share: exact matches with Wilson's limits, and the mean share of right tokens."""
    rows = []
    for (source, share), table in prefixes.groupby(["source", "share"], sort=False):
        matched = int(table["exact"].sum())
        low, high = wilson_interval(matched, len(table))
        row = {"run": run.run_id, "source": source, "prefix_percent": share, "n": len(table), "mean_plies_asked": table["plies_asked"].mean()}
        rows.append(row | {"exact_match": matched / len(table), "ci_low": low, "ci_high": high, "tokens_right": table["tokens_right"].mean()})
    return pd.DataFrame(rows)


def prefix_differences(run: Run, prefixes: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """By share: exact matches of training games less held-out ones, and of test puzzles less their control.

    The control is the same puzzle mirrored, in pairs; where there is none (games given by their moves), held-out games of the corpus.
    """
    rows = []
    for share, table in prefixes.groupby("share"):
        by_source = {source: part.set_index("item")["exact"].astype(float) for source, part in table.groupby("source")}
        pairs = [("train", "validation"), ("test", "test_mirrored" if "test_mirrored" in by_source else "validation")]
        for first, control in pairs:
            if first not in by_source or control not in by_source:
                continue
            a, b = by_source[first], by_source[control]
            if control == "test_mirrored":
                shared = a.index.intersection(b.index)
                [(difference, low, high)] = paired_differences(b[shared].to_numpy()[:, None], a[shared].to_numpy()[:, None], rng)
            else:
                difference, low, high = independent_difference(b.to_numpy(), a.to_numpy(), rng)
            place = {"run": run.run_id, "prefix_percent": share, "source": first, "control": control, "n": len(a), "n_control": len(b)}
            rows.append(place | {"difference": difference, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


def independent_difference(a: np.ndarray, b: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """mean(b) - mean(a) of two unpaired samples of shares, with a percentile interval; Newcombe's score limits where neither varies."""
    difference = float(b.mean() - a.mean())
    if a.std() == 0 and b.std() == 0:
        (low_a, high_a), (low_b, high_b) = (wilson_interval(float(values.sum()), len(values)) for values in (a, b))
        below = np.hypot(b.mean() - low_b, high_a - a.mean())
        above = np.hypot(high_b - b.mean(), a.mean() - low_a)
        return difference, max(-1.0, difference - float(below)), min(1.0, difference + float(above))
    means = [rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples) @ values / len(values) for values in (a, b)]
    low, high = np.quantile(means[1] - means[0], [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return difference, float(low), float(high)


# ---- slices -----------------------------------------------------------------------------------------------------------------------------


def slice_table(runs: Sequence[Run], rng: np.random.Generator) -> pd.DataFrame:
    """pass@1 of each slice beside the test set under equal settings, and test less slice; a mirrored puzzle is paired with its original."""
    rows = []
    for run in runs:
        for evaluation in run.evaluations:
            at_step = [other for other in run.evaluations if other.labels["step"] == evaluation.labels["step"]]
            tests = [other for other in at_step if other.labels["split"] == "test" and alike(other, evaluation)]
            if evaluation.labels["split"] not in SLICES or not tests:
                continue
            test = max(tests, key=lambda item: (item.n_puzzles, item.n_samples, item.folder.name))
            a, b = (solved_share(item) for item in (evaluation, test))
            if evaluation.labels["split"] == "test_mirrored":
                a.index = a.index.str.removesuffix(MIRRORED_SUFFIX)
                shared = a.index.intersection(b.index)
                a, b = a[shared], b[shared]
                [(difference, low, high)] = paired_differences(a.to_numpy()[:, None], b.to_numpy()[:, None], rng)
            else:
                difference, low, high = independent_difference(a.to_numpy(), b.to_numpy(), rng)
            [(of_slice, *_), (of_test, *_)] = (bootstrap_means(values.to_numpy()[:, None], rng)[0] for values in (a, b))
            place = {"run": run.run_id, "stage": run.stage, "step": evaluation.labels["step"], "slice": evaluation.labels["split"]}
            place |= {"n_slice": len(a), "n_test": len(b), "pass_at_1_slice": of_slice, "pass_at_1_test": of_test}
            rows.append(place | {"test_less_slice": difference, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


