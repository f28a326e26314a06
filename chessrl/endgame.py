"""The embedded world: games and mate puzzles of three to five men, made by one command and shipped as a pack.

Writes ``endgame_games.parquet``, ``endgame_puzzles.parquet`` and ``endgame_manifest.json``. A decision is a position of a puzzle's line in
which the solver is to move, mirror images counted as one: no game passes through a decision, and no two puzzles share one. The tables
depend on the settings and the engine, not on the number of workers.

Examples:
    python -m chessrl.endgame out=data/endgame
    python -m chessrl.endgame out=data/endgame games=5000 puzzles=1200 materials=KQK,KRRK workers=2
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from tqdm import tqdm

from chessrl.command import parse_settings, run_command
from chessrl.endgame_games import Game, GamesTask, PlainEngine, play_task
from chessrl.endgame_positions import GAME_WEIGHTS
from chessrl.endgame_puzzles import MatePuzzle, PuzzlesTask, apart_from_games, cell_quotas, find_puzzles, puzzle_table
from chessrl.engine import find_stockfish
from chessrl.errors import UserError, make_folder

PACK = Path(__file__).parent / "data"
GAMES_FILE, PUZZLES_FILE, MANIFEST_FILE = "endgame_games.parquet", "endgame_puzzles.parquet", "endgame_manifest.json"
GAMES_PER_TASK = 250

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EndgameSettings:
    """What a pack is made of."""

    out: str  # folder for the two tables and the manifest
    games: int = 50_000  # to play out
    puzzles: int = 12_200  # to make, of all splits together
    seed: int = 0  # of everything that is drawn
    workers: int = 0  # processes; 0: one per CPU core
    max_plies: int = 40  # longer games teach shuffling, and half of their tokens would come from the few materials that do not win
    materials: tuple[str, ...] = ()  # names as in endgame_positions.GAME_WEIGHTS; empty: all
    engine: str = ""  # Stockfish's path; empty: PATH, then /usr/games

    def __post_init__(self) -> None:
        for key, least in (("games", 1), ("puzzles", 1), ("seed", 0), ("workers", 0), ("max_plies", 1)):
            if getattr(self, key) < least:
                raise UserError(f"{key}={getattr(self, key)}: expected at least {least}")
        for name in self.materials:
            if name not in GAME_WEIGHTS:
                raise UserError(f"materials={name}: expected names out of {', '.join(GAME_WEIGHTS)}")


def load_games() -> pd.DataFrame:
    """The packaged games, columns as the fields of ``endgame_games.Game``. Raises UserError when the installation lacks them."""
    return _load(GAMES_FILE)


def load_puzzle_table() -> pd.DataFrame:
    """The packaged puzzles: id, fen, moves, lead (0), difficulty (mate in 1-4), bin, themes, split, history (empty)."""
    return _load(PUZZLES_FILE)


def _load(name: str) -> pd.DataFrame:
    if not (PACK / name).is_file():
        raise UserError(f"{PACK / name} is missing from the installation: reinstall, or make it with python -m chessrl.endgame out={PACK}")
    return pd.read_parquet(PACK / name)


def generate(settings: EndgameSettings) -> None:
    """Makes a pack in ``settings.out``; the manifest is written last. Raises UserError for settings that cannot be met."""
    make_folder(settings.out, "out")
    engine = find_stockfish(settings.engine)
    materials = settings.materials or tuple(GAME_WEIGHTS)
    workers = settings.workers or os.cpu_count() or 1
    with PlainEngine(engine) as process:
        engine_name = process.name
    games, visited = _all_games(settings, engine, materials, workers)
    found, reasons = _all_puzzles(settings, engine, materials, workers)
    assemble(settings, engine_name, games, visited, found, reasons)


def assemble(
    settings: EndgameSettings,
    engine_name: str,
    games: list[Game],
    visited: np.ndarray,
    found: list[MatePuzzle],
    reasons: Counter[str],
) -> None:
    """Drops the puzzles that games pass through (``visited``: canonical keys, int64), chooses and splits the rest, writes the pack."""
    apart, lost_to_games = apart_from_games(found, visited)
    puzzles_table, not_chosen = puzzle_table(apart, settings.puzzles, settings.seed)
    games_table = pd.DataFrame([dataclasses.asdict(game) for game in games])
    rejected = dict(sorted((reasons + lost_to_games + not_chosen).items()))

    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST_FILE).unlink(missing_ok=True)
    files = {name: _write(table, out / name) for name, table in ((GAMES_FILE, games_table), (PUZZLES_FILE, puzzles_table))}
    manifest = _manifest(settings, engine_name, games_table, puzzles_table) | {
        "decisions_of_puzzles": int(puzzles_table["difficulty"].sum()),  # as many positions: no two puzzles share one
        "positions_visited_by_games": len(visited),
        "positions_rejected_as_puzzles": rejected,
        "files": files,
    }
    partial = out / (MANIFEST_FILE + ".partial")
    partial.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    partial.replace(out / MANIFEST_FILE)
    by_reason = ", ".join(f"{reason} {count:,}" for reason, count in rejected.items())
    print(f"games: {len(games_table):,}; puzzles: {len(puzzles_table):,}; positions rejected as puzzles: {by_reason or 'none'}")
    print(f"written to {out / GAMES_FILE}, {PUZZLES_FILE} and {MANIFEST_FILE}")


def _all_games(settings: EndgameSettings, engine: Path, materials: tuple[str, ...], workers: int) -> tuple[list[Game], np.ndarray]:
    """All games in order of their index, and the canonical keys (sorted, unique) of the positions they pass through."""
    tasks = [
        GamesTask(engine, settings.seed, first, min(first + GAMES_PER_TASK, settings.games), settings.max_plies, materials)
        for first in range(0, settings.games, GAMES_PER_TASK)
    ]
    games: list[Game] = []
    keys = [np.zeros(0, dtype=np.int64)]
    with tqdm(total=settings.games, desc="games", unit="game") as bar:
        for part, part_keys in _in_order(play_task, tasks, workers):
            games += part
            keys.append(part_keys)
            bar.update(len(part))
    return games, np.unique(np.concatenate(keys))


def _all_puzzles(
    settings: EndgameSettings, engine: Path, materials: tuple[str, ...], workers: int
) -> tuple[list[MatePuzzle], Counter[str]]:
    quotas = cell_quotas(settings.puzzles, materials)
    slowest_first = sorted(quotas, key=lambda material: (-len(material), material))
    tasks = [PuzzlesTask(engine, settings.seed, material, quotas[material]) for material in slowest_first]
    found: list[MatePuzzle] = []
    reasons: Counter[str] = Counter()
    for part, part_reasons in tqdm(_in_order(find_puzzles, tasks, workers), total=len(tasks), desc="puzzles", unit="material"):
        found += part
        reasons += part_reasons
    return found, reasons


def _in_order(function: Callable[[Task], Result], tasks: list[Task], workers: int) -> Iterator[Result]:
    """Results in the order of the tasks, computed in this process or by fresh worker processes."""
    if workers == 1:
        yield from map(function, tasks)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent) as pool:
        yield from pool.map(function, tasks)


def _end_with_parent() -> None:
    """In a worker process: end when the command is killed. Its engine ends by itself when nobody holds the other end of its input."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _write(table: pd.DataFrame, path: Path) -> dict[str, int | str]:
    """Writes a table so that the file is there whole or not at all; its rows, bytes and hash."""
    partial = path.with_name(path.name + ".partial")
    table.to_parquet(partial, index=False, compression="zstd", compression_level=19)
    partial.replace(path)
    content = path.read_bytes()
    return {"rows": len(table), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _manifest(settings: EndgameSettings, engine_name: str, games: pd.DataFrame, puzzles: pd.DataFrame) -> dict[str, object]:
    plies = games["moves"].str.count(" ") + 1
    material = puzzles["themes"].str.split().str[1]
    chosen = {key: value for key, value in dataclasses.asdict(settings).items() if key not in ("out", "workers", "engine")}
    chosen["materials"] = ",".join(settings.materials)
    return {
        "command": "python -m chessrl.endgame out=DIR " + " ".join(f"{key}={value}" for key, value in chosen.items() if value != ""),
        "settings": chosen,
        "engine": engine_name,
        "games_by_material": _counts(games["material"]),
        "games_by_ending": _counts(games["ending"]),
        "games_by_result": _counts(games["result"]),
        "plies_total": int(plies.sum()),
        "plies_mean": round(float(plies.mean()), 2),
        "puzzles_by_split_and_bin": {split: _counts(group["bin"]) for split, group in puzzles.groupby("split", sort=False)},
        "puzzles_by_material_and_distance": {name: _counts(group["difficulty"]) for name, group in puzzles.groupby(material)},
        "puzzles_by_men": _counts(material.str.len()),
        "puzzles_by_solver": _counts(puzzles["fen"].str.split().str[1].map({"w": "white", "b": "black"})),
    }


def _counts(values: pd.Series) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts().sort_index().items()}


def main(arguments: list[str]) -> None:
    """The command. Raises UserError for arguments or settings that cannot be met."""
    generate(parse_settings(EndgameSettings, arguments))


if __name__ == "__main__":
    sys.exit(run_command(main))
