"""Reasoning traces: lines of play, their prefix tree, and the tokens between ``<T>`` and ``</T>``.

A line is a sequence of plies of both sides from the puzzle's position. Lines are merged to a prefix tree whose children stand in the order in
which they were first written; the trace lists its root-to-leaf lines depth first: ``line <sep> line <sep> ... line </T>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import chess

from chessrl import notation
from chessrl.notation import NotationError, move_tokens, parse_move

Line = tuple[chess.Move, ...]
Tree = dict[chess.Move, "Tree"]  # children in the order of their first appearance

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


def trace_tokens(board: chess.Board, tree: Tree) -> list[int]:
    """``line <sep> line ... </T>`` in canonical spelling; ``</T>`` alone for an empty tree."""
    tokens: list[int] = []
    for line in leaf_lines(tree):
        if tokens:
            tokens.append(notation.SEP)
        after = board.copy(stack=False)
        for move in line:
            tokens += move_tokens(after, move)
            after.push(move)
    return [*tokens, notation.END_THINK]
