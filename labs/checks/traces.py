"""Lab 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import numpy as np

from checks.compare import near
from chessrl import traces
from chessrl.puzzles import Puzzle

LINES = [tuple("abc"), tuple("abd"), tuple("ax"), tuple("b"), tuple("bc"), tuple("abc"), tuple("ax")]


def merging(written: Callable[[Iterable[tuple]], dict]) -> bool:
    """The project's tree, with its order of children."""
    return _same(written, [], {}) and _same(written, LINES, traces.merge(LINES))


def depth_first(written: Callable[[dict], list[tuple]]) -> bool:
    """Against the project's, on a tree of lines and on a full one."""
    full = traces.merge(product("ab", "cd", "ef"))
    return all(_same(written, tree, traces.leaf_lines(tree)) for tree in ({}, traces.merge(LINES), full))


def _same(written: Callable, argument: object, expected: object) -> bool:
    """Equal, the order of a dictionary's keys included; what differs is printed."""
    got = written(argument)
    if repr(got) != repr(expected):
        print(f"  {written.__name__}({argument}) gives {got}, expected {expected}")
    return repr(got) == repr(expected)


def coverage(found: list[tuple[int, float, float]], puzzles: list[Puzzle]) -> bool:
    """The shares against what chance gives, m of n legal first moves hold the solution with probability min(m, n) / n, within four standard errors."""
    legal = np.array([puzzle.board().legal_moves.count() for puzzle in puzzles])
    for first_moves, share, tokens in found:
        chances = np.minimum(first_moves / legal, 1.0)
        error = np.sqrt((chances * (1 - chances)).sum()) / len(puzzles)
        if abs(share - chances.mean()) > 4 * error + 1e-9 or not tokens > 3:
            print(f"  {first_moves} first moves: share {share:.3f}, {tokens:.1f} tokens; chance alone gives a share of {chances.mean():.3f} +- {error:.3f}")
            return False
    return [row[0] for row in found] == [1, 2, 4, 8, 16]


CHECKS = {
    "3.1 merging": (merging, "Walk down from the root for each line, making the nodes that are not there: dict.setdefault."),
    "3.2 depth first": (depth_first, "A line for every leaf: for each child, its move before every line of what is below it; a leaf has one line, (move,)."),
    "3.3 nodes": (lambda answer: answer == 20, "4 first moves, and below each of them 2 continuations of 2 nodes."),
    "3.4 moves written": (lambda answer: answer == 24, "One line per leaf, each from the root: 8 lines of 3 plies."),
    "3.5 revisit rate": (near(4 / 24, 0.005), "The moves that were written more than their nodes need, over all that were written."),
    "3.6 the curve": (
        coverage,
        "A row for each of 1, 2, 4, 8, 16: propose(board, rng, first_moves, lines=1), and the solution's first move is puzzle.moves[puzzle.lead], as UCI text.",
    ),
}
