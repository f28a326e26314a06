"""PGN in, games out: both methods agree, and nothing is dropped without a reason."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import chess
import pandas as pd
import pytest

from chessrl import games as games_module
from chessrl import pgn_extract as pgn_extract_module
from chessrl.errors import UserError
from chessrl.games import Game, games_from_table, read_games
from chessrl.notation import line_tokens, to_text
from chessrl.pgn_blocks import GameFilters, ScreenedGame, screen_text, spelling_of, split_blocks, time_class_of
from chessrl.pgn_extract import extract_plies, find_pgn_extract
from chessrl.sources import ReadReport, read_lines, zstd

DATA = Path(__file__).parents[2] / "shared" / "data"
MIXED = DATA / "games_lichess_mixed.pgn.zst"
METHODS = [
    "python-chess",
    pytest.param("pgn-extract", marks=pytest.mark.skipif(not find_pgn_extract(), reason="pgn-extract is not installed")),
]
needs_pgn_extract = pytest.mark.skipif(not find_pgn_extract(), reason="pgn-extract is not installed")
needs_data = pytest.mark.skipif(not MIXED.is_file(), reason="the shared Lichess data is not here")

OPENING = "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d3 d6"  # ten plies


def pgn(movetext: str, result: str = "1-0", **headers: str) -> str:
    tags = {"Event": "Rated Blitz game", "Result": result, "TimeControl": "300+0", "WhiteElo": "1500", "BlackElo": "1600"} | headers
    return "".join(f'[{name} "{value}"]\n' for name, value in tags.items()) + f"\n{movetext}\n\n"


def read(path: Path, method: str = "python-chess", filters: GameFilters | None = None) -> tuple[list[Game], ReadReport]:
    report = ReadReport()
    games = list(read_games([path], method=method, filters=filters, report=report))
    assert report.read == report.kept + sum(report.dropped.values())
    assert report.kept == len(games)
    return games, report


def read_text(folder: Path, text: str | bytes, method: str = "python-chess", filters: GameFilters | None = None):
    path = folder / "games.pgn"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, method, filters)


DROPPED = {
    "illegal san": (pgn("1. e4 e5 2. Qh6 Nc6 3. d3 d6 4. d4 d5 5. c3 c6 1-0"), "illegal_move"),
    "ambiguous san": (pgn("1. Nf3 d5 2. d4 e6 3. Nd2 c6 4. c3 c5 5. e3 h6 1-0"), "illegal_move"),
    "castling after the king has moved": (pgn("1. e4 e5 2. Ke2 Ke7 3. Ke1 Ke8 4. Nf3 Nf6 5. Bc4 Bc5 6. O-O O-O 1-0"), "illegal_move"),
    "promotion without a piece": (pgn(f"{OPENING} 6. e8 1-0"), "unreadable_movetext"),
    "null move as dashes": (pgn(f"{OPENING} 6. -- a6 1-0"), "null_move"),
    "null move as Z0": (pgn(f"{OPENING} 6. Z0 a6 1-0"), "null_move"),
    "Chess960": (pgn(f"{OPENING} 1-0", Variant="Chess960"), "variant"),
    "unknown variant": (pgn(f"{OPENING} 1-0", Variant="Martian"), "variant"),
    "Chess960 by its castling rights": (
        pgn(f"{OPENING} 1-0", FEN="rkqbnnbr/pppppppp/8/8/8/8/PPPPPPPP/RKQBNNBR w HAha - 0 1", SetUp="1"),
        "variant",
    ),
    "garbage FEN": (pgn(f"{OPENING} 1-0", FEN="garbage", SetUp="1"), "bad_fen"),
    "set-up without FEN": (pgn(f"{OPENING} 1-0", SetUp="1"), "bad_fen"),
    "set-up position": (pgn("1. Kd2 Kd7 1-0", FEN="4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", SetUp="1"), "set_up_position"),
    "zero plies": (pgn("1-0"), "too_few_plies"),
    "few plies": (pgn("1. e4 e5 2. Nf3 1-0"), "too_few_plies"),
    "star as result": (pgn(f"{OPENING} *", result="*"), "not_terminated"),
    "no result in the movetext": (pgn(OPENING), "not_terminated"),
    "header and movetext disagree": (pgn(f"{OPENING} 0-1"), "results_disagree"),
    "abandoned": (pgn(f"{OPENING} 1-0", Termination="Abandoned"), "broken_off"),
    "bullet by time control": (pgn(f"{OPENING} 1-0", Event="Rated game", TimeControl="60+1"), "time_class_bullet"),
    "ultrabullet by event": (pgn(f"{OPENING} 1-0", Event="Rated UltraBullet game", TimeControl="?"), "time_class_ultrabullet"),
    "casual": (pgn(f"{OPENING} 1-0", Event="Casual Blitz game"), "unrated"),
    "headers alone": (pgn("").rstrip() + "\n\n", "headers_without_moves"),
    "stray text": (pgn(f"{OPENING} hello 6. a3 1-0"), "unreadable_movetext"),
    "open parenthesis": (pgn(f"{OPENING} (6. a3 1-0"), "unreadable_movetext"),
    "NUL bytes in the result": (pgn(f"{OPENING} 6. 1/2-1/2\0\0 1/2-1/2", result="1/2-1/2"), "unreadable_movetext"),
}

KEPT = {
    "clocks and evaluations": "1. e4 { [%eval 0.2] [%clk 0:05:00] } 1... e5 { [%clk 0:05:00] } 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d3 d6",
    "annotation glyphs": "1. e4! e5?! 2. Nf3 $1 Nc6 $22 3. Bc4!! Bc5?? 4. O-O Nf6!? 5. d3 d6",
    "nested variations": "1. e4 (1. d4 d5 (1... Nf6 2. c4) 2. c4) 1... e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d3 d6 (5... h6 {a ) b})",
    "semicolon comment": "1. e4 e5 ; best by test { 2. Ke2\n2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d3 d6",
    "escaped line": "1. e4 e5 2. Nf3 Nc6\n% 3. Ke2 is a joke\n3. Bc4 Bc5 4. O-O Nf6 5. d3 d6",
    "castling with zeros": "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. 0-0 Nf6 5. d3 d6",
    "no spaces after numbers": "1.e4 e5 2.Nf3 Nc6 3.Bc4 Bc5 4.O-O Nf6 5.d3 d6",
    "line breaks": "1. e4\ne5 2. Nf3\r\nNc6 3. Bc4 Bc5\n4. O-O Nf6 5. d3 d6",
    "wrong check marks": "1. e4+ e5# 2. Nf3++ Nc6 3. Bc4 Bc5 4. O-O+ Nf6 5. d3 d6",
    "blank line and header look-alike in a comment": "1. e4 {one\n\n[two] three} e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d3 d6",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", DROPPED)
def test_hostile_game_is_dropped_by_its_reason_and_its_neighbours_are_kept(tmp_path, name, method):
    text, reason = DROPPED[name]
    games, report = read_text(tmp_path, pgn(f"{OPENING} 1-0") + text + pgn(f"{OPENING} 1-0"), method)
    assert report.dropped == {reason: 1}
    assert len(games) == 2 and games[0] == games[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KEPT)
def test_main_line_survives_what_surrounds_it(tmp_path, name, method):
    games, _ = read_text(tmp_path, pgn(f"{KEPT[name]} 1-0") + pgn(f"{OPENING} 1-0"), method)
    assert len(games) == 2 and games[0] == games[1]
    assert to_text(games[0].tokens).startswith("P e2 e4 P e7 e5 N g1 f3")


@pytest.mark.parametrize("method", METHODS)
def test_special_moves_are_spelt_canonically(tmp_path, method):
    moves = (
        "1. e4 d5 2. e5 f5 3. exf6 e.p. d4 4. c4 dxc3 5. fxg7 cxb2 6. gxh8Q bxa1=N 7. Qxg8 Nc2+ 8. Qxc2 Qxd2+ 9. Kxd2 a5 10. Qgxh7 a4 1-0"
    )
    (game,), _ = read_text(tmp_path, pgn(moves), method)
    plies = [to_text(ply) for ply in game.plies]
    assert plies[4] == "P e5 x f6"
    assert plies[10] == "P g7 x h8 = Q" and plies[11] == "P b2 x a1 = N"
    assert plies[13] == "N a1 c2 +"
    assert (game.white_elo, game.black_elo, game.result, game.time_class) == (1500, 1600, "1-0", "blitz")


@pytest.mark.parametrize("method", METHODS)
def test_start_position_is_kept_when_asked_for(tmp_path, method):
    fen = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
    filters = GameFilters(standard_start=False, min_plies=1)
    (game, standard), _ = read_text(
        tmp_path, pgn("7. O-O-O O-O 1-0", FEN=fen, SetUp="1") + pgn("1. e4 1-0", FEN=chess.STARTING_FEN, SetUp="1"), method, filters
    )
    assert game.start_fen == fen and [to_text(ply) for ply in game.plies] == ["O-O-O", "O-O"]
    assert standard.start_fen is None


def test_blank_line_in_movetext_costs_both_halves_and_no_neighbour(tmp_path):
    games, report = read_text(tmp_path, pgn(f"{OPENING}\n\n6. a3 a6 7. b3 b6 8. c3 h6 9. h3 g6 10. g3 f5 1-0") + pgn(f"{OPENING} 1-0"))
    assert len(games) == 1
    assert report.dropped == {"not_terminated": 1, "second_part_of_a_split_game": 1}


def test_header_block_without_moves_does_not_merge_with_the_next_game(tmp_path):
    first = '[Event "Rated Blitz game"]\n[Termination "Abandoned"]\n[WhiteElo "1111"]\n\n'
    second = f'[Site "x"]\n[Result "1-0"]\n\n{OPENING} 1-0\n\n'
    games, report = read_text(tmp_path, first + second + pgn(f"{OPENING} 1-0", WhiteElo="2222"))
    assert [game.white_elo for game in games] == [None, 2222]
    assert report.read == 3 and report.dropped == {"headers_without_moves": 1}


def test_comment_that_is_never_closed_costs_its_own_game_alone(tmp_path):
    games, report = read_text(tmp_path, pgn(OPENING.replace("e5", "e5 {oops")) + pgn(f"{OPENING} 1-0"))
    assert len(games) == 1 and report.dropped == {"comment_not_closed": 1}


def test_byte_order_mark_and_foreign_encoding(tmp_path):
    latin = pgn(f"{OPENING} 1-0", White="Müller").encode("latin-1")
    games, report = read_text(tmp_path, b"\xef\xbb\xbf" + pgn(f"{OPENING} 1-0", WhiteElo="1777").encode() + latin)
    assert [game.white_elo for game in games] == [1777] and report.dropped == {"not_utf8": 1}
    with pytest.raises(UserError, match="UTF-16"):
        read_text(tmp_path, pgn(f"{OPENING} 1-0").encode("utf-16"))


def test_rating_range_holds_for_every_known_rating(tmp_path):
    text = "".join(pgn(f"{OPENING} 1-0", WhiteElo=white, BlackElo="1600") for white in ("1199", "1200", "1800", "1801", "?"))
    games, report = read_text(tmp_path, text, filters=GameFilters(min_rating=1200, max_rating=1800))
    assert [game.white_elo for game in games] == [1200, 1800, None]
    assert report.dropped == {"rating_too_low": 1, "rating_too_high": 1}


@pytest.mark.parametrize(
    ("control", "expected"),
    [("15+0", "ultrabullet"), ("29", "ultrabullet"), ("30+0", "bullet"), ("60+2", "bullet"), ("60+3", "blitz"), ("480+0", "rapid"),
     ("900+15", "classical"), ("-", "correspondence"), ("40/7200:3600", "unknown")],
)  # fmt: skip
def test_time_class_follows_the_bounds_of_lichess(control, expected):
    assert time_class_of("Rated game", control) == expected


def test_zst_with_skippable_and_several_frames_is_read_whole(tmp_path):
    path = tmp_path / "games.pgn.zst"
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    path.write_bytes(skippable + zstd.compress(pgn(f"{OPENING} 1-0").encode()) + skippable + zstd.compress(pgn(f"{OPENING} 1-0").encode()))
    assert len(read(path)[0]) == 2


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_damaged_zst_is_an_error_with_its_place(tmp_path, damage):
    path = tmp_path / "games.pgn.zst"
    whole = zstd.compress(pgn(f"{OPENING} 1-0").encode() * 50)
    second = zstd.compress(random.Random(0).randbytes(400))
    path.write_bytes(whole + (second[:-60] if damage == "truncated" else b"garbage after the frame"))
    with pytest.raises(UserError, match=r"games.pgn.zst: .* at byte [\d,]+ of [\d,]+, after \d+ records"):
        read(path)


def test_wrong_sources_say_where_games_are_published(tmp_path):
    table = tmp_path / "puzzles.csv"
    table.write_text("PuzzleId,FEN\n")
    (tmp_path / "empty.pgn").write_text("\n\n")
    for path in (table, tmp_path / "missing.pgn", tmp_path / "empty.pgn"):
        with pytest.raises(UserError, match=r"database\.lichess\.org.*world\.games"):
            read(path)
    with pytest.raises(UserError, match="method=fast"):
        read(tmp_path / "missing.pgn", method="fast")


def test_missing_pgn_extract_falls_back_or_says_how_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(pgn_extract_module, "find_pgn_extract", lambda: None)
    games, _ = read_text(tmp_path, pgn(f"{OPENING} 1-0"), method="auto")
    assert len(games) == 1
    with pytest.raises(UserError, match="apt install pgn-extract"):
        read_text(tmp_path, pgn(f"{OPENING} 1-0"), method="pgn-extract")


@needs_pgn_extract
def test_blocks_keep_order_and_each_game_its_own_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(games_module, "_READ_BYTES", 700)
    bad = pgn(f"{OPENING} 6. Qh8 1-0")
    text = "".join((bad if number % 4 == 1 else "") + pgn(f"{OPENING} 1-0", WhiteElo=str(1000 + number)) for number in range(20))
    games, report = read_text(tmp_path, text, method="pgn-extract")
    assert [game.white_elo for game in games] == list(range(1000, 1020)) and report.dropped == {"illegal_move": 5}


def random_san_games(count: int, seed: int) -> list[ScreenedGame]:
    """Random games rich in promotions, castling and checks; in half of them one move is replaced by another game's or mis-spelt."""
    rng = random.Random(seed)
    fens = [
        None,
        "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",
        "2b1k3/1P1P1P2/8/8/8/8/1p1p1p2/2B1K3 b - - 0 1",
        "8/8/8/1k1pP3/8/5NN1/2N1K3/N7 w - d6 0 1",
    ]
    games, spelt = [], ["O-O", "exd6", "e8=Q", "Ke2"]
    for _ in range(count):
        fen = rng.choice(fens)
        board = chess.Board(fen or chess.STARTING_FEN)
        san = []
        for _ in range(30):
            if board.is_game_over():
                break
            move = rng.choice(list(board.legal_moves))
            san.append(board.san(move))
            board.push(move)
        if rng.random() < 0.5:
            place = rng.randrange(len(san))
            without_x = san[place].replace("x", "") if san[place][0].isupper() else san[place]  # a pawn's capture without x is no word of the screen
            san[place] = rng.choice([rng.choice(spelt), without_x, san[place].rstrip("+#") + "+"])
        spelt += san
        games.append(ScreenedGame(fen, " ".join(san), spelling_of(san), "1-0", None, None, "unknown", ""))
    return games


@needs_pgn_extract
def test_both_parsers_accept_the_same_games_with_the_same_tokens():
    games = random_san_games(400, seed=0)
    reference, legal, _ = extract_plies(None, games)
    batch, also_legal, reread = extract_plies(find_pgn_extract(), games)
    assert also_legal.tolist() == legal.tolist() and reread == 0
    assert batch.tokens.tolist() == reference.tokens.tolist() and batch.ply_tokens.tolist() == reference.ply_tokens.tolist()
    assert 50 < legal.sum() < 350


MISSPELT = {  # (start, moves): what pgn-extract alone would take, and as what
    "b for bishop": (None, "e4 d5 Bb5+ c6 bxc6+", 0),
    "promotion from another file": ("1r2k3/PR6/8/8/8/8/6K1/8 w - - 0 1", "bxa8=Q", 0),
    "push with the file of a capture": ("4k3/1P6/8/8/8/8/6K1/8 w - - 0 1", "cxb8=N", 0),
    "capture on its own file": (None, "exe4 e5", 0),
    "all is well": (None, "e4 d5 exd5 c6 dxc6 Nf6 cxb7 Nd5 bxa8=Q", 1),
}


@needs_pgn_extract
@pytest.mark.parametrize("case", MISSPELT)
def test_pawn_moves_are_taken_as_spelt_or_not_at_all(case):
    fen, moves, kept = MISSPELT[case]
    start = f'[SetUp "1"]\n[FEN "{fen}"]\n' if fen else ""
    text = f'[Event "Rated game"]\n[Result "1-0"]\n{start}\n{moves} 1-0\n'.encode()
    games = [game for game in screen_text(text, GameFilters(min_plies=1, standard_start=False)) if not isinstance(game, str)]
    for program in (None, find_pgn_extract()):
        batch, legal, _ = extract_plies(program, games)
        assert legal.sum() == len(batch) == kept, program


@needs_pgn_extract
@needs_data
def test_both_methods_agree_on_lichess_games(tmp_path):
    path = tmp_path / "sample.pgn"
    blocks = islice(split_blocks(read_lines(MIXED, ReadReport())), 300)
    path.write_bytes(b"".join(b"\n".join([*block.headers, b"", *block.movetext, b"", b""]) for block in blocks))
    games, report = read(path, "pgn-extract")
    assert (games, report) == read(path, "python-chess")
    assert report.read == 300 and len(games) > 200 and set(report.dropped) <= {"unrated", "too_few_plies"}


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def table_of_games(count: int) -> pd.DataFrame:
    rng = random.Random(1)
    rows = []
    for _ in range(count):
        fen = rng.choice(["r3k2r/1P6/8/8/8/8/6p1/R3K2R w KQkq - 0 1", chess.STARTING_FEN, "4k3/8/8/8/8/8/4P3/Q3K3 w - - 0 1"])
        board, moves = chess.Board(fen), []
        while len(moves) < 20 and not board.is_game_over():
            moves.append(rng.choice(list(board.legal_moves)))
            board.push(moves[-1])
        rows.append((fen, " ".join(move.uci() for move in moves), "1-0"))
    return pd.DataFrame(rows, columns=["fen", "moves", "result"])


def test_table_games_have_canonical_tokens():
    frame = table_of_games(40)
    games = list(games_from_table(frame))
    for game, row in zip(games, frame.itertuples()):
        plies = line_tokens(chess.Board(row.fen), map(chess.Move.from_uci, row.moves.split()))
        assert [list(ply) for ply in game.plies] == plies and game.result == "1-0"
        assert game.start_fen == (None if row.fen == chess.STARTING_FEN else row.fen)
    assert len(games) == 40


def test_table_order_does_not_depend_on_workers(monkeypatch):
    monkeypatch.setattr(games_module, "_CHUNK_ROWS", 7)
    frame = table_of_games(20)
    assert list(games_from_table(frame, workers=2)) == list(games_from_table(frame))


@pytest.mark.parametrize("moves", ["e1e5", "0000", "zz"])
def test_table_with_an_illegal_move_names_the_row(moves):
    frame = pd.DataFrame({"fen": ["4k3/8/8/8/8/8/8/4K3 w - - 0 1"] * 2, "moves": ["e1e2", moves]})
    with pytest.raises(UserError, match="row 1"):
        list(games_from_table(frame))
    with pytest.raises(UserError, match="no column moves"):
        list(games_from_table(frame[["fen"]]))


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_on_games_leaves_no_game_uncounted(tmp_path, method):
    path = tmp_path / "games.pgn"
    path.write_text("\n".join(pgn("1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 1-0") for _ in range(30)))
    report = ReadReport()
    games = list(read_games([path], method=method, most=7, report=report))
    assert len(games) == report.kept == 7
    assert report.read == report.kept + sum(report.dropped.values())
    assert set(report.dropped) <= {"beyond_the_limit"}
