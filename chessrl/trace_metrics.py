"""What traces are like, as trees: one function per measure, and the tables that evaluations write of them.

The root is the puzzle's position, a node a distinct move prefix, a written move one ply of one line. A measure that a trace does not define is
None and enters no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import chess
import numpy as np
import pandas as pd

from chessrl.traces import Line, Tree, WrittenTrace

COVERAGE_DEPTHS = (1, 2, 3, 4)
FAULTS = ("illegal", "malformed", "empty", "cut")
MEASURES = (
    "candidates", "nodes", "depth", "leaves", "width_to_depth", "effective_branching", "revisit_rate", "dfs_consistency",
    *(f"coverage_{depth}" for depth in COVERAGE_DEPTHS), "chosen_rank", "best_seen_rank", "selection_gap", "length",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A trace's tree with its n nodes numbered in the order in which they were first written.

    parent: (n,) the parent's number, -1 for the root; depth: (n,) plies from the root; written: moves written, re-entered nodes included.
    """

    parent: np.ndarray
    depth: np.ndarray
    written: int

    @property
    def nodes(self) -> int:
        return len(self.parent)


def tree_shape(trace: WrittenTrace) -> TreeShape:
    """The shape of the legal part of a trace."""
    numbers: dict[tuple[int, chess.Move], int] = {}
    parent: list[int] = []
    depth: list[int] = []
    written = 0
    for line in trace.lines:
        node = -1
        for ply, move in enumerate(line.moves, start=1):
            written += 1
            child = numbers.setdefault((node, move), len(parent))
            if child == len(parent):
                parent.append(node)
                depth.append(ply)
            node = child
    return TreeShape(np.array(parent, np.int64), np.array(depth, np.int64), written)


# ---- the tree ---------------------------------------------------------------------------------------------------------------------------


def candidates(shape: TreeShape) -> int:
    """Nodes at depth 1: different first moves."""
    return int((shape.depth == 1).sum())


def depth(shape: TreeShape) -> int:
    """The largest depth in plies, 0 without a node."""
    return int(shape.depth.max(initial=0))


def leaves(shape: TreeShape) -> int:
    """Nodes without children."""
    return int(shape.nodes - len(np.unique(shape.parent[shape.parent >= 0])))


def width_to_depth(shape: TreeShape) -> float | None:
    """Leaves / depth."""
    return leaves(shape) / depth(shape) if shape.nodes else None


def effective_branching(shape: TreeShape) -> float | None:
    """nodes ^ (1 / depth)."""
    return shape.nodes ** (1 / depth(shape)) if shape.nodes else None


def revisit_rate(shape: TreeShape) -> float | None:
    """Share of written moves that re-enter a node written before."""
    return (shape.written - shape.nodes) / shape.written if shape.written else None


def dfs_consistency(shape: TreeShape) -> float | None:
    """Kendall's tau between the order of first visits and the depth-first preorder of the same tree (children by first visit).

    1 for a depth-first trace; None below two nodes.
    """
    count = shape.nodes
    if count < 2:
        return None
    place = preorder_places(shape)  # neither order has ties: tau = 1 - 2 inversions / pairs
    inversions = int((place[:, None] > place[None, :])[np.triu_indices(count, 1)].sum())
    return 1.0 - 4.0 * inversions / (count * (count - 1))


def preorder_places(shape: TreeShape) -> np.ndarray:
    """(n,) place of every node in the depth-first preorder. A node comes after its parent and the subtrees of its elder siblings."""
    count = shape.nodes
    size = np.ones(count, np.int64)  # nodes of each subtree; children have higher numbers than their parents
    for node in range(count - 1, -1, -1):
        if shape.parent[node] >= 0:
            size[shape.parent[node]] += size[node]
    place = np.empty(count, np.int64)
    following = np.zeros(count + 1, np.int64)  # the next child's place, per parent; the root's is the last entry
    for node in range(count):
        place[node] = following[shape.parent[node]]
        following[shape.parent[node]] += size[node]
        following[node] = place[node] + 1
    return place


# ---- faults -----------------------------------------------------------------------------------------------------------------------------


def attempts_by_depth(traces: Sequence[WrittenTrace]) -> tuple[np.ndarray, np.ndarray]:
    """Plies tried and plies that were no legal move at depth 1, 2, ...: two (D,) counts over all lines of ``traces``.

    A line ends at its first fault. Text that is no move counts as tried and not legal; an empty line and a cut one try nothing more.
    """
    lines = [line for trace in traces for line in trace.lines]
    faulty = np.array([line.fault in ("illegal", "malformed") for line in lines], bool)
    legal = np.array([len(line.moves) for line in lines], np.int64)
    deepest = int((legal + faulty).max(initial=0))
    tried = np.array([(legal + faulty > ply).sum() for ply in range(deepest)], np.int64)
    illegal = np.bincount(legal[faulty], minlength=deepest).astype(np.int64) if deepest else tried
    return tried, illegal


# ---- the puzzle's line ------------------------------------------------------------------------------------------------------------------


def coverage(tree: Tree, line: Line, plies: int) -> bool | None:
    """Whether a path of ``plies`` from the root has the solver's moves (plies 1, 3, ..) of ``line``, with any replies between; None for a
    shorter line.
    """
    if len(line) < plies:
        return None
    level = [tree]
    for ply in range(plies):
        level = [below for node in level for move, below in node.items() if ply % 2 or move == line[ply]]
    return bool(level)


# ---- the engine's ranks -----------------------------------------------------------------------------------------------------------------


def normalised_rank(ranks: dict[str, int], move: chess.Move | None) -> float | None:
    """(r - 1) / (n - 1) of a move among the n legal ones, 0 the best and 1 the last; None below two moves or without a legal move."""
    if move is None or len(ranks) < 2:
        return None
    return (ranks[move.uci()] - 1) / (len(ranks) - 1)


def best_seen_rank(ranks: dict[str, int], tree: Tree) -> float | None:
    """The least normalised rank among the trace's candidates."""
    seen = [rank for move in tree if (rank := normalised_rank(ranks, move)) is not None]
    return min(seen, default=None)


def selection_gap(ranks: dict[str, int], tree: Tree, chosen: chess.Move | None) -> float | None:
    """Rank of the chosen move less the best rank seen: above 0 where a better candidate was passed over, below where the move was none."""
    rank, seen = normalised_rank(ranks, chosen), best_seen_rank(ranks, tree)
    return None if rank is None or seen is None else rank - seen


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def measures(trace: WrittenTrace, line: Line, ranks: dict[str, int] | None, chosen: chess.Move | None) -> dict[str, float | None]:
    """All MEASURES of one trace. ``line``: the puzzle's, from the solver's first move; ``ranks``: chessrl.trace_ranks of the root's moves,
    None without an engine's word; ``chosen``: the answer's first move, None where it is no legal move.
    """
    shape, tree = tree_shape(trace), trace.tree()
    values: dict[str, float | None] = {
        "candidates": candidates(shape),
        "nodes": shape.nodes,
        "depth": depth(shape),
        "leaves": leaves(shape),
        "width_to_depth": width_to_depth(shape),
        "effective_branching": effective_branching(shape),
        "revisit_rate": revisit_rate(shape),
        "dfs_consistency": dfs_consistency(shape),
        **{f"coverage_{plies}": coverage(tree, line, plies) for plies in COVERAGE_DEPTHS},
        "chosen_rank": normalised_rank(ranks or {}, chosen),
        "best_seen_rank": best_seen_rank(ranks or {}, tree),
        "selection_gap": selection_gap(ranks or {}, tree, chosen),
        "length": trace.length,
    }
    return values | {fault: sum(written.fault == fault for written in trace.lines) for fault in FAULTS}


def summary_table(traces: pd.DataFrame) -> pd.DataFrame:
    """Means of MEASURES by bin and over all puzzles: over a puzzle's samples, then over puzzles (columns bin, metric, value, n_puzzles,
    n_samples). ``traces`` has one row per sample with columns puzzle, bin and MEASURES; undefined values are left out and the counts say so.
    """
    rows = []
    for name, chosen in [("all", traces), *traces.groupby("bin")]:
        for metric in MEASURES:
            values = chosen.loc[chosen[metric].notna(), ["puzzle", metric]]
            by_puzzle = values.groupby("puzzle")[metric].mean()
            mean = float(by_puzzle.mean()) if len(by_puzzle) else float("nan")
            rows.append({"bin": name, "metric": metric, "value": mean, "n_puzzles": len(by_puzzle), "n_samples": len(values)})
    return pd.DataFrame(rows)


def illegal_table(traces: Sequence[WrittenTrace], bins: Sequence[str]) -> pd.DataFrame:
    """Illegal rate by depth (columns bin, depth, tried, illegal, rate), pooled over the lines of a bin's traces, and over all."""
    rows = []
    for name in ["all", *sorted(set(bins))]:
        tried, illegal = attempts_by_depth([trace for trace, of in zip(traces, bins) if name in ("all", of)])
        for ply, (count, faults) in enumerate(zip(tried.tolist(), illegal.tolist()), start=1):
            rows.append({"bin": name, "depth": ply, "tried": count, "illegal": faults, "rate": faults / count})
    return pd.DataFrame(rows, columns=["bin", "depth", "tried", "illegal", "rate"])
