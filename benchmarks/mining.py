"""How many known Lichess puzzles mining finds again in their own games, and whether its difficulty follows their ratings.

``python -m benchmarks.mining puzzles=FILE.csv.zst out=FOLDER [first=200 workers=1 ...]``: the table needs a ``PGN`` column with the game up to the
position before the puzzle. Each game is that, the error and the solution; keys of ``python -m chessrl.mining`` are passed on. A puzzle counts as
found again where mining asks the same position and its first solver move is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import chess
import pandas as pd
from scipy.stats import spearmanr

from chessrl.command import run_command
from chessrl.errors import UserError, make_folder
from chessrl.mining import MiningSettings, mine
from chessrl.puzzles import Puzzle, PuzzleFilters, read_lichess_csv
from chessrl.sources import ReadReport


@dataclass(frozen=True, slots=True)
class Settings:
    puzzles: str
    out: str
    first: int = 0  # so many puzzles from the table's start; 0: all


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
    own = {field.name for field in fields(Settings)}
    words = dict(word.split("=", 1) for word in arguments)
    settings = Settings(**{key: value for key, value in words.items() if key in own and key != "first"}, first=int(words.get("first", 0)))
    known = read_lichess_csv(settings.puzzles, PuzzleFilters(), ReadReport())[: settings.first or None]
    if not all(puzzle.history for puzzle in known):
        raise UserError(f"{settings.puzzles}: needs a PGN column that leads to each puzzle")
    games = make_folder(settings.out, "out") / "games.pgn"
    write_games(known, games)
    options = {key: type(getattr(MiningSettings(sources=(), out=""), key))(eval(value)) for key, value in words.items() if key not in own}
    mined = mine(MiningSettings(sources=(str(games),), out=settings.out, bullet=True, **options))
    table = compare(known, mined.puzzles)
    table.to_csv(Path(settings.out) / "found_again.csv", index=False)
    by_bin = table.groupby("bin").agg(known=("rating", "size"), position=("position", "sum"), found_again=("found_again", "sum"),
                                      same_line=("same_line", "sum"), median_nodes=("nodes", "median"))
    print(by_bin.to_string())
    print(mined.account["suspect_moves"], mined.account["searched_positions"])
    rho = spearmanr(table["rating"], table["nodes"], nan_policy="omit")
    print(f"found again: {table['found_again'].sum()} of {len(table)}; puzzles in all {len(mined.puzzles)}; "
          f"Spearman of rating and nodes {rho.statistic:.2f}; {len(mined.puzzles) / mined.engine_s * 60:.1f} puzzles per engine-minute")


if __name__ == "__main__":
    sys.exit(run_command(main))
