"""Success of every puzzle by checkpoint, exact or counted, in one order of puzzles for all: what the tables on pass@k are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.chains import Checkpoint, matched, places_of
from analysis.coverage import majority_at_k
from analysis.read import Evaluation
from analysis.resampling import Weights
from chessrl.errors import UserError
from chessrl.statistics import EXACT_KS, pass_at_k
from chessrl.theory_weights import pass_at_k_objective

KINDS = ("exact", "sampled, strict", "sampled, lenient")


@dataclass(frozen=True, slots=True)
class Success:
    """One checkpoint on P puzzles: success probabilities, exact, or solved samples of n."""

    checkpoint: Checkpoint
    kind: str  # of KINDS
    puzzles: np.ndarray  # (P,) names, sorted
    bins: np.ndarray  # (P,)
    values: np.ndarray  # (seeds, P): p, or numbers of solved samples
    samples: int  # n; 0: exact

    @property
    def label(self) -> str:
        return self.checkpoint.label

    def ks(self) -> list[int]:
        """Where its curve is given: up to 10^6, or powers of two up to n."""
        return list(EXACT_KS) if not self.samples else [k for k in EXACT_KS[:13] if k <= self.samples]

    def pass_at(self, ks: Sequence[int]) -> np.ndarray:
        """(seeds, P, ks). Raises ValueError for a k above n."""
        if not self.samples:
            return np.stack([pass_at_k_objective(of_seed[:, None], ks) for of_seed in self.values])
        return np.stack([pass_at_k(self.samples, self.values, k) for k in ks], axis=-1)

    def only(self, mask: np.ndarray) -> Success:
        """The puzzles of a mask."""
        return Success(self.checkpoint, self.kind, self.puzzles[mask], self.bins[mask], self.values[:, mask], self.samples)

    def began(self, later: Checkpoint) -> Success:
        """One seed for each of the later checkpoint's, in their order: of the policy that it began from, which may be that of several."""
        at = places_of(self.checkpoint, later)
        return Success(matched(self.checkpoint, later), self.kind, self.puzzles, self.bins, self.values[at], self.samples)

    def masks(self) -> list[tuple[str, np.ndarray]]:
        """("all", every puzzle), then each bin."""
        return [("all", np.ones(len(self.puzzles), bool)), *((name, self.bins == name) for name in sorted(set(self.bins)))]

    def weights(self, seed: int) -> Weights:
        return Weights.draw(len(self.puzzles), len(self.values), np.random.default_rng(seed))


def exact_success(checkpoint: Checkpoint) -> Success:
    """Of exact.parquet of every seed. Raises UserError where seeds have different puzzles."""
    return _success(checkpoint, "exact", [_known(evaluation).set_index("puzzle").sort_index() for evaluation in checkpoint.evaluations], "p", 0)


def _known(evaluation: Evaluation) -> pd.DataFrame:
    table = evaluation.exact()
    if table is None:
        raise UserError(f"{evaluation.folder / 'exact.parquet'}: the file is missing; evaluate the run again with evaluate.exact=true")
    return table


def sampled_success(checkpoint: Checkpoint, strict: bool) -> Success:
    """Of samples.parquet of every seed: as they were judged, or by canonical spelling alone."""
    column = "solved_strict" if strict else "solved"
    counts = []
    for evaluation in checkpoint.evaluations:
        samples = evaluation.samples(*(["solved_strict"] if strict else []))
        counts.append(samples.groupby("puzzle").agg(bin=("bin", "first"), solved=(column, "sum"), n=(column, "size")))
    return _success(checkpoint, KINDS[1] if strict else KINDS[2], counts, "solved", int(min(table["n"].min() for table in counts)))


def _success(checkpoint: Checkpoint, kind: str, tables: Sequence[pd.DataFrame], column: str, samples: int) -> Success:
    for table in tables:
        if not table.index.equals(tables[0].index):
            raise UserError(f"{checkpoint.label}: its seeds were evaluated on different puzzles; evaluate all alike")
        if samples and table["n"].max() > samples:
            counts = f"from {samples} to {table['n'].max()} samples"
            raise UserError(f"{checkpoint.label}: puzzles have {counts}; evaluate all seeds with one evaluate.samples")
    names, bins = tables[0].index.to_numpy().astype(str), tables[0]["bin"].to_numpy().astype(str)
    return Success(checkpoint, kind, names, bins, np.stack([table[column].to_numpy() for table in tables]), samples)


def common(first: Success, second: Success) -> tuple[Success, Success]:
    """Both on the puzzles that both have, one seed of each beside the other. Raises UserError where there is no such puzzle."""
    both = np.intersect1d(first.puzzles, second.puzzles)
    if not len(both):
        raise UserError(f"{first.label} and {second.label} were evaluated on different puzzles; evaluate both on one split")
    return first.only(np.isin(first.puzzles, both)), second.only(np.isin(second.puzzles, both))


# ---- majority ---------------------------------------------------------------------------------------------------------------------------

_SPELLING = re.compile(r"(?:(?<=^)|(?<=/ ))[KQRBNP] (?=[a-h][1-8])| [x+#]")  # piece letter at a move's start; marks


def majority(evaluation: Evaluation, ks: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """maj@k (puzzles, ks) of one evaluation, puzzles sorted by name. Answers are equal where all their moves are; under lenient spelling piece
    letters, x, + and # do not count.

    Raises UserError where samples.parquet has no answers, as made before they were kept.
    """
    samples = evaluation.samples("answer").sort_values(["puzzle", "sample"])
    answers = samples["answer"]
    if evaluation.labels["spelling"] == "lenient":
        answers = answers.map({text: _SPELLING.sub("", text) for text in answers.unique()})
    codes = pd.factorize(answers)[0]
    n = int(samples.groupby("puzzle").size().min())
    shape = (samples["puzzle"].nunique(), n)
    return majority_at_k(codes.reshape(shape), samples["solved"].to_numpy().reshape(shape), ks, rng)
