"""The two worlds behind one door: the corpus to pretrain on and the puzzles of a split, whichever world is configured.

What is made of given files is kept below ``outputs/data`` in folders named by the hash of the files' content and of the keys that shape them,
so that a second run finds it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from chessrl import corpus, endgame
from chessrl.config import SLICES, SPLITS, Config, WorldConfig
from chessrl.corpus import Corpus
from chessrl.decontamination import Decontamination
from chessrl.errors import UserError, make_folder
from chessrl.game_sources import token_shards
from chessrl.games import games_from_table
from chessrl.ingest import CORPUS_FORM, IngestSettings, ingest
from chessrl.lock import Lock
from chessrl.pgn_blocks import GameFilters
from chessrl.puzzle_build import account_lines, build_puzzles
from chessrl.puzzle_settings import PuzzleSettings
from chessrl.puzzle_splits import mirrored
from chessrl.puzzles import Puzzle, load_puzzles, save_puzzles
from chessrl.run import digest
from chessrl.sources import WHERE_TO_GET, file_record

WORLDS = ("endgame", "lichess")
SHARD_TOKENS = 100_000_000
MOST_WORKERS = 8  # processes that turn games to tokens; about 200 MB each
PRIVATE_SPLIT = "private"
DRAW = "balanced over themes and line lengths"  # names the way splits are drawn: another way makes another table


def _make_once(place: Path, whole: Path, make: Callable[[], None]) -> None:
    """Make the data at ``place`` unless ``whole`` is there, its last part. One process at a time does; the others wait and then find it."""
    if whole.exists():
        return
    make_folder(place.parent, "outputs")
    with Lock(place.with_name(f".{place.name}.lock"), str(place)):
        if not whole.exists():
            make()


def _check(world: WorldConfig) -> None:
    if world.name not in WORLDS:
        raise UserError(f"world.name={world.name!r}: expected one of {', '.join(WORLDS)}")
    if world.name == "lichess":
        for key in ("games", "puzzles"):
            if not getattr(world, key):
                raise UserError(f"world.{key} is empty. {WHERE_TO_GET[f'world.{key}']}")


def _paths(value: Any, key: str) -> list[str]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise UserError(f"{key}={value}: expected the name of a file, or a list of names")
    return paths


def _sources(paths: list[str], key: str) -> list[dict]:
    """Size and hash of each file: what stands for it, wherever it lies."""
    for path in paths:
        if not Path(path).is_file():
            raise UserError(f"{key}={path}: no such file. {WHERE_TO_GET[key]}")
    return [_content(path, Path(path).stat().st_size, Path(path).stat().st_mtime_ns) for path in paths]


@cache  # a dump of many gigabytes is asked for several times by one process
def _content(path: str, size: int, modified_ns: int) -> dict:
    """Size and hash of a file; ``size`` and ``modified_ns`` say that it is still the one that was hashed."""
    return {key: value for key, value in file_record(Path(path)).items() if key != "name"}


# ---- puzzles ----------------------------------------------------------------------------------------------------------------------------


def puzzle_table(config: Config) -> Path:
    """The puzzle table of the world: packaged, given (a .parquet of ``python -m chessrl.puzzles``), or made of Lichess files once."""
    world = config.world
    _check(world)
    if world.name == "endgame":
        return endgame.PACK / endgame.PUZZLES_FILE
    paths = _paths(world.puzzles, "world.puzzles")
    if any(path.endswith(".parquet") for path in paths):
        if len(paths) > 1:
            raise UserError(f"world.puzzles={','.join(paths)}: expected one puzzle table (.parquet), or Lichess files to make one of")
        if not Path(paths[0]).is_file():
            raise UserError(f"world.puzzles={paths[0]}: no such file; give the puzzle table that python -m chessrl.puzzles wrote, or Lichess files")
        return Path(paths[0])
    sizes = {split: getattr(world, f"{split}_puzzles") for split in SPLITS}
    history = world.state == "history"
    games = [path for path in _paths(world.games, "world.games") if not Path(path).is_dir()] if history else []  # searched for the puzzles' own
    key = digest([_sources(paths, "world.puzzles"), sizes, world.seed, DRAW, _sources(games, "world.games")])
    path = Path(config.outputs) / "data" / f"puzzles-{key}.parquet"
    settings = PuzzleSettings(tuple(paths), str(path.parent), seed=world.seed, games=tuple(games), require_history=history, **sizes)
    _make_once(path, path, lambda: _build_puzzles(settings, path))
    return path


def _build_puzzles(settings: PuzzleSettings, path: Path) -> None:
    puzzles, account, _ = build_puzzles(settings)
    print("\n".join(account_lines(account)), flush=True)
    save_puzzles(puzzles, path)


def puzzles_of_split(config: Config, split: str, bins: Iterable[str] = ()) -> list[Puzzle]:
    """The puzzles of one split, of some bins where given. Raises UserError on an unknown split or when none is left.

    The endgame world's ``test_mirrored`` is its test split with colours exchanged; no game passes through those positions either. The private
    split is not to be had here: ``chessrl.holdout`` opens it and says so in its log.
    """
    if split == PRIVATE_SPLIT:
        raise UserError("split private: it is read by an evaluation with evaluate.open_private=true alone, which enters it in the access log")
    if split not in (*SPLITS, *SLICES):
        raise UserError(f"split={split!r}: expected one of {', '.join((*SPLITS, *SLICES))}")
    mirror = config.world.name == "endgame" and split == "test_mirrored"
    puzzles = load_puzzles(puzzle_table(config), "test" if mirror else split, list(bins) or None)
    if mirror:
        puzzles = [mirrored(puzzle) for puzzle in puzzles]
    if not puzzles:
        raise UserError(f"no puzzle in split {split}" + (f" and bins {', '.join(bins)}" if bins else "") + ": check world.* and the bins")
    return puzzles


def private_puzzles(config: Config) -> list[Puzzle]:
    """The private split, for ``chessrl.holdout`` alone. Raises UserError where the table has none."""
    puzzles = load_puzzles(puzzle_table(config), PRIVATE_SPLIT)
    if not puzzles:
        raise UserError("no puzzle in split private: make the table with world.private_puzzles above 0")
    return puzzles


def puzzle_hash(config: Config) -> str:
    """What stands for the puzzles in a run's identity."""
    table = pd.read_parquet(puzzle_table(config)).astype(str)  # the content: bytes differ between versions of the writer
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:16]


# ---- games ------------------------------------------------------------------------------------------------------------------------------


def corpus_folder(config: Config) -> Path:
    """The token shards of the world's games, made once. No game passes through a position of any puzzle of the table, but for world.leak."""
    world = config.world
    _check(world)
    table = puzzle_table(config)
    if world.name == "endgame":
        files, form = _sources([str(endgame.PACK / endgame.GAMES_FILE)], "world.games"), []
    else:
        files, form = _sources(_files_of_games(_paths(world.games, "world.games")), "world.games"), [CORPUS_FORM]
    shape = [world.state, world.context, world.seed, world.validation_share, world.max_games, world.min_elo, world.max_elo, world.bullet]
    leak = [asdict(world.leak)] if world.leak.fraction else []
    folder = Path(config.outputs) / "data" / f"games-{digest([files, shape, puzzle_hash(config), *leak, *form])}"
    _make_once(folder, folder / corpus.MANIFEST, lambda: _build_corpus(world, table, folder))
    return folder


def _files_of_games(paths: list[str]) -> list[str]:
    """The files behind the names: a folder stands for its token shards."""
    return [str(file) for path in paths for file in (token_shards(Path(path)) if Path(path).is_dir() else [path])]


def _build_corpus(world: WorldConfig, table: Path, folder: Path) -> None:
    decontamination = Decontamination(load_puzzles(table), world.leak)
    manifest = (_endgame_corpus if world.name == "endgame" else _lichess_corpus)(world, folder, decontamination)
    counts = manifest["splits"]["train"]
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in manifest["games"]["dropped"].items())
    print(
        f"corpus: {counts['tokens']:,} tokens in {counts['documents']:,} training games" + (f"; left out: {dropped}" if dropped else ""),
        flush=True,
    )
    print(f"decontamination: {decontamination.summary()}", flush=True)


def _endgame_corpus(world: WorldConfig, folder: Path, decontamination: Decontamination) -> dict[str, Any]:
    table = endgame.load_games()[: world.max_games]
    return corpus.build_corpus(
        tqdm(games_from_table(table, workers=2), desc="games to tokens", unit="game", total=len(table)),
        folder,
        state=world.state,
        context=world.context,
        seed=world.seed,
        validation_share=world.validation_share,
        shard_tokens=SHARD_TOKENS,
        decontamination=decontamination,
    )


def _lichess_corpus(world: WorldConfig, folder: Path, decontamination: Decontamination) -> dict[str, Any]:
    excluded = () if world.bullet else GameFilters().exclude_time_classes
    settings = IngestSettings(
        state=world.state,
        context=world.context,
        seed=world.seed,
        validation_share=world.validation_share,
        shard_tokens=SHARD_TOKENS,
        filters=GameFilters(exclude_time_classes=excluded, min_rating=world.min_elo, max_rating=world.max_elo),
        most=world.max_games,
    )
    games = _paths(world.games, "world.games")
    return ingest(games, folder, settings, decontamination=decontamination, workers=min(MOST_WORKERS, os.cpu_count() or 1))


def corpus_hash(config: Config) -> str:
    """What stands for the games in a run's identity."""
    return Corpus.open(corpus_folder(config), "train").manifest["hash"]


def open_corpus(config: Config) -> tuple[Corpus, Corpus]:
    """Training and validation games."""
    folder = corpus_folder(config)
    return Corpus.open(folder, "train"), Corpus.open(folder, "validation")
