"""From a puzzle's source game to the moves that lead to it."""

from __future__ import annotations

import random
import string

import chess
import pyarrow as pa
import pytest

from chessrl.errors import UserError
from chessrl.puzzle_history import GameIds, SourceGame, find_games, history_of, with_histories
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.sources import ReadReport, zstd


def played(*sans: str) -> tuple[chess.Board, tuple[str, ...]]:
    """The position after some moves, and the moves in UCI."""
    board = chess.Board()
    for san in sans:
        board.push_san(san)
    return board, tuple(move.uci() for move in board.move_stack)


OPENING, OPENING_MOVES = played("e4", "e5", "Nf3")


@pytest.mark.parametrize(
    ("movetext", "found"),
    [
        ("1. e4 e5 2. Nf3", True),  # ends at the position
        ("1. e4 e5 2. Nf3 f6", True),  # goes on with the puzzle's first move
        ("1. e4 e5 2. Nf3 f6 3. Nxe5 fxe5 1-0", True),  # the whole game
        ("1. e4 { [%clk 0:03:00] } 1... e5 (1... c5 2. Nf3) 2. Nf3 $6 f6", True),
        ("e4 e5 Nf3 f6 Nxe5", True),  # bare moves, as the export gives them
        ("1. Nf3 e5 2. e4 f6", True),  # another order: the game decides
        ("1. e4 e5 2. Nf3 d6", False),  # the puzzle's first move was not played
        ("1. e4", False),
        ("1. e4 e5 2. Nf6", False),  # illegal
        ("1. e4 -- 2. -- e5 3. Nf3 f6", False),  # null moves
        ('[Variant "Crazyhouse"]\n\n1. e4 e5 2. Nf3 f6', False),
        ("", False),
        ('[FEN "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"]\n\n2. Nf3 f6', False),  # not from the start position
    ],
)
def test_a_game_gives_the_history_only_where_it_leads_to_the_position(movetext, found):
    history = history_of(movetext, OPENING.fen(), "f7f6")
    assert (history is not None) == found
    if history:
        board = chess.Board()
        for move in history:
            board.push_uci(move)
        assert board.board_fen() == OPENING.board_fen() and board.turn == OPENING.turn


def test_of_repeated_positions_the_one_at_the_fens_move_number_is_taken():
    sans = ["Nf3", "Nf6", "Ng1", "Ng8"]
    again, moves = played(*sans)
    movetext = " ".join((*sans, *sans, "e4", "e5"))
    for repeats in (1, 2):
        board = chess.Board(f"{again.board_fen()} w KQkq - {4 * repeats} {1 + 2 * repeats}")
        assert history_of(movetext.replace("e4 e5", "Nf3 e5"), board.fen(), "g1f3") == moves * repeats
    assert history_of(movetext, again.board_fen() + " w KQkq -", "e2e4") == moves * 2, "the only one that is followed by the puzzle's move"


@pytest.mark.parametrize("castling", ["e1g1", "e1h1"])
def test_castling_as_the_first_move_may_be_given_either_way(castling):
    board, moves = played("Nf3", "d5", "g3", "d4", "Bg2", "e5")
    movetext = "1. Nf3 d5 2. g3 d4 3. Bg2 e5 4. O-O e4"
    assert history_of(movetext, board.fen(), castling) == moves


# ---- PGN files --------------------------------------------------------------------------------------------------------------------------

PGN = """[Event "Rated Blitz game"]
[Site "https://lichess.org/aaaaaaaa"]
[Date "2022.??.??"]
[UTCDate "2023.01.31"]

1. e4 e5 2. Nf3 f6 1-0

[Event "no id"]
[Site "?"]

1. d4 1-0


[Event "the id in a header of its own"]
[GameId "bbbbbbbb"]
[Date "2024.02.01"]

1. e4 e5
2. Nf3 f6 1/2-1/2

[Event "not asked for"]
[Site "https://lichess.org/cccccccc"]

1. c4 *

[Event "the first one again"]
[Site "https://lichess.org/aaaaaaaa/black#4"]

1. g4 *

[Event "no moves"]
[Site "https://lichess.org/dddddddd"]
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_games_are_found_by_id_and_every_game_is_counted(tmp_path, end):
    (tmp_path / "games.pgn.zst").write_bytes(zstd.compress(PGN.replace("\n", end).encode()))
    report = ReadReport()
    games = find_games([tmp_path / "games.pgn.zst"], {"aaaaaaaa", "bbbbbbbb", "dddddddd", "eeeeeeee"}, report)
    assert games == {
        "aaaaaaaa": SourceGame("1. e4 e5 2. Nf3 f6 1-0", 20230131),
        "bbbbbbbb": SourceGame("1. e4 e5\n2. Nf3 f6 1/2-1/2", 20240201),
        "dddddddd": SourceGame("", 0),
    }
    assert report.read == PGN.count("[Event") == report.kept + sum(report.dropped.values())
    assert report.dropped == {"no_game_id": 1, "not_wanted": 1, "duplicate_game": 1}
    assert history_of(games["bbbbbbbb"].movetext, OPENING.fen(), "f7f6") == OPENING_MOVES


def test_the_compact_set_of_ids_is_a_set():
    draw = random.Random(2)
    letters = string.ascii_letters + string.digits
    ids = ["".join(draw.choices(letters, k=8)) for _ in range(2000)]
    arrays = [pa.array(["", *ids[:700]]).slice(1), pa.array([ids[700], "", "short"]), pa.array([], pa.string()), pa.array(ids[701:1000])]
    given = pa.chunked_array(arrays)
    compact = GameIds(given)
    assert [one in compact for one in ids] == [True] * 1000 + [False] * 1000
    assert not any(one in compact for one in ("", "short", ids[0] + "x", "zzzzzzzz"))
    assert "aaaaaaaa" not in GameIds(pa.chunked_array([pa.array([], pa.string())]))


def test_a_missing_pgn_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"none\.pgn: no such file"):
        find_games([tmp_path / "none.pgn"], {"aaaaaaaa"}, ReadReport())


# ---- puzzles ----------------------------------------------------------------------------------------------------------------------------


def test_puzzles_get_history_and_date_of_their_game_and_every_outcome_is_said():
    one = Puzzle("a", OPENING.fen(), ("f7f6", "f3e5"), 1, 1500, "B2", game="aaaaaaaa")
    known = Puzzle("b", OPENING.fen(), ("f7f6", "f3e5"), 1, 1500, "B2", game="aaaaaaaa", history=OPENING_MOVES, date=20200101)
    wrong = Puzzle("c", OPENING.fen(), ("f7f6", "f3e5"), 1, 1500, "B2", game="bbbbbbbb")
    none = Puzzle("d", OPENING.fen(), ("f7f6", "f3e5"), 1, 1500, "B2")
    games = {"aaaaaaaa": SourceGame("e4 e5 Nf3 f6", 20230131), "bbbbbbbb": SourceGame("d4 d5", 20230201)}
    outcomes: dict[str, str] = {}
    first, second, third, fourth = with_histories([one, known, wrong, none], games, "api", outcomes)
    assert (first.history, first.date) == (OPENING_MOVES, 20230131) and second == known and fourth == none
    assert (third.history, third.date) == ((), 20230201)
    assert outcomes == {"a": "history_from_api", "c": "game_of_api_does_not_lead_to_the_position"}
    assert prompt_tokens(first, "history", think=False) == prompt_tokens(known, "history", think=False)


def test_games_are_told_apart_as_the_corpus_does_it(tmp_path):
    def headers(identifier: str, white: str = "a") -> str:
        return f'[Event "Rated game"]\n[Site "https://lichess.org/{identifier}"]\n[White "{white}"]\n[Result "*"]\n\n'

    text = headers("aaaaaaaa", r"a \"quoted\" name") + "1. e4 e5 *\n\n" + headers("bbbbbbbb") + headers("cccccccc") + "1. d4 d5 *\n"
    (tmp_path / "games.pgn").write_text(text)
    report = ReadReport()
    games = find_games([tmp_path / "games.pgn"], {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, report)
    assert report.read == report.kept == 3
    assert {identifier: game.movetext for identifier, game in games.items()} == {"aaaaaaaa": "1. e4 e5 *", "bbbbbbbb": "", "cccccccc": "1. d4 d5 *"}
