"""Lab 1."""

from __future__ import annotations

from collections.abc import Callable

import chess
from matplotlib.figure import Figure

from checks.compare import agree
from chessrl import notation

POSITIONS = {
    "a quiet move": ("8/8/8/4k3/8/8/4K3/Q7 w - - 0 1", "a1a4"),
    "a capture": ("8/8/8/4k3/3q4/8/4K3/Q7 w - - 0 1", "a1d4"),
    "a promotion with check": ("2r5/1P6/8/8/1k6/8/4K3/8 w - - 0 1", "b7b8q"),
    "a capture that promotes": ("2r5/1P6/8/8/1k6/8/4K3/8 w - - 0 1", "b7c8r"),
    "a mate": ("k7/8/1K6/8/8/8/8/7R w - - 0 1", "h1h8"),
    "castling": ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "e1g1"),
    "castling with check": ("3k4/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1"),
    "en passant": ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "e5d6"),
}


def spelling(spell: Callable[[chess.Board, chess.Move], list[str]]) -> bool:
    """Whether the student's function writes every move as the vocabulary does; the first that differs is shown."""
    for name, (fen, uci) in POSITIONS.items():
        board, move = chess.Board(fen), chess.Move.from_uci(uci)
        expected = [notation.token_name(token) for token in notation.move_tokens(board, move)]
        written = spell(board, move)
        if written != expected:
            print(f"  {name} ({uci}): {written}, expected {expected}")
            return False
        if board.fen() != fen:
            print(f"  {name} ({uci}): the board is another one afterwards")
            return False
    return True


def figure(drawn: Figure) -> bool:
    """A matplotlib figure whose axes both say what they show."""
    return any(axes.get_xlabel() and axes.get_ylabel() and (axes.patches or axes.lines or axes.collections) for axes in drawn.axes)


CHECKS = {
    "1.1 spelling": (spelling, "Piece, from, x if it takes, to, = and piece if it promotes, + or # at the end. Castling is one token."),
    "1.2 tokens of a snapshot": (
        lambda answer: agree(answer, lambda men: 2 * men + 3, (3,), (4,), (5,)),
        "<pos>, the side to move, a piece and a square for every man, </pos>.",
    ),
    "1.3 the longest move": (lambda answer: answer == notation.LONGEST_MOVE, "A pawn that takes, promotes and gives check."),
    "1.4 what carries no loss": (
        lambda answer: sorted(answer) == ["<bos>", "snapshot"],
        "The model is never asked to predict what it is given: a list of the two parts of a document that are given.",
    ),
    "1.5 the figure": (figure, "A matplotlib Figure with something drawn, and a label on each axis: axes.set(xlabel=..., ylabel=...)."),
}
