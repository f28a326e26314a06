"""The prefix-completion test against writing token by token, and where moves begin against python-chess."""

from __future__ import annotations

import chess
import numpy as np
import torch

from chessrl import notation
from chessrl.prefixes import SHARES, Text, completed, ply_places, puzzle_texts
from chessrl.puzzles import Puzzle
from tests.test_sampler import PUZZLES, trained_model


def document(board: chess.Board, moves: list[str], history: bool) -> tuple[np.ndarray, list[int]]:
    """Tokens of a game, and where each ply begins, built ply by ply."""
    tokens = [notation.BOS, *([] if history else notation.snapshot_tokens(board))]
    begins = []
    for move in moves:
        begins.append(len(tokens))
        tokens += notation.move_tokens(board, board.parse_uci(move))
        board.push_uci(move)
    return np.array([*tokens, notation.EOS]), [*begins, len(tokens)]


def test_moves_are_found_in_games_with_castling_captures_and_promotions():
    opening = ["e2e4", "e7e5", "g1f3", "g8f6", "f1c4", "f6e4", "e1g1", "d7d5", "c4d5"]
    tokens, begins = document(chess.Board(), opening, history=True)
    assert ply_places(tokens).tolist() == begins
    promotion, begins = document(chess.Board("3r3k/2P5/8/8/8/8/8/K7 w - - 0 1"), ["c7d8q", "h8h7", "d8d7", "h7h8"], history=False)
    assert ply_places(promotion).tolist() == begins
    assert ply_places(promotion[:-1]).tolist() == begins, "a document may be cut before its <eos>"


def test_exact_match_is_what_greedy_writing_gives():
    model = trained_model("game")
    texts = puzzle_texts(PUZZLES, "snapshot")
    table = completed(model, texts, pass_tokens=100)
    assert len(table) == len(texts) * len(SHARES)
    for text, rows in zip(texts, (table[start : start + 3] for start in range(0, len(table), 3))):
        plies = len(text.plies) - 1
        for row in rows.itertuples():
            given = min(int(plies * row.share / 100), plies - 1)
            assert (row.plies_given, row.plies_asked) == (given, plies - given)
            prefix = text.tokens[: text.plies[given]].tolist()
            while len(prefix) < text.plies[-1]:
                prefix.append(int(model(torch.tensor([prefix]))[0, -1].argmax()))
            assert row.exact == (prefix == text.tokens[: text.plies[-1]].tolist())
    assert 0 < table["exact"].mean() < 1, "the tiny model knows some lines and not others"


def test_puzzles_come_with_their_mirrored_twins_and_games_without():
    texts = puzzle_texts(PUZZLES[:2], "snapshot")
    assert [(text.source, text.item) for text in texts] == [
        ("test", "back-rank"), ("test", "two-rooks"), ("test_mirrored", "back-rank"), ("test_mirrored", "two-rooks"),
    ]  # fmt: skip
    board = chess.Board()
    history = ("e2e4", "e7e5", "d1h5", "b8c6", "f1c4", "g8f6")
    for move in history:
        board.push_uci(move)
    puzzle = Puzzle("scholar", board.fen(), ("h5f7",), 0, 1, "B1", history=history)
    [text] = puzzle_texts([puzzle], "history")
    assert isinstance(text, Text) and len(text.plies) - 1 == len(history), "the game up to the position, without the solution"
