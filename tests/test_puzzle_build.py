"""The command: from Lichess tables to a table of splits, its account, its slices, and the world that reads it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chess
import pandas as pd
import pytest

from chessrl import lichess_api, puzzle_build, world
from chessrl.command import run_command
from chessrl.config import SPLITS, Config, WorldConfig
from chessrl.errors import UserError
from chessrl.position_keys import position_key
from chessrl.puzzle_build import build_puzzles
from chessrl.puzzle_history import SourceGame
from chessrl.puzzle_settings import PuzzleSettings
from chessrl.puzzles import Puzzle, load_puzzles, solver_position_keys
from chessrl.sources import zstd
from tests.lichess_rows import HEADER, positions, rook_rows, row, write
from tests.test_engine import needs_stockfish

DATA = Path(__file__).parents[2] / "shared" / "data"
SIZES = {"sft": 12, "rl": 12, "validation": 6, "test": 12, "private": 6}
RATINGS = (700, 1000, 1400, 1800, 2200, 2600)


def table(folder: Path, count: int = 150, **fields) -> Path:
    return write(folder / "puzzles.csv", *rook_rows(count, **{"rating": lambda number: str(RATINGS[number % 6])} | fields))


def build(source: Path, **keys) -> tuple[list[Puzzle], dict]:
    """A build whose account adds up."""
    puzzles, account, _ = build_puzzles(PuzzleSettings((str(source),), str(source.parent / "out"), **SIZES | keys))
    rows, drawn, mirror = account["rows"], account["draw"], account["mirrored"] or {"read": 0, "kept": 0, "dropped": {}}
    for entry in (rows, drawn, mirror, *([account["games"]] if account["games"] else [])):
        assert entry["read"] == entry["kept"] + sum(entry["dropped"].values())
    assert rows["kept"] == drawn["read"] and drawn["kept"] + mirror["kept"] - sum(account["removed"].values()) == len(puzzles)
    assert sum(account["history"].values()) == drawn["kept"] and sum(account["sizes"].values()) == len(puzzles)
    owner: dict = {}
    for puzzle in puzzles:
        for link in (*solver_position_keys(puzzle), *([puzzle.game] if puzzle.game else [])):
            assert owner.setdefault(link, puzzle.split) == puzzle.split, "two splits share a position or a game"
    return puzzles, account


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["puzzles", *arguments])
    return run_command(puzzle_build.main)


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def test_command_writes_the_table_and_its_account_alike_twice(tmp_path, monkeypatch, capsys):
    source = table(tmp_path)
    keys = [f"{name}={size}" for name, size in SIZES.items()]
    for out in ("one", "two"):
        assert run(monkeypatch, f"sources={source}", f"out={tmp_path / out}", *keys) == 0
    assert (tmp_path / "one" / "puzzles.parquet").read_bytes() == (tmp_path / "two" / "puzzles.parquet").read_bytes()
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["puzzles.json", "puzzles.parquet"]
    found = load_puzzles(tmp_path / "one" / "puzzles.parquet")
    account = json.loads((tmp_path / "one" / "puzzles.json").read_text())
    sizes = Counter(puzzle.split for puzzle in found)
    assert account["sizes"] == sizes and {split: sizes[split] for split in SPLITS} == SIZES
    printed = capsys.readouterr().out
    assert "puzzle rows: read 150, kept 150\n" in printed and "splits: sft 12, rl 12" in printed and "short" not in printed


def test_the_modules_own_command_is_the_same(tmp_path):
    command = [sys.executable, "-m", "chessrl.puzzles", f"sources={tmp_path / 'none.csv'}", f"out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "none.csv: no such file" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out=x"], "sources= is missing"),
        (["sources=a.csv", "out=x", "seed=one"], "seed=one"),
        (["sources=a.csv", "out=x", "colour=red"], "colour"),
        (["help"], "expected key=value"),
        (["sources=a.csv", "out=x", "sft=-1"], "sft=-1: expected at least 0"),
        (["sources=a.csv", "out=x", "rl_mix=B1:2,B7:1"], "rl_mix=B1:2,B7:1: expected bins"),
        (["sources=a.csv", "out=x", "sft_mix=B1:0"], "sft_mix: all weights are 0"),
        (["sources=a.csv", "out=x", "missing=maybe"], "missing=maybe"),
        (["sources=a.csv", "out=x", "engine_check=on"], "engine_check=on: expected one of off, flag, drop"),
        (["sources=a.csv", "out=x", "test_themes=5"], "test_themes=5 needs held_out_themes"),
        (["sources=a.csv", "out=x", "test_recent=5"], "test_recent=5 needs corpus_until"),
        (["sources=a.csv", "out=x", "corpus_until=2023"], "corpus_until=2023: expected a day"),
        (["sources=a.csv", "out=x", "corpus_until=2023-02-29"], "corpus_until=2023-02-29: expected a day"),
        (["sources=a.csv", "out=x", "lichess_url=lichess.org"], "lichess_url=lichess.org: expected an address"),
        (["sources=a.csv", "out=x", "engine_check=flag", "engine_path=/nowhere"], "engine.path=/nowhere is not a program"),
        (["sources=a.csv", "out=x", "bad_ids=none.txt"], "bad_ids=none.txt: not readable"),
    ],
)
def test_bad_argument_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_shortfalls_are_said_and_filled_from_nowhere(tmp_path):
    source = table(tmp_path, 60)
    _, account = build(source, sft=100, test=0, validation=0, private=0, rl=0)
    assert account["splits"]["sft"] == {"wanted": dict.fromkeys(("B1", "B2", "B3", "B4"), 25), "got": dict.fromkeys(("B1", "B2", "B3", "B4"), 10)}
    assert "split sft is short of puzzles: B1 10 of 25, B2 10 of 25, B3 10 of 25, B4 10 of 25" in puzzle_build.account_lines(account)


def test_no_puzzle_at_all_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"no puzzle was drawn \(rows: read 10, kept 0; dropped: rating_too_low 10"):
        build(table(tmp_path, 10), min_rating=3000)


def test_mixes_are_the_papers(tmp_path):
    _, account = build(table(tmp_path, 900), sft=80, rl=100, test=12)
    wanted = {split: entry["wanted"] for split, entry in account["splits"].items()}
    assert wanted["sft"] == dict.fromkeys(("B1", "B2", "B3", "B4"), 20), "even from 800 to 2400"
    assert wanted["rl"]["B1"] + wanted["rl"]["B2"] == 70 and sum(wanted["rl"].values()) == 100
    assert wanted["test"] == dict.fromkeys(("B0", "B1", "B2", "B3", "B4", "B5"), 2)
    assert all(entry["got"] == entry["wanted"] for entry in account["splits"].values())


def test_known_bad_ids_and_filters_reach_the_reading(tmp_path):
    (tmp_path / "bad.txt").write_text("p0000\np0001\n")
    puzzles, account = build(table(tmp_path, plays=lambda number: str(number)), bad_ids=str(tmp_path / "bad.txt"), min_plays=1, max_rating=2400)
    assert account["rows"]["dropped"] == {"rating_too_high": 25, "plays_too_low": 1, "known_bad": 1}
    assert not {"p0000", "p0001"} & {puzzle.id for puzzle in puzzles}


# ---- slices -----------------------------------------------------------------------------------------------------------------------------


def test_the_test_set_is_mirrored_in_its_order(tmp_path):
    puzzles, account = build(table(tmp_path))
    test = [puzzle for puzzle in puzzles if puzzle.split == "test"]
    mirror = [puzzle for puzzle in puzzles if puzzle.split == "test_mirrored"]
    held = {key for puzzle in puzzles if puzzle.split != "test_mirrored" for key in solver_position_keys(puzzle)}
    expected = [puzzle.id for puzzle in test if position_key(puzzle.board().mirror()) not in held]
    assert [puzzle.id for puzzle in mirror] == [f"{identifier}-mirrored" for identifier in expected] and mirror
    assert account["mirrored"]["read"] == len(test)
    assert not any(puzzle.split == "test_mirrored" for puzzle in build(table(tmp_path), test_mirrored=False)[0])


def test_held_out_themes_are_in_their_slice_alone(tmp_path):
    source = table(tmp_path, themes=lambda number: "mate pin" if number % 5 == 0 else "mate")
    puzzles, account = build(source, held_out_themes=("pin", "pin"), test_themes=12)
    for puzzle in puzzles:
        assert ("pin" in puzzle.themes) == (puzzle.split == "test_themes")
    assert account["sizes"]["test_themes"] == 12
    assert account["splits"]["test_themes"]["wanted"] == dict.fromkeys(("B0", "B1", "B2", "B3", "B4", "B5"), 2)
    assert account["draw"]["dropped"]["held_out_theme_not_drawn"] == 18
    assert not any("pin" in puzzle.themes for puzzle in build(source, held_out_themes=("pin",))[0]), "held out without a slice as well"
    with pytest.raises(UserError, match="no puzzle has the theme forc; expected themes such as mate, pin"):
        build(source, held_out_themes=("forc",), test_themes=1)


def shuffling(number: int) -> str:
    """A legal line of six moves for every third row: king and rook go there and back."""
    fen, moves = positions()[number]
    if number % 3:
        return moves
    board = chess.Board(fen)
    line = moves.split()
    for move in line:
        board.push_uci(move)
    while len(line) < 6:
        move = next(iter(board.legal_moves))
        board.push(move)
        line.append(move.uci())
    return " ".join(line)


def test_lines_longer_than_any_other_are_in_their_slice_alone(tmp_path):
    source = table(tmp_path, 300, moves=shuffling)
    puzzles, account = build(source, max_line_moves=4, test_long=20)
    for puzzle in puzzles:
        assert (len(puzzle.moves) > 4) == (puzzle.split == "test_long")
    assert account["sizes"]["test_long"] == 20
    assert build(source, max_line_moves=4)[1]["rows"]["dropped"] == {"line_too_long": 100}


def test_puzzles_of_games_after_the_corpus_are_in_their_slice_alone(tmp_path):
    source = write(tmp_path / "puzzles.csv", *(
        f"{line},{('2023.12.31', '2024.01.01', '????.??.??')[number % 3]}"
        for number, line in enumerate(rook_rows(150, rating=lambda number: str(RATINGS[number % 6])))
    ), header=f"{HEADER},UTCDate")  # fmt: skip
    puzzles, account = build(source, corpus_until="2023-12-31", test_recent=20)
    for puzzle in puzzles:
        assert (puzzle.date == 20240101) == (puzzle.split == "test_recent")
    assert account["dates"] == {"known": 100, "unknown": 50, "after_the_corpus": 50} and account["sizes"]["test_recent"] == 20
    assert account["draw"]["dropped"]["recent_not_drawn"] == 30


# ---- histories --------------------------------------------------------------------------------------------------------------------------

WHITE = ("e4", "d4", "c4", "g3", "b3", "a3", "h3", "e3", "d3", "a4")
BLACK = ("e5", "d5", "c5", "g6", "b6", "a6", "h6", "e6", "d6", "a5")


def opening_game(number: int) -> tuple[str, str, str]:
    """(id, movetext, the FEN two plies before its end) of a game of its own for each number below 100."""
    sans = [WHITE[number // 10], BLACK[number % 10], "Nf3", "Nf6", "Nc3"]
    board = chess.Board()
    for san in sans[:-2]:
        board.push_san(san)
    return f"game{number:04d}", " ".join(sans), board.fen()


def opening_table(folder: Path, count: int, games: bool = True) -> Path:
    """Puzzles asking for the last move of their game."""
    lines = []
    for number in range(count):
        identifier, _, fen = opening_game(number)
        url = f"https://lichess.org/{identifier}#6" if games and number % 5 else ""
        lines.append(row(f"o{number}", fen=fen, moves="g8f6 b1c3", url=url, rating=str(RATINGS[1 + number % 4])))
    return write(folder / "puzzles.csv", *lines)


def opening_pgn(folder: Path, numbers: range) -> Path:
    path = folder / "games.pgn"
    text = []
    for number in numbers:
        identifier, movetext, _ = opening_game(number)
        movetext = movetext if number % 7 else "e4 e6"
        text.append(f'[Event "x"]\n[Site "https://lichess.org/{identifier}"]\n[UTCDate "20{10 + number % 20}.01.01"]\n\n{movetext} *\n\n')
    path.write_text("".join(text))
    return path


SMALL = {"sft": 10, "rl": 8, "validation": 2, "test": 4, "private": 0}
MIX = ("B1:1", "B2:1", "B3:1", "B4:1")


def test_histories_come_from_pgn_files_and_the_missing_ones_are_counted_by_reason(tmp_path):
    source, pgn = opening_table(tmp_path, 60), opening_pgn(tmp_path, range(40))
    puzzles, account = build(source, games=(str(pgn),), rl_mix=MIX, test_mix=MIX, test_mirrored=False, **SMALL)
    expected: Counter[str] = Counter()
    for puzzle in puzzles:
        number = int(puzzle.id[1:])
        if number % 5 == 0:
            reason = "no_game_id"
        elif number >= 40:
            reason = "game_not_found"
        else:
            reason = "history_from_games" if number % 7 else "game_of_games_does_not_lead_to_the_position"
        expected[reason] += 1
        assert bool(puzzle.history) == (reason == "history_from_games")
        board = chess.Board()
        for move in puzzle.history:
            board.push_uci(move)
        assert not puzzle.history or board.fen() == puzzle.fen
    assert account["history"] == expected and len(expected) >= 3


def test_where_histories_are_required_only_puzzles_that_have_one_are_drawn(tmp_path):
    source, pgn = opening_table(tmp_path, 60), opening_pgn(tmp_path, range(50))
    keys = dict(games=(str(pgn),), rl_mix=MIX, test_mix=MIX, test_mirrored=False, require_history=True, **SMALL)
    puzzles, account = build(source, **keys)
    assert all(puzzle.history for puzzle in puzzles) and account["history"] == {"history_from_games": 24} and not any(account["removed"].values())
    assert account["draw"]["dropped"]["without_history"] == 20  # 12 without an id, 8 whose game is in no file
    assert build(source, **keys, corpus_until="2020-01-01", test_recent=4)[1]["sizes"]["test_recent"] == 4
    with pytest.raises(UserError, match=r"no puzzle was drawn .*without_history 60"):
        build(source, **keys | {"games": ()})


@pytest.fixture
def export(monkeypatch) -> list[set[str]]:
    """The Lichess export without a network: what it is asked for; it knows the games from 10 on."""
    asked: list[set[str]] = []

    def fetch(ids, cache, api):
        asked.append(set(ids))
        known = {f"game{number:04d}": number for number in range(10, 100)}
        return {game: SourceGame(opening_game(known[game])[1], 20200101 + 10000 * (known[game] % 2) * 4) for game in ids if game in known}

    monkeypatch.setattr(puzzle_build, "fetch_games", fetch)
    return asked


def test_the_export_is_asked_for_what_no_file_has_and_only_on_request(tmp_path, export):
    source, pgn = opening_table(tmp_path, 60), opening_pgn(tmp_path, range(40))
    keys = dict(games=(str(pgn),), rl_mix=MIX, test_mix=MIX, test_mirrored=False, **SMALL)
    build(source, **keys)
    assert not export
    puzzles, account = build(source, **keys, lichess_api=True)
    assert len(export) == 1 and account["history"]["history_from_api"] > 0 and "game_not_found" not in account["history"]
    assert {puzzle.game for puzzle in puzzles if puzzle.game and int(puzzle.id[1:]) % 7 and int(puzzle.id[1:]) < 40}.isdisjoint(export[0])


def test_puzzles_without_a_history_after_the_export_are_removed_and_counted(tmp_path, export):
    keys = dict(lichess_api=True, require_history=True, rl_mix=MIX, test_mix=MIX, test_mirrored=False)
    puzzles, account = build(opening_table(tmp_path, 60), **keys, **SMALL)
    assert all(puzzle.history for puzzle in puzzles) and account["removed"]["without_history"] == 24 - len(puzzles) > 0
    assert account["history"]["history_from_api"] == len(puzzles)


def test_recent_puzzles_are_looked_for_in_the_export(tmp_path, export, monkeypatch):
    monkeypatch.setattr(puzzle_build, "GAMES_PER_REQUEST", 10)
    source = opening_table(tmp_path, 60)
    keys = dict(rl_mix=MIX, test_mix=MIX, test_mirrored=False, corpus_until="2023-12-31", **SMALL)
    puzzles, account = build(source, **keys, test_recent=4, lichess_api=True)
    recent = [puzzle for puzzle in puzzles if puzzle.split == "test_recent"]
    assert len(recent) == 4 and all(puzzle.date == 20240101 and int(puzzle.id[1:]) % 2 for puzzle in recent)
    assert 8 <= account["dates"]["after_the_corpus"] < 20, "the search ends when there are enough to choose among"
    assert all(len(ids) <= 10 for ids in export[:-1])
    asked = Counter(game for ids in export for game in ids)
    assert {asked[game] for game in asked if game >= "game0010"} == {1}, "a game that was answered is not asked for again"


def test_the_export_of_the_build_goes_where_the_keys_say(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(puzzle_build, "fetch_games", lambda ids, cache, api: seen.append((cache, api.url)) or {})
    build(opening_table(tmp_path, 60), lichess_api=True, lichess_url="http://127.0.0.1:1", rl_mix=MIX, test_mix=MIX, test_mirrored=False, **SMALL)
    assert seen == [(tmp_path / "out" / "lichess_games.sqlite", "http://127.0.0.1:1")]
    assert lichess_api.GAMES_PER_REQUEST == 300 and PuzzleSettings(("a",), "b").lichess_url == "https://lichess.org"


# ---- engine -----------------------------------------------------------------------------------------------------------------------------


@needs_stockfish
def test_the_engine_finds_puzzles_with_another_solution(tmp_path, monkeypatch, capsys):
    """A rook to be taken by either of two bishops, a queen to be taken by one of them, and a choice of mates, which is no fault."""
    either = row("either", fen="6k1/5p1p/8/3r4/8/1B3B2/5PPP/6K1 b - - 0 1", moves="h7h6 b3d5", rating="1000")
    one = row("one", fen="6k1/5p1p/8/3q4/8/1B6/5PPP/6K1 b - - 0 1", moves="h7h6 b3d5", rating="1400")
    mates = row("mates", fen="7k/5ppp/8/8/8/8/8/RQ4K1 b - - 0 1", moves="h8g8 a1a8", rating="1800")
    source = write(tmp_path / "puzzles.csv", either, one, mates)
    keys = ("sft=4", "rl=0", "validation=0", "test=0", "private=0", "engine_depth=6")
    for check, left in (("flag", {"either", "one", "mates"}), ("drop", {"one", "mates"})):
        out = tmp_path / check
        assert run(monkeypatch, f"sources={source}", f"out={out}", f"engine_check={check}", *keys) == 0
        assert (out / "several_solutions.txt").read_text() == "either\n"
        assert {puzzle.id for puzzle in load_puzzles(out / "puzzles.parquet")} == left
        account = json.loads((out / "puzzles.json").read_text())
        assert account["engine_check"]["with_another_solution"] == 1 and account["removed"] == ({"another_solution": 1} if check == "drop" else {})
    assert "with_another_solution 1" in capsys.readouterr().out
    assert run(monkeypatch, f"sources={source}", f"out={tmp_path / 'again'}", f"bad_ids={tmp_path / 'flag' / 'several_solutions.txt'}", *keys) == 0
    assert {puzzle.id for puzzle in load_puzzles(tmp_path / "again" / "puzzles.parquet")} == {"one", "mates"}


# ---- the world --------------------------------------------------------------------------------------------------------------------------


def lichess(outputs: Path, puzzles: Path | list[str], **keys) -> Config:
    sizes = {f"{split}_puzzles": size for split, size in SIZES.items()}
    (outputs / "games.pgn").touch()
    given = puzzles if isinstance(puzzles, list) else str(puzzles)
    return Config(world=WorldConfig(name="lichess", games=str(outputs / "games.pgn"), puzzles=given, **sizes | keys), outputs=str(outputs))


def test_the_world_makes_the_table_once_and_evaluates_the_slices_of_it(tmp_path, capsys):
    config = lichess(tmp_path, table(tmp_path))
    assert len(world.puzzles_of_split(config, "test")) == 12
    mirror = world.puzzles_of_split(config, "test_mirrored")
    assert mirror and all(puzzle.id.endswith("-mirrored") for puzzle in mirror)
    assert capsys.readouterr().out.count("puzzle rows:") == 1
    with pytest.raises(UserError, match="no puzzle in split test_themes"):
        world.puzzles_of_split(config, "test_themes")
    with pytest.raises(UserError, match=r"split='train': expected one of sft, .*test_recent"):
        world.puzzles_of_split(config, "train")


def test_a_made_table_is_a_world_of_its_own(tmp_path, monkeypatch):
    keys = [f"{name}={size}" for name, size in SIZES.items()]
    source = table(tmp_path, themes=lambda number: "pin" if number % 5 == 0 else "mate")
    assert run(monkeypatch, f"sources={source}", f"out={tmp_path / 'out'}", "held_out_themes=pin", "test_themes=6", *keys) == 0
    made = tmp_path / "out" / "puzzles.parquet"
    config = lichess(tmp_path, made)
    assert world.puzzle_table(config) == made and len(world.puzzles_of_split(config, "test_themes")) == 6
    assert world.puzzle_hash(config) == world.puzzle_hash(lichess(tmp_path, made, sft_puzzles=1, seed=5)), "its content alone counts"
    with pytest.raises(UserError, match="expected one puzzle table"):
        world.puzzle_table(lichess(tmp_path, [str(made), str(source)]))
    with pytest.raises(UserError, match=r"none\.parquet: no such file; give the puzzle table"):
        world.puzzles_of_split(lichess(tmp_path, tmp_path / "none.parquet"), "test")


def test_a_world_of_histories_takes_them_from_its_games(tmp_path):
    source, pgn = opening_table(tmp_path, 60), opening_pgn(tmp_path, range(50))
    config = lichess(tmp_path, source, state="history", **{f"{split}_puzzles": size for split, size in SMALL.items()})
    config.world.games = str(pgn)
    for split in ("sft", "rl"):
        assert all(puzzle.history for puzzle in world.puzzles_of_split(config, split))
    config.world.state = "snapshot"
    assert not any(puzzle.history for puzzle in world.puzzles_of_split(config, "sft"))


def test_the_packaged_puzzles_keep_their_hash():
    """The endgame world's runs are named by it."""
    assert world.puzzle_hash(Config(world=WorldConfig(name="endgame"))) == "fccab4d5c52d2a1b"


# ---- published data ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rows"), [("puzzles_lichess_full", 25_054), ("puzzles_with_pgn", 1_002)])
def test_published_tables_are_counted_to_the_last_row(tmp_path, name, rows):
    path = DATA / f"{name}.csv.zst"
    if not path.is_file():
        pytest.skip("the shared Lichess data is not here")
    sizes = {"sft": 60, "rl": 60, "validation": 12, "test": 24, "private": 12}
    _, account, _ = build_puzzles(PuzzleSettings((str(path),), str(tmp_path), **sizes))
    assert account["rows"]["read"] == rows and set(account["rows"]["dropped"]) <= {"line_too_long"}
    assert {split: account["sizes"][split] for split in SPLITS} == sizes
    if name == "puzzles_with_pgn":
        assert account["history"] == {"history_from_table": 168}


@pytest.mark.long
def test_a_thousand_published_puzzles_read_again_by_python_chess(tmp_path):
    """Every field of 1,000 drawn puzzles against the file, read with the csv module and replayed move by move."""
    path = DATA / "puzzles_lichess_full.csv.zst"
    if not path.is_file():
        pytest.skip("the shared Lichess data is not here")
    lines = {line["PuzzleId"]: line for line in csv.DictReader(io.TextIOWrapper(zstd.open(path), encoding="utf-8"))}
    sizes = {"sft": 400, "rl": 300, "validation": 100, "test": 150, "private": 50}
    puzzles, _, _ = build_puzzles(PuzzleSettings((str(path),), str(tmp_path), **sizes, test_mirrored=False))
    assert len(puzzles) == 1000
    for puzzle in puzzles:
        line = lines[puzzle.id]
        assert (puzzle.fen, " ".join(puzzle.moves), " ".join(puzzle.themes)) == (line["FEN"], line["Moves"], line["Themes"])
        assert puzzle.difficulty == int(line["Rating"]) and line["GameUrl"].split("/")[3][:8] == puzzle.game
        low = {"B0": 0, "B1": 801, "B2": 1201, "B3": 1601, "B4": 2001, "B5": 2401}[puzzle.bin]
        high = {"B0": 800, "B1": 1200, "B2": 1600, "B3": 2000, "B4": 2400, "B5": 9999}[puzzle.bin]
        assert low <= puzzle.difficulty <= high
        board = chess.Board(line["FEN"])
        keys = []
        for number, move in enumerate(line["Moves"].split()):
            if number % 2:
                keys.append(position_key(board))
            board.push(board.parse_uci(move))
        assert keys == solver_position_keys(puzzle)


def test_the_saved_table_is_what_was_built(tmp_path, monkeypatch):
    source = table(tmp_path)
    keys = [f"{name}={size}" for name, size in SIZES.items()]
    assert run(monkeypatch, f"sources={source}", f"out={tmp_path / 'out'}", *keys) == 0
    assert load_puzzles(tmp_path / "out" / "puzzles.parquet") == build(source)[0]
    frame = pd.read_parquet(tmp_path / "out" / "puzzles.parquet")
    assert frame["id"].is_unique and frame["difficulty"].dtype == frame["date"].dtype == "int64"
