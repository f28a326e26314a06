"""The endgame world: retrograde tables, mate search, games, puzzles and the shipped pack, checked against plain searches written here."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest

from chessrl import endgame, endgame_games, endgame_puzzles, endgame_search
from chessrl.command import parse_settings
from chessrl.endgame import EndgameSettings
from chessrl.endgame_games import EngineFailure, GamesTask, PlainEngine, play_task
from chessrl.endgame_positions import GAME_WEIGHTS, canonical_key, random_position, sides
from chessrl.endgame_puzzles import bin_of, split_counts
from chessrl.endgame_search import MateSearch
from chessrl.endgame_tables import lost_in, table, won_in
from chessrl.engine import find_stockfish
from chessrl.errors import UserError

try:
    STOCKFISH = find_stockfish()
except UserError:
    STOCKFISH = None
needs_stockfish = pytest.mark.skipif(STOCKFISH is None, reason="needs Stockfish")
SMALL_PACK = {"games": 24, "puzzles": 60, "materials": ("KQK", "KRK", "KPK", "KQKR", "KRRK", "KQQKQ"), "seed": 3}
DATA = Path(endgame.__file__).parent / "data"


class PlainSolver:
    """Mate within n by plain recursion on python-chess boards, every move of both sides; shares no code with the library."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], bool] = {}

    def mates(self, board: chess.Board, moves: int) -> bool:
        """Side to move mates within ``moves``."""
        if moves == 0:
            return False
        place = (board.epd(en_passant="legal"), moves)
        if place not in self.known:
            self.known[place] = any(self.mated(after(board, move), moves - 1) for move in board.legal_moves)
        return self.known[place]

    def mated(self, board: chess.Board, moves: int) -> bool:
        """Side to move is mated within ``moves`` moves of the other side."""
        if not any(board.legal_moves):
            return board.is_check()
        return moves > 0 and all(self.mates(after(board, move), moves) for move in board.legal_moves)

    def mate_in(self, board: chess.Board, limit: int) -> int | None:
        return next((n for n in range(1, limit + 1) if self.mates(board, n)), None)

    def mated_in(self, board: chess.Board, limit: int) -> int | None:
        return next((n for n in range(limit + 1) if self.mated(board, n)), None)


def after(board: chess.Board, move: chess.Move | str) -> chess.Board:
    board = board.copy(stack=False)
    board.push(chess.Move.from_uci(move) if isinstance(move, str) else move)
    return board


def upto(distance: int | None, limit: int) -> int | None:
    return distance if distance is not None and distance <= limit else None


def images(board: chess.Board) -> set[str]:
    """Placement and side of all positions that count as the same one, made by python-chess's own transformations."""
    mirrors = [lambda bitboards: bitboards, chess.flip_horizontal]
    if not board.pawns:
        mirrors += [chess.flip_vertical, lambda bitboards: chess.flip_vertical(chess.flip_horizontal(bitboards))]
        mirrors += [lambda b, m=mirror: chess.flip_diagonal(m(b)) for mirror in list(mirrors)]
    same = [board.transform(mirror) for mirror in mirrors]
    return {" ".join(image.fen().split()[:2]) for one in same for image in (one, one.mirror())}


# ---- positions and their key ----------------------------------------------------------------------------------------------------------


def test_mirror_images_have_one_key_and_other_positions_have_others() -> None:
    generator = np.random.default_rng(0)
    seen: dict[int, str] = {}
    for material in [*GAME_WEIGHTS, *["KQK", "KRK"] * 60]:
        board = random_position(material, generator)
        assert board.is_valid()
        own = images(board)
        assert {canonical_key(chess.Board(f"{image} - - 0 1")) for image in own} == {canonical_key(board)}
        assert seen.setdefault(canonical_key(board), min(own)) == min(own)
    assert len(seen) > 100


def test_key_of_a_pawn_position_keeps_the_direction_of_pawns() -> None:
    board = chess.Board("8/8/4k3/8/8/4K3/4P3/8 w - - 0 1")
    assert canonical_key(board) != canonical_key(chess.Board("8/4P3/4K3/8/8/4k3/8/8 w - - 0 1"))
    assert canonical_key(board) != canonical_key(chess.Board("8/8/4k3/8/8/4K3/4P3/8 b - - 0 1"))


# ---- tables and search ----------------------------------------------------------------------------------------------------------------


def test_rook_table_has_the_published_number_of_lost_positions() -> None:
    """The UCI data set "Chess (King-Rook vs. King)" counts positions up to symmetry, Black to move: 27, 78, 246, 81, 198 for 0 to 4."""
    rook = table("KR", "K")
    for n, published in enumerate((27, 78, 246, 81, 198)):
        exact = rook.lost[chess.BLACK][n] & ~(rook.lost[chess.BLACK][n - 1] if n else np.uint64(0))
        keys = set()
        for black_king, square in np.argwhere(exact).tolist():
            for king in chess.scan_forward(int(exact[black_king, square])):
                board = chess.Board(None)
                board.turn = chess.BLACK
                for place, symbol in ((king, "K"), (black_king, "k"), (square, "R")):
                    board.set_piece_at(place, chess.Piece.from_symbol(symbol))
                keys.add(canonical_key(board))
        assert len(keys) == published


@pytest.mark.parametrize("material", ["KQK", "KPK", "KQKR", "KBNK", "KRRK", "KRKP", "KPKP"])
def test_tables_equal_plain_search(material: str) -> None:
    """Random positions, mostly without a mate within reach, and positions drawn from every set of the table; both colours."""
    generator = np.random.default_rng(7)
    own = table(*sides(material))
    boards = [random_position(material, generator) for _ in range(15)]
    for side in chess.COLORS:
        for moves in (1, 2, 3):
            boards += own.sample(side, moves, 4 if moves < 3 else 1, generator)
    boards += [board.mirror() for board in boards[15:40:3]]
    distances = set()
    for board in boards:
        plain = PlainSolver()
        distances.add(won_in(board))
        limit = 3 if won_in(board) == 3 else 2
        assert upto(won_in(board), limit) == plain.mate_in(board, limit), board.fen()
        assert upto(lost_in(board), 1) == plain.mated_in(board, 1), board.fen()
        for move in list(board.legal_moves)[:4]:
            reply = after(board, move)
            if not reply.has_legal_en_passant():
                assert upto(lost_in(reply), 1) == plain.mated_in(reply, 1), reply.fen()
    assert {None, 1, 2} <= distances


def test_a_double_step_that_could_be_taken_en_passant_is_no_quiet_move() -> None:
    """Random KPKP positions in which a double step meets an enemy pawn: tables and search against plain search."""
    generator = np.random.default_rng(1)
    search, checked = MateSearch(), 0
    while checked < 12:
        board = random_position("KPKP", generator)
        steps = [after(board, move) for move in board.legal_moves]
        passing = [reply for reply in steps if reply.has_legal_en_passant()]
        if passing:
            checked += 1
            plain = PlainSolver()
            assert upto(won_in(board), 2) == plain.mate_in(board, 2), board.fen()
            assert search.mated_in(passing[0], 2) == plain.mated_in(passing[0], 2), passing[0].fen()


def test_known_positions() -> None:
    assert won_in(chess.Board("7k/8/5KQ1/8/8/8/8/8 w - - 0 1")) == 1
    assert won_in(chess.Board("8/8/8/8/8/5kq1/8/7K b - - 0 1")) == 1  # the same with Black strong
    assert lost_in(chess.Board("7k/6Q1/5K2/8/8/8/8/8 b - - 0 1")) == 0
    assert lost_in(chess.Board("7k/5Q2/5K2/8/8/8/8/8 b - - 0 1")) is None  # stalemate
    assert won_in(chess.Board("k7/7P/1K6/8/8/8/8/8 w - - 0 1")) == 1  # promotion mates
    assert won_in(chess.Board("8/8/8/4k3/8/8/8/KQ6 w - - 0 1")) is None  # mate in more than four


def test_search_without_tables_equals_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = [board for n in (1, 2, 3) for board in table("KR", "K").sample(chess.WHITE, n, 8, np.random.default_rng(2))]
    boards += [after(board, next(iter(board.legal_moves))) for board in boards]
    expected = [(upto(won_in(board), 3), upto(lost_in(board), 2)) for board in boards]
    monkeypatch.setattr(endgame_search, "_in_tables", lambda board: False)
    search = MateSearch()
    assert [(search.mate_in(board, 3) if won else None, search.mated_in(board, 2)) for board, (won, _) in zip(boards, expected)] == expected
    assert search.positions > 0


def test_search_of_five_men_equals_plain_search() -> None:
    generator = np.random.default_rng(4)
    found = set()
    for material in ("KQQKQ", "KQRKR", "KRPKP"):
        for _ in range(12):
            board = random_position(material, generator)
            distance = MateSearch().mate_in(board, 2)
            found.add(distance)
            assert distance == PlainSolver().mate_in(board, 2), board.fen()
    assert {None, 1, 2} <= found


def test_search_refuses_what_the_tables_under_it_cannot_prove() -> None:
    with pytest.raises(ValueError, match="mate in 5"):
        MateSearch().mates_within(chess.Board("8/8/8/4k3/8/8/8/KQ6 w - - 0 1"), 5)


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


def positions_of(games: pd.DataFrame) -> set[int]:
    keys = set()
    for row in games.itertuples():
        board = chess.Board(row.fen)
        keys.add(canonical_key(board))
        for move in row.moves.split():
            board.push_uci(move)
            keys.add(canonical_key(board))
    return keys


def test_small_pack_puzzles_are_proven_by_an_independent_solver(small_pack: Path) -> None:
    puzzles = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    assert len(puzzles) == SMALL_PACK["puzzles"]
    assert set(puzzles["difficulty"]) == {1, 2, 3, 4}
    for row in puzzles.itertuples():
        check_puzzle(row)


def test_small_pack_splits_share_no_position_under_any_symmetry(small_pack: Path) -> None:
    puzzles = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    least_image = [min(images(chess.Board(fen))) for fen in puzzles["fen"]]
    assert len(set(least_image)) == len(puzzles) == puzzles["id"].nunique()
    counts = {split: bins.to_dict() for split, bins in puzzles.groupby("split")["bin"].value_counts().unstack(fill_value=0).iterrows()}
    expected = split_counts(SMALL_PACK["puzzles"])
    assert {split: {name: n for name, n in bins.items() if n} for split, bins in counts.items()} == {
        split: {name: n for name, n in bins.items() if n} for split, bins in expected.items()
    }


def test_no_game_of_the_small_pack_passes_through_a_puzzle(small_pack: Path) -> None:
    puzzles, games = (pd.read_parquet(small_pack / name) for name in (endgame.PUZZLES_FILE, endgame.GAMES_FILE))
    assert not positions_of(games) & {canonical_key(chess.Board(fen)) for fen in puzzles["fen"]}


def test_a_puzzle_that_a_game_passes_through_is_dropped_and_counted(small_pack: Path, tmp_path: Path) -> None:
    """A game through the mirror image of a found puzzle's position takes exactly that puzzle away."""
    settings = EndgameSettings(out=str(tmp_path), puzzles=6, **{k: v for k, v in SMALL_PACK.items() if k != "puzzles"})
    puzzles = pd.read_parquet(small_pack / endgame.PUZZLES_FILE)
    found = [
        endgame.MatePuzzle(row.themes.split()[1], row.difficulty, row.fen, tuple(row.moves.split()), canonical_key(chess.Board(row.fen)))
        for row in puzzles.itertuples()
    ]
    games, _ = play_task(GamesTask(STOCKFISH, 0, 0, 2, 10, ("KQK",)))
    visited = np.array([canonical_key(chess.Board(found[0].fen).mirror().transform(chess.flip_horizontal))])
    endgame.assemble(settings, "engine", games, visited, found, endgame.Counter())
    manifest = json.loads((tmp_path / endgame.MANIFEST_FILE).read_text())
    assert manifest["positions_rejected_as_puzzles"] == {"a game passes through it": 1, "surplus": len(found) - 1 - 6}
    assert found[0].fen not in set(pd.read_parquet(tmp_path / endgame.PUZZLES_FILE)["fen"])


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


# ---- the engine, and bad input --------------------------------------------------------------------------------------------------------


@needs_stockfish
def test_a_game_whose_engine_dies_is_played_again_and_comes_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task = GamesTask(STOCKFISH, 0, 0, 4, 20, ("KQKR", "KQRKR"))
    expected, keys = play_task(task)
    best_move, calls = PlainEngine.best_move, []

    def dying(engine: PlainEngine, fen: str, moves: list[str], nodes: int) -> str:
        calls.append(fen)
        if len(calls) == 12:
            engine._process.kill()
            engine._process.wait()
        return best_move(engine, fen, moves, nodes)

    monkeypatch.setattr(PlainEngine, "best_move", dying)
    games, keys_again = play_task(task)
    assert len(calls) > 12
    assert games == expected and np.array_equal(keys, keys_again)


def test_an_engine_that_ends_or_is_silent_is_an_error_and_leaves_no_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(endgame_games, "REPLY_DEADLINE_S", 0.3)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1])
    for name, script, message in (("ends", "exit 0", "has ended"), ("silent", "exec sleep 60", "no 'uciok' within")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with pytest.raises(EngineFailure, match=message):
            PlainEngine(program)
        assert started[-1].poll() is not None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gmaes=5", "gmaes"),
        ("games=many", "games=many"),
        ("games=0", "games=0 is too small"),
        ("materials=KQK,KXK", "'KXK' is not known"),
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


def test_shipped_puzzles_share_no_position_and_are_in_no_game() -> None:
    puzzles, games = endgame.load_puzzle_table(), endgame.load_games()
    keys = {canonical_key(chess.Board(fen)) for fen in puzzles["fen"]}
    assert len(keys) == len(puzzles)
    assert not keys & positions_of(games.sample(1500, random_state=5))


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
