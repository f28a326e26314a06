"""Verifiers against the oracle, from the folders of ``python -m chessrl.audit``: precision, recall, J, alternatives, attacks; the gap of a run.

Definitions: arXiv 2505.22203 (audit), 2601.04411 (J = TPR - FPR). Intervals resample puzzles; where a share is 0 or 1 in every one they are Wilson's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.read import Run
from chessrl.errors import UserError
from chessrl.statistics import LEVEL, RESAMPLES, wilson_interval

END_SHARE = 0.1  # of a run's steps, at either end, that a gap's beginning and end are means over
REWARD_PARTS = ("legal", "format")  # paid for any readable answer: beside the verifiers in the table of attacks


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit folder: its record and tables as written by ``chessrl.audit.write_audit``."""

    folder: Path
    record: Mapping[str, object]
    verdicts: pd.DataFrame
    puzzles: pd.DataFrame
    alternatives: pd.DataFrame
    attacks: pd.DataFrame


def read_audits(run: Path) -> list[Audit]:
    """The audits of a run directory, by step, then folder. Raises UserError for a damaged one."""
    audits = [read_audit(path.parent) for path in sorted(run.glob("audits/*/audit.json"))]
    return sorted(audits, key=lambda audit: (audit.record["step"], audit.folder.name))


def read_audit(folder: Path) -> Audit:
    """One audit folder. Raises UserError where a file is missing or unreadable."""
    try:
        record = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        tables = [pd.read_parquet(folder / f"{name}.parquet") for name in ("verdicts", "puzzles", "alternatives", "attacks")]
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a readable audit ({' '.join(str(error).split())[:120]}); delete it and audit the run again") from None
    return Audit(folder, record, *tables)


def training_verifier(run: Run) -> str | None:
    """The verifier of an audit that pays as the run's reward does: the line, or it and the engine at the run's depth.

    None where no audit has it: it errs at random, or its engine searches each move by itself.
    """
    reward = run.setting("reward")
    if (reward.get("true_positive_rate", 1.0), reward.get("false_positive_rate", 0.0)) != (1.0, 0.0):
        return None
    if reward["accept"] != "engine":
        return "line"
    return f"line_or_engine_depth_{run.setting('engine.depth')}" if run.setting("engine.mode") == "depth" else None


ENGINE_KEYS = ("nodes", "delta", "mate_slack")  # of the engine, beside its depth


def audits_training(audit: Audit, run: Run) -> bool:
    """Whether the audit holds the run's training verifier, with the engine as the run had it."""
    name = training_verifier(run)
    same_engine = name == "line" or all(audit.record.get(key) == run.setting(f"engine.{key}") for key in ENGINE_KEYS)
    return name in audit.record["verifiers"] and same_engine


def audit_command(run: Run) -> str:
    """What makes the audit of the run's training verifier, or why nothing does."""
    name = training_verifier(run)
    if name is None:
        return "no audit has a verifier that errs at random, or whose engine searches each move by itself (engine.mode=searchmoves)"
    command = f"python -m chessrl.audit parent={run.path}"
    if name == "line":
        return command
    keys = [f"engine.{key}={run.setting(f'engine.{key}')}" for key in ENGINE_KEYS]
    return " ".join([command, f"audit.depths=[{run.setting('engine.depth')}]", *keys])


# ---- precision and recall ---------------------------------------------------------------------------------------------------------------

MEASURES = ("accepted", "right", "gap", "precision", "recall", "false_positive_rate", "J")


def confusion(verdicts: pd.DataFrame, verifier: str) -> tuple[np.ndarray, int]:
    """(puzzles, 4) counts of true and false positives, false and true negatives of each puzzle; and episodes that one of the two could not tell."""
    told = verdicts[verdicts[verifier].notna() & verdicts["oracle"].notna()]
    said, right = told[verifier].astype(bool), told["oracle"].astype(bool)
    cells = pd.DataFrame({"tp": said & right, "fp": said & ~right, "fn": ~said & right, "tn": ~said & ~right}).groupby(told["puzzle"]).sum()
    return cells.to_numpy(np.float64), len(verdicts) - len(told)


def measures_of(cells: np.ndarray) -> np.ndarray:
    """(..., 7) MEASURES of counts (..., 4); NaN where a denominator is 0. gap: share accepted less share right."""
    tp, fp, fn, tn = np.moveaxis(np.asarray(cells, np.float64), -1, 0)
    total = tp + fp + fn + tn
    with np.errstate(divide="ignore", invalid="ignore"):
        accepted, right = (tp + fp) / total, (tp + fn) / total
        recall, false_positive = tp / (tp + fn), fp / (fp + tn)
        return np.stack([accepted, right, accepted - right, tp / (tp + fp), recall, false_positive, recall - false_positive], axis=-1)


def verifier_table(audit: Audit, rng: np.random.Generator, resamples: int = RESAMPLES) -> pd.DataFrame:
    """One row per verifier and measure: value, 95 % interval, puzzles, episodes, untold ones."""
    rows = []
    for verifier in audit.record["verifiers"]:
        cells, untold = confusion(audit.verdicts, verifier)
        if len(cells) == 0:
            continue
        place = {"run": audit.record["run"], "stage": audit.record["stage"], "step": audit.record["step"], "verifier": verifier}
        place |= {"n_puzzles": len(cells), "episodes": int(cells.sum()), "untold": untold}
        draws = rng.multinomial(len(cells), np.full(len(cells), 1 / len(cells)), size=resamples)
        resampled = measures_of(draws @ cells)
        points = measures_of(cells.sum(0))
        for column, (measure, point) in enumerate(zip(MEASURES, points)):
            low, high = _bounds(measure, cells, point, resampled[:, column])
            rows.append(place | {"measure": measure, "value": float(point), "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


def _bounds(measure: str, cells: np.ndarray, point: float, resampled: np.ndarray) -> tuple[float, float]:
    """Percentiles of the resamples; without any spread, Wilson's limits with puzzles as the trials."""
    if np.isnan(point):
        return float("nan"), float("nan")
    low, high = np.nanquantile(resampled, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    if high > low:
        return float(low), float(high)
    if measure == "gap":  # of puzzles without an episode wrongly refused, or wrongly accepted, what share may have one all the same?
        wrongly = [int((cells[:, column] > 0).sum()) for column in (2, 1)]
        return -wilson_interval(wrongly[0], len(cells))[1], wilson_interval(wrongly[1], len(cells))[1]
    if measure == "J":
        (low_a, high_a), (low_b, high_b) = (_wilson(part, cells) for part in ("recall", "false_positive_rate"))
        return max(-1.0, low_a - high_b), min(1.0, high_a - low_b)
    return _wilson(measure, cells)


def _wilson(measure: str, cells: np.ndarray) -> tuple[float, float]:
    columns = {"accepted": [0, 1, 2, 3], "right": [0, 1, 2, 3], "precision": [0, 1], "recall": [0, 2], "false_positive_rate": [1, 3]}[measure]
    trials = int((cells[:, columns].sum(1) > 0).sum())
    point = measures_of(cells.sum(0))[MEASURES.index(measure)]
    return wilson_interval(float(point) * trials, trials)


# ---- alternatives and attacks -----------------------------------------------------------------------------------------------------------


def alternative_table(audit: Audit) -> pd.DataFrame:
    """By verifier and bin: the share of puzzles in which it accepts a move beside the line's, and in which it refuses the line's; Wilson."""
    rows = []
    everything = pd.concat([audit.alternatives.assign(bin="all"), audit.alternatives])
    for (verifier, name), table in everything.groupby(["verifier", "bin"], sort=False):
        for measure, column in (("alternative solution", "with_alternative"), ("line refused", "line_refused")):
            told = table[table["untold"] == 0]
            if len(told):
                count = int((told[column] > 0).sum())
                low, high = wilson_interval(count, len(told))
                counts = {"n_puzzles": len(told), "untold": len(table) - len(told), "puzzles": count}
                shares = {"share": count / len(told), "ci_low": low, "ci_high": high}
                rows.append({"run": audit.record["run"], "verifier": verifier, "bin": name, "measure": measure} | counts | shares)
    return pd.DataFrame(rows)


def attack_rates(audit: Audit) -> pd.DataFrame:
    """By attack and verifier: how many puzzles allowed it, how many answers were accepted, their share with Wilson's limits."""
    rows = []
    for (attack, verifier), table in audit.attacks.groupby(["attack", "verifier"], sort=False):
        fooled = int(table["fooled"].sum())
        low, high = wilson_interval(fooled, len(table))
        counts = {"n": len(table), "fooled": fooled, "success_rate": fooled / len(table), "ci_low": low, "ci_high": high}
        rows.append({"run": audit.record["run"], "attack": attack, "verifier": verifier} | counts)
    return pd.DataFrame(rows)


# ---- hacking gap ------------------------------------------------------------------------------------------------------------------------


def gap_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The training verifier's verdict less the oracle's (``reward/gap``), beside the reward, by logged step of each RL run that has both."""
    columns = ["step", "reward", "reward/oracle", "reward/gap"]
    rows = [
        run.metrics[columns].dropna().assign(run=run.run_id, policy=run.label, oracle=run.setting("reward.oracle"))
        for run in runs
        if run.stage == "rl" and "reward/gap" in run.metrics
    ]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def gap_rise(gaps: pd.DataFrame) -> tuple[float, float]:
    """Mean gap of the last tenth of the steps less that of the first, and its standard error from the steps' spread."""
    count = max(2, round(END_SHARE * len(gaps)))
    first, last = gaps["reward/gap"].to_numpy()[:count], gaps["reward/gap"].to_numpy()[-count:]
    return float(last.mean() - first.mean()), float(np.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)))
