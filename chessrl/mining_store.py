"""Results of mined games in one SQLite file, so that a mining that was killed goes on where it stopped."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from chessrl.errors import UserError
from chessrl.mining_search import GameResult
from chessrl.puzzles import Puzzle

_TABLES = """
CREATE TABLE IF NOT EXISTS identity (text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS games (place INTEGER PRIMARY KEY, result TEXT NOT NULL, engine_s REAL NOT NULL);
"""
_WORDS = ("moves", "themes", "history")


class MiningStore:
    """Results by the game's place in the sources; a context manager. One process at a time writes it.

    ``identity`` says what results depend on; a file made with another is refused. Raises UserError for that, a damaged file and a full disk.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)  # every statement is its own transaction
            self._connection.executescript(_TABLES)
            found = self._connection.execute("SELECT text FROM identity").fetchone()
            if found is None:
                self._connection.execute("INSERT INTO identity VALUES (?)", (identity,))
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        if found is not None and found[0] != identity:
            self._connection.close()
            raise UserError(
                f"{path}: holds results of other sources, settings or another engine ({_difference(found[0], identity)}); choose another out, "
                "or remove the file to begin anew"
            )

    def __enter__(self) -> MiningStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def done(self) -> set[int]:
        """Places of the games that have a result."""
        return {place for (place,) in self._rows("SELECT place FROM games")}

    def put(self, place: int, result: GameResult, engine_s: float) -> None:
        """Store one game's result; it is on disk afterwards."""
        puzzles = [{name: " ".join(value) if name in _WORDS else value for name, value in asdict(puzzle).items()} for puzzle in result.puzzles]
        text = json.dumps({"puzzles": puzzles, "outcomes": result.outcomes, "positions": result.positions})
        try:
            self._connection.execute("INSERT OR REPLACE INTO games VALUES (?, ?, ?)", (place, text, engine_s))
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def results(self) -> Iterator[GameResult]:
        """All results in the order of the sources."""
        for (text,) in self._rows("SELECT result FROM games ORDER BY place"):
            entry = json.loads(text)
            puzzles = [Puzzle(**{**row, **{name: tuple(row[name].split()) for name in _WORDS}}) for row in entry["puzzles"]]
            yield GameResult(puzzles, Counter(entry["outcomes"]), entry["positions"])

    def engine_seconds(self) -> float:
        """Seconds that all searches took, of all processes and of earlier commands too."""
        ((seconds,),) = self._rows("SELECT coalesce(sum(engine_s), 0) FROM games")
        return seconds

    def _rows(self, query: str) -> Iterator[tuple]:
        try:
            yield from self._connection.execute(query)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> UserError:
        if "full" in str(error):
            return UserError(f"{self.path}: no space left on the disk: free some and run the same command, the results so far are kept")
        return UserError(f"{self.path}: cannot be used ({error}); choose another out, or remove the file to begin anew")


def _difference(one: str, other: str) -> str:
    """The first entry in which two identities, JSON objects of the same form, differ."""
    before, after = json.loads(one), json.loads(other)
    for name, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            before, after = {**before, **before[name]}, {**after, **value}
    changed = [name for name, value in after.items() if before.get(name) != value and not isinstance(value, dict)]
    return "; ".join("the sources differ" if name == "sources" else f"{name} was {before.get(name)}, is {after[name]}" for name in changed)
