"""Rows of a Lichess puzzle table for tests, and puzzles of rook and king whose lines are legal."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import chess

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
FEN, MOVES = "6k1/5ppp/8/8/8/8/5PPP/R5K1 b - - 0 1", "h7h6 a1a8 g8h7 a8a7"


def row(
    identifier: str = "00008", fen: str = FEN, moves: str = MOVES, rating: str = "1500", url: str = "", themes: str = "endgame short",
    deviation: str = "70", popularity: str = "90", plays: str = "100",
) -> str:  # fmt: skip
    """One line of the table."""
    return f"{identifier},{fen},{moves},{rating},{deviation},{popularity},{plays},{themes},{url},"


def write(path: Path, *rows: str, header: str = HEADER) -> Path:
    """A table of these rows."""
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


@cache
def positions() -> list[tuple[str, str]]:
    """(FEN, moves of a legal line of two), each asking another position: Black's king moves, then White's rook."""
    found, asked = [], set()
    for corner in chess.SquareSet(chess.BB_RANK_7 | chess.BB_RANK_8):
        for king in chess.SquareSet(chess.BB_RANK_1 | chess.BB_RANK_2):
            for rook in chess.SquareSet(chess.BB_RANK_3 | chess.BB_RANK_4):
                board = chess.Board(None)
                for square, symbol in ((corner, "k"), (king, "K"), (rook, "R")):
                    board.set_piece_at(square, chess.Piece.from_symbol(symbol))
                board.turn = chess.BLACK
                reply = next(iter(board.legal_moves))
                after = board.copy()
                after.push(reply)
                if not board.is_valid() or after.board_fen() in asked:
                    continue
                asked.add(after.board_fen())
                solution = next(move for move in after.legal_moves if move.from_square == rook)
                found.append((board.fen(), f"{reply.uci()} {solution.uci()}"))
                if len(found) == 1000:
                    return found
    return found


def rook_rows(count: int, **fields) -> list[str]:
    """``count`` rows asking different positions; a field may be a function of the row's number."""
    rows = []
    for number, (fen, moves) in enumerate(positions()[:count]):
        values = {name: value(number) if callable(value) else value for name, value in fields.items()}
        rows.append(row(**{"identifier": f"p{number:04d}", "fen": fen, "moves": moves} | values))
    return rows
