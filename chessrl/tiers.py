"""Difficulty tiers of puzzles for one policy, how puzzles move between them, and what re-sampling alone would have "newly solved".

After Cai et al., arXiv 2606.22317: with n = 256 samples a puzzle's tier is set by k*, the index of its first success:
easy 1, medium 2-8, hard 9-32, frontier 33-256, beyond: none. With an exact success probability p: easy from 1/2, medium from 1/8, hard from 1/32,
frontier from 1/256, beyond below. Their claim that training solves what the base could not needs the null that they leave out: 256 fresh samples
of the base solve some of those puzzles too.

Prints the tiers of one policy, how puzzles moved to
another's, and what was newly solved beside the null; fresh is an evaluation of the first policy with another seed. boundary: also the ids of up to N
puzzles on each side of what the first policy can solve, as the key that fine-tunes on them.

Examples:
    python -m chessrl.tiers before=outputs/sft-0123456789ab/evaluations/0123456789ab boundary=200
    python -m chessrl.tiers before=start.csv after=later.csv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError
from chessrl.theory_weights import pass_at_k_objective

TIERS = ("easy", "medium", "hard", "frontier", "beyond")
SAMPLES = 256  # n: what is not solved in as many is beyond
LAST_FIRST_SUCCESS = (1, 8, 32, SAMPLES)  # the largest k* of each tier but the last
ROUNDING = 1e-6  # exact p are sums of fp32 probabilities: so much above 1 is 1
LEAST_PROBABILITY = (1 / 2, 1 / 8, 1 / 32, 1 / SAMPLES)


def tiers_of_probabilities(p: np.ndarray) -> np.ndarray:
    """Tier names, object array of the shape of ``p``, of exact success probabilities."""
    p = np.asarray(p, np.float64)
    return np.array(TIERS, object)[(p[..., None] < np.array(LEAST_PROBABILITY)).sum(-1)]


def tiers_of_samples(samples: pd.DataFrame, column: str = "solved") -> pd.DataFrame:
    """One row per puzzle, sorted by it: puzzle, pass_rate, first_success (k*, counted from 1; 0 where there is none) and tier.

    samples: an evaluation's ``samples.parquet`` (puzzle, sample and ``column``), at least SAMPLES rows a puzzle, the first SAMPLES of which
    count. Raises UserError on fewer: an unsolved puzzle could then be of several tiers.
    """
    missing = [name for name in ("puzzle", "sample", column) if name not in samples.columns]
    if missing:
        raise UserError(f"samples: column {missing[0]} is missing, expected puzzle, sample and {column}; evaluate the policy again")
    ordered = samples.sort_values(["puzzle", "sample"])
    place = ordered.groupby("puzzle").cumcount()
    counts = ordered.groupby("puzzle").size()
    if len(counts) == 0 or counts.min() < SAMPLES:
        found = f"puzzle {counts.idxmin()} has {counts.min()}" if len(counts) else "there are none"
        raise UserError(f"tiers need {SAMPLES} samples of every puzzle and {found}: evaluate with evaluate.samples={SAMPLES}")
    solved = ordered[place < SAMPLES].pivot_table(index="puzzle", values=column, aggfunc=list)[column]
    matrix = np.array(solved.tolist(), bool)
    first = np.where(matrix.any(1), matrix.argmax(1) + 1, 0)
    index = np.where(first == 0, len(TIERS) - 1, (first[:, None] > np.array(LAST_FIRST_SUCCESS)).sum(1))
    table = {"puzzle": solved.index, "pass_rate": matrix.mean(1), "first_success": first, "tier": np.array(TIERS, object)[index]}
    return pd.DataFrame(table).reset_index(drop=True)


def read_measured(path: Path, tiers: bool = True) -> pd.DataFrame:
    """puzzle, pass_rate and, with ``tiers``, tier and first_success (0 where p is exact), of an evaluation folder or of exact probabilities.

    A folder holds ``samples.parquet``; a .csv or .parquet file the columns puzzle and p. Without ``tiers`` any number of samples will do. Raises
    UserError naming the file and what is wrong with it.
    """
    if path.is_dir():
        file = path / "samples.parquet"
        if not file.is_file():
            raise UserError(f"{file}: no such file; expected the evaluation folder of a policy, or a .csv or .parquet file of puzzle and p")
        samples = pd.read_parquet(file, columns=["puzzle", "sample", "solved"])
        if tiers:
            return tiers_of_samples(samples)
        return samples.groupby("puzzle")["solved"].mean().rename("pass_rate").reset_index()
    if not path.is_file() or path.suffix not in (".csv", ".parquet"):
        raise UserError(f"{path}: expected an evaluation folder, or a .csv or .parquet file of puzzle and p")
    table = pd.read_csv(path, dtype={"puzzle": str}, keep_default_na=False) if path.suffix == ".csv" else pd.read_parquet(path)
    missing = [name for name in ("puzzle", "p") if name not in table.columns]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing, expected puzzle and p")
    p = pd.to_numeric(table["p"], errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~((p >= 0) & (p <= 1 + ROUNDING)))
    if len(wrong):
        raise UserError(f"{path}: row {wrong[0] + 1}: p={table['p'].iloc[wrong[0]]}: expected a probability from 0 to 1")
    if table["puzzle"].duplicated().any():
        raise UserError(f"{path}: puzzle {table['puzzle'][table['puzzle'].duplicated()].iloc[0]} is given more than once; expected a row per puzzle")
    return pd.DataFrame({"puzzle": table["puzzle"].astype(str), "pass_rate": p.clip(max=1.0), "first_success": 0, "tier": tiers_of_probabilities(p)})


def boundary_puzzles(measured: pd.DataFrame, count: int) -> list[str]:
    """Up to ``count`` puzzles on each side of what the policy can solve: frontier ones solved last, and beyond ones of the highest rate.

    measured: of ``read_measured``. From samples all beyond puzzles have rate 0, and the first by name are taken; exact p ranks them.
    """
    frontier = measured[measured["tier"] == "frontier"].sort_values(["pass_rate", "first_success", "puzzle"], ascending=[True, False, True])
    beyond = measured[measured["tier"] == "beyond"].sort_values(["pass_rate", "puzzle"], ascending=[False, True])
    return [*frontier["puzzle"].head(count), *beyond["puzzle"].head(count)]


def migration_table(before: pd.Series, after: pd.Series) -> pd.DataFrame:
    """Counts of puzzles by tier before (rows) and after (columns), all five tiers in order. Both: tier names indexed by puzzle.

    Raises UserError where the puzzles differ.
    """
    if set(before.index) != set(after.index) or len(before) != len(after):
        raise UserError(
            f"tier migration: expected the same puzzles before and after, found {len(before)} and {len(after)}; evaluate both on one split"
        )
    counts = pd.crosstab(before, after.reindex(before.index)).reindex(index=list(TIERS), columns=list(TIERS), fill_value=0)
    return counts.rename_axis(index="before", columns="after")


# ---- newly solved, and what re-sampling alone solves ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewlySolved:
    """Of ``unsolved`` puzzles that k samples of the base left unsolved, how many k samples of a later policy solve (``solved``), and how many k
    further samples of the base itself would (``null``). Counts or, from probabilities, expected counts.
    """

    unsolved: float
    solved: float
    null: float

    @property
    def share(self) -> float:
        return self.solved / self.unsolved if self.unsolved else float("nan")

    @property
    def null_share(self) -> float:
        return self.null / self.unsolved if self.unsolved else float("nan")


def newly_solved(fails: np.ndarray, fails_twice: np.ndarray, later: np.ndarray) -> NewlySolved:
    """All (puzzles,): the probability that k samples of the base all fail, that 2k all do, and the later policy's pass@k.

    The null is F(k) - F(2k): the first k fail, the next k do not. F is (1 - p)^k of an exact p (1 - ``pass_at_k_objective``), the unbiased
    1 - ``statistics.pass_at_k`` of n >= 2k samples, or, of two evaluations of k samples each, 1 where the first left the puzzle unsolved and
    where both did.
    """
    fails, fails_twice = np.asarray(fails, np.float64), np.asarray(fails_twice, np.float64)
    return NewlySolved(float(fails.sum()), float((fails * later).sum()), float((fails - fails_twice).sum()))


def newly_solved_exactly(before: np.ndarray, after: np.ndarray, samples: int = SAMPLES) -> NewlySolved:
    """``newly_solved`` of exact success probabilities (puzzles,) of the base and of a later policy."""
    fails, fails_twice = (1 - pass_at_k_objective(before, count) for count in (samples, 2 * samples))
    return newly_solved(fails, fails_twice, pass_at_k_objective(after, samples))


def newly_solved_by_samples(base: pd.DataFrame, later: pd.DataFrame, fresh: pd.DataFrame) -> NewlySolved:
    """From three tables of ``tiers_of_samples`` on the same puzzles: the base, the later policy, and fresh samples of the base (another seed).

    Raises UserError where the puzzles differ.
    """
    tables = [table.set_index("puzzle")["first_success"] for table in (base, later, fresh)]
    if any(set(table.index) != set(tables[0].index) for table in tables):
        raise UserError("newly solved: expected the same puzzles in all three evaluations; make them on one split")
    unsolved, solved, never = tables[0] == 0, tables[1].reindex(tables[0].index) > 0, tables[2].reindex(tables[0].index) == 0
    return newly_solved(unsolved.to_numpy(), (unsolved & never).to_numpy(), solved.to_numpy())


def log_uniform_null(lowest: float, samples: int = SAMPLES, points: int = 200_001) -> float:
    """The null's share when p is log-uniform on [``lowest``, 1]: what "newly solved" is worth before the policy is known.

    9.0, 12.8 and 21.4 % for 1e-6, 1e-5 and 1e-4. By the midpoints of equal steps of log p.
    """
    p = np.exp(np.log(lowest) * (np.arange(points) + 0.5) / points)
    return newly_solved_exactly(p, p, samples).null_share


def expanded(before: np.ndarray, after: np.ndarray) -> int:
    """How many puzzles an exact policy moved from beyond to a nearer tier: p from below 1/256 to at least 1/256, no sampling noise."""
    threshold = LEAST_PROBABILITY[-1]
    return int(((np.asarray(before) < threshold) & (np.asarray(after) >= threshold)).sum())


def tier_counts(tiers: Sequence[str]) -> dict[str, int]:
    """Puzzles of each tier, all five in order."""
    found = pd.Series(list(tiers)).value_counts()
    return {tier: int(found.get(tier, 0)) for tier in TIERS}


# ---- command ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Keys of the command. A policy is an evaluation folder, or a .csv or .parquet file of puzzle and exact p."""

    before: str  # evaluation folder of a policy, or a file of puzzle and exact p
    after: str = ""  # the same of a later policy: what was newly solved
    fresh: str = ""  # the first policy's evaluation with another seed: the null
    boundary: int = 0  # name so many puzzles on each side of what the first policy can solve

    def __post_init__(self) -> None:
        if self.fresh and not self.after:
            raise UserError(f"fresh={self.fresh}: it is the null of what a later policy newly solved; give that policy's evaluation as after=")


def newly_solved_line(found: NewlySolved) -> str:
    """What a policy newly solved, never without its null."""
    null = f"by the start policy's fresh samples {found.null:,.5g} ({found.null_share:.1%})"
    return f"newly solved: {found.solved:,.5g} of {found.unsolved:,.5g} ({found.share:.1%}); {null}"


def main(arguments: list[str]) -> None:
    settings = parse_settings(TierSettings, arguments)
    before = read_measured(Path(settings.before))
    print("tiers: " + ", ".join(f"{tier} {count:,}" for tier, count in tier_counts(before["tier"]).items()))
    if settings.boundary:
        print(f"boundary: sft.puzzles=[{','.join(boundary_puzzles(before, settings.boundary))}]")
    if not settings.after:
        return
    after = read_measured(Path(settings.after))
    print(migration_table(before.set_index("puzzle")["tier"], after.set_index("puzzle")["tier"]).to_string())
    if Path(settings.before).is_file() and Path(settings.after).is_file():
        p, later = before["pass_rate"].to_numpy(), after.set_index("puzzle")["pass_rate"].reindex(before["puzzle"]).to_numpy()
        print(f"p from below to at least 1/{SAMPLES}: {expanded(p, later):,} puzzles")
        print(f"expected, {SAMPLES} samples each: {newly_solved_line(newly_solved_exactly(p, later))}")
    elif settings.fresh:
        print(newly_solved_line(newly_solved_by_samples(before, after, read_measured(Path(settings.fresh)))))
    else:
        print("newly solved: give fresh=, an evaluation of the first policy with another seed, for without its null the number says nothing")


if __name__ == "__main__":
    sys.exit(run_command(main))
