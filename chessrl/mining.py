"""Puzzles from games with Stockfish: an error, one clearly best answer, and the line while the answer stays clear.

Writes ``puzzles.parquet`` (the project's table, without splits), ``puzzles.csv`` (the
same in Lichess's format, for ``chessrl.puzzles`` to split) and ``mining.json`` (the account). Results go to ``mining.sqlite`` game by game: a command
that was stopped or killed goes on with what is left.

Examples:
    python -m chessrl.mining sources=games.pgn.zst out=data/mined
    python -m chessrl.mining sources=games.pgn.zst out=data/mined max_games=1000 workers=2 verify_nodes=20000
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path

from tqdm import tqdm

from chessrl.command import parse_settings, run_command
from chessrl.corpus import game_moves
from chessrl.engine import find_stockfish
from chessrl.errors import UserError, make_folder
from chessrl.games import Game, read_games
from chessrl.lock import Lock
from chessrl.mining_engine import EngineSearch, EngineStart
from chessrl.mining_search import GameResult, MinedGame, MiningRules, Unscorable, mine_game
from chessrl.mining_store import MiningStore
from chessrl.mining_table import write_lichess_csv
from chessrl.pgn_blocks import TIME_CLASSES, GameFilters
from chessrl.puzzles import BINS, Puzzle, save_puzzles
from chessrl.signals import Interrupted, stop_signals
from chessrl.sources import ReadReport

RULES_VERSION = 1  # raise it when equal searches would give other puzzles, so that stored results are not taken
_LICHESS_GAME = re.compile(r"lichess\.org/([A-Za-z0-9]{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningSettings(MiningRules):
    """Keys of ``python -m chessrl.mining``: the rules, and which games are searched with what."""

    sources: tuple[str, ...]  # .pgn and .pgn.zst files
    out: str  # folder for the puzzles and the account
    max_games: int = 0  # so many games at most; 0: all
    exclude_time_classes: tuple[str, ...] = GameFilters().exclude_time_classes  # games of these are left out
    min_plies: int = 10  # shorter games are left out
    rated_only: bool = True  # leave casual games out
    engine: str = ""  # Stockfish's path; empty: PATH, then /usr/games
    hash_mb: int = 1  # MB per process
    workers: int = 1  # engine processes, of one thread each; they share the games and change no result
    deadline_s: float = 60.0  # seconds that one search may take before its process is replaced
    start_timeout_s: float = 20.0  # seconds that an engine may take to start

    def __post_init__(self) -> None:
        MiningRules.__post_init__(self)
        for key, least in (("max_games", 0), ("min_plies", 1), ("hash_mb", 1), ("workers", 1)):
            if getattr(self, key) < least:
                raise UserError(f"{key}={getattr(self, key)}: expected at least {least}")
        for name in self.exclude_time_classes:
            if name not in TIME_CLASSES:
                raise UserError(f"exclude_time_classes={name}: expected some of {', '.join(TIME_CLASSES)}")
        for key in ("deadline_s", "start_timeout_s"):
            if not getattr(self, key) > 0:
                raise UserError(f"{key}={getattr(self, key)}: expected seconds, above 0")

    def rules(self) -> dict[str, int | float | bool]:
        """The rules alone, by name."""
        return {rule.name: getattr(self, rule.name) for rule in fields(MiningRules)}

    def read(self, report: ReadReport) -> Iterator[Game]:
        """The games to search, in their order."""
        filters = GameFilters(exclude_time_classes=self.exclude_time_classes, min_plies=self.min_plies, rated_only=self.rated_only)
        return read_games(self.sources, filters=filters, most=self.max_games or None, report=report)


@dataclass(frozen=True, slots=True)
class Mined:
    """What a mining gave: the puzzles, the account that is saved with them, and seconds of engine time."""

    puzzles: list[Puzzle]
    account: dict
    engine_s: float


def mine(settings: MiningSettings) -> Mined:
    """Search what is not searched yet, and write the table and its account.

    Raises UserError for unusable sources or engine, for an ``out`` in use or of other settings. A stop signal ends it between two searches.
    """
    start = EngineStart(find_stockfish(settings.engine), settings.hash_mb, settings.deadline_s, settings.start_timeout_s)
    out = make_folder(settings.out, "out")
    lock = Lock(out / "mining.lock", str(out))
    lock.acquire(wait=False)
    try:
        reading = ReadReport()
        games = sum(1 for _ in settings.read(reading))  # some thousand games a second, so next to nothing; it gives the total for the ETA
        engine = asyncio.run(start.name())
        identity = _identity(settings, engine, reading)
        with MiningStore(out / "mining.sqlite", json.dumps(identity)) as store:
            asyncio.run(_search_all(settings, start, store, games))
            mined = _collect(store, identity, reading)
        save_puzzles(mined.puzzles, out / "puzzles.parquet")
        write_lichess_csv(mined.puzzles, settings, out / "puzzles.csv")
        (out / "mining.json").write_text(json.dumps(mined.account, indent=1) + "\n", encoding="utf-8")
    finally:
        lock.release()
    return mined


def _identity(settings: MiningSettings, engine: str, reading: ReadReport) -> dict:
    """What the results depend on."""
    return {
        "source": "mined",
        "engine": f"{engine} | Threads=1 Hash={settings.hash_mb} | rules {RULES_VERSION}",
        "rules": settings.rules(),
        "games": {name: getattr(settings, name) for name in ("max_games", "exclude_time_classes", "min_plies", "rated_only")},
        "sources": reading.files,
    }


async def _search_all(settings: MiningSettings, start: EngineStart, store: MiningStore, games: int) -> None:
    """Search the games without a result; a stop signal ends it at once, with what is finished stored."""
    done = store.done()
    waiting = _games_to_search(settings, done)
    with tqdm(total=games, initial=len(done), desc="mining", unit="game", disable=None, smoothing=0.02) as bar:
        found = 0

        async def work(search: EngineSearch) -> None:
            nonlocal found
            for place, game in waiting:  # one iterator for all: each game goes to whoever is free
                before = search.seconds
                result = await _search_one(game, settings, search)
                store.put(place, result, search.seconds - before)
                found += len(result.puzzles)
                bar.set_postfix(puzzles=found, refresh=False)
                bar.update()

        searches = [EngineSearch(start) for _ in range(settings.workers)]
        workers = asyncio.gather(*(work(search) for search in searches))
        loop = asyncio.get_running_loop()
        # An exception out of a signal handler would hit the event loop and get lost there: the handler cancels instead.
        with stop_signals(lambda _number: loop.call_soon_threadsafe(workers.cancel)) as stopped:
            try:
                await workers
            except asyncio.CancelledError:
                if not stopped:
                    raise
                raise Interrupted(stopped[0]) from None
            finally:
                workers.cancel()
                await asyncio.gather(workers, return_exceptions=True)
                for search in searches:
                    await search.end()


def _games_to_search(settings: MiningSettings, done: set[int]) -> Iterator[tuple[int, MinedGame | None]]:
    """(place, game) of the games without a result; None for one with the moves of an earlier one."""
    seen: set[bytes] = set()
    for place, game in zip(count(), settings.read(ReadReport())):
        moves = tuple(game_moves(game))
        digest = _digest(game, moves)
        if place not in done:
            on_lichess = _LICHESS_GAME.search(game.site)
            identifier = on_lichess[1] if on_lichess else digest.hex()
            yield place, None if digest in seen else MinedGame(identifier, game.start_fen, moves)
        seen.add(digest)


def _digest(game: Game, moves: Sequence[object]) -> bytes:
    """Stands for start position and moves."""
    return hashlib.blake2b(f"{game.start_fen} {' '.join(map(str, moves))}".encode(), digest_size=8).digest()


async def _search_one(game: MinedGame | None, rules: MiningRules, search: EngineSearch) -> GameResult:
    """A game without a score is a result as well: the engine failed on one of its positions twice, and would again."""
    if game is None:
        return GameResult(outcomes=Counter(game_duplicate=1))
    try:
        return await mine_game(game, rules, search)
    except Unscorable:
        return GameResult(outcomes=Counter(game_unscorable=1))


def _collect(store: MiningStore, identity: dict, reading: ReadReport) -> Mined:
    """Puzzles of all games without those that ask an earlier one's position, and the account."""
    searched, suspects = ReadReport(), ReadReport()
    positions = 0
    puzzles: list[Puzzle] = []
    asked: set[str] = set()
    for result in store.results():
        searched.read += 1
        positions += result.positions
        fault = next((reason for reason in ("game_duplicate", "game_unscorable") if reason in result.outcomes), None)
        if fault is not None:
            searched.drop(fault.removeprefix("game_"))
            continue
        searched.kept += 1
        suspects.read += result.outcomes.total()
        suspects.dropped.update({reason: number for reason, number in result.outcomes.items() if reason != "puzzle"})
        for puzzle in result.puzzles:
            position = puzzle.board().epd(en_passant="legal")
            if position in asked:
                suspects.drop("asks_an_earlier_position")
                continue
            asked.add(position)
            suspects.kept += 1
            puzzles.append(puzzle)
    account = {
        **identity,
        "reading": {name: value for name, value in reading.as_dict().items() if name != "files"},
        "searched_games": {name: value for name, value in searched.as_dict().items() if name != "files"},
        "searched_positions": positions,
        "suspect_moves": {name: value for name, value in suspects.as_dict().items() if name != "files"},
        "bins": {name: sum(puzzle.bin == name for puzzle in puzzles) for name in BINS},
    }
    return Mined(puzzles, account, store.engine_seconds())


def main(arguments: list[str]) -> None:
    """Mine and print the account and the rate."""
    settings = parse_settings(MiningSettings, arguments)
    mined = mine(settings)
    for name in ("reading", "searched_games", "suspect_moves"):
        entry = mined.account[name]
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in entry["dropped"].items())
        print(f"{name.replace('_', ' ')}: {entry['read']:,}, kept {entry['kept']:,}" + (f"; dropped: {reasons}" if reasons else ""))
    print("puzzles by bin: " + ", ".join(f"{name} {number:,}" for name, number in mined.account["bins"].items()))
    minutes = mined.engine_s / 60
    if minutes > 0:
        print(f"{len(mined.puzzles):,} puzzles in {minutes:,.1f} engine-minutes: {len(mined.puzzles) / minutes:.1f} per minute of one engine")
    print(f"written to {Path(settings.out) / 'puzzles.parquet'} and puzzles.csv")


if __name__ == "__main__":
    sys.exit(run_command(main))
