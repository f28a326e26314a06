"""What an engine said about every legal move of a position: scores, the moves they accept, and their table on disk.

A score is from the point of view of the side to move in the labelled position (the mover), never White's.
"""

from __future__ import annotations

import hashlib
import math
import re
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import chess
import chess.engine

from chessrl.errors import UserError

ROUNDING = 1e-9  # expected scores are multiples of 1/2000: their differences are compared with delta up to float error


@dataclass(frozen=True, slots=True)
class MoveScore:
    """Score of one move for its mover: ``cp`` centipawns, or ``mate``, a distance in moves (> 0 the mover mates, < 0 it gets mated)."""

    cp: int | None = None
    mate: int | None = None

    def __post_init__(self) -> None:
        if (self.cp is None) == (self.mate is None) or self.mate == 0:
            raise ValueError(f"a move's score is either centipawns or a mate distance other than 0, not {self}")


@dataclass(frozen=True, slots=True)
class MoveLabels:
    """One score for every legal move (UCI) of a position; no move where the game is over by checkmate or stalemate."""

    position: str  # board.epd(en_passant="legal")
    depth: int  # plies that every move was searched to; 0 where moves were searched to a node limit or no search was needed
    scores: Mapping[str, MoveScore]


def position_key(board: chess.Board) -> str:
    """What labels depend on: pieces, side to move, castling rights, a legal en-passant square; neither clocks nor history."""
    return board.epd(en_passant="legal")


def expected_score(score: MoveScore) -> float:
    """Expected game score of the mover, 0..1: Stockfish 15.1's win/draw/loss model at its default ply; a mate is 1 or 0."""
    given = chess.engine.Cp(score.cp) if score.cp is not None else chess.engine.Mate(score.mate)
    return given.wdl(model="sf15.1").expectation()


def accepted_moves(labels: MoveLabels, delta: float, mate_slack: int = 0) -> list[str]:
    """Moves (UCI) as good as the best: their expected score falls by at most ``delta`` (0..1) from the best move's.

    Between mates the distance decides, since every mate has the same expected score. If some move mates, those that mate within
    ``mate_slack`` moves of the shortest; if every move gets mated, those that hold out to within ``mate_slack`` moves of the longest.
    """
    if not 0 <= delta <= 1 or mate_slack < 0:
        raise ValueError(f"delta must lie in 0..1 and mate_slack must not be negative, not {delta} and {mate_slack}")
    mates = {move: score.mate for move, score in labels.scores.items() if score.mate is not None}
    winning = {move: distance for move, distance in mates.items() if distance > 0}
    # With only losing mates left the distances are negative, and the longest resistance is the least number: one rule serves both.
    if winning or len(mates) == len(labels.scores):
        candidates = winning or mates
        return [move for move, distance in candidates.items() if distance <= min(candidates.values()) + mate_slack]
    expected = {move: expected_score(score) for move, score in labels.scores.items()}
    best = max(expected.values())
    return [move for move, value in expected.items() if value >= best - delta - ROUNDING]


# ---- what the engine prints ---------------------------------------------------------------------------------------------------------

_INFO = re.compile(r"info .*?\bdepth (\d+) .*?\bscore (cp|mate) (-?\d+) (?!lowerbound|upperbound).*?\bpv (\S+)")


def scores_by_depth(lines: Sequence[str], enough: float = math.inf) -> dict[int, dict[str, MoveScore]]:
    """``{depth in plies: {first move of the line: score}}`` from a search's ``info`` lines; bounds are not scores and are left out.

    Lines are told apart by their move, never by their number: an engine may print fewer lines than asked, or in any order. They are read
    from the last to the one that gives a depth ``enough`` moves: a search goes deeper only when a depth is whole, so none before is deeper.
    """
    found: list[re.Match[str]] = []
    moves: defaultdict[str, set[str]] = defaultdict(set)
    for line in reversed(lines):
        if match := _INFO.match(line):
            found.append(match)
            moves[match[1]].add(match[4])
            if len(moves[match[1]]) >= enough:
                break
    tables: dict[int, dict[str, MoveScore]] = {}
    for match in reversed(found):
        depth, kind, value, move = int(match[1]), match[2], int(match[3]), match[4]
        tables.setdefault(depth, {})[move] = MoveScore(cp=value) if kind == "cp" else MoveScore(mate=value)
    return tables


def deepest_complete(tables: Mapping[int, Mapping[str, MoveScore]], moves: Sequence[str]) -> tuple[int, dict[str, MoveScore]] | None:
    """The deepest depth at which each of ``moves`` has a score, with the scores in the order of ``moves``; None without such a depth.

    A search that stops within an iteration has some moves one ply deeper than others: the last whole iteration treats all alike.
    """
    for depth in sorted(tables, reverse=True):
        if all(move in tables[depth] for move in moves):
            return depth, {move: tables[depth][move] for move in moves}
    return None


_VARIATION = re.compile(r"info .*?\bdepth (\d+) .*?\bscore (?:cp|mate) -?\d+ (?!lowerbound|upperbound).*?\bpv (.+)")


def best_variations(lines: Iterable[str], wanted: int) -> list[list[str]]:
    """The variations (UCI moves) of a multi-PV search in the order in which the engine lists them, best first, one for each first move.

    From the deepest iteration that has all ``wanted`` of them, or, where none has, the one that has most: a search that stops within an
    iteration has listed some moves one ply deeper than others.
    """
    by_depth: dict[int, dict[str, list[str]]] = {}
    for line in lines:
        if match := _VARIATION.match(line):
            moves = match[2].split()
            table = by_depth.setdefault(int(match[1]), {})
            table.pop(moves[0], None)
            table[moves[0]] = moves
    best = max(by_depth, key=lambda depth: (min(len(by_depth[depth]), wanted), depth), default=None)
    return list(by_depth[best].values())[:wanted] if best is not None else []


# ---- the table on disk --------------------------------------------------------------------------------------------------------------

SCHEMA_VERSION = 2
_TABLES = (
    "CREATE TABLE engines (id TEXT PRIMARY KEY, identity TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE labels (engine TEXT, position TEXT, depth INTEGER NOT NULL, scores TEXT NOT NULL, checksum INTEGER NOT NULL,"
    " PRIMARY KEY (engine, position)) WITHOUT ROWID",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_WAIT_FOR_OTHERS_S = 60.0
_POSITIONS_PER_QUERY = 500  # below the 999 parameters that every SQLite takes


class LabelCache:
    """SQLite table ``(engine identity, position) -> labels``; several processes may use one file at a time.

    ``identity`` is everything that labels depend on beside the position (engine, net, mode, limits, options): other limits, other rows.
    Raises UserError for a file that is damaged, locked for a minute, or of another schema.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._engine = hashlib.sha256(identity.encode()).hexdigest()[:16]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_WAIT_FOR_OTHERS_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"engine label cache {path} cannot be opened ({error}): give a path that can be written") from error
        try:
            with self._transaction():
                self._create_tables()
                self._connection.execute("INSERT OR IGNORE INTO engines VALUES (?, ?)", (self._engine, identity))
        except UserError:
            self._connection.close()
            raise

    def __enter__(self) -> LabelCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def get(self, positions: Iterable[str]) -> dict[str, MoveLabels]:
        """The stored labels of positions, by ``position_key``; what is not stored is left out."""
        found: dict[str, MoveLabels] = {}
        for some in _in_turn(positions, _POSITIONS_PER_QUERY):
            query = f"SELECT position, depth, scores, checksum FROM labels WHERE engine = ? AND position IN ({', '.join('?' * len(some))})"
            try:
                rows = self._connection.execute(query, (self._engine, *some)).fetchall()
            except sqlite3.Error as error:
                raise self._unusable(error) from error
            for position, depth, text, checksum in rows:
                if checksum != self._checksum(position, depth, text):
                    raise self._damaged(f"the row of {position} is not what was written")
                scores = {move: _read_score(value) for move, value in (entry.split("=") for entry in text.split())}
                found[position] = MoveLabels(position, depth, scores)
        return found

    def _checksum(self, position: str, depth: int, scores: str) -> int:
        """Of a row. That its moves are the legal ones was so when it was written; asking again would take half of the time of reading it."""
        return zlib.crc32(f"{self._engine} {position} {depth} {scores}".encode())

    def put(self, batch: Iterable[MoveLabels]) -> None:
        """Store labels in one transaction."""
        written = [(labels.position, labels.depth, _write_scores(labels.scores)) for labels in batch]
        rows = [(self._engine, *row, self._checksum(*row)) for row in written]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?, ?, ?, ?)", rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _create_tables(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        tables = sorted(name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
        if version not in (0, SCHEMA_VERSION) or (version == 0 and tables):
            raise self._damaged(f"schema {version} with tables {tables} where schema {SCHEMA_VERSION} was expected")
        if version == 0:
            for statement in _TABLES:
                self._connection.execute(statement)

    def _unusable(self, error: sqlite3.Error) -> UserError:
        if "locked" in str(error):
            seconds = f"{_WAIT_FOR_OTHERS_S:.0f} s"
            return UserError(f"engine label cache {self.path} stayed locked by another process for {seconds}: end that process")
        if "disk is full" in str(error):
            return UserError(f"engine label cache {self.path}: no space left on the disk: free some, the labels stored so far are kept")
        return self._damaged(str(error))

    def _damaged(self, what: str) -> UserError:
        return UserError(f"engine label cache {self.path} is unusable ({what}): delete the file, its labels are then computed again")


def _write_scores(scores: Mapping[str, MoveScore]) -> str:
    """``e2e4=35 d1h5=#3``: centipawns, or # and the mate distance."""
    return " ".join(f"{move}={score.cp if score.mate is None else f'#{score.mate}'}" for move, score in scores.items())


@lru_cache(maxsize=1 << 14)  # the same few thousand values stand in every table: reading is then a look-up
def _read_score(value: str) -> MoveScore:
    return MoveScore(mate=int(value[1:])) if value.startswith("#") else MoveScore(cp=int(value))


def _in_turn(positions: Iterable[str], count: int) -> Iterator[list[str]]:
    left = iter(positions)
    while some := list(islice(left, count)):
        yield some
