"""Puzzle tables: reading, bins, splits, prompts, and which moves solve."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import chess
import chess.polyglot
import pytest

from chessrl import puzzles as puzzles_module
from chessrl.command import run_command
from chessrl.errors import UserError
from chessrl.notation import to_text
from chessrl.position_keys import line_keys, position_key
from chessrl.puzzle_splits import split_puzzles
from chessrl.puzzles import (
    Puzzle,
    PuzzleFilters,
    accepted_moves,
    load_puzzles,
    prompt_tokens,
    rating_bin,
    read_lichess_csv,
    save_puzzles,
    solver_position_keys,
)
from chessrl.sources import ReadReport, read_lines, zstd

DATA = Path(__file__).parents[2] / "shared" / "data"
HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
FEN, MOVES = "6k1/5ppp/8/8/8/8/5PPP/R5K1 b - - 0 1", "h7h6 a1a8 g8h7 a8a7"


def row(identifier: str = "00008", fen: str = FEN, moves: str = MOVES, rating: str = "1500", url: str = "") -> str:
    return f"{identifier},{fen},{moves},{rating},70,90,100,endgame short,{url},"


def read(folder: Path, *rows: str, header: str = HEADER, filters: PuzzleFilters | None = None) -> tuple[list[Puzzle], ReadReport]:
    path = folder / "puzzles.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    report = ReadReport()
    found = read_lichess_csv(path, filters or PuzzleFilters(), report)
    assert report.read == report.kept + sum(report.dropped.values())
    return found, report


def puzzle(number: int, fen: str = FEN, moves: str = MOVES, **fields) -> Puzzle:
    return replace(Puzzle(f"p{number}", fen, tuple(moves.split()), 1, 1500, "B2"), **fields)


def lone_king_puzzles(count: int) -> list[Puzzle]:
    """Puzzles with distinct positions: Black's first move, then a rook move; difficulty classes in turn."""
    found = []
    for number in range(count):
        white, rook = chess.SQUARE_NAMES[number % 8], chess.SQUARE_NAMES[8 + number // 8 % 40]
        board = chess.Board(None)
        board.set_piece_map(
            {chess.parse_square(white): chess.Piece.from_symbol("K"), chess.parse_square(rook): chess.Piece.from_symbol("R")}
        )
        board.set_piece_at(chess.H8, chess.Piece.from_symbol("k"))
        board.turn = chess.BLACK
        moves = f"h8h7 {rook}{rook[0]}{8 if rook[1] != '8' else 7}"
        found.append(puzzle(number, board.fen(), moves, bin=f"B{number % 6}"))
    return found


# ---- reading ----------------------------------------------------------------------------------------------------------------------------


def test_ids_that_look_like_numbers_stay_text_and_ratings_stay_whole(tmp_path):
    found, report = read(tmp_path, row("00008"), row("1e100", rating=""), row("NA"), row("1e200"))
    assert [one.id for one in found] == ["00008", "NA", "1e200"]
    assert all(one.difficulty == 1500 and isinstance(one.difficulty, int) for one in found)
    assert report.dropped == {"bad_rating": 1}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(rating="15.5"), "bad_rating"),
        (row(rating="-5"), "bad_rating"),
        (row(""), "no_id"),
        (row(fen="6k1/5ppp/8/8/8/8/5PPP b - - 0 1"), "bad_fen"),
        (row(fen="6k1/5ppp/8/8/8/8/5PPP/R5K1"), "bad_fen"),
        (row(moves="h7h6 Ra8"), "bad_moves"),
        (row(moves=""), "bad_moves"),
        (row(moves="h7h6 a1a8 g8h7"), "odd_number_of_moves"),
        (row(moves=" ".join(["h7h6"] * 14)), "line_too_long"),
        ("00008,too,few", "wrong_number_of_fields"),
    ],
)
def test_bad_row_is_counted_by_reason(tmp_path, bad, reason):
    found, report = read(tmp_path, row("aaaaa"), bad, row("bbbbb"))
    assert [one.id for one in found] == ["aaaaa", "bbbbb"] and report.dropped == {reason: 1}


def test_replay_finds_illegal_lines_and_positions(tmp_path):
    rows = (row("a"), row("b", moves="h7h6 a1b8"), row("c", fen="8/5ppp/8/8/8/8/5PPP/R5K1 b - - 0 1"))
    assert len(read(tmp_path, *rows)[0]) == 3
    found, report = read(tmp_path, *rows, filters=PuzzleFilters(verify=True))
    assert [one.id for one in found] == ["a"] and report.dropped == {"illegal_move": 1, "bad_fen": 1}


def test_missing_columns_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="Rating, Themes"):
        read(tmp_path, "a,b,c", header="PuzzleId,FEN,Moves")
    (tmp_path / "games.pgn").write_text("")
    for path in (tmp_path / "games.pgn", tmp_path / "none.csv"):
        with pytest.raises(UserError, match=r"database\.lichess\.org.*world\.puzzles"):
            read_lichess_csv(path, PuzzleFilters(), ReadReport())


def test_truncated_zst_table_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "puzzles.csv.zst"
    path.write_bytes(zstd.compress("\n".join((HEADER, *(row(str(number)) for number in range(500)))).encode())[:-40])
    with pytest.raises(UserError, match=r"at byte [\d,]+ of"):
        read_lichess_csv(path, PuzzleFilters(), ReadReport())


def test_first_move_is_the_opponents_and_the_solver_answers(tmp_path):
    (one,), _ = read(tmp_path, row(url="https://lichess.org/787zsVup/black#48"))
    assert one.lead == 1 and one.game == "787zsVup" and one.themes == ("endgame", "short")
    assert one.board().turn == chess.WHITE and one.board().piece_at(chess.H6) == chess.Piece.from_symbol("p")


@pytest.mark.parametrize(
    ("pgn", "kept"), [("1. e4 e5 2. Nf3", True), ("1. e4 e5 2. Nf3 f6", True), ("1. e4 e5 2. Nf3 d6", False), ("1. e4", False)]
)
def test_history_must_lead_to_the_position(tmp_path, pgn, kept):
    board = chess.Board()
    for san in ("e4", "e5", "Nf3"):
        board.push_san(san)
    found, report = read(tmp_path, f"{row(fen=board.fen(), moves='f7f6 f3e5')},{pgn}", header=f"{HEADER},PGN")
    assert [one.history for one in found] == ([("e2e4", "e7e5", "g1f3")] if kept else [])
    assert sum(report.dropped.values()) == (not kept)


@pytest.mark.parametrize(
    ("rating", "expected"),
    [(399, "B0"), (800, "B0"), (801, "B1"), (1200, "B1"), (1201, "B2"), (1600, "B2"), (2000, "B3"), (2400, "B4"), (2401, "B5")],
)
def test_bin_bounds_belong_to_the_lower_bin(rating, expected):
    assert rating_bin(rating) == expected


@pytest.mark.parametrize(("name", "has_history"), [("puzzles_lichess_full", False), ("puzzles_with_pgn", True)])
def test_published_rows_are_all_sound(tmp_path, name, has_history):
    path = DATA / f"{name}.csv.zst"
    if not path.is_file():
        pytest.skip("the shared Lichess data is not here")
    header, *rows = (line.decode() for line in islice(read_lines(path, ReadReport()), 301))
    found, report = read(tmp_path, *rows, header=header, filters=PuzzleFilters(verify=True))
    assert report.read == 300 and set(report.dropped) <= {"line_too_long"} and len(found) > 290
    assert all(bool(one.history) == has_history for one in found)
    assert all(one.board().turn != chess.Board(one.fen).turn for one in found)


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def test_table_round_trip_and_selection(tmp_path):
    table = [
        puzzle(0, split="sft", themes=("mate", "short"), history=("e2e4",), game="abcdefgh"),
        puzzle(1, split="rl", bin="B1"),
        puzzle(2, split="rl"),
    ]
    save_puzzles(table, tmp_path / "sub" / "puzzles.parquet")
    assert load_puzzles(tmp_path / "sub" / "puzzles.parquet") == table
    assert load_puzzles(tmp_path / "sub" / "puzzles.parquet", split="rl", bins=["B2"]) == table[2:]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["puzzles.parquet"]
    with pytest.raises(UserError, match="no such puzzle table"):
        load_puzzles(tmp_path / "none.parquet")


# ---- splits -----------------------------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_by_position_and_by_game():
    table = lone_king_puzzles(240)
    table = [replace(one, game=f"game{number % 100:04d}") for number, one in enumerate(table)]  # games shared by two or three puzzles
    chosen = split_puzzles(table, {"sft": 60, "rl": 60, "test": 60}, 0, ReadReport())
    assert Counter(one.split for one in chosen) == {"sft": 60, "rl": 60, "test": 60}
    owner: dict = {}
    for one in chosen:
        for link in (*solver_position_keys(one), one.game):
            assert owner.setdefault(link, one.split) == one.split


@pytest.mark.parametrize("games", [("", ""), ("aaaaaaaa", "bbbbbbbb")])
def test_line_that_runs_through_another_puzzles_position_shares_its_split(games):
    long = puzzle(0, id="long", game=games[0])
    board = long.board()
    board.push_uci("a1a8")
    short = puzzle(0, board.fen(), "g8h7 a8a7", id="short", game=games[1])  # asks what the long one asks second
    for seed in range(8):
        chosen = split_puzzles([long, short, *lone_king_puzzles(40)], {"sft": 21, "test": 21}, seed, ReadReport())
        assert len({one.split for one in chosen if one.id in ("long", "short")}) == 1


def test_same_position_is_drawn_once_and_everything_is_counted():
    table = [*lone_king_puzzles(20), replace(lone_king_puzzles(1)[0], id="again")]
    report = ReadReport()
    chosen = split_puzzles(table, {"test": 15}, 0, report)
    assert report.dropped == {"duplicate_position": 1, "not_drawn": 5}
    assert report.read == 21 == report.kept + sum(report.dropped.values()) and len(chosen) == 15


def test_draw_depends_on_seed_and_ids_but_not_on_order():
    table = lone_king_puzzles(60)

    def draw(puzzles, seed):
        return {one.id for one in split_puzzles(puzzles, {"test": 20}, seed, ReadReport())}

    assert draw(table, 0) == draw(table[::-1], 0) != draw(table, 1)


def test_easy_share_is_met_exactly_and_leaves_the_other_splits_unskewed():
    table = lone_king_puzzles(240)  # a third of them easy
    chosen = split_puzzles(table, {"rl": 60, "test": 60}, 0, ReadReport(), easy_share={"rl": 0.9})
    easy = Counter(one.split for one in chosen if one.bin in ("B1", "B2"))
    assert easy["rl"] == 54
    assert 13 <= easy["test"] <= 26  # 20 expected; about 9 had the skewed split been drawn first
    assert [one.split for one in chosen] == ["rl"] * 60 + ["test"] * 60


def test_too_few_puzzles_is_an_error():
    with pytest.raises(UserError, match=r"split test: 20 puzzles asked for, but of 15 only 15"):
        split_puzzles(lone_king_puzzles(15), {"test": 20}, 0, ReadReport())
    with pytest.raises(UserError, match="expected one of sft"):
        split_puzzles(lone_king_puzzles(15), {"train": 2}, 0, ReadReport())


# ---- prompts and answers ------------------------------------------------------------------------------------------------------------


def test_prompts_of_both_states():
    one = puzzle(0, history=("e2e4", "e7e5"))
    position = "<bos> <pos> <black> K g1 R a1 P f2 P g2 P h2 k g8 p f7 p g7 p h7 </pos>"
    assert to_text(prompt_tokens(one, "snapshot", think=False)) == f"{position} P h7 h6"
    assert to_text(prompt_tokens(replace(one, lead=0), "snapshot", think=True)) == f"{position} <T>"
    started = replace(one, fen="rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2", moves=("g1f3", "b8c6"))
    assert to_text(prompt_tokens(started, "history", think=True)) == "<bos> P e2 e4 P e7 e5 N g1 f3 <T>"
    with pytest.raises(UserError, match="p0 has no moves from the start position"):
        prompt_tokens(replace(one, history=()), "history", think=False)
    with pytest.raises(UserError, match="state=fen"):
        prompt_tokens(one, "fen", think=False)


def test_any_mate_is_accepted_and_the_lines_move_comes_first():
    board = chess.Board("6k1/5ppp/8/8/8/8/8/RQ2R1K1 w - - 0 1")
    accepted = [move.uci() for move in accepted_moves(board, "e1e8")]
    assert accepted[0] == "e1e8" and sorted(accepted) == ["a1a8", "b1b8", "e1e8"]
    assert accepted_moves(board, chess.Move.from_uci("g1g2"))[0] == chess.Move.from_uci("g1g2")
    assert len(accepted_moves(board, "g1g2")) == 4


@pytest.mark.parametrize("spelling", ["e1g1", "e1h1"])
def test_castling_solution_may_be_given_either_way(spelling):
    board = chess.Board("5k2/8/8/8/8/8/8/4K2R w K - 0 1")
    assert accepted_moves(board, spelling) == [chess.Move.from_uci("e1g1")]


def test_promotions_and_en_passant_as_solutions():
    capture = chess.Board("3r2k1/4Pppp/8/8/8/8/8/6K1 w - - 0 1")
    assert {move.uci() for move in accepted_moves(capture, "e7d8q")} == {"e7d8q", "e7d8r"}
    knight = chess.Board("6rk/5Ppp/8/8/8/8/8/6K1 w - - 0 1")
    assert [move.uci() for move in accepted_moves(knight, "f7g8n")] == ["f7g8n"]
    passant = chess.Board("8/8/8/3pP3/8/8/8/k1K5 w - d6 0 1")
    assert accepted_moves(passant, "e5d6")[0] == chess.Move.from_uci("e5d6")
    with pytest.raises(ValueError):
        accepted_moves(passant, "e5f6")


# ---- position keys ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fen", "moves"),
    [
        (chess.STARTING_FEN, "e2e4 d7d5 e4e5 f7f5 e5f6 g8f6 g1f3 g7g6 f1c4 f8g7 e1g1 e8h8"),
        ("rn5k/P7/8/8/8/8/6p1/R3K2R w KQ - 0 1", "a7b8n g2h1q e1d2 a8a1"),
        ("r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1", "e8a8 e1h1"),
    ],
)
def test_incremental_keys_equal_the_boards_keys(fen, moves):
    board = chess.Board(fen)
    keys = [position_key(board)]
    for move in moves.split():
        board.push_uci(move)
        keys.append(position_key(board))
    assert line_keys(fen, map(chess.Move.from_uci, moves.split())) == keys


def test_key_is_polyglots_without_castling_and_en_passant():
    bare = chess.Board("4k3/8/8/8/4P3/8/8/4K2R b - - 0 1")
    with_rights = chess.Board("4k3/8/8/8/4P3/8/8/4K2R b K e3 0 1")
    assert position_key(bare) == position_key(with_rights) == chess.polyglot.zobrist_hash(bare)
    assert position_key(bare) != position_key(chess.Board("4k3/8/8/8/4P3/8/8/4K2R w - - 0 1"))


def test_line_from_an_empty_square_is_refused():
    with pytest.raises(UserError, match="a1a8"):
        line_keys("4k3/8/8/8/8/8/8/4K3 w - - 0 1", [chess.Move.from_uci("a1a8")])
    with pytest.raises(UserError, match="not a position"):
        line_keys("nonsense w", [])


# ---- command ------------------------------------------------------------------------------------------------------------------------


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["puzzles", *arguments])
    return run_command(puzzles_module.main)


def test_command_writes_the_table_and_its_account(tmp_path, monkeypatch, capsys):
    rows = [f"{one.id},{one.fen},{' '.join(one.moves)},{one.difficulty},,,,x,," for one in lone_king_puzzles(40)]
    (tmp_path / "puzzles.csv").write_text("\n".join((HEADER, *rows)) + "\n")
    sizes = ("sft=8", "rl=8", "validation=4", "test=4", "private=4", "rl_easy_share=1.0", "verify=false")
    assert run(monkeypatch, f"sources={tmp_path / 'puzzles.csv'}", f"out={tmp_path / 'out'}", *sizes) == 0
    assert len(load_puzzles(tmp_path / "out" / "puzzles.parquet")) == 28
    assert "read 40, kept 40" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["out=x"], ["sources=a.csv", "out=x", "seed=one"], ["sources=a.csv", "out=x", "colour=red"], ["help"]]
)
def test_bad_argument_is_one_line_and_status_2(monkeypatch, capsys, arguments):
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
