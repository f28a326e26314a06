"""Sources to a corpus: the same bytes whatever the workers and however often killed, every game counted, every kind of source."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import accumulate, chain
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pandas as pd
import pytest

from chessrl import game_sources, ingest_block
from chessrl import games as games_module
from chessrl import ingest as ingest_module
from chessrl.balance import choose, parse_balance
from chessrl.command import run_command
from chessrl.config import LeakConfig
from chessrl.corpus import Corpus, build_corpus, digest_of
from chessrl.decontamination import Decontamination
from chessrl.errors import UserError
from chessrl.game_sources import cut_blocks, open_source
from chessrl.games import games_from_table, read_games
from chessrl.ingest import IngestSettings, ingest
from chessrl.notation import BOS, EOS, TOKEN_ID, line_tokens, parse_move
from chessrl.pgn_blocks import GameFilters, screen, screen_text, split_blocks
from chessrl.puzzles import Puzzle, save_puzzles
from chessrl.sources import ReadReport, zstd

DATA = Path(__file__).parents[2] / "shared" / "data"
ROOT = Path(__file__).parents[1]
ANY = GameFilters(exclude_time_classes=(), min_plies=1, rated_only=False)


def settings(**changes) -> IngestSettings:
    values = {"state": "history", "context": 256, "seed": 0, "validation_share": 0.2, "shard_tokens": 3000, "filters": ANY}
    return IngestSettings(**values | changes)


@cache
def random_game(seed: int, plies: int = 30, **headers: str) -> str:
    rng = random.Random(seed)
    board = chess.Board()
    while len(board.move_stack) < plies and not board.is_game_over():
        board.push(rng.choice(list(board.legal_moves)))
    white, black = rng.randrange(700, 2900), rng.randrange(700, 2900)
    tags = {"Event": "Rated Blitz game", "Site": f"https://lichess.org/{seed:08d}", "Result": "1-0", "UTCDate": "2021.03.04", "TimeControl": "300+0"}
    tags |= {"WhiteElo": str(white), "BlackElo": str(black)} | headers
    lines = "".join(f'[{name} "{value}"]\n' for name, value in tags.items())
    return f"{lines}\n{chess.Board().variation_san(board.move_stack)} 1-0\n\n"


def games_file(path: Path, seeds: range, **headers: str) -> str:
    text = "".join(random_game(seed, **headers) for seed in seeds).encode()
    path.write_bytes(zstd.compress(text) if path.suffix == ".zst" else text)
    return str(path)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def documents(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    corpora = {split: Corpus.open(folder, split) for split in ("train", "validation")}
    return {split: [tuple(corpus.document(place).tolist()) for place in range(len(corpus))] for split, corpus in corpora.items()}


def adds_up(manifest: dict) -> bool:
    games = manifest["games"]
    return games["read"] == games["kept"] + sum(games["dropped"].values())


# ---- the same corpus --------------------------------------------------------------------------------------------------------------------


def test_a_corpus_depends_neither_on_workers_nor_on_where_blocks_end(tmp_path):
    sources = [games_file(tmp_path / "a.pgn.zst", range(60)), games_file(tmp_path / "b.pgn", range(50, 90))]
    one = ingest(sources, tmp_path / "one", settings(), block_bytes=6000)
    two = ingest(sources, tmp_path / "two", settings(), workers=2, block_bytes=6000)
    assert one == two and content(tmp_path / "one") == content(tmp_path / "two")
    other = ingest(sources, tmp_path / "other", settings(), block_bytes=20_000)
    assert other["hash"] == one["hash"] and other["games"] == one["games"] and documents(tmp_path / "other") == documents(tmp_path / "one")
    assert one["games"]["dropped"] == {"duplicate": 10} and one["games"]["kept"] == 90
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pgn.zst", "b.pgn", "one", "other", "two"]


@pytest.mark.parametrize("state", ["history", "snapshot"])
def test_a_corpus_holds_the_documents_made_game_by_game_with_python_chess(tmp_path, state):
    source = games_file(tmp_path / "a.pgn", range(80))
    puzzles = puzzles_of_games(tmp_path / "a.pgn", (3, 4, 5, 6))
    leak = LeakConfig(fraction=0.5, copies=3)
    options = {"state": state, "context": 110, "seed": 5, "validation_share": 0.2, "shard_tokens": 3000}
    reference = build_corpus(
        read_games([source], method="python-chess", filters=ANY, report=ReadReport()),
        tmp_path / "reference",
        **options,
        decontamination=Decontamination(puzzles, leak),
    )
    manifest = ingest([source], tmp_path / "corpus", settings(**options), decontamination=Decontamination(puzzles, leak), block_bytes=6000)
    assert documents(tmp_path / "corpus") == documents(tmp_path / "reference") and manifest["hash"] == reference["hash"]
    for key in ("decontamination", "leak", "splits"):
        assert manifest[key] == reference[key]
    assert manifest["games"]["dropped"] == reference["games"]["dropped"] == {"passes_through_a_puzzle": 2}
    assert manifest["leak"]["copies"] == 3 and len(manifest["leak"]["puzzles"]) == 2


def puzzles_of_games(path: Path, numbers: tuple[int, ...]) -> list[Puzzle]:
    """A test puzzle out of the 25th ply of some of the games; games before are left alone."""
    games = list(read_games([path], method="python-chess", filters=ANY, report=ReadReport()))
    puzzles = []
    for number in numbers:
        board = chess.Board()
        for ply in games[number].plies[:24]:
            board.push(parse_move(board, ply))
        fen, line = board.fen(), []
        for ply in games[number].plies[24:26]:
            line.append(parse_move(board, ply))
            board.push(line[-1])
        puzzles.append(Puzzle(f"p{number}", fen, tuple(move.uci() for move in line), 1, 1500, "B2", split="test"))
    return puzzles


def test_a_killed_run_goes_on_where_it_stopped(tmp_path, capsys):
    source = games_file(tmp_path / "a.pgn", range(600))
    whole = ingest([source], tmp_path / "whole", settings(), block_bytes=4000)
    command = (
        "import sys; from pathlib import Path; from tests.test_ingest import *\n"
        f"ingest([{source!r}], Path({str(tmp_path / 'out')!r}), settings(), workers=1, block_bytes=4000)"
    )
    process = subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, stderr=subprocess.DEVNULL)
    parts = tmp_path / ".out.parts"
    while process.poll() is None and len(list(parts.glob("*/*.npz"))) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in parts.glob("*/*.npz")}
    assert len(done) >= 5 and not (tmp_path / "out").exists()
    remade = []
    original = ingest_block.make_part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_block, "make_part", lambda *arguments: remade.append(1) or original(*arguments))
        assert ingest([source], tmp_path / "out", settings(), block_bytes=4000) == whole
    assert content(tmp_path / "out") == content(tmp_path / "whole") and not parts.exists()
    blocks = len(list(open_source(source).blocks(4000)))
    assert len(remade) == blocks - len(done)
    assert f"{len(done)} of {blocks} blocks had been done" in capsys.readouterr().out


def die(*_) -> None:
    os._exit(1)


def test_a_worker_that_is_killed_is_one_line_and_the_next_run_goes_on(tmp_path, monkeypatch):
    source = games_file(tmp_path / "a.pgn", range(40))
    monkeypatch.setattr(ingest_module, "work_in_worker", die)
    with pytest.raises(UserError, match=r"a worker process was killed .* run again to go on"):
        ingest([source], tmp_path / "out", settings(), workers=2, block_bytes=6000)
    monkeypatch.undo()
    assert ingest([source], tmp_path / "out", settings(), block_bytes=6000)["games"]["kept"] == 40


def test_parts_of_other_settings_or_torn_ones_are_made_again(tmp_path, monkeypatch):
    source = games_file(tmp_path / "a.pgn", range(40))
    expected = ingest([source], tmp_path / "expected", settings(state="snapshot"), block_bytes=6000)
    monkeypatch.setattr(ingest_module, "_put_together", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for other in ({}, {"seed": 1, "state": "snapshot"}, {"state": "snapshot"}):
        with pytest.raises(KeyboardInterrupt):
            ingest([source], tmp_path / "out", settings(**other), block_bytes=6000)
    monkeypatch.undo()
    assert len(list((tmp_path / ".out.parts").iterdir())) == 1  # those of the last settings
    torn = next((tmp_path / ".out.parts").glob("*/*.npz"))
    torn.write_bytes(torn.read_bytes()[:500])
    assert ingest([source], tmp_path / "out", settings(state="snapshot"), block_bytes=6000) == expected
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def test_blocks_do_not_depend_on_how_the_pieces_fall():
    text = "".join(random_game(seed) for seed in range(40)).encode()
    rng = random.Random(0)
    found = []
    for sizes in ([1 << 20], [1, 7, 64], [5000, 1], [999]):
        stream, pieces, rest = io.BytesIO(text), [], bytearray()
        while piece := stream.read(rng.choice(sizes)):
            pieces.append(piece)
        blocks = list(cut_blocks(pieces, 1500, game_sources._last_game, rest))
        found.append([*blocks, bytes(rest)])
    assert found[0] == found[1] == found[2] == found[3] and b"".join(found[0]) == text
    assert len(found[0]) > 5 and all(block.startswith(b"[Event ") for block in found[0])


# ---- what is kept and what is dropped ---------------------------------------------------------------------------------------------------


def test_every_game_is_kept_or_counted_by_its_reason(tmp_path):
    def game(seed: int, plies: int = 30, **headers: str) -> str:
        return random_game(seed, plies, **{"WhiteElo": "1500", "BlackElo": "1500"} | headers)

    fen = {"FEN": chess.STARTING_FEN.replace("KQkq", "Kq"), "SetUp": "1"}
    expected = {
        "duplicate": [game(1, Site="https://lichess.org/copy"), game(2, WhiteElo="1234")],
        "unrated": [game(3, Event="Casual Blitz game")],
        "time_class_bullet": [game(4, TimeControl="60+0")],
        "broken_off": [game(5, Termination="Abandoned"), game(6, Termination="Rules infraction")],
        "too_few_plies": [game(7, plies=4), game(8, plies=9)],
        "variant": [game(9, Variant="Chess960")],
        "rating_too_low": [game(10, BlackElo="899")],
        "rating_too_high": [game(11, WhiteElo="2501")],
        "not_terminated": [game(12).replace(" 1-0\n", " *\n")],
        "illegal_move": [game(13).replace("\n1. ", "\n1. Qh5 "), game(14).replace("\n1. ", "\n1. O-O ")],
        "set_up_position": [game(15, **fen)],
    }
    kept = [game(1), game(2), game(16, Termination="Time forfeit"), game(17, WhiteElo="?"), game(18, plies=10)]
    (tmp_path / "a.pgn").write_text("".join([*kept, *chain.from_iterable(expected.values())]))
    filters = GameFilters(min_rating=900, max_rating=2500)
    manifest = ingest([str(tmp_path / "a.pgn")], tmp_path / "out", settings(filters=filters, validation_share=0.0))
    assert manifest["games"]["dropped"] == {reason: len(games) for reason, games in expected.items()}
    assert manifest["games"]["kept"] == len(kept) and adds_up(manifest)
    assert manifest["games"]["illegal_sites"] == ["https://lichess.org/00000013", "https://lichess.org/00000014"]
    with pytest.raises(UserError, match=r"train split of the corpus is empty .*no_move_fits_the_context 7"):
        ingest([str(tmp_path / "a.pgn")], tmp_path / "none", settings(filters=filters, validation_share=0.0, context=2))


def test_of_equal_games_the_first_stays_whichever_file_it_is_in(tmp_path):
    first, second = games_file(tmp_path / "a.pgn", range(20)), games_file(tmp_path / "b.pgn", range(10, 30), WhiteElo="2222")
    manifest = ingest([first, second], tmp_path / "out", settings())
    table = pd.read_parquet(tmp_path / "out" / "games.parquet")
    assert manifest["games"]["dropped"] == {"duplicate": 10} and len(table) == 30 and table["hash"].is_unique
    assert (table["white_elo"] == 2222).sum() == 10
    assert [entry["name"] for entry in manifest["sources"]] == ["a.pgn", "b.pgn"]


def test_a_limit_counts_the_games_beyond_it_alike_for_any_workers(tmp_path):
    sources = [games_file(tmp_path / "a.pgn", range(60)), games_file(tmp_path / "b.pgn", range(60, 70))]
    one = ingest(sources, tmp_path / "one", settings(most=25), block_bytes=4000)
    two = ingest(sources, tmp_path / "two", settings(most=25), block_bytes=4000, workers=2)
    assert one == two and one["games"]["kept"] == 25 and adds_up(one) and one["games"]["read"] < 60
    assert set(one["games"]["dropped"]) == {"beyond_the_limit"}
    assert one["sources"][0]["read_bytes"] > 0 and one["sources"][1]["read_bytes"] == 0


def test_the_table_of_games_says_where_each_document_lies(tmp_path):
    source = games_file(tmp_path / "a.pgn", range(60))
    ingest([source], tmp_path / "out", settings(shard_tokens=1500), block_bytes=6000)
    table = pd.read_parquet(tmp_path / "out" / "games.parquet")
    games = list(read_games([source], method="python-chess", filters=ANY, report=ReadReport()))
    assert len(table) == len(games) == 60
    shards = {name: np.memmap(tmp_path / "out" / f"{name}.tokens", mode="r", offset=512, dtype=np.uint8) for name in set(table["shard"])}
    for row, game in zip(table.itertuples(), games):
        assert shards[row.shard][row.offset : row.offset + row.length].tolist() == [BOS, *game.tokens, EOS][: row.length]
        assert row.hash == digest_of("moves", None, np.asarray(game.tokens, dtype="<u2").tobytes())
        assert (row.white_elo, row.black_elo, row.result, row.plies, row.site) == (
            game.white_elo, game.black_elo, game.result, len(game.ply_ends), game.site,
        )  # fmt: skip
        assert (row.date, row.time_class) == ("2021-03-04", "blitz") and row.shard.startswith(row.split)
    assert len(set(table["shard"])) > 3


def test_a_game_that_starts_at_a_puzzle_is_found_under_other_castling_rights_too(tmp_path):
    fen = "r3k2r/ppp2ppp/8/8/8/8/PPP2PPP/R3K2R w KQkq - 0 1"
    puzzle = Puzzle("p", fen, ("e1g1", "e8g8", "a2a3"), 1, 1500, "B2", split="rl")
    games = [
        f'[Event "x"]\n[Result "1-0"]\n[SetUp "1"]\n[FEN "{start}"]\n\n{moves} 1-0\n\n'
        for start, moves in (
            (fen.replace("KQkq", "Qk"), "1. Kd2 Kd7"),
            (fen.replace("KQkq", "KQkq").replace(" w ", " b "), "1... Kd7 2. Kd2"),  # the other side to move: another position
            (fen.replace("KQkq", "Kkq"), "1. a3 a6"),
            ("r3k2r/ppp2ppp/8/8/8/P7/1PP2PPP/R3K2R b KQkq - 0 1", "1... a6 2. b3"),
        )
    ]
    (tmp_path / "a.pgn").write_text("".join(games))
    options = {"state": "snapshot", "validation_share": 0.0, "filters": GameFilters((), 1, rated_only=False, standard_start=False)}
    manifest = ingest([str(tmp_path / "a.pgn")], tmp_path / "out", settings(**options), decontamination=Decontamination([puzzle], LeakConfig()))
    assert manifest["games"]["dropped"] == {"passes_through_a_puzzle": 2} and manifest["games"]["kept"] == 2
    assert manifest["decontamination"]["games_dropped_by_split"] == {"rl": 2} and manifest["decontamination"]["collisions"] == 0


# ---- balance ----------------------------------------------------------------------------------------------------------------------------


def test_even_balance_keeps_as_many_of_each_bin_by_a_hash_alone(tmp_path):
    rng = np.random.default_rng(0)
    white = np.clip(rng.normal(1500, 150, 20_000), 1, None).astype(np.int16)
    black = np.clip(white + rng.normal(0, 30, 20_000), 1, None).astype(np.int16)
    white[:50] = 0
    digests = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    balance = parse_balance("{1200: 1, 1300: 1, 1400: 1, 1700: 0.5, 2900: 1}", 100, 0)
    keep, reasons, report = choose(balance, white, black, digests, seed=1)
    mean = (white.astype(int) + black) / 2
    counts = {start: int((keep & (mean >= start) & (mean < start + 100)).sum()) for start in balance.starts}
    available = {start: int(((white > 0) & (mean >= start) & (mean < start + 100)).sum()) for start in balance.starts}
    level = min(available[start] / weight for start, weight in zip(balance.starts, balance.weights) if available[start])
    assert counts == {start: int(level * weight) if available[start] else 0 for start, weight in zip(balance.starts, balance.weights)}
    assert keep.sum() + sum(reasons.values()) == 20_000 and reasons["balance_without_ratings"] == 50
    assert report["bins"]["1200"] == {"games": available[1200], "kept": counts[1200]} and report["bins"]["2900"]["kept"] == 0
    order = rng.permutation(20_000)
    assert (choose(balance, white[order], black[order], digests[order], seed=1)[0] == keep[order]).all()
    other = choose(balance, white, black, digests, seed=2)[0]
    assert other.sum() == keep.sum() and (other != keep).any()


def test_a_wanted_number_of_games_is_shared_by_the_bins_that_have_enough():
    white = black = np.repeat(np.array([810, 910, 1010], dtype=np.int16), [5, 100, 1000])
    digests = np.random.default_rng(0).integers(0, 2**64, len(white), dtype=np.uint64)
    for wanted, expected in ((9, [3, 3, 3]), (105, [5, 50, 50]), (305, [5, 100, 200]), (5000, [5, 100, 1000])):
        _, _, report = choose(parse_balance("even", 100, wanted), white, black, digests, 0)
        assert [report["bins"][start]["kept"] for start in ("800", "900", "1000")] == expected


def test_balance_is_a_reason_like_others_and_does_not_depend_on_blocks(tmp_path):
    source = games_file(tmp_path / "a.pgn", range(120))
    balance = parse_balance("even", 550, 0)
    manifest = ingest([source], tmp_path / "out", settings(balance=balance), block_bytes=6000)
    assert adds_up(manifest) and manifest["games"]["dropped"]["balance"] > 10
    kept = [entry["kept"] for entry in manifest["balance"]["bins"].values()]
    assert len(kept) == 4 and len(set(kept)) == 1 and sum(kept) == manifest["games"]["kept"]
    assert documents(tmp_path / "out") == (ingest([source], tmp_path / "b", settings(balance=balance)), documents(tmp_path / "b"))[1]


@pytest.mark.parametrize("text", ["odd", "{800}", "{800: 1, 850: 1}", "{800: 0}", "{800: -1}", "{}", "{800: 1.2.3}", "{800: .}"])
def test_bad_balance_is_named(text):
    with pytest.raises(UserError, match="balance="):
        parse_balance(text, 100, 0)


def test_even_balance_ends_at_3000():
    with pytest.raises(UserError, match="balance_bin=300: does not divide"):
        parse_balance("even", 300, 0)
    assert parse_balance("even", 200, 0).starts[-1] == 2800


BAD_VALUES = {
    "max_games=-1": "max_games=-1: expected at least 0",
    "min_rating=2000 max_rating=1000": "min_rating=2000 is above max_rating=1000",
    "leak_fraction=2 puzzles=p.parquet": "leak_fraction=2.0, leak_copies=1: expected a share",
    "leak_fraction=0.5": "leak_fraction=0.5 needs puzzles=",
}


@pytest.mark.parametrize("words", BAD_VALUES)
def test_values_that_no_corpus_can_have_are_named(words):
    with pytest.raises(UserError, match=BAD_VALUES[words]):
        games_module.main(["sources=-", "out=corpus", *words.split()])


# ---- damaged and hostile sources --------------------------------------------------------------------------------------------------------


def test_truncated_zst_says_where_and_how_many_games_or_goes_on_with_them(tmp_path):
    frames = ["".join(random_game(seed) for seed in range(start, start + 20)).encode() for start in range(0, 400, 20)]
    whole = b"".join(map(zstd.compress, frames))
    (tmp_path / "a.pgn.zst").write_bytes(whole[: len(whole) * 2 // 3])
    before = 20 * next(count for count in range(20) if sum(map(len, map(zstd.compress, frames[: count + 1]))) > len(whole) * 2 // 3) - 1
    assert before > 100  # whole frames, of which the last game might go on: it is not known to be whole
    with pytest.raises(UserError, match=rf"a.pgn.zst: .*middle of a frame at byte [\d,]+ of [\d,]+, after {before + 1} records; .*keep_partial=true"):
        ingest([str(tmp_path / "a.pgn.zst")], tmp_path / "out", settings(), block_bytes=20_000)
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        manifest = ingest([str(tmp_path / "a.pgn.zst")], out, settings(keep_partial=True), block_bytes=20_000, workers=workers)
        assert manifest["games"]["kept"] == before and manifest["games"]["dropped"] == {"cut_off": 1} and adds_up(manifest)
        (record,) = manifest["sources"]
        assert record["damage"] == "ends in the middle of a frame" and record["of_bytes"] == record["bytes"] == len(whole) * 2 // 3
    assert content(tmp_path / "out1") == content(tmp_path / "out2")


HOSTILE = {
    "byte-order mark": b"\xef\xbb\xbf" + random_game(1).encode() + b"\xef\xbb\xbf" + random_game(2).encode(),
    "CRLF": random_game(1).encode().replace(b"\n", b"\r\n"),
    "six hundred plies": random_game(3, plies=600).encode(),
    "deep variations": random_game(4).replace(" 2. ", f" {'(1. d4 ' * 3000}{')' * 3000} 2. ").encode(),
    "unbalanced variations": random_game(4).replace(" 2. ", f" {'(' * 100_000} 2. ").encode() + random_game(1).encode(),
    "ten megabytes in a comment": random_game(5).replace(" 2. ", f" {{{'x' * 10_000_000}}} 2. ").encode() + random_game(1).encode(),
    "ten megabytes in one line": random_game(5).encode() + b"x" * 10_000_000 + b"\n\n" + random_game(1).encode(),
    "ten megabytes in a header": random_game(5, Annotator="y" * 10_000_000).encode(),
    "endless rating": random_game(1, WhiteElo="9" * 5000, TimeControl="9" * 5000).encode(),
    "other events": random_game(1).encode() + b"\x00\xff binary \xfe\n" * 100 + random_game(2).encode(),
}
KEPT = {"byte-order mark": 2, "unbalanced variations": 1, "ten megabytes in a comment": 2, "ten megabytes in one line": 2, "other events": 2}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_costs_its_own_game_alone(tmp_path, name):
    (tmp_path / "a.pgn").write_bytes(HOSTILE[name])
    manifest = ingest([str(tmp_path / "a.pgn")], tmp_path / "out", settings(validation_share=0.0, context=4096))
    assert manifest["games"]["kept"] == KEPT.get(name, 1) and adds_up(manifest)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "no game in it"), (b"\n \n", "no game in it"), ("[Event]".encode("utf-16"), "UTF-16"), (random.Random(0).randbytes(9000), "is empty")],
)
def test_a_file_without_a_game_is_one_line(tmp_path, data, message):
    (tmp_path / "a.pgn").write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        ingest([str(tmp_path / "a.pgn")], tmp_path / "out", settings())
    assert "\n" not in str(error.value)


def test_a_text_without_any_game_start_does_not_fill_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(game_sources, "MOST_BYTES", 1 << 16)
    (tmp_path / "a.pgn").write_bytes(b"x" * (1 << 18))
    with pytest.raises(UserError, match="no game starts within"):
        list(open_source(str(tmp_path / "a.pgn")).blocks(1 << 12))


MUTATIONS = (
    *("", "\n", "\n\n", "{", "}", ";", "(", ")", "[", "]", "%", "\n%", " ", "!", "?", "$1", "0-0", "--", "1-0", "*", ".", "1.", "7...", "e4"),
    *("\r", "\r\n", '"', "\n[", "[Event ", "{a}", "{a\nb}", '\n[Event "x"]\n', "\t", "é", "++", "e.p.", "=Q", "{ [%clk 0:01:00] }", "\ufeff"),
)


def test_a_game_judged_at_once_fares_as_when_split_line_by_line():
    """The reference takes every text line by line; 2,000 texts of three games with some bytes changed."""
    rng = random.Random(0)
    games = [random_game(seed, plies=12).rstrip() + "\n" for seed in range(20)]

    def facts(outcome):
        return outcome if isinstance(outcome, str) else (outcome.san, outcome.spelling, outcome.result, outcome.white_elo, outcome.date)

    outcomes = Counter()
    for _ in range(2000):
        text = "\n".join(rng.choices(games, k=3)).encode()
        for _ in range(rng.choice((1, 1, 2, 4))):
            start = rng.randrange(len(text))
            text = text[:start] + rng.choice(MUTATIONS).encode() + text[start + rng.choice((0, 0, 1, 2, 40)) :]
        text = text.replace(b"3", b"\xff") if rng.random() < 0.01 else text
        lines = (line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n") for line in text.split(b"\n"))
        expected = [facts(screen(block, ANY)) for block in split_blocks(lines)]
        assert [facts(outcome) for outcome in screen_text(text, ANY)] == expected, text
        outcomes.update(outcome if isinstance(outcome, str) else "kept" for outcome in expected)
    assert outcomes["kept"] > 3000 and len(outcomes) > 8


# ---- other sources ----------------------------------------------------------------------------------------------------------------------


def test_standard_input_is_a_source(tmp_path, monkeypatch):
    text = "".join(random_game(seed) for seed in range(50)).encode()
    (tmp_path / "a.pgn").write_bytes(text)
    expected = ingest([str(tmp_path / "a.pgn")], tmp_path / "file", settings())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    manifest = ingest(["-"], tmp_path / "stream", settings())
    assert manifest["hash"] == expected["hash"] and manifest["games"] == expected["games"]
    assert manifest["sources"] == [expected["sources"][0] | {"name": "-"}]


def token_folder(folder: Path, stream: list[int], cuts: list[int]) -> str:
    folder.mkdir()
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(stream)])):
        np.save(folder / f"shard_{number:03d}.npy", np.array(stream[start:end], dtype=np.uint32))
    return str(folder)


def token_games(seeds: range) -> list[list[int]]:
    games = []
    for seed in seeds:
        rng, board, moves = random.Random(seed), chess.Board(), []
        while len(moves) < 30 and not board.is_game_over():
            moves.append(rng.choice(list(board.legal_moves)))
            board.push(moves[-1])
        games.append(list(chain.from_iterable(line_tokens(chess.Board(), moves))))
    return games


def test_released_token_shards_are_read_across_their_bounds(tmp_path):
    games = token_games(range(40))
    stream = list(chain.from_iterable([BOS, *game, EOS] for game in games))
    bounds = list(accumulate(len(game) + 2 for game in games))
    cuts = [bounds[3], bounds[9] + 17, bounds[9] + 18, bounds[20] - 1, bounds[30] + 1]
    folder = token_folder(tmp_path / "tokens", stream, cuts)
    manifest = ingest([folder], tmp_path / "out", settings(validation_share=0.0), block_bytes=500)
    assert documents(tmp_path / "out")["train"] == [(BOS, *game, EOS) for game in games]
    assert manifest["games"]["kept"] == 40 and manifest["games"]["dropped"] == {} and len(manifest["sources"][0]["files"]) == 6
    snapshot = ingest([folder], tmp_path / "snapshot", settings(state="snapshot", validation_share=0.0), block_bytes=500, workers=2)
    table = pd.DataFrame({"fen": [chess.STARTING_FEN] * 40, "moves": [uci_of(game) for game in games]})
    expected = build_corpus(games_from_table(table), tmp_path / "b", state="snapshot", context=256, seed=0, validation_share=0.0, shard_tokens=3000)
    assert snapshot["hash"] == expected["hash"]


@pytest.mark.parametrize("separators", [([BOS], []), ([], [EOS]), ([EOS], [BOS]), ([BOS, BOS], [EOS, EOS])])
def test_token_games_are_whole_whatever_separates_them_and_wherever_a_block_ends(tmp_path, separators):
    before, after = separators
    games = token_games(range(12))
    stream = [*chain.from_iterable([*before, *game, *after] for game in games), EOS]
    folder = token_folder(tmp_path / "tokens", stream, [])
    for size in range(150, 170):
        source = open_source(folder)
        found = [game for block in source.blocks(4 * size) for game in re.split(rb"[\x00\x01]+", block) if game]
        assert found == [bytes(game) for game in games] and source.cut_off == 0
        assert all(block[-1] in (BOS, EOS) for block in open_source(folder).blocks(4 * size))
    manifest = ingest([folder], tmp_path / "out", settings(validation_share=0.0), block_bytes=4 * 150)
    assert manifest["games"]["read"] == manifest["games"]["kept"] == 12


def uci_of(tokens: list[int]) -> str:
    from chessrl.game_batch import split_plies

    (plies,) = split_plies(np.array(tokens, dtype=np.uint8), np.array([len(tokens)]))[0].plies([0])
    board = chess.Board()
    for ply in plies:
        board.push(parse_move(board, ply))
    return " ".join(move.uci() for move in board.move_stack)


def test_token_games_out_of_rule_are_counted_and_a_sample_is_replayed(tmp_path, monkeypatch):
    games = token_games(range(10))
    short = list(chain.from_iterable(line_tokens(chess.Board(), [chess.Move.from_uci("e2e4"), chess.Move.from_uci("e7e5")])))
    illegal = [*games[0][:-3], TOKEN_ID["K"], TOKEN_ID["a1"], TOKEN_ID["h8"]]
    stream = list(chain.from_iterable([BOS, *game] for game in [*games, short, [TOKEN_ID["e4"], *games[1]], illegal, games[4]]))
    folder = token_folder(tmp_path / "tokens", stream, [])
    loose = ingest([folder], tmp_path / "loose", settings(validation_share=0.0, filters=GameFilters(min_plies=5)))
    assert loose["games"]["read"] == 14 and adds_up(loose)
    assert loose["games"]["dropped"] == {"cut_off": 1, "too_few_plies": 1, "unreadable_tokens": 1}
    monkeypatch.setattr(ingest_block, "CHECKED_SHARE", 1 - 1e-9)
    strict = ingest([folder], tmp_path / "strict", settings(validation_share=0.0, filters=GameFilters(min_plies=5)))
    assert strict["games"]["dropped"] == loose["games"]["dropped"] | {"illegal_move": 1} and strict["games"]["replayed_as_a_check"] == 11


def test_token_shards_of_another_vocabulary_are_refused_with_file_and_offset(tmp_path):
    stream = [BOS, *token_games(range(1))[0], EOS]
    folder = Path(token_folder(tmp_path / "tokens", [*stream, *stream], [len(stream)]))
    np.save(folder / "shard_001.npy", np.array([*stream[:5], 81, *stream], dtype=np.uint32))
    with pytest.raises(UserError, match=r"shard_001.npy: token 81 at offset 5; expected ids below 81"):
        ingest([str(folder)], tmp_path / "out", settings())
    np.save(folder / "shard_001.npy", np.array(stream, dtype=np.uint16))
    with pytest.raises(UserError, match=r"shard_001.npy: uint16 .*expected uint32"):
        ingest([str(folder)], tmp_path / "out", settings())
    (folder / "shard_001.npy").write_bytes((folder / "shard_000.npy").read_bytes()[:-8])
    with pytest.raises(UserError, match=r"shard_001.npy: ends after [\d,]+ of [\d,]+ tokens"):
        ingest([str(folder)], tmp_path / "out", settings())
    (folder / "shard_001.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"shard_001.npy: not a NumPy file"):
        ingest([str(folder)], tmp_path / "out", settings())


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def test_command_keeps_games_off_puzzles_and_tells_the_account(tmp_path, monkeypatch, capsys):
    source = games_file(tmp_path / "a.pgn", range(40))
    save_puzzles(puzzles_of_games(tmp_path / "a.pgn", (2, 7)), tmp_path / "puzzles.parquet")
    out = tmp_path / "new" / "out"
    words = [f"sources={source}", f"out={out}", f"puzzles={tmp_path / 'puzzles.parquet'}", "state=history", "balance={700: 1}", "balance_bin=3000"]
    monkeypatch.setattr("sys.argv", ["games", *words])
    assert run_command(games_module.main) == 0
    printed = capsys.readouterr().out
    assert "games: read 40, kept 38; dropped: passes_through_a_puzzle 2" in printed and "keep 2 games out (test 2" in printed
    assert "mean ratings from: 700: 38 of 38" in printed
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["decontamination"]["games_dropped_by_split"] == {"test": 2} and manifest["tools"]["python-chess"] == chess.__version__
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    for word, key in (("exclude_time_classes=slow", "exclude_time_classes"), ("workers=0", "workers"), ("balance=odd", "balance")):
        monkeypatch.setattr("sys.argv", ["games", f"sources={source}", f"out={tmp_path / 'b'}", word])
        assert run_command(games_module.main) == 2
        assert key in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_leaves_no_half_part(tmp_path, monkeypatch, capsys):
    source = games_file(tmp_path / "a.pgn", range(20))

    def full(file, **_):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    monkeypatch.setattr("sys.argv", ["games", f"sources={source}", f"out={tmp_path / 'out'}"])
    assert run_command(games_module.main) == 2
    assert "free some space" in (error := capsys.readouterr().err) and error.strip().count("\n") == 0
    assert not list(tmp_path.glob(".out.parts/*/*"))


# ---- real data --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared Lichess data is not here")
def test_counts_of_all_shared_games_add_up_and_1000_of_them_have_python_chess_ids(tmp_path):
    sources = [str(path) for path in sorted(DATA.glob("games_*.pgn.zst"))]
    manifest = ingest(sources, tmp_path / "out", settings(context=2048, shard_tokens=1 << 22), workers=2)
    assert adds_up(manifest) and manifest["games"]["read"] == 125_887
    table = pd.read_parquet(tmp_path / "out" / "games.parquet").set_index("hash")
    shards = {name: np.memmap(tmp_path / "out" / f"{name}.tokens", mode="r", offset=512, dtype=np.uint8) for name in set(table["shard"])}
    texts = [text for source in sources for text in zstd.decompress(Path(source).read_bytes()).decode().split("\n\n[Event ")]
    for text in random.Random(0).sample(texts, 1000):
        game = chess.pgn.read_game(io.StringIO(f"[Event {text.removeprefix('[Event ')}"))
        tokens = list(chain.from_iterable(line_tokens(chess.Board(), game.mainline_moves())))
        assert not game.errors and tokens
        row = table.loc[digest_of("moves", None, np.asarray(tokens, dtype="<u2").tobytes())]
        assert shards[row.shard][row.offset : row.offset + row.length].tolist() == [BOS, *tokens, EOS]
