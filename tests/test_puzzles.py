"""Puzzle records: bins, tables, prompts, and which moves solve."""

from __future__ import annotations

from dataclasses import replace

import chess
import chess.polyglot
import pytest

from chessrl.errors import UserError
from chessrl.notation import to_text
from chessrl.position_keys import line_keys, position_key
from chessrl.puzzles import Puzzle, accepted_moves, load_puzzles, prompt_tokens, rating_bin, save_puzzles
from tests.lichess_rows import FEN, MOVES


def puzzle(number: int, fen: str = FEN, moves: str = MOVES, **fields) -> Puzzle:
    return replace(Puzzle(f"p{number}", fen, tuple(moves.split()), 1, 1500, "B2"), **fields)


@pytest.mark.parametrize(
    ("rating", "expected"),
    [(399, "B0"), (800, "B0"), (801, "B1"), (1200, "B1"), (1201, "B2"), (1600, "B2"), (2000, "B3"), (2400, "B4"), (2401, "B5")],
)
def test_bin_bounds_belong_to_the_lower_bin(rating, expected):
    assert rating_bin(rating) == expected


def test_first_move_is_the_opponents_and_the_solver_answers():
    board = puzzle(0).board()
    assert board.turn == chess.WHITE and board.piece_at(chess.H6) == chess.Piece.from_symbol("p") and not board.move_stack


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def test_table_round_trip_and_selection(tmp_path):
    table = [
        puzzle(0, split="sft", themes=("mate", "short"), history=("e2e4",), game="abcdefgh", date=20230131),
        puzzle(1, split="rl", bin="B1"),
        puzzle(2, split="rl"),
    ]
    save_puzzles(table, tmp_path / "sub" / "puzzles.parquet")
    assert load_puzzles(tmp_path / "sub" / "puzzles.parquet") == table
    assert load_puzzles(tmp_path / "sub" / "puzzles.parquet", split="rl", bins=["B2"]) == table[2:]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["puzzles.parquet"]
    with pytest.raises(UserError, match="no such puzzle table"):
        load_puzzles(tmp_path / "none.parquet")


# ---- prompts and answers ------------------------------------------------------------------------------------------------------------


def test_prompts_of_both_states():
    one = puzzle(0, history=("e2e4", "e7e5"))
    position = "<bos> <pos> <black> K g1 R a1 P f2 P g2 P h2 k g8 p f7 p g7 p h7 </pos>"
    assert to_text(prompt_tokens(one, "snapshot", think=False)) == f"{position} P h7 h6"
    assert to_text(prompt_tokens(replace(one, lead=0), "snapshot", think=True)) == f"{position} <T>"
    started = replace(one, fen="rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2", moves=("g1f3", "b8c6"))
    assert to_text(prompt_tokens(started, "history", think=True)) == "<bos> P e2 e4 P e7 e5 N g1 f3 <T>"
    with pytest.raises(UserError, match="p0 has no moves from the start position"):
        prompt_tokens(replace(one, history=()), "history", think=False)
    with pytest.raises(UserError, match="state=fen"):
        prompt_tokens(one, "fen", think=False)


def test_any_mate_is_accepted_and_the_lines_move_comes_first():
    board = chess.Board("6k1/5ppp/8/8/8/8/8/RQ2R1K1 w - - 0 1")
    accepted = [move.uci() for move in accepted_moves(board, "e1e8")]
    assert accepted[0] == "e1e8" and sorted(accepted) == ["a1a8", "b1b8", "e1e8"]
    assert accepted_moves(board, chess.Move.from_uci("g1g2"))[0] == chess.Move.from_uci("g1g2")
    assert len(accepted_moves(board, "g1g2")) == 4


@pytest.mark.parametrize("spelling", ["e1g1", "e1h1"])
def test_castling_solution_may_be_given_either_way(spelling):
    board = chess.Board("5k2/8/8/8/8/8/8/4K2R w K - 0 1")
    assert accepted_moves(board, spelling) == [chess.Move.from_uci("e1g1")]


def test_promotions_and_en_passant_as_solutions():
    capture = chess.Board("3r2k1/4Pppp/8/8/8/8/8/6K1 w - - 0 1")
    assert {move.uci() for move in accepted_moves(capture, "e7d8q")} == {"e7d8q", "e7d8r"}
    knight = chess.Board("6rk/5Ppp/8/8/8/8/8/6K1 w - - 0 1")
    assert [move.uci() for move in accepted_moves(knight, "f7g8n")] == ["f7g8n"]
    passant = chess.Board("8/8/8/3pP3/8/8/8/k1K5 w - d6 0 1")
    assert accepted_moves(passant, "e5d6")[0] == chess.Move.from_uci("e5d6")
    with pytest.raises(ValueError):
        accepted_moves(passant, "e5f6")


# ---- position keys ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fen", "moves"),
    [
        (chess.STARTING_FEN, "e2e4 d7d5 e4e5 f7f5 e5f6 g8f6 g1f3 g7g6 f1c4 f8g7 e1g1 e8h8"),
        ("rn5k/P7/8/8/8/8/6p1/R3K2R w KQ - 0 1", "a7b8n g2h1q e1d2 a8a1"),
        ("r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1", "e8a8 e1h1"),
    ],
)
def test_incremental_keys_equal_the_boards_keys(fen, moves):
    board = chess.Board(fen)
    keys = [position_key(board)]
    for move in moves.split():
        board.push_uci(move)
        keys.append(position_key(board))
    assert line_keys(fen, map(chess.Move.from_uci, moves.split())) == keys


def test_key_is_polyglots_without_castling_and_en_passant():
    bare = chess.Board("4k3/8/8/8/4P3/8/8/4K2R b - - 0 1")
    with_rights = chess.Board("4k3/8/8/8/4P3/8/8/4K2R b K e3 0 1")
    assert position_key(bare) == position_key(with_rights) == chess.polyglot.zobrist_hash(bare)
    assert position_key(bare) != position_key(chess.Board("4k3/8/8/8/4P3/8/8/4K2R w - - 0 1"))


def test_line_from_an_empty_square_is_refused():
    with pytest.raises(UserError, match="a1a8"):
        line_keys("4k3/8/8/8/8/8/8/4K3 w - - 0 1", [chess.Move.from_uci("a1a8")])
    with pytest.raises(UserError, match="not a position"):
        line_keys("nonsense w", [])
