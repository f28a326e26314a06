"""Small packs and the shipped pack: proven puzzles, no decision shared between splits or with the games, everything dropped counted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest

from chessrl import endgame, endgame_games, endgame_puzzles
from chessrl.command import parse_settings
from chessrl.endgame import EndgameSettings
from chessrl.endgame_games import GamesTask, play_task
from chessrl.endgame_positions import canonical_key, random_position
from chessrl.endgame_puzzles import MatePuzzle, bin_of, decision_keys, puzzle_table, split_counts
from chessrl.errors import UserError
from tests.test_endgame import STOCKFISH, PlainSolver, after, images, needs_stockfish

SMALL_PACK = {"games": 24, "puzzles": 60, "materials": ("KQK", "KRK", "KPK", "KQKR", "KRRK", "KQQKQ"), "seed": 3}
DATA = Path(endgame.__file__).parent / "data"


# ---- a small pack ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if STOCKFISH is None:
        pytest.skip("needs Stockfish")
    out = tmp_path_factory.mktemp("pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(endgame_puzzles.FIVE_MEN_WEIGHT, 4, 0.0)  # plain search takes too long over mates in four of five men
        endgame.generate(EndgameSettings(out=str(out), workers=1, **SMALL_PACK))
    return out


def check_puzzle(row: pd.Series) -> None:
    """Distance, only moves, longest defence (first in UCI order), bin and themes, by plain search and replay."""
    board, plain = chess.Board(row.fen), PlainSolver()
    assert board.is_valid() and row.lead == 0 and row.history == ""
    assert row.themes == f"mateIn{row.difficulty} {row.themes.split()[1]}"
    letters = sorted(piece.symbol().upper() for piece in board.piece_map().values())
    assert letters == sorted(row.themes.split()[1]) and row.bin == bin_of(row.difficulty, len(letters))
    assert plain.mate_in(board, row.difficulty) == row.difficulty, row.fen
    moves = row.moves.split()
    assert len(moves) == 2 * row.difficulty - 1
    for remaining in range(row.difficulty, 1, -1):
        keeping = [move.uci() for move in board.legal_moves if plain.mated(after(board, move), remaining - 1)]
        assert keeping == [moves.pop(0)], row.fen
        board.push_uci(keeping[0])
        longest = [reply.uci() for reply in board.legal_moves if not plain.mates(after(board, reply), remaining - 2)]
        assert min(longest) == moves.pop(0), row.fen
        board.push_uci(min(longest))
    board.push_uci(moves[0])
    assert board.is_checkmate()


def check_game(row: pd.Series, max_plies: int) -> None:
    board = chess.Board(row.fen)
    assert board.is_valid() and not board.is_game_over()
    for place, move in enumerate(row.moves.split()):
        assert place == 0 or endgame_games.ending_of(board, False) == ""
        board.push(board.parse_uci(move))
    ending = {
        "checkmate": board.is_checkmate(),
        "stalemate": board.is_stalemate(),
        "insufficient_material": board.is_insufficient_material(),
        "threefold_repetition": board.is_repetition(3),
        "ply_cap": len(board.move_stack) == max_plies,
    }
    assert ending[row.ending], row.fen
    mated = ("0-1" if board.turn else "1-0") if board.is_checkmate() else None
    assert row.result == (mated or ("*" if row.ending == "ply_cap" else "1/2-1/2"))


def least_image(board: chess.Board) -> tuple[int, ...]:
    """One value for all mirror images of a position, by python-chess's own flips: the least of their bitboards, the mover as White."""
    if board.turn == chess.BLACK:
        board = board.mirror()
    bitboards = (board.kings, board.queens, board.rooks, board.bishops, board.knights, board.pawns, *board.occupied_co)
    flips = [chess.flip_horizontal]
    if not board.pawns:
        flips += [chess.flip_vertical, chess.flip_diagonal]
    same = [bitboards]
    for flip in flips:
        same += [tuple(map(flip, image)) for image in same]
    return min(same)


def line_images(fen: str, moves: str) -> list[tuple[int, ...]]:
    """``least_image`` of ``fen`` and of the position after each move."""
    board = chess.Board(fen)
    places = [least_image(board)]
    for move in moves.split():
        board.push_uci(move)
        places.append(least_image(board))
    return places


def test_least_image_is_the_same_for_mirror_images_and_no_others() -> None:
    generator = np.random.default_rng(0)
    for material in ("KQKR", "KPK", "KRBKN"):
        board = random_position(material, generator)
        assert {least_image(chess.Board(f"{image} - - 0 1")) for image in images(board)} == {least_image(board)}
        assert least_image(after(board, next(iter(board.legal_moves)))) != least_image(board)


def decisions_of(puzzles: pd.DataFrame) -> list[tuple[tuple[int, ...], str]]:
    """Every position of every line in which the solver is to move, as its least image, and its puzzle's id."""
    return [(place, row.id) for row in puzzles.itertuples() for place in line_images(row.fen, row.moves)[:-1:2]]


def check_apart(puzzles: pd.DataFrame, games: pd.DataFrame) -> None:
    """No position in which a solver is to move occurs in two puzzles, first or later in their lines, or in a game."""
    decisions = decisions_of(puzzles)
    assert len(decisions) == puzzles["difficulty"].sum()
    owner: dict[tuple[int, ...], str] = {}
    for place, puzzle in decisions:
        assert owner.setdefault(place, puzzle) == puzzle
    assert len(owner) == len(decisions)
    for game in games.itertuples():
        assert owner.keys().isdisjoint(line_images(game.fen, game.moves)), game.fen


def mate_puzzle(material: str, fen: str, moves: str) -> MatePuzzle:
    line = tuple(moves.split())
    return MatePuzzle(material, (len(line) + 1) // 2, fen, line, decision_keys(chess.Board(fen), line))


@pytest.mark.long
def test_small_pack_puzzles_are_proven_by_an_independent_solver(small_pack: Path) -> None:
    puzzles = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    assert len(puzzles) == SMALL_PACK["puzzles"]
    assert set(puzzles["difficulty"]) == {1, 2, 3, 4}
    for row in puzzles.itertuples():
        check_puzzle(row)


def test_small_pack_splits_and_games_share_no_decision_under_any_symmetry(small_pack: Path) -> None:
    puzzles, games = (pd.read_parquet(small_pack / name) for name in (endgame.PUZZLES_FILE, endgame.GAMES_FILE))
    check_apart(puzzles, games)
    assert puzzles["id"].is_unique
    counts = {split: group["bin"].value_counts().to_dict() for split, group in puzzles.groupby("split")}
    expected = split_counts(SMALL_PACK["puzzles"])
    assert counts == {split: {name: n for name, n in bins.items() if n} for split, bins in expected.items()}


@pytest.mark.parametrize("ply", [0, 2])
def test_a_puzzle_that_a_game_passes_through_is_dropped_and_counted(
    small_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture, ply: int
) -> None:
    """A game through the mirror image of a decision of a found puzzle, the first or a later one, takes exactly that puzzle away."""
    settings = EndgameSettings(out=str(tmp_path), puzzles=6, **{k: v for k, v in SMALL_PACK.items() if k != "puzzles"})
    puzzles = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    found = [mate_puzzle(row.themes.split()[1], row.fen, row.moves) for row in puzzles.itertuples()]
    lost = next(puzzle for puzzle in found if len(puzzle.line) > ply)
    board = chess.Board(lost.fen)
    for move in lost.line[:ply]:
        board.push_uci(move)
    games, _ = play_task(GamesTask(STOCKFISH, 0, 0, 2, 10, ("KQK",)))
    visited = np.array([1, canonical_key(board.mirror().transform(chess.flip_horizontal))])
    endgame.assemble(settings, "engine", games, visited, found, endgame.Counter({"looked at": 5}))
    manifest = json.loads((tmp_path / endgame.MANIFEST_FILE).read_text())
    reason = "a game passes through " + ("a later decision" if ply else "it")
    assert manifest["positions_rejected_as_puzzles"] == {"looked at": 5, reason: 1, "surplus": len(found) - 1 - 6}
    assert f"games: 2; puzzles: 6; positions rejected as puzzles: {reason} 1, looked at 5, " in capsys.readouterr().out
    assert lost.fen not in set(pd.read_parquet(tmp_path / endgame.PUZZLES_FILE)["fen"])


def test_a_puzzle_whose_first_position_is_a_later_decision_of_another_is_not_chosen_beside_it(small_pack: Path) -> None:
    """The mirrored end of each longer line, asked as a puzzle of its own, is refused and counted, and is no surplus."""
    rows = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    found = [mate_puzzle(row.themes.split()[1], row.fen, row.moves) for row in rows.itertuples()]
    ends = []
    for puzzle in found:
        if puzzle.distance > 1:
            board = chess.Board(puzzle.fen)
            for move in puzzle.line[:-1]:
                board.push_uci(move)
            mirrored = chess.Move.from_uci(puzzle.line[-1])
            mirrored = chess.Move(mirrored.from_square ^ 56, mirrored.to_square ^ 56, mirrored.promotion)
            ends.append(mate_puzzle(puzzle.material, board.mirror().fen(), mirrored.uci()))
    table, reasons = puzzle_table(ends + found, len(found), seed=0)
    assert set(table["fen"]) == {puzzle.fen for puzzle in found}
    assert ends and reasons == {"shares a decision with a chosen puzzle": len(ends)}


def test_small_pack_games_replay_to_their_recorded_end(small_pack: Path) -> None:
    games = pd.read_parquet(small_pack / endgame.GAMES_FILE)
    assert len(games) == SMALL_PACK["games"]
    for row in games.itertuples():
        check_game(row, EndgameSettings(out="").max_plies)
    assert games["fen"].str.contains(" w ").nunique() == 2


@needs_stockfish
def test_the_same_seed_gives_the_same_tables_with_one_worker_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endgame, "GAMES_PER_TASK", 3)
    few = {"games": 8, "puzzles": 12, "materials": ("KQK", "KRK", "KRRK")}
    packs = {}
    for name, workers, seed in (("one", 1, 0), ("two", 2, 0), ("other", 1, 1)):
        endgame.generate(EndgameSettings(out=str(tmp_path / name), workers=workers, seed=seed, **few))
        packs[name] = [pd.read_parquet(tmp_path / name / file) for file in (endgame.GAMES_FILE, endgame.PUZZLES_FILE)]
    for one, two, other in zip(packs["one"], packs["two"], packs["other"]):
        pd.testing.assert_frame_equal(one, two)
        assert not one["fen"].equals(other["fen"])
    hashes = [json.loads((tmp_path / name / endgame.MANIFEST_FILE).read_text())["files"] for name in ("one", "two")]
    assert hashes[0] == hashes[1]


# ---- bad input ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gmaes=5", "gmaes"),
        ("games=many", "games=many"),
        ("games=0", "games=0: expected at least 1"),
        ("materials=KQK,KXK", "materials=KXK: expected names"),
        ("engine=/no/such/program", "/no/such/program"),
    ],
)
def test_bad_arguments_are_named(argument: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        endgame.main([f"out={tmp_path}", argument])
    assert not list(tmp_path.iterdir())


def test_the_output_folder_must_be_named() -> None:
    with pytest.raises(UserError, match="out"):
        parse_settings(EndgameSettings, ["games=5"])


@needs_stockfish
def test_too_many_puzzles_for_the_materials_names_the_bin_that_runs_short(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"puzzles=400: bin B\d needs \d+ puzzles, \d+ were found"):
        endgame.main([f"out={tmp_path}", "games=1", "puzzles=400", "materials=KRK", "workers=1"])


# ---- the shipped pack -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest() -> dict:
    return json.loads((DATA / endgame.MANIFEST_FILE).read_text())


def test_shipped_pack_is_complete_and_what_its_manifest_says(manifest: dict) -> None:
    games, puzzles = endgame.load_games(), endgame.load_puzzle_table()
    for name, table_ in ((endgame.GAMES_FILE, games), (endgame.PUZZLES_FILE, puzzles)):
        content = (DATA / name).read_bytes()
        assert manifest["files"][name] == {"rows": len(table_), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert sum(path.stat().st_size for path in DATA.glob("endgame_*")) <= 5_000_000
    assert len(games) >= 50_000 and games["material"].nunique() >= 12
    assert set(games["material"].str.len()) == {3, 4, 5}
    assert (games["white_nodes"] != games["black_nodes"]).any() and games["white_noise"].between(0, 1).all()
    assert len(puzzles) >= 12_000 and puzzles["id"].is_unique
    assert (puzzles["split"] == "test").sum() >= 1_000
    counts = {split: group["bin"].value_counts().to_dict() for split, group in puzzles.groupby("split")}
    assert counts == split_counts(len(puzzles))
    solver_is_white = puzzles["fen"].str.split().str[1].eq("w")
    assert 0.45 < solver_is_white.mean() < 0.55


def test_shipped_splits_share_no_decision_and_no_game_passes_through_one() -> None:
    """All puzzles, and a sample of the games large enough to meet dozens of decisions where only first positions are kept apart."""
    check_apart(endgame.load_puzzle_table(), endgame.load_games().sample(1500, random_state=5))


def test_shipped_manifest_counts_what_was_lost_to_shared_decisions(manifest: dict) -> None:
    rejected = manifest["positions_rejected_as_puzzles"]
    lost = ("a game passes through it", "a game passes through a later decision", "shares a decision with a chosen puzzle", "surplus")
    assert all(rejected[reason] > 0 for reason in lost)
    assert manifest["decisions_of_puzzles"] == endgame.load_puzzle_table()["difficulty"].sum()


def test_a_sample_of_shipped_puzzles_is_proven_again() -> None:
    """Forty puzzles of every distance; of five men only to mate in two, where plain search is affordable."""
    puzzles = endgame.load_puzzle_table()
    men = puzzles["themes"].str.split().str[1].str.len()
    for distance, count in ((1, 15), (2, 15), (3, 8), (4, 2)):
        affordable = puzzles[(puzzles["difficulty"] == distance) & (men <= (5 if distance <= 2 else 4))]
        for row in affordable.sample(count, random_state=distance).itertuples():
            check_puzzle(row)


def test_a_sample_of_shipped_games_replays_to_its_recorded_end(manifest: dict) -> None:
    for row in endgame.load_games().sample(200, random_state=9).itertuples():
        check_game(row, manifest["settings"]["max_plies"])
