"""Games by id from the Lichess export (POST /games/export/_ids), politely and once: every answer is kept in a table on disk.

Lichess asks for one request at a time and a full minute's wait after status 429; a request names at most 300 games.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from chessrl.errors import UserError, make_folder
from chessrl.puzzle_history import SourceGame

GAMES_PER_REQUEST = 300
RATE_LIMIT_WAIT_S = 60.0
_USER_AGENT = "chessrl (source games of chess puzzles, for research)"
_PATH = "/games/export/_ids?clocks=false&evals=false&opening=false"
_TOO_MANY_REQUESTS = 429


class _TryAgain(Exception):
    """A request that failed in a way that may pass."""

    def __init__(self, what: str, wait_s: float | None = None):
        super().__init__(what)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class LichessApi:
    """Where games are asked for, and how patiently. Waits between tries double from ``retry_wait_s``."""

    url: str = "https://lichess.org"
    timeout_s: float = 60.0  # without a byte
    tries: int = 6  # in a row without a new game
    retry_wait_s: float = 5.0


def fetch_games(ids: Iterable[str], cache: Path, api: LichessApi) -> dict[str, SourceGame]:
    """The games of ``ids``, out of the SQLite table ``cache`` or else asked for; those that Lichess does not have are missing.

    Each answer is stored before the next request, so that an interrupted call goes on from there. A game counts as one that Lichess does not
    have when two whole answers left it out. Raises UserError when requests fail ``api.tries`` times in a row, or are refused.
    """
    wanted = sorted(set(ids))
    make_folder(cache.parent, "out")
    try:
        with closing(sqlite3.connect(cache, isolation_level=None)) as table:
            table.execute("CREATE TABLE IF NOT EXISTS games (id TEXT PRIMARY KEY, moves TEXT, date INTEGER NOT NULL) WITHOUT ROWID")
            answered = dict(_stored(table, wanted))
            open_ids = [game for game in wanted if game not in answered]
            with tqdm(desc="games from Lichess", total=len(open_ids), unit="game", disable=None) as progress:
                for last_time in (False, True):
                    for batch in _batches(open_ids):
                        _ask(batch, last_time, table, api, progress)
                    answered |= _stored(table, open_ids)
                    open_ids = [game for game in open_ids if game not in answered]
    except sqlite3.Error as error:
        raise UserError(f"{cache}: the table of fetched games is unusable ({error}); delete it, the games are then fetched again") from error
    return {game: found for game, found in answered.items() if found is not None}


def _batches(ids: list[str]) -> list[list[str]]:
    return [ids[start : start + GAMES_PER_REQUEST] for start in range(0, len(ids), GAMES_PER_REQUEST)]


def _stored(table: sqlite3.Connection, ids: list[str]) -> dict[str, SourceGame | None]:
    """What the table says of each id that it knows; None: Lichess has no such game."""
    known: dict[str, SourceGame | None] = {}
    for batch in _batches(ids):
        query = f"SELECT id, moves, date FROM games WHERE id IN ({','.join('?' * len(batch))})"
        known |= {game: None if moves is None else SourceGame(moves, date) for game, moves, date in table.execute(query, batch)}
    return known


def _ask(ids: list[str], last_time: bool, table: sqlite3.Connection, api: LichessApi, progress: tqdm) -> None:
    """Store the games of one batch, asking again for those left when an answer breaks off. After a whole answer the others are either left for
    the second time of asking, or stored as games that Lichess does not have."""
    failures = 0
    while ids:
        games: dict[str, SourceGame] = {}
        fault: _TryAgain | None = None
        try:
            for game, found in _answers(ids, api):
                if game in ids:
                    games[game] = found
        except _TryAgain as error:
            fault = error
        rows: list[tuple[str, str | None, int]] = [(game, found.movetext, found.date) for game, found in games.items()]
        ids = [game for game in ids if game not in games]
        if fault is None and last_time:
            rows += [(game, None, 0) for game in ids]
        table.execute("BEGIN")  # a batch is stored whole or not at all
        table.executemany("INSERT OR REPLACE INTO games VALUES (?, ?, ?)", rows)
        table.execute("COMMIT")
        progress.update(len(rows))
        if fault is None:
            return
        failures = 1 if games else failures + 1
        if failures == api.tries:
            raise UserError(
                f"{api.url}: {fault}, {api.tries} times in a row; the games fetched so far are kept, and the same command goes on from there"
            )
        time.sleep(fault.wait_s if fault.wait_s is not None else api.retry_wait_s * 2 ** (failures - 1))


def _answers(ids: list[str], api: LichessApi) -> Iterator[tuple[str, SourceGame]]:
    """Games of one answer as they come. Raises _TryAgain when it fails or breaks off, UserError when it is refused."""
    headers = {"User-Agent": _USER_AGENT, "Accept": "application/x-ndjson", "Content-Type": "text/plain"}
    request = urllib.request.Request(api.url.rstrip("/") + _PATH, ",".join(ids).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=api.timeout_s) as answer:
            for line in answer:
                if line.strip():
                    yield _game_of(line)
    except urllib.error.HTTPError as error:
        if error.code == _TOO_MANY_REQUESTS:
            raise _TryAgain("status 429 (too many requests)", RATE_LIMIT_WAIT_S) from error
        if error.code < 500:
            raise UserError(f"{api.url}: the request for games was refused with status {error.code} ({error.reason}); check lichess_url") from error
        raise _TryAgain(f"status {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:  # OSError: unreachable, reset, timed out
        raise _TryAgain(f"no answer, or one that breaks off ({error})") from error
    except ValueError as error:
        raise _TryAgain(f"an answer that is not JSON, or breaks off ({error})") from error


def _game_of(line: bytes) -> tuple[str, SourceGame]:
    """Id and game of one line. A game from a position of its own has no moves here: it leads nowhere from the start position."""
    game = json.loads(line)
    if not isinstance(game, dict) or not isinstance(game.get("id"), str):
        raise ValueError(f"no game: {line[:40]!r}")
    standard = game.get("variant", "standard") == "standard" and "initialFen" not in game
    created = game.get("createdAt")
    date = int(datetime.fromtimestamp(created / 1000, UTC).strftime("%Y%m%d")) if isinstance(created, int) else 0
    return game["id"], SourceGame(str(game.get("moves", "")) if standard else "", date)
