"""Reasoning traces: lines of play, their prefix tree, and the tokens between ``<T>`` and ``</T>``.

A line is a sequence of plies of both sides from the puzzle's position. Lines are merged to a prefix tree whose children stand in the order in
which they were first written; a trace is ``line <sep> line <sep> ... line </T>``. Which lines it writes is its layout:

- ``dfs``: the lines from root to leaf, depth first;
- ``shuffled``: the same lines in random order;
- ``bfs``: one line for every node, from the root to it, level by level. A node stands on a line of its own before any line goes through it.

Merging the lines of a trace gives its tree back, the order of children included (but for ``shuffled``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import chess
import numpy as np

from chessrl import notation
from chessrl.notation import NotationError, line_tokens, parse_move

Line = tuple[chess.Move, ...]
Tree = dict[chess.Move, "Tree"]  # children in the order of their first appearance
LAYOUTS = ("dfs", "bfs", "shuffled")

_PIECES = range(notation.FIRST_PIECE, notation.FIRST_PIECE + 6)
_SQUARES = range(notation.FIRST_SQUARE, notation.FIRST_SQUARE + 64)
_SUFFIXES = (notation.CHECK, notation.MATE)


def next_move_length(tokens: Sequence[int]) -> int:
    """How many leading tokens form a move by grammar (longest reading), 0 when they do not begin with one."""
    if not tokens:
        return 0
    if tokens[0] in (notation.CASTLE_SHORT, notation.CASTLE_LONG):
        length = 1
    else:
        length = 0
        for allowed, optional in ((_PIECES, False), (_SQUARES, False), ((notation.CAPTURE,), True), (_SQUARES, False)):
            if length < len(tokens) and tokens[length] in allowed:
                length += 1
            elif not optional:
                return 0
        if length + 1 < len(tokens) and tokens[length] == notation.PROMOTION and tokens[length + 1] in _PIECES:
            length += 2
    return length + (length < len(tokens) and tokens[length] in _SUFFIXES)


def read_plies(board: chess.Board, tokens: Sequence[int], most: int) -> tuple[Line, bool]:
    """Up to ``most`` legal plies that ``tokens`` begin with (spelling not judged), and whether the reading stopped at an illegal ply."""
    board = board.copy(stack=False)
    line: list[chess.Move] = []
    place = 0
    while len(line) < most and not board.is_game_over():
        length = next_move_length(tokens[place:])
        try:
            move = parse_move(board, tokens[place : place + length], strict=False)
        except NotationError:
            return tuple(line), True
        line.append(move)
        board.push(move)
        place += length
    return tuple(line), False


def merge(lines: Iterable[Line]) -> Tree:
    """The prefix tree of ``lines``, children in the order in which they first appear."""
    tree: Tree = {}
    for line in lines:
        node = tree
        for move in line:
            node = node.setdefault(move, {})
    return tree


def leaf_lines(tree: Tree) -> list[Line]:
    """Root-to-leaf lines, depth first."""
    return [(move, *rest) for move, below in tree.items() for rest in (leaf_lines(below) or [()])]


def node_lines(tree: Tree) -> list[Line]:
    """The line from the root to every node, level by level, children in their order."""
    lines: list[Line] = []
    level: list[tuple[Line, Tree]] = [((), tree)]
    while level:
        level = [((*line, move), below) for line, node in level for move, below in node.items()]
        lines += [line for line, _ in level]
    return lines


def written_lines(tree: Tree, layout: str, rng: np.random.Generator) -> list[Line]:
    """The lines that a trace of ``tree`` writes, in their order; ``rng`` is drawn from by ``shuffled`` alone."""
    if layout == "bfs":
        return node_lines(tree)
    lines = leaf_lines(tree)
    return [lines[place] for place in rng.permutation(len(lines))] if layout == "shuffled" else lines


def reordered(board: chess.Board, tree: Tree, order: Callable[[chess.Board, list[chess.Move]], list[chess.Move]]) -> Tree:
    """The same tree with the children of every node as ``order`` (position, moves) puts them. ``board`` is left as it was."""
    result: Tree = {}
    for move in order(board, list(tree)):
        board.push(move)
        result[move] = reordered(board, tree[move], order)
        board.pop()
    return result


def positions_with_choice(board: chess.Board, tree: Tree) -> Iterator[chess.Board]:
    """The positions of nodes with two children or more, the only ones whose children have an order."""
    if len(tree) > 1:
        yield board.copy(stack=False)
    for move, below in tree.items():
        board.push(move)
        yield from positions_with_choice(board, below)
        board.pop()


# ---- tokens ---------------------------------------------------------------------------------------------------------------------------


def trace_tokens(board: chess.Board, lines: Sequence[Line]) -> list[int]:
    """``line <sep> line ... </T>`` in canonical spelling; ``</T>`` alone without lines."""
    tokens: list[int] = []
    for line in lines:
        if tokens:
            tokens.append(notation.SEP)
        for ply in line_tokens(board, line):
            tokens += ply
    return [*tokens, notation.END_THINK]


def lines_within(board: chess.Board, lines: Sequence[Line], budget: int, keep: Line = ()) -> list[Line]:
    """``lines`` without the last ones, dropped whole until the trace has at most ``budget`` tokens, ``</T>`` included.

    A line that begins with ``keep``, the answer's opening, is dropped after all others.
    """
    sizes = [1 + sum(map(len, line_tokens(board, line))) for line in lines]  # the moves, and <sep> or </T>
    total = sum(sizes)
    dropped: set[int] = set()
    for place in sorted(range(len(lines)), key=lambda place: (bool(keep) and lines[place][: len(keep)] == keep, -place)):
        if total <= max(1, budget):
            break
        dropped.add(place)
        total -= sizes[place]
    return [line for place, line in enumerate(lines) if place not in dropped]


@dataclass(frozen=True, slots=True)
class WrittenLine:
    """One line of a trace as somebody wrote it: its legal plies up to the first fault, which ends the reading.

    ``fault``: "" for none; "illegal", a move that cannot be played; "malformed", text that is no move; "empty", no text at all; "cut", a last
    line whose last ply the end of an unclosed trace cut short, so that nothing is known of it.
    """

    moves: Line
    fault: str = ""


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """A trace as it was written: its lines, its tokens before ``</T>``, and whether there was one."""

    lines: tuple[WrittenLine, ...]
    length: int
    closed: bool

    def tree(self) -> Tree:
        return merge(line.moves for line in self.lines)


class TraceReader:
    """Reads the traces of one position. What a ply means is remembered: samples of one puzzle share most of theirs."""

    def __init__(self, board: chess.Board) -> None:
        self._root = _Position(board.copy(stack=False), {})

    def read(self, tokens: Sequence[int]) -> WrittenTrace:
        """The trace that ``tokens`` begin with: all before the first ``</T>``, or all of them where there is none. Spelling is not judged."""
        tokens = list(tokens)
        closed = notation.END_THINK in tokens
        text = tokens[: tokens.index(notation.END_THINK)] if closed else tokens
        lines: list[WrittenLine] = []
        start = 0
        while text and start <= len(text):
            end = text.index(notation.SEP, start) if notation.SEP in text[start:] else len(text)
            lines.append(self._line(text[start:end], cut=end == len(text) and not closed))
            start = end + 1
        return WrittenTrace(tuple(lines), len(text), closed)

    def _line(self, text: list[int], cut: bool) -> WrittenLine:
        if not text:
            return WrittenLine((), "cut" if cut else "empty")
        moves: list[chess.Move] = []
        position, place = self._root, 0
        while place < len(text):
            length = next_move_length(text[place:])
            ply = tuple(text[place : place + length])
            if ply not in position.known:
                position.known[ply] = position.after(ply)
            step = position.known[ply]
            if step is None:
                # Fewer tokens than a move may have: one that was cut short may have become legal.
                unknown = cut and len(text) - place < notation.LONGEST_MOVE
                return WrittenLine(tuple(moves), "cut" if unknown else "illegal" if length else "malformed")
            move, position = step
            moves.append(move)
            place += length
        return WrittenLine(tuple(moves))


@dataclass(slots=True)
class _Position:
    """A position, and what the plies read there so far lead to: a move and the next position, or None where there is no such move."""

    board: chess.Board
    known: dict[tuple[int, ...], tuple[chess.Move, _Position] | None]

    def after(self, ply: tuple[int, ...]) -> tuple[chess.Move, _Position] | None:
        try:
            move = parse_move(self.board, ply, strict=False)
        except NotationError:
            return None
        board = self.board.copy(stack=False)
        board.push(move)
        return move, _Position(board, {})
