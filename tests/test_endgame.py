"""The endgame world: position keys, retrograde tables, mate search and the engine's reader, checked against plain searches written here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import chess
import numpy as np
import pytest

from chessrl import endgame_games, endgame_search
from chessrl.endgame_games import EngineFailure, GamesTask, PlainEngine, play_task
from chessrl.endgame_positions import GAME_WEIGHTS, canonical_key, random_position, sides
from chessrl.endgame_search import MateSearch
from chessrl.endgame_tables import lost_in, table, won_in
from chessrl.engine import find_stockfish
from chessrl.errors import UserError

try:
    STOCKFISH = find_stockfish()
except UserError:
    STOCKFISH = None
needs_stockfish = pytest.mark.skipif(STOCKFISH is None, reason="needs Stockfish")


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


# ---- the engine -----------------------------------------------------------------------------------------------------------------------


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
