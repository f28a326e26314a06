"""Lab 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from chessrl import traces

LINES = [tuple("abc"), tuple("abd"), tuple("ax"), tuple("b"), tuple("bc"), tuple("abc"), tuple("ax")]


def merging(written: Callable[[Iterable[tuple]], dict]) -> bool:
    """The project's tree, with its order of children."""
    return repr(written(LINES)) == repr(traces.merge(LINES)) and written([]) == {}


def depth_first(written: Callable[[dict], list[tuple]]) -> bool:
    """Against the project's, on a tree of lines and on a full one."""
    full = traces.merge(product("ab", "cd", "ef"))
    return all(written(tree) == traces.leaf_lines(tree) for tree in (traces.merge(LINES), full, {}))


CHECKS = {
    "3.1 merging": (merging, "Walk down from the root for each line, making the nodes that are not there: dict.setdefault."),
    "3.2 depth first": (depth_first, "A line for every leaf: for each child, its move before every line of what is below it; a leaf has one line, (move,)."),
    "3.3 nodes": (lambda answer: answer == 20, "4 first moves, and below each of them 2 continuations of 2 nodes."),
    "3.4 moves written": (lambda answer: answer == 24, "One line per leaf, each from the root: 8 lines of 3 plies."),
    "3.5 revisit rate": (lambda answer: abs(answer - 4 / 24) < 1e-9, "The moves that were written more than their nodes need."),
}
