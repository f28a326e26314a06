"""Mined puzzles as a table in Lichess's format, which ``chessrl.puzzles`` filters and splits and ``world.puzzles`` reads."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

import chess

from chessrl.mining_search import MiningRules
from chessrl.puzzles import Puzzle

LICHESS_GAME = re.compile(r"[A-Za-z0-9]{8}")
COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation", "Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags", "PGN", "Nodes")


def write_lichess_csv(puzzles: Iterable[Puzzle], rules: MiningRules, path: Path) -> None:
    """``Rating`` is the ladder's (MiningRules.rating_of), so that bins come out the same; what only players can give stays empty."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for puzzle in puzzles:
            url = f"https://lichess.org/{puzzle.game}" if LICHESS_GAME.fullmatch(puzzle.game) else ""
            words = (puzzle.id, puzzle.fen, " ".join(puzzle.moves), rules.rating_of(puzzle.difficulty), "", "", "", " ".join(puzzle.themes))
            table.writerow((*words, url, "", _movetext(puzzle.history), puzzle.difficulty))
    temporary.replace(path)


def _movetext(history: Iterable[str]) -> str:
    """SAN with move numbers, from the start position."""
    board = chess.Board()
    words = []
    for uci in history:
        move = board.parse_uci(uci)
        if board.turn == chess.WHITE:
            words.append(f"{board.fullmove_number}.")
        words.append(board.san_and_push(move))
    return " ".join(words)
