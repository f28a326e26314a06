"""Measured policies (``policy.parquet``, chessrl.policy) as padded arrays, and which policy follows from which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
from pyarrow import ArrowInvalid

from analysis.sharpening import TracePolicies, entropy, trace_sensitivity
from chessrl.errors import UserError

COLUMNS = ("puzzle", "decision", "trace", "logprobs", "solving")
STATES_AT_ONCE = 128  # bounds the memory of work on single traces: 128 states x 128 traces x 80 moves are 10 MB
REMEDY = "evaluate the run again with evaluate.policy_traces=K"


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """Move distributions of one policy: S states (a puzzle and a decision of its solver, in that order), at most A legal moves each.

    ``scores``: log-probabilities of all traces' moves, flat; ``starts`` (rows + 1,): where each trace's begin; ``rows`` (S + 1,): where each
    state's traces begin.
    """

    states: pd.DataFrame  # puzzle, bin ("" where the file has none), decision, traces; mass: mean sum of the moves' probabilities (legal mass)
    legal: np.ndarray  # (S, A) bool
    solving: np.ndarray  # (S, A) bool
    marginal: np.ndarray  # (S, A) mean over traces of the distribution over legal moves
    sensitivity: np.ndarray  # (S,) nats
    entropy: np.ndarray  # (S,) of the marginal, nats
    scores: np.ndarray
    starts: np.ndarray
    rows: np.ndarray

    def traces(self, chosen: np.ndarray) -> Iterator[tuple[slice, TracePolicies]]:
        """The distributions given each trace, of the ``chosen`` states, some at a time: which of the chosen, and theirs."""
        for first in range(0, len(chosen), STATES_AT_ONCE):
            part = slice(first, min(first + STATES_AT_ONCE, len(chosen)))
            yield part, _trace_policies(self.scores, self.starts, self.rows, chosen[part], self.legal.shape[1])[0]

    def keys(self) -> pd.MultiIndex:
        return pd.MultiIndex.from_frame(self.states[["puzzle", "decision"]])


def read_policy(path: Path) -> MeasuredPolicy:
    """The file as arrays. Raises UserError naming the file and the column or state at fault."""
    if not path.is_file():
        raise UserError(f"{path}: the file is missing; {REMEDY}")
    try:
        present = parquet.read_schema(path).names
        missing = [name for name in COLUMNS if name not in present]
        if missing:
            raise UserError(f"{path}: column {missing[0]} is missing, expected {', '.join(COLUMNS)}; {REMEDY}")
        table = parquet.read_table(path, columns=[*COLUMNS, *(["bin"] if "bin" in present else [])])
    except ArrowInvalid as error:
        raise UserError(f"{path}: not a readable parquet table ({str(error).splitlines()[0]}); {REMEDY}") from None
    if not len(table):
        raise UserError(f"{path}: no state was measured; {REMEDY}")
    names = table.column("puzzle").to_numpy().astype(str)
    decision, trace = (table.column(name).to_numpy() for name in ("decision", "trace"))
    codes = pd.factorize(names, sort=True)[0]
    order = np.lexsort((trace, decision, codes))
    if (np.diff(order) != 1).any():
        table, names, codes, decision = table.take(order), names[order], codes[order], decision[order]
    first = np.flatnonzero(np.append(True, (np.diff(codes) != 0) | (np.diff(decision) != 0)))
    scores, starts = _flat(table.column("logprobs"))
    rows, widths = np.append(first, len(codes)), np.diff(starts)
    if (widths != np.repeat(widths[first], np.diff(rows))).any():
        at = np.flatnonzero(widths != np.repeat(widths[first], np.diff(rows)))[0]
        raise UserError(f"{path}: puzzle {names[at]}: its traces list different moves; measure the policy again")
    legal = np.arange(widths.max()) < widths[first][:, None]
    solving = _solving(table.column("solving"), first, legal.shape)
    bins = table.column("bin").to_numpy()[first].astype(str) if "bin" in table.column_names else np.full(len(first), "")
    measured = _summaries(scores, starts, rows, legal.shape)
    states = pd.DataFrame({"puzzle": names[first], "bin": bins, "decision": decision[first], "traces": np.diff(rows), "mass": measured[3]})
    return MeasuredPolicy(states, legal, solving, *measured[:3], scores, starts, rows)


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Values of a list column one after the other, and where each row's begin (rows + 1,)."""
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return values, np.append(0, np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False)))


def _solving(column: pa.ChunkedArray, first: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    places, starts = _flat(column.take(first))
    solving = np.zeros(shape, bool)
    solving[np.repeat(np.arange(shape[0]), np.diff(starts)), places.astype(int)] = True
    return solving


def _trace_policies(
    scores: np.ndarray, starts: np.ndarray, rows: np.ndarray, chosen: np.ndarray, width: int
) -> tuple[TracePolicies, np.ndarray]:
    """Padded distributions of the chosen states, and the legal mass (states,), the mean over traces."""
    counts = rows[chosen + 1] - rows[chosen]
    scored = np.arange(counts.max()) < counts[:, None]
    row = (rows[chosen][:, None] + np.arange(counts.max()))[scored]  # of the file
    widths = starts[row + 1] - starts[row]
    padded = np.full((len(row), width), -np.inf)
    inside = np.arange(width) < widths[:, None]
    padded[inside] = scores[(starts[row][:, None] + np.arange(width))[inside]]
    highest = padded.max(1, keepdims=True)
    weights = np.exp(padded - highest)
    total = weights.sum(1, keepdims=True)
    probabilities, mass = np.zeros((len(chosen), counts.max(), width)), np.zeros(scored.shape)
    probabilities[scored] = weights / total
    mass[scored] = (total * np.exp(highest))[:, 0]
    return TracePolicies(probabilities, scored), mass.sum(1) / counts


def _summaries(scores: np.ndarray, starts: np.ndarray, rows: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """marginal (S, A), trace sensitivity, entropy and legal mass (S,)."""
    marginal, sensitivity, mass = np.zeros(shape), np.zeros(shape[0]), np.zeros(shape[0])
    for first in range(0, shape[0], STATES_AT_ONCE):
        part = np.arange(first, min(first + STATES_AT_ONCE, shape[0]))
        policies, mass[part] = _trace_policies(scores, starts, rows, part, shape[1])
        marginal[part], sensitivity[part] = policies.marginal(), trace_sensitivity(policies)
    return marginal, sensitivity, entropy(marginal), mass


# ---- pairs ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A start policy p and a later one q on the states that both were measured on; ``chosen`` are those states among the start's."""

    start: MeasuredPolicy
    later: MeasuredPolicy
    chosen: np.ndarray
    found: np.ndarray  # the same states among the later policy's
    left_out: int  # states that only one of them has

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """p, q, legal, solving (states, A)."""
        width = max(self.start.legal.shape[1], self.later.legal.shape[1])
        q = _widened(self.later.marginal[self.found], width)
        p, legal, solving = (_widened(getattr(self.start, name)[self.chosen], width) for name in ("marginal", "legal", "solving"))
        return p, q, legal, solving


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def pair_of(start: MeasuredPolicy, later: MeasuredPolicy, name: str, only: pd.MultiIndex | None = None) -> Pair:
    """Both on their common states, or on those of ``only`` among them. Raises UserError where there are none, or they list other moves."""
    keys, others = start.keys(), later.keys()
    common = keys.intersection(others, sort=False)
    left_out = len(keys) + len(others) - 2 * len(common)
    if only is not None:
        common = common.intersection(only, sort=False)
    if not len(common):
        raise UserError(f"{name}: no puzzle was measured for both policies; evaluate both on one split")
    chosen, found = keys.get_indexer(common), others.get_indexer(common)
    different = start.legal[chosen].sum(1) != later.legal[found].sum(1)
    if different.any():
        puzzle = common[np.flatnonzero(different)[0]][0]
        raise UserError(f"{name}: puzzle {puzzle} has other legal moves in one of the files; evaluate both with one puzzle table")
    return Pair(start, later, chosen, found, left_out)
