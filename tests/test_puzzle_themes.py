"""Phases and themes against hand-worked positions, and against the tags of Lichess's own tagger where its table is at hand."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import islice
from pathlib import Path

import chess
import pytest

from chessrl.engine_labels import MoveScore
from chessrl.phases import mixedness, phase_of
from chessrl.puzzle_themes import material, themes_of_line
from chessrl.sources import ReadReport, read_lines

TABLE = Path(__file__).parents[2] / "shared" / "data" / "puzzles_lichess_full.csv.zst"
EXACT = ("opening", "middlegame", "endgame", "mate", "mateIn1", "mateIn2", "mateIn3", "mateIn4", "underPromotion", "enPassant", "doubleCheck")


@pytest.mark.parametrize(
    ("squares", "expected"),
    [
        # A man stands in up to four squares of 2x2, two files by two ranks; alone in one it scores 9 - rank for White and 1 + rank for Black.
        ({"e4": "P"}, 2 * (6 + 5)),
        ({"a1": "R"}, 8),
        ({"e5": "p"}, 2 * (5 + 6)),
        ({"h8": "r"}, 8),
        # Pawns e4 and e5: the squares of ranks 4 and 5 hold one of each (5 + |3 - 4|), those below and above one alone.
        ({"e4": "P", "e5": "p"}, 2 * (6 + 6 + 6)),
        ({"a1": "R", "b1": "N"}, 0 + 8),  # two at home score nothing together; the knight alone in the next square 8
    ],
)
def test_mixedness_by_hand(squares: dict[str, str], expected: int) -> None:
    board = chess.Board(None)
    for square, piece in squares.items():
        board.set_piece_at(chess.parse_square(square), chess.Piece.from_symbol(piece))
    assert mixedness(board.occupied_co[chess.WHITE], board.occupied_co[chess.BLACK]) == expected


@pytest.mark.parametrize(
    ("fen", "phase"),
    [
        (chess.STARTING_FEN, "opening"),
        ("r1bqk2r/pppp1ppp/2n2n2/2b1p3/2B1P3/2N2N2/PPPP1PPP/R1BQK2R w KQkq - 0 1", "opening"),
        ("r4rk1/pppq1ppp/2np1n2/4p3/4P3/2NP1N2/PPPQ1PPP/R4RK1 w - - 0 1", "middlegame"),  # 10 pieces
        ("r2q1rk1/ppp2ppp/3p4/4p3/4P3/3P4/PPP2PPP/R2Q1RK1 w - - 0 1", "endgame"),  # 6 pieces, queens among them
        ("4k3/4p3/8/8/8/8/4P3/4K3 w - - 0 1", "endgame"),
        ("2kr3r/pppq1ppp/2npbn2/2b1p3/2B1P3/2NPBN2/PPPQ1PPP/2KR3R w - - 0 1", "middlegame"),  # three men on each back rank
    ],
)
def test_phase_of_a_position(fen: str, phase: str) -> None:
    assert phase_of(chess.Board(fen)) == phase


def test_material_is_counted_from_a_side() -> None:
    board = chess.Board("4k3/8/8/8/8/8/8/RQ2K1n1 w - - 0 1")
    assert (material(board, chess.WHITE), material(board, chess.BLACK)) == (11, -11)


@pytest.mark.parametrize(
    ("score", "theme"),
    [
        (MoveScore(cp=347), "crushing"),  # 602 in units of 208 to the pawn
        (MoveScore(cp=346), "advantage"),
        (MoveScore(cp=116), "advantage"),  # 201
        (MoveScore(cp=115), "equality"),
        (MoveScore(mate=9), "crushing"),
        (None, None),
    ],
)
def test_the_size_of_the_advantage(score: MoveScore | None, theme: str | None) -> None:
    themes = set(themes_of_line("4k3/8/8/3q4/8/8/3R4/3K4 b - - 0 1", ["e8f7", "d2d5"], score))
    assert themes & {"crushing", "advantage", "equality"} == ({theme} if theme else set())
    assert {"endgame", "hangingPiece", "oneMove", "winsMaterial"} <= themes


def test_promotions_and_what_follows_from_their_piece() -> None:
    knight = set(themes_of_line("8/1r3P1k/8/8/8/8/8/4K3 b - - 0 1", ["b7b8", "f7f8n"], None))
    queen = set(themes_of_line("8/1r3P1k/8/8/8/8/8/4K3 b - - 0 1", ["b7b8", "f7f8q"], None))
    assert knight >= {"promotion", "underPromotion", "winsMaterial"}
    assert "promotion" in queen
    assert "underPromotion" not in queen


def test_a_piece_that_has_just_taken_as_much_does_not_hang() -> None:
    taken_back = set(themes_of_line("3rk3/8/8/8/8/8/3R4/3K4 b - - 0 1", ["d8d2", "d1d2"], None))
    assert "hangingPiece" not in taken_back
    assert "winsMaterial" not in taken_back


@pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared/data")
def test_themes_are_those_of_lichess() -> None:
    """Lichess's tags are of several versions of its tagger, so a few lengths and hanging pieces differ; the rest never does."""
    differences: Counter[str] = Counter()
    rows = list(islice(csv.DictReader(line.decode() for line in read_lines(TABLE, ReadReport())), 2000))
    for row in rows:
        ours, theirs = set(themes_of_line(row["FEN"], row["Moves"].split(), None)), set(row["Themes"].split())
        differences.update(name for name in (*EXACT, "promotion", "hangingPiece", "short", "long") if (name in ours) != (name in theirs))
    assert not set(differences) & set(EXACT)
    assert differences.total() <= len(rows) // 200
