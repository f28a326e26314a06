"""Descriptions against counts made another way, with planted duplicates, overlaps and leaks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest

from chessrl.corpus import Corpus, build_corpus
from chessrl.describe import DescribeSettings, describe, main, terminal_text, write
from chessrl.describe_corpus import game_of_document
from chessrl.describe_figures import Section
from chessrl.errors import UserError
from chessrl.games import Game
from chessrl.notation import EOS, from_text, move_tokens, to_text
from chessrl.phases import phase_of
from chessrl.puzzles import Puzzle, save_puzzles

PLIES = (12, 25, 40, 61, 80)


def random_game(seed: int, plies: int, fen: str | None = None) -> Game:
    """A legal game of random moves; shorter if it ends before."""
    choose = random.Random(seed)
    board = chess.Board(fen or chess.STARTING_FEN)
    tokens = []
    while len(tokens) < plies and any(board.generate_legal_moves()):
        move = choose.choice(sorted(board.legal_moves, key=chess.Move.uci))
        tokens.append(tuple(move_tokens(board, move)))
        board.push(move)
    return Game(tuple(chain.from_iterable(tokens)), tuple(accumulate(map(len, tokens))), fen, "1-0", 1500, 1700, "blitz")


GAMES = [random_game(seed, plies) for seed, plies in enumerate(PLIES * 8)]


def moves_of(game: Game) -> list[chess.Move]:
    """By python-chess, from the tokens' text."""
    board, moves = chess.Board(game.start_fen or chess.STARTING_FEN), []
    for ply in game.plies:
        move = next(move for move in board.legal_moves if move_tokens(board, move) == list(ply))
        moves.append(move)
        board.push(move)
    return moves


def table(sections: list[Section], name: str) -> pd.DataFrame:
    (found,) = [section.table for section in sections if section.name == name]
    return found


@pytest.fixture(scope="module", params=["snapshot", "history"])
def corpus(request, tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp(request.param) / "corpus"
    set_up = random_game(99, 30, "4k3/pppp4/8/8/8/8/4PPPP/4K3 b - - 0 1")
    games = [*GAMES, GAMES[0], *([set_up] if request.param == "snapshot" else [])]
    build_corpus(games, folder, state=request.param, context=200, seed=0, validation_share=0.3, shard_tokens=2000)
    return folder, request.param


def test_tokens_by_class_equal_a_count_by_name(corpus: tuple[Path, str]) -> None:
    folder, state = corpus
    counted = table(describe(DescribeSettings(data=str(folder))), "tokens_by_class")
    for split in ("train", "validation"):
        expected: Counter[str] = Counter()
        shard = Corpus.open(folder, split)
        for index in range(len(shard)):
            words = to_text(shard.document(index).tolist()).split()
            inside = False
            for place, word in enumerate(words):
                inside |= word == "<pos>"
                kind = "other"
                if inside:
                    kind = "snapshot"
                elif word in ("<bos>", "<eos>"):
                    kind = "<bos>, <eos>"
                elif word == "=" or words[place - 1] == "=":
                    kind = "promotion"
                elif word in ("+", "#"):
                    kind = "check or mate"
                elif word == "x":
                    kind = "capture"
                elif word.startswith("O-O"):
                    kind = "castling"
                elif word in "KQRBNP":
                    kind = "piece"
                elif len(word) == 2:
                    kind = "square"
                expected[kind] += 1
                inside &= word != "</pos>"
        rows = counted[counted["split"] == split]
        assert {kind: count for kind, count in zip(rows["class"], rows["count"]) if count} == expected
        assert rows["share"].sum() == pytest.approx(1)
        assert ("snapshot" in set(rows["class"])) == (state == "snapshot")


def test_documents_tokens_and_lengths_are_those_of_the_manifest(corpus: tuple[Path, str]) -> None:
    folder, _ = corpus
    sections = describe(DescribeSettings(data=str(folder)))
    manifest = Corpus.open(folder, "train").manifest
    totals = table(sections, "tokens").set_index("split")
    for split, entry in manifest["splits"].items():
        assert totals.loc[split, ["documents", "tokens", "loss tokens", "truncated"]].tolist() == [
            entry[name] for name in ("documents", "tokens", "loss_tokens", "truncated_documents")
        ]
        lengths = Corpus.open(folder, split).lengths
        assert totals.loc[split, "longest"] == lengths.max()
        assert totals.loc[split, "fill"] == round(lengths.mean() / 200, 3)
    account = table(sections, "account")
    (read,) = account.loc[(account["account"] == "games") & (account["what"] == "read"), "count"]
    assert read == len(GAMES) + 1 + (manifest["state"] == "snapshot")


def test_documents_are_read_back_as_the_games_they_were_made_of(corpus: tuple[Path, str]) -> None:
    folder, state = corpus
    endings = {(board.epd(), tuple(moves)) for board, moves in _suffixes([*GAMES, random_game(99, 30, "4k3/pppp4/8/8/8/8/4PPPP/4K3 b - - 0 1")])}
    shard = Corpus.open(folder, "train")
    for index in range(len(shard)):
        document = shard.document(index)
        fen, moves = game_of_document(document)
        assert state == "snapshot" or fen == chess.STARTING_FEN
        if document[-1] == EOS:
            assert (chess.Board(fen).epd(), tuple(moves)) in endings


def _suffixes(games: list[Game]):
    for game in games:
        board, moves = chess.Board(game.start_fen or chess.STARTING_FEN), moves_of(game)
        for place in range(len(moves)):
            yield board.copy(), moves[place:]
            board.push(moves[place])


def test_phases_count_every_move_of_the_sampled_documents(corpus: tuple[Path, str]) -> None:
    folder, _ = corpus
    counted = table(describe(DescribeSettings(data=str(folder), sample=1000)), "moves_by_phase")
    for split in ("train", "validation"):
        expected: Counter[str] = Counter()
        shard = Corpus.open(folder, split)
        for index in range(len(shard)):
            fen, moves = game_of_document(shard.document(index))
            board = chess.Board(fen)
            for move in moves:
                expected[phase_of(board)] += 1
                board.push(move)
        rows = counted[counted["split"] == split]
        assert {phase: count for phase, count in zip(rows["phase"], rows["count"]) if count} == expected
        assert table(describe(DescribeSettings(data=str(folder))), "games_by_length")["count"].sum() == len(GAMES) + 1 + (corpus[1] == "snapshot")


def test_a_smaller_sample_is_spread_over_the_split(corpus: tuple[Path, str]) -> None:
    folder, _ = corpus
    (section,) = [section for section in describe(DescribeSettings(data=str(folder), sample=3)) if section.name == "moves_by_phase"]
    assert "train 3, validation 3" in section.title


def test_a_planted_duplicate_is_found(corpus: tuple[Path, str]) -> None:
    found = table(describe(DescribeSettings(data=str(corpus[0]))), "duplicates").set_index("what")
    assert found.loc[["train", "validation"], "repeated"].sum() == 1
    assert found.loc["train and validation", "repeated"] == 0


def puzzle_from(game: Game, ply: int, split: str, name: str) -> Puzzle:
    """A puzzle whose first move is the game's move at ``ply`` and whose answer is the next one."""
    board, moves = chess.Board(game.start_fen or chess.STARTING_FEN), moves_of(game)
    for move in moves[:ply]:
        board.push(move)
    return Puzzle(name, board.fen(), (moves[ply].uci(), moves[ply + 1].uci()), 1, 1500, "B2", ("short",), split, game=name)


def test_planted_leaks_are_counted_by_the_puzzles_split(tmp_path: Path) -> None:
    build_corpus(GAMES, tmp_path / "corpus", state="history", context=1000, seed=0, validation_share=0.0, shard_tokens=2000)
    strange = random_game(1234, 40)
    puzzles = [puzzle_from(GAMES[4], 30, "test", "a"), puzzle_from(GAMES[9], 40, "sft", "b"), puzzle_from(strange, 30, "test", "c")]
    save_puzzles(puzzles, tmp_path / "puzzles.parquet")
    leaks = table(describe(DescribeSettings(data=str(tmp_path / "corpus"), puzzles=str(tmp_path / "puzzles.parquet"), sample=2)), "leaks")
    assert leaks.values.tolist() == [["train", "test", 40, 1, 2, 1], ["train", "sft", 40, 1, 1, 1]]


def test_the_table_of_games_adds_ratings_and_results(tmp_path: Path) -> None:
    build_corpus(GAMES, tmp_path / "corpus", state="history", context=1000, seed=0, validation_share=0.0, shard_tokens=2000)
    facts = pd.DataFrame(
        {
            "hash": np.arange(40, dtype=np.uint64) // 2 * 2,  # pairs
            "white_elo": pd.array([1500, None] * 20, dtype="Int16"),
            "black_elo": pd.array([1700] * 40, dtype="Int16"),
            "time_class": ["rapid"] * 30 + ["blitz"] * 10,
            "result": ["1-0"] * 40,
            "plies": [50] * 40,
            "split": ["train"] * 40,
        }
    )
    facts.to_parquet(tmp_path / "corpus" / "games.parquet")
    sections = describe(DescribeSettings(data=str(tmp_path / "corpus")))
    assert table(sections, "games_by_rating").values.tolist() == [["train", 1600, 1700, 20, 1.0]]
    assert table(sections, "results").values.tolist() == [["blitz", "1-0", 10, 0.25], ["rapid", "1-0", 30, 0.75]]
    assert table(sections, "games_by_length").values.tolist() == [["train", 50, 60, 40, 1.0]]
    assert table(sections, "duplicate_games").values.tolist() == [["train", 40, 20, 20]]


PGN = "".join(
    f'[Event "{event}"]\n[Result "{result}"]\n[WhiteElo "{elo}"]\n[BlackElo "1500"]\n[TimeControl "{control}"]\n\n{moves} {result}\n\n'
    for event, result, elo, control, moves in (
        ("Rated game", "1-0", "1400", "60+0", "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7#"),
        ("Casual game", "0-1", "1650", "600+0", "1. f3 e5 2. g4 Qh4#"),
        ("Rated game", "0-1", "?", "600+0", "1. f3 e5 2. g4 Qh4#"),
        ("Rated game", "*", "1400", "600+0", "1. e4"),
        ("Rated game", "1-0", "1400", "600+0", "1. e4 e5 2. Ke3"),
    )
)


def test_games_of_a_pgn_file(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(PGN)
    fool = Puzzle("fool", "rnbqkbnr/pppp1ppp/8/4p3/8/5P2/PPPPP1PP/RNBQKBNR w KQkq - 0 2", ("g2g4", "d8h4"), 1, 500, "B0", ("mateIn1",), "test")
    save_puzzles([fool], tmp_path / "puzzles.parquet")
    sections = describe(DescribeSettings(data=str(tmp_path / "games.pgn"), puzzles=str(tmp_path)))
    assert table(sections, "account").values.tolist() == [["reading", "read", 5], ["reading", "kept", 4], ["reading", "illegal_move", 1]]
    assert table(sections, "tokens").set_index("what")["count"].to_dict()["plies"] == 7 + 4 + 4 + 1
    assert table(sections, "tokens").set_index("what")["count"].to_dict()["tokens of moves"] == sum(map(len, SPELT))
    assert table(sections, "games_by_rating")["count"].tolist() == [2, 1]  # 1450 twice, 1575 once, one without a rating
    assert table(sections, "results").set_index(["time_class", "result"])["count"].to_dict() == {
        ("bullet", "1-0"): 1,
        ("bullet", "0-1"): 0,
        ("bullet", "*"): 0,
        ("rapid", "1-0"): 0,
        ("rapid", "0-1"): 2,
        ("rapid", "*"): 1,
    }
    assert table(sections, "duplicates").values.tolist() == [["all", 4, 3, 1]]
    assert table(sections, "leaks").values.tolist() == [["all", "test", 4, 2, 1, 1]]
    assert table(sections, "moves_by_phase").set_index("phase")["count"].to_dict() == {"opening": 16, "middlegame": 0, "endgame": 0}


SPELT = [
    from_text("P e2 e4 P e7 e5 B f1 c4 N b8 c6 Q d1 h5 N g8 f6 Q h5 x f7 #"),
    from_text("P f2 f3 P e7 e5 P g2 g4 Q d8 h4 #"),
    from_text("P f2 f3 P e7 e5 P g2 g4 Q d8 h4 #"),
    from_text("P e2 e4"),
]


def puzzle_set() -> list[Puzzle]:
    puzzles = []
    for number, game in enumerate(GAMES[3:40:5]):
        split = ("sft", "rl", "test", "test")[number % 4]
        puzzle = puzzle_from(game, 20 + number, split, f"p{number}")
        puzzles.append(replace(puzzle, difficulty=800 + 100 * number, bin=("B0", "B1")[number % 2], themes=("mate", "short")[: number % 3]))
    return puzzles


def test_puzzles_by_bin_theme_and_length(tmp_path: Path) -> None:
    puzzles = puzzle_set()
    save_puzzles(puzzles, tmp_path / "puzzles.parquet")
    sections = describe(DescribeSettings(data=str(tmp_path)))
    for name, column, value in (("puzzles_by_bin", "bin", lambda puzzle: puzzle.bin), ("puzzles_by_length", "solver moves", lambda _: 1)):
        expected = Counter((puzzle.split, value(puzzle)) for puzzle in puzzles)
        counted = table(sections, name)
        assert {(row["split"], row[column]): row["count"] for _, row in counted.iterrows() if row["count"]} == expected
    themes = table(sections, "puzzles_by_theme")
    assert list(dict.fromkeys(themes["theme"])) == ["mate", "short"]  # by number
    expected = Counter((theme, puzzle.split) for puzzle in puzzles for theme in puzzle.themes)
    assert {(row["theme"], row["split"]): row["count"] for _, row in themes.iterrows() if row["count"]} == expected
    tokens = table(sections, "tokens")
    assert set(tokens["what"]) == {"prompt, snapshot", "answer with replies"}  # none has a history
    for splits in ("duplicates", "duplicate_ids"):
        assert table(sections, splits)["repeated"].sum() == 0
    assert table(sections, "overlaps")[["shared positions", "shared games"]].sum().tolist() == [0, 0]


def test_planted_overlaps_and_duplicates_of_puzzles(tmp_path: Path) -> None:
    puzzles = puzzle_set()
    twin = replace(puzzles[0], id="twin", split="test")  # the same position and game in another split
    again = replace(puzzles[0], id="again", game="another")  # ... and once more in its own
    save_puzzles([*puzzles, twin, again, puzzles[1]], tmp_path / "puzzles.parquet")
    sections = describe(DescribeSettings(data=str(tmp_path / "puzzles.parquet"), puzzles=str(tmp_path / "puzzles.parquet")))
    overlaps = table(sections, "overlaps").set_index(["split", "other"])
    assert overlaps.loc[("sft", "test")].tolist() == [2, 1]  # fen and the asked position; the game
    assert overlaps.drop(index=("sft", "test")).sum().sum() == 0
    asked = table(sections, "duplicates").set_index("what")["repeated"]
    assert asked[["sft", "rl", "test", "sft and test"]].tolist() == [1, 1, 0, 1]
    assert table(sections, "duplicate_ids").set_index("what")["repeated"]["rl"] == 1
    leaks = table(sections, "leaks")
    assert leaks["puzzles"].tolist() == leaks["share a position"].tolist() == leaks["share a game"].tolist()


def test_a_lichess_file_has_its_account(tmp_path: Path) -> None:
    row = "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1"
    (tmp_path / "puzzles.csv").write_text(
        f"PuzzleId,FEN,Moves,Rating,Themes,GameUrl\n00008,{row},1913,crushing long,https://lichess.org/787zsVup/black#48\nbad,{row},x,a,\n"
    )
    sections = describe(DescribeSettings(data=str(tmp_path / "puzzles.csv")))
    assert table(sections, "account").values.tolist() == [["reading", "read", 2], ["reading", "kept", 1], ["reading", "bad_rating", 1]]
    assert table(sections, "puzzles_by_length").values.tolist() == [["all", 3, 1, 1.0]]


def test_the_command_writes_a_table_for_every_section_and_a_figure_where_one_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    save_puzzles(puzzle_set(), tmp_path / "puzzles.parquet")
    main([f"data={tmp_path}", f"out={tmp_path / 'out'}"])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"puzzles_by_bin.csv", "puzzles_by_bin.png", "puzzles_by_theme.png", "puzzles_by_length.png", "puzzles_by_difficulty.png"} <= names
    assert {"tokens.csv", "overlaps.csv", "duplicates.csv"} <= names
    text = capsys.readouterr().out
    assert "puzzles_by_bin: puzzles by difficulty bin" in text
    assert f"tables and figures are in {tmp_path / 'out'}" in text


def test_the_terminal_has_a_column_per_split() -> None:
    rows = pd.DataFrame(
        {"theme": ["mate", "mate", "pin"], "split": ["sft", "test", "test"], "count": [1200, 5, 7], "share": [0.5, 0.25, 0.35]}
    )
    lines = terminal_text(Section("puzzles_by_theme", "by theme", rows)).splitlines()
    assert lines[0] == "puzzles_by_theme: by theme"
    assert [line.split() for line in lines[2:]] == [["mate", "1,200", "(50.0%)", "5", "(25.0%)"], ["pin", "NaN", "7", "(35.0%)"]]


def test_an_empty_table_is_written_and_not_drawn(tmp_path: Path) -> None:
    def draw(_: pd.DataFrame):
        raise AssertionError("drawn")

    section = Section("nothing", "nothing at all", pd.DataFrame({"split": [], "count": [], "share": []}), draw)
    write([section], tmp_path)
    assert (tmp_path / "nothing.csv").exists()
    assert terminal_text(section).endswith("nothing\n")


@pytest.mark.parametrize("data", ["absent", "absent.pgn", "absent.csv.zst", "."])
def test_data_of_no_known_kind_is_one_line(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"data={data}: expected a corpus folder") as error:
        describe(DescribeSettings(data=data))
    assert "\n" not in str(error.value)
