"""Move policies as tables: one softmax per puzzle over its legal moves, padded to the longest list, and what is exact about them.

A policy is a float64 tensor (P, A) of log-probabilities or logits; places beyond a puzzle's moves hold ``PADDING``, which exp makes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import torch
from pyarrow import ArrowInvalid
from torch import Tensor

from chessrl.errors import UserError
from chessrl.theory_weights import pass_at_k_objective

PADDING = -1e9  # finite: 0 x PADDING is 0, where 0 x -inf would be nan in the KL and in its gradient
FLOOR = 1e-12  # of probabilities that a table gives as 0: a softmax has none
COLUMNS = ("puzzle", "decision", "trace", "moves", "logprobs", "solving")  # of chessrl.policy.POLICY_COLUMNS


@dataclass(frozen=True, slots=True)
class MoveTable:
    """P puzzles and a policy over the legal moves of each."""

    puzzles: tuple[str, ...]
    moves: tuple[tuple[str, ...], ...]
    logprobs: Tensor  # (P, A) float64, each row sums to 1 over its moves
    solving: Tensor  # (P, A) bool: the moves that solve the puzzle

    @property
    def legal(self) -> Tensor:
        """(P, A) bool: True where there is a move."""
        counts = torch.tensor([len(moves) for moves in self.moves])
        return torch.arange(self.logprobs.shape[1]) < counts[:, None]

    def rows(self, kept: Tensor) -> MoveTable:
        """The puzzles marked in ``kept`` (P,) bool."""
        places = kept.nonzero()[:, 0].tolist()
        names, moves = (tuple(values[place] for place in places) for values in (self.puzzles, self.moves))
        return MoveTable(names, moves, self.logprobs[kept], self.solving[kept])


def move_table(
    puzzles: Sequence[str],
    moves: Sequence[Sequence[str]],
    probabilities: Sequence[np.ndarray],
    solving: Sequence[Sequence[int]],
    source: str = "tabular",
) -> MoveTable:
    """A table of lists, one per puzzle: moves, their probabilities (normalised here, at least FLOOR) and the places of solving moves.

    Raises UserError naming the ``source`` and the puzzle whose lists do not fit together.
    """
    width = max((len(row) for row in moves), default=0)
    logprobs = np.full((len(puzzles), width), PADDING)
    solved = np.zeros((len(puzzles), width), bool)
    for number, (name, names, values, places) in enumerate(zip(puzzles, moves, probabilities, solving, strict=True)):
        values = np.asarray(values, np.float64)
        if len(names) < 2 or len(values) != len(names) or not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise UserError(
                f"{source}: puzzle {name}: expected at least 2 moves with a probability each, found {len(names)} moves, {len(values)} values; "
                "measure the policy again"
            )
        if not places or min(places) < 0 or max(places) >= len(names):
            raise UserError(
                f"{source}: puzzle {name}: solving moves {list(places)}: expected places among its {len(names)} moves; measure the policy again"
            )
        values = np.maximum(values, FLOOR)
        logprobs[number, : len(names)] = np.log(values / values.sum())
        solved[number, list(places)] = True
    if width == 0:
        raise UserError(f"{source}: no puzzle in the table of moves, expected at least one; give another start policy")
    return MoveTable(tuple(puzzles), tuple(map(tuple, moves)), torch.from_numpy(logprobs), torch.from_numpy(solved))


def read_policy(path: Path) -> tuple[MoveTable, dict[str, int]]:
    """The first decisions of a ``policy.parquet``, and what was left out, by reason.

    Columns: puzzle, decision (0 is the first), trace (several rows are averaged: the marginal policy), moves and logprobs (lists over the legal
    moves; normalised within each trace), solving (list of the places of solving moves). Positions with one legal move, or with solving moves
    alone, have nothing to learn. Raises UserError naming the file and what is missing.
    """
    if not path.is_file():
        raise UserError(f"tabular.policy={path}: no such file; give a policy.parquet, or leave the key empty for a made-up prior")
    try:
        present = parquet.read_schema(path).names
    except ArrowInvalid as error:
        raise UserError(f"{path}: not a readable parquet table ({str(error).splitlines()[0]}); measure the policy again") from None
    missing = [name for name in COLUMNS if name not in present]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing, expected {', '.join(COLUMNS)}; measure the policy again")
    rows = pd.read_parquet(path, columns=list(COLUMNS))
    first = rows[rows["decision"] == 0]
    left_out = {"later decisions": len(rows) - len(first), "one legal move": 0, "every move solves": 0}
    names, moves, probabilities, solving = [], [], [], []
    for name, traces in first.groupby("puzzle", sort=True):
        legal = list(traces["moves"].iloc[0])
        if any(list(other) != legal for other in traces["moves"]):
            raise UserError(f"{path}: puzzle {name}: its traces list different moves; measure the policy again")
        places = sorted(map(int, traces["solving"].iloc[0]))
        if len(places) == len(legal):
            left_out["one legal move" if len(legal) == 1 else "every move solves"] += 1
            continue
        scores = np.stack(list(traces["logprobs"])).astype(np.float64)
        policies = np.exp(scores - scores.max(1, keepdims=True))
        names.append(str(name))
        moves.append(legal)
        probabilities.append((policies / policies.sum(1, keepdims=True)).mean(0))
        solving.append(places)
    return move_table(names, moves, probabilities, solving, str(path)), {reason: count for reason, count in left_out.items() if count}


def write_policy(path: Path, table: MoveTable, logits: Tensor) -> None:
    """``logits`` (P, A) on the puzzles of ``table``, in the columns that ``read_policy`` reads."""
    logprobs = torch.log_softmax(logits, 1).numpy()
    counts = [len(moves) for moves in table.moves]
    rows = {
        "puzzle": table.puzzles,
        "decision": 0,
        "trace": 0,
        "moves": [list(moves) for moves in table.moves],
        "logprobs": [row[:count] for row, count in zip(logprobs, counts)],
        "solving": [np.flatnonzero(row) for row in table.solving.numpy()],
    }
    pd.DataFrame(rows).to_parquet(path, compression="zstd", index=False)


# ---- priors -----------------------------------------------------------------------------------------------------------------------------


def prior(kind: str, puzzles: int, moves: int, *, concentration: float = 1.0, top: float = 0.5, seed: int = 0) -> MoveTable:
    """``puzzles`` made-up policies over ``moves`` moves.

    dirichlet: each row drawn from a symmetric Dirichlet, one move drawn as solving. zipf: probability of the i-th move as 1/i. peaked: the first
    move has probability ``top``, the others share the rest equally. Of zipf and peaked the first move counts as solving. Seeded, no global state.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    solving = np.zeros(puzzles, int)
    if kind == "dirichlet":
        rows = generator.dirichlet(np.full(moves, concentration), puzzles)
        solving = generator.integers(moves, size=puzzles)
    elif kind == "zipf":
        rows = np.tile(1 / np.arange(1, moves + 1), (puzzles, 1))
    elif kind == "peaked":
        rows = np.full((puzzles, moves), (1 - top) / (moves - 1))
        rows[:, 0] = top
    else:
        raise UserError(f"tabular.prior={kind!r}: expected dirichlet, zipf or peaked")
    names = [f"{kind}-{number}" for number in range(puzzles)]
    return move_table(names, [[f"move-{place}" for place in range(moves)]] * puzzles, rows, [[place] for place in solving.tolist()])


# ---- measures ---------------------------------------------------------------------------------------------------------------------------


def success(logits: Tensor, solving: Tensor) -> Tensor:
    """p (P,): the probability of a solving move."""
    return (torch.softmax(logits, 1) * solving).sum(1)


def entropy(logits: Tensor) -> Tensor:
    """(P,) nats."""
    logprobs = torch.log_softmax(logits, 1)
    return -(logprobs.exp() * logprobs).sum(1)


def kl(logits: Tensor, other: Tensor) -> Tensor:
    """KL(logits || other), (P,) nats, exact over the moves; differentiable."""
    logprobs = torch.log_softmax(logits, 1)
    return (logprobs.exp() * (logprobs - torch.log_softmax(other, 1))).sum(1)


def measures(logits: Tensor, table: MoveTable, ks: Sequence[int]) -> dict[str, float]:
    """Means over puzzles: p, pass@k of every k (exact: 1 - (1 - p)^k), entropy, probability of the likeliest move, KL both ways to the start."""
    p = success(logits, table.solving).numpy()
    return {
        "success": float(p.mean()),
        **{f"pass_at_{k}": float(pass_at_k_objective(p, k).mean()) for k in ks},
        "entropy": entropy(logits).mean().item(),
        "top_probability": torch.softmax(logits, 1).max(1).values.mean().item(),
        "kl_to_start": kl(logits, table.logprobs).mean().item(),
        "kl_from_start": kl(table.logprobs, logits).mean().item(),
    }
