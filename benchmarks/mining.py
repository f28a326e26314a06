"""How many known Lichess puzzles mining finds again in their own games, and whether its difficulty follows their ratings.

The table of puzzles needs a ``PGN`` column with the game up to the position before the puzzle. Each game is that, the error and the solution. A
puzzle counts as found again where mining asks the same position and its first solver move is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import chess
import pandas as pd
from scipy.stats import spearmanr

from benchmarks.measure import Row, figure
from chessrl.errors import UserError, make_folder
from chessrl.mining import MiningSettings, mine
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import read_lichess_csv
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport


def write_games(puzzles: Iterable[Puzzle], path: Path) -> None:
    """Each puzzle's game as PGN: its history, then its line."""
    with path.open("w", encoding="utf-8") as file:
        for puzzle in puzzles:
            board, words = chess.Board(), []
            for uci in (*puzzle.history, *puzzle.moves):
                move = board.parse_uci(uci)
                words.append(board.san(move))
                board.push(move)
            file.write(f'[Event "Rated game"]\n[Site "https://lichess.org/{puzzle.game}"]\n[Result "1-0"]\n\n{" ".join(words)} 1-0\n\n')


def compare(known: Iterable[Puzzle], mined: Iterable[Puzzle]) -> pd.DataFrame:
    """One row per known puzzle: rating, bin, found again (same position and first solver move), mined difficulty, whole line equal."""
    found = {puzzle.board().epd(): puzzle for puzzle in mined}
    rows = []
    for puzzle in known:
        ours = found.get(puzzle.board().epd())
        same = ours is not None and ours.moves[1] == puzzle.moves[1]
        line = ours is not None and ours.moves == puzzle.moves
        rows.append((puzzle.difficulty, puzzle.bin, ours is not None, same, line, ours.difficulty if ours is not None and same else None))
    return pd.DataFrame(rows, columns=["rating", "bin", "position", "found_again", "same_line", "nodes"])


def found_again(table: str, first: int, out: Path) -> list[Row]:
    """Mine the games of the first puzzles of a Lichess table by the default rules into ``out``, which also gets ``found_again.csv``.

    Raises UserError for a puzzle without its game.
    """
    known = read_lichess_csv(table, PuzzleFilters(), ReadReport())[:first]
    if not all(puzzle.history for puzzle in known):
        raise UserError(f"{table}: needs a PGN column that leads to each puzzle")
    games = make_folder(out, "out") / "games.pgn"
    write_games(known, games)
    mined = mine(MiningSettings(sources=(str(games),), out=str(out), exclude_time_classes=()))
    minutes = mined.engine_s / 60  # that its searches took, whenever they were made
    compared = compare(known, mined.puzzles)
    compared.to_csv(out / "found_again.csv", index=False)
    part = f"mining, {len(known)} games"
    rows = [
        figure(part, "puzzles per engine-minute", "", len(mined.puzzles) / minutes),
        figure(part, "puzzles in all", "", len(mined.puzzles)),
        figure(part, "found again", f"of {len(known)}", compared["found_again"].sum().item()),
        figure(part, "found again with the same line", f"of {len(known)}", compared["same_line"].sum().item()),
    ]
    for name, group in compared.groupby("bin"):
        rows.append(figure(part, f"found again, {name}", f"of {len(group)}", group["found_again"].sum().item()))
    rho = spearmanr(compared["rating"], compared["nodes"], nan_policy="omit").statistic
    return [*rows, figure(part, "rating and nodes, Spearman", "", float(rho))]
