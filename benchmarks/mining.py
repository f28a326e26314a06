"""How many known Lichess puzzles mining finds again in their own games, and whether its difficulty follows their ratings.

The table needs a ``PGN`` column with the game up to the
position before the puzzle. Each game is that, the error and the solution; the other keys are those of ``python -m chessrl.mining``. A puzzle counts
as found again where mining asks the same position and its first solver move is the same.

Examples:
    python -m benchmarks.mining puzzles=puzzles.csv.zst out=outputs/mining
    python -m benchmarks.mining puzzles=puzzles.csv.zst out=outputs/mining first=200 workers=2
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import chess
import pandas as pd
from scipy.stats import spearmanr

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.mining import MiningSettings, mine
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import read_lichess_csv
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAgainSettings(MiningSettings):
    """Keys of the command: those of ``python -m chessrl.mining``, and whose games are searched."""

    puzzles: str  # a Lichess puzzle table with a PGN column
    first: int = 0  # so many of its puzzles; 0: all
    sources: tuple[str, ...] = ()  # not for you to give: the puzzles' games
    exclude_time_classes: tuple[str, ...] = ()  # games of these are left out; a puzzle's game names no time class


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


def main(arguments: list[str]) -> None:
    """Mine the games and print the table by bin, the account and the rate in processor time of the engines."""
    settings = parse_settings(FoundAgainSettings, arguments)
    known = read_lichess_csv(settings.puzzles, PuzzleFilters(), ReadReport())[: settings.first or None]
    if not all(puzzle.history for puzzle in known):
        raise UserError(f"{settings.puzzles}: expected a PGN column that leads to each puzzle; take a table that has one")
    games = make_folder(settings.out, "out") / "games.pgn"
    write_games(known, games)
    mined = mine(replace(settings, sources=(str(games),)))
    table = compare(known, mined.puzzles)
    table.to_csv(games.with_name("found_again.csv"), index=False)
    columns = {name: (name, "sum") for name in ("position", "found_again", "same_line")}
    print(table.groupby("bin").agg(known=("rating", "size"), **columns, median_nodes=("nodes", "median")).to_string())
    print(f"positions {mined.account['searched_positions']:,}; suspect moves {mined.account['suspect_moves']}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the engines: all are reaped by now; other processes of the machine do not count
    minutes = (used.ru_utime + used.ru_stime) / 60
    rho = spearmanr(table["rating"], table["nodes"], nan_policy="omit").statistic
    print(
        f"found again {table['found_again'].sum()} of {len(table)}; puzzles in all {len(mined.puzzles)}; rating and nodes: Spearman {rho:.2f}; "
        f"{minutes:.1f} engine-minutes of processor time, {len(mined.puzzles) / minutes:.1f} puzzles a minute (unless results were there before)"
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
