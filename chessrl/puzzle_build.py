"""Lichess's puzzle tables -> the splits of an experiment, disjoint and balanced by rating.

``out`` gets ``puzzles.parquet``, ``puzzles.json`` (what became of every row) and, with an engine check, ``several_solutions.txt``.

Examples:
    python -m chessrl.puzzles sources=lichess_db_puzzle.csv.zst out=data/puzzles
    python -m chessrl.puzzles sources=lichess_db_puzzle.csv.zst out=data/puzzles sft=20000 min_popularity=80 rl_mix=B1:1,B2:1
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chessrl.command import parse_settings
from chessrl.config import SPLITS, Config, EngineConfig
from chessrl.engine import find_stockfish
from chessrl.errors import UserError, make_folder
from chessrl.lichess_api import GAMES_PER_REQUEST, LichessApi, fetch_games
from chessrl.puzzle_history import GameIds, SourceGame, find_games, with_histories
from chessrl.puzzle_rows import PuzzleRows, puzzle_of_row, read_rows
from chessrl.puzzle_settings import PuzzleSettings
from chessrl.puzzle_splits import NO_POOL, POOL_OF_SLICE, POOLS, Registry, draw_splits, even_quotas, mirror_all, quotas
from chessrl.puzzles import Puzzle, rating_bin, save_puzzles
from chessrl.sources import ReadReport

_RECENT_SURPLUS = 2  # recent puzzles looked for in the export, for each that is wanted: the draw chooses among them
_MOST_ASKED = 20  # games asked for in the export at most, for each recent puzzle wanted


def main(arguments: list[str]) -> None:
    """Read, draw and save puzzles; prints one line for each."""
    settings = parse_settings(PuzzleSettings, arguments)
    out = make_folder(settings.out, "out")
    puzzles, account, flagged = build_puzzles(settings)
    if settings.engine_check != "off":
        (out / "several_solutions.txt").write_text("".join(f"{identifier}\n" for identifier in sorted(flagged)), encoding="utf-8")
    (out / "puzzles.json").write_text(json.dumps(account, indent=1) + "\n", encoding="utf-8")
    save_puzzles(puzzles, out / "puzzles.parquet")
    print("\n".join(account_lines(account)) + f"\nwritten to {out / 'puzzles.parquet'}")


def build_puzzles(settings: PuzzleSettings) -> tuple[list[Puzzle], dict[str, Any], set[str]]:
    """The puzzles of all splits, the account of what became of every row, and the ids that the engine check flags.

    The account adds up: rows kept = rows of the draw; drawn + mirrored - removed = puzzles of the table.
    """
    reading, drawing, mirroring, searching = ReadReport(), ReadReport(), ReadReport(), ReadReport()
    mixes = {split: settings.mix(split) for split in SPLITS}
    if settings.engine_check != "off":
        find_stockfish(settings.engine_path)  # one that is missing is said now and not after the draw
    rows = read_rows(settings.sources, settings.filters(), settings.seed, reading)
    early = bool(settings.corpus_until or settings.require_history)  # then the draw depends on the games; else they are looked for after it
    games = find_games(settings.games, GameIds(rows.table["game"]), searching) if settings.games and early else {}
    _enter_dates(rows, games)
    fetched = _look_for_recent(rows, settings) if settings.test_recent and settings.lichess_api else {}
    pools = _pools(rows, settings, games)
    wanted = {split: quotas(getattr(settings, split), mixes[split]) for split in SPLITS}
    wanted |= {
        name: even_quotas(size, _available(rows, pools, pool)) for name, pool in POOL_OF_SLICE.items() if (size := getattr(settings, name))
    }
    registry = Registry()
    outcomes: dict[str, str] = {}
    puzzles = draw_splits(rows, pools, wanted, lambda row: _puzzle_of(rows, row, settings, games, outcomes), registry, drawing)
    if not puzzles:
        raise UserError(f"no puzzle was drawn (rows: {reading.summary()}; draw: {drawing.summary()}); change the filters or give more puzzles")
    if settings.games and not early:
        games = find_games(settings.games, {puzzle.game for puzzle in puzzles if puzzle.game and not puzzle.history}, searching)
    puzzles, history = _histories(puzzles, settings, games, fetched, outcomes)
    removed: Counter[str] = Counter()
    if settings.require_history:
        removed["without_history"] = sum(not puzzle.history for puzzle in puzzles)
        puzzles = [puzzle for puzzle in puzzles if puzzle.history]
    flagged, engine_account = _engine_check(puzzles, settings)
    if settings.engine_check == "drop":
        removed["another_solution"] = len(flagged)
        puzzles = [puzzle for puzzle in puzzles if puzzle.id not in flagged]
    if settings.test_mirrored:
        puzzles += mirror_all([puzzle for puzzle in puzzles if puzzle.split == "test"], registry, mirroring)
    got = Counter((puzzle.split, puzzle.bin) for puzzle in puzzles)
    account = {
        "settings": asdict(settings),
        "rows": reading.as_dict() | {"kept_though_a_filtered_field_is_empty": dict(rows.kept_without)},
        "dates": _date_counts(rows, settings),
        "draw": drawing.as_dict(),
        "splits": {name: {"wanted": by_bin, "got": {one: got[name, one] for one in by_bin}} for name, by_bin in wanted.items()},
        "slices_wanted": {name: getattr(settings, name) for name in POOL_OF_SLICE},
        "history": history,
        "games": searching.as_dict() if settings.games else None,
        "removed": dict(removed),
        "engine_check": engine_account,
        "mirrored": mirroring.as_dict() if settings.test_mirrored else None,
        "sizes": dict(Counter(puzzle.split for puzzle in puzzles)),
    }
    return puzzles, account, flagged


def account_lines(account: dict[str, Any]) -> list[str]:
    """The account for a terminal: rows, draw, sizes, shortfalls, histories."""

    def counted(entry: dict[str, Any]) -> str:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(entry["dropped"].items(), key=lambda item: -item[1]))
        return f"read {entry['read']:,}, kept {entry['kept']:,}" + (f"; dropped: {dropped}" if dropped else "")

    lines = [f"puzzle rows: {counted(account['rows'])}"]
    if without := {name: count for name, count in account["rows"]["kept_though_a_filtered_field_is_empty"].items() if count}:
        lines.append("rows kept though a filtered field is empty: " + ", ".join(f"{name} {count:,}" for name, count in without.items()))
    lines.append(f"puzzles drawn: {counted(account['draw'])}")
    lines.append("splits: " + ", ".join(f"{name} {count:,}" for name, count in account["sizes"].items()))
    for name, entry in account["splits"].items():
        short = {one: count for one, count in entry["wanted"].items() if entry["got"][one] < count}
        if short:
            lines.append(f"split {name} is short of puzzles: " + ", ".join(f"{one} {entry['got'][one]:,} of {n:,}" for one, n in short.items()))
    for name, size in account["slices_wanted"].items():
        if account["sizes"].get(name, 0) < size:
            lines.append(f"split {name} is short of puzzles: {account['sizes'].get(name, 0):,} of {size:,}")
    if account["mirrored"]:
        lines.append(f"mirrored: {counted(account['mirrored'])}")
    if removed := {reason: count for reason, count in account["removed"].items() if count}:
        lines.append("removed after the draw: " + ", ".join(f"{reason} {count:,}" for reason, count in removed.items()))
    lines.append("moves to the position: " + ", ".join(f"{outcome} {count:,}" for outcome, count in account["history"].items()))
    if account["engine_check"]:
        lines.append("engine: " + ", ".join(f"{name} {count:,}" for name, count in account["engine_check"].items() if name != "engine"))
    return lines


# ---- parts ------------------------------------------------------------------------------------------------------------------------------


def _pools(rows: PuzzleRows, settings: PuzzleSettings, games: dict[str, SourceGame]) -> np.ndarray:
    """The pool (a place in POOLS, or NO_POOL) of each row, (N,) int8; a row that several fit belongs to the first of theme, length, date."""
    pools = np.zeros(len(rows), np.int8)
    pools[_recent(rows, settings)] = POOLS.index("recent")
    pools[rows.line_moves > settings.max_line_moves] = POOLS.index("long_line")
    if settings.held_out_themes:
        known = {theme for themes in rows.theme_sets for theme in themes}
        if unknown := [theme for theme in settings.held_out_themes if theme not in known]:
            raise UserError(f"held_out_themes: no puzzle has the theme {unknown[0]}; expected themes such as {', '.join(sorted(known)[:5])}")
        held_out = np.array([not set(themes).isdisjoint(settings.held_out_themes) for themes in rows.theme_sets], bool)
        pools[held_out[rows.theme_codes]] = POOLS.index("held_out_theme")
    if settings.require_history and not settings.lichess_api:
        with_moves = pc.is_in(rows.table["id"], pa.array(list(rows.movetexts), pa.string())).to_numpy()
        with_game = pc.is_in(rows.table["game"], pa.array(list(games), pa.string())).to_numpy()
        pools[~(with_moves | with_game)] = NO_POOL
    return pools


def _puzzle_of(
    rows: PuzzleRows, row: int, settings: PuzzleSettings, games: dict[str, SourceGame], outcomes: dict[str, str]
) -> Puzzle | str:
    """The puzzle of a row or why it is left out; with the moves of its game where no other game will be asked for."""
    puzzle = puzzle_of_row(rows, row)
    if isinstance(puzzle, Puzzle) and settings.require_history and not settings.lichess_api:
        (puzzle,) = with_histories([puzzle], games, "games", outcomes)
        if not puzzle.history:
            return "its_game_does_not_lead_to_the_position"
    return puzzle


def _recent(rows: PuzzleRows, settings: PuzzleSettings) -> np.ndarray:
    """Whether a row's game is known to be later than the corpus, (N,) bool."""
    if not settings.corpus_until:
        return np.zeros(len(rows), bool)
    return rows.dates > int(settings.corpus_until.replace("-", ""))


def _available(rows: PuzzleRows, pools: np.ndarray, pool: str) -> Counter[str]:
    return Counter(map(rating_bin, rows.ratings[pools == POOLS.index(pool)].tolist()))


def _enter_dates(rows: PuzzleRows, games: dict[str, SourceGame]) -> None:
    """Dates of the rows without one whose game is known."""
    dates = np.array([0, *(game.date for game in games.values())], np.int32)
    index = pc.fill_null(pc.index_in(rows.table["game"], pa.array(list(games), pa.string())), -1).to_numpy() + 1
    rows.dates = np.where(rows.dates > 0, rows.dates, dates[index])


def _look_for_recent(rows: PuzzleRows, settings: PuzzleSettings) -> dict[str, SourceGame]:
    """Games from the Lichess export, of rows without a date in the order of the draw, until enough of them are later than the corpus."""
    fetched: dict[str, SourceGame] = {}
    undated = np.flatnonzero(rows.dates == 0)
    undated = undated[np.argsort(rows.places[undated])]
    asked = 0
    for start in range(0, len(undated), GAMES_PER_REQUEST):
        enough = int(_recent(rows, settings).sum()) >= _RECENT_SURPLUS * settings.test_recent
        if enough or asked >= max(GAMES_PER_REQUEST, _MOST_ASKED * settings.test_recent):
            break
        ids = {rows.text("game", row) for row in undated[start : start + GAMES_PER_REQUEST].tolist()} - {""}
        asked += len(ids)
        fetched |= _fetch(ids, settings)
        _enter_dates(rows, fetched)
    return fetched


def _fetch(ids: set[str], settings: PuzzleSettings) -> dict[str, SourceGame]:
    return fetch_games(ids, Path(settings.out) / "lichess_games.sqlite", LichessApi(settings.lichess_url))


def _histories(
    puzzles: list[Puzzle],
    settings: PuzzleSettings,
    games: dict[str, SourceGame],
    fetched: dict[str, SourceGame],
    outcomes: dict[str, str],
) -> tuple[list[Puzzle], dict[str, int]]:
    """The puzzles with the moves that lead to them where their game is found, and how many got them from where, or why not."""
    outcomes = {puzzle.id: "history_from_table" for puzzle in puzzles if puzzle.history} | outcomes
    puzzles = with_histories(puzzles, games, "games", outcomes)
    if settings.lichess_api:
        fetched = fetched | _fetch({puzzle.game for puzzle in puzzles if puzzle.game and not puzzle.history} - set(fetched), settings)
        puzzles = with_histories(puzzles, fetched, "api", outcomes)
    looked = bool(settings.games or settings.lichess_api)
    counts: Counter[str] = Counter()
    for puzzle in puzzles:
        without = "game_not_found" if looked else "not_looked_for"
        counts[outcomes.get(puzzle.id) or (without if puzzle.game else "no_game_id")] += 1
    return puzzles, dict(sorted(counts.items()))


def _engine_check(puzzles: list[Puzzle], settings: PuzzleSettings) -> tuple[set[str], dict[str, Any] | None]:
    if settings.engine_check == "off":
        return set(), None
    from chessrl.puzzle_check import several_solutions  # torch is imported only where it is needed

    engine = EngineConfig(path=settings.engine_path, depth=settings.engine_depth, delta=settings.engine_delta)
    return several_solutions(Config(engine=engine, outputs=settings.out), puzzles)


def _date_counts(rows: PuzzleRows, settings: PuzzleSettings) -> dict[str, int]:
    known = int((rows.dates > 0).sum())
    return {"known": known, "unknown": len(rows) - known, "after_the_corpus": int(_recent(rows, settings).sum())}
