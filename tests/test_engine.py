"""The engine pool and its labels. Fake engines are small UCI programs that fail in one way each."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import chess
import pytest

from chessrl import engine as engine_module
from chessrl.engine import Engine, EngineSettings, find_stockfish
from chessrl.engine_labels import (
    LabelCache,
    MoveLabels,
    MoveScore,
    accepted_moves,
    deepest_complete,
    expected_score,
    position_key,
    scores_by_depth,
)
from chessrl.engine_process import EngineProcess
from chessrl.errors import UserError

ROOT = Path(__file__).parents[1]
needs_stockfish = pytest.mark.skipif(
    shutil.which("stockfish") is None and not engine_module.DEBIAN_STOCKFISH.exists(), reason="Stockfish is not installed"
)
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the process table in /proc (Linux)")

QUICK = {"depth": 4, "nodes": 3000, "workers": 1}
MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/R3K2R w KQ - 0 1"
ONE_MOVE_THEN_MATED = "7k/8/5K2/8/8/8/8/6Q1 b - - 0 1"
HANGS = "8/8/8/8/8/1k6/8/K6R w - - 0 1"  # the fake engines' trouble starts here
HARMLESS = "8/8/8/8/8/1k6/8/K5R1 w - - 0 1"


def some_positions(count: int, seed: int = 0) -> list[chess.Board]:
    """Different positions of random games, none of them over."""
    generator = random.Random(seed)
    boards: dict[str, chess.Board] = {}
    while len(boards) < count:
        board = chess.Board()
        for _ in range(generator.randrange(4, 50)):
            if moves := list(board.legal_moves):
                board.push(generator.choice(moves))
        if any(board.legal_moves):
            boards[position_key(board)] = board
    return list(boards.values())


def children(parent: int) -> list[int]:
    """Process ids whose parent is ``parent``, zombies included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition) -> bool:
    """Whether ``condition`` comes true; gives up only after a time no healthy machine needs."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def fake_engine(folder: Path, on_go: str, name: str = "Fake", multipv: int = 500) -> str:
    """A UCI program that runs ``on_go`` (board, wanted = its moves, trouble = whether the board is HANGS) and then prints ``shown``."""
    path = folder / "fake-engine"
    source = f"""\
        #!{sys.executable}
        import os, signal, sys, time
        import chess
        count = 1
        for line in sys.stdin:
            words = line.split()
            if words[0] == "uci":
                print("id name {name}\\noption name MultiPV type spin default 1 min 1 max {multipv}\\nuciok")
            elif words[0] == "isready":
                print("readyok")
            elif words[:3] == ["setoption", "name", "MultiPV"]:
                count = int(words[-1])
            elif words[0] == "position":
                board = chess.Board(" ".join(words[2:]))
            elif words[0] == "go":
                trouble = board.fen() == "{HANGS}"
                single = words[words.index("searchmoves") + 1 :] if "searchmoves" in words else []
                wanted = single or [move.uci() for move in board.legal_moves]
                shown = wanted[:count]
                {on_go}
                for number, move in enumerate(shown, 1):
                    print(f"info depth 4 multipv {{number}} score cp {{10 * len(move)}} nodes 5 pv {{move}}")
                print("bestmove", wanted[0])
            sys.stdout.flush()
        """
    path.write_text(textwrap.dedent(source))
    path.chmod(0o755)
    return str(path)


# ---- scores and accepted moves --------------------------------------------------------------------------------------------------------


def labels_of(**scores: int | str) -> MoveLabels:
    return MoveLabels("", 8, {m: MoveScore(mate=int(s)) if isinstance(s, str) else MoveScore(cp=s) for m, s in scores.items()})


def test_expected_score_is_the_movers_and_a_mate_is_certain() -> None:
    assert expected_score(MoveScore(cp=0)) == 0.5
    assert expected_score(MoveScore(cp=100)) + expected_score(MoveScore(cp=-100)) == pytest.approx(1)
    assert expected_score(MoveScore(cp=200)) > expected_score(MoveScore(cp=50)) > 0.5
    assert (expected_score(MoveScore(mate=9)), expected_score(MoveScore(mate=-1))) == (1.0, 0.0)


@pytest.mark.parametrize("fields", [{}, {"cp": 1, "mate": 1}, {"mate": 0}])
def test_a_score_is_centipawns_or_a_mate_distance(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="either centipawns or a mate"):
        MoveScore(**fields)


def test_accepted_moves_fall_by_at_most_delta_from_the_best() -> None:
    labels = labels_of(e2e4=50, d2d4=48, a2a3=-40, g2g4=-300, f2f3="-3")
    assert accepted_moves(labels, 0.0) == ["e2e4"]
    fall = expected_score(MoveScore(cp=50)) - expected_score(MoveScore(cp=-40))
    assert accepted_moves(labels, fall) == ["e2e4", "d2d4", "a2a3"]
    assert accepted_moves(labels, fall - 0.001) == ["e2e4", "d2d4"]
    assert accepted_moves(labels, 1.0) == list(labels.scores)


def test_when_a_move_mates_only_mates_near_the_shortest_are_accepted() -> None:
    """By expected score every mate and every won position passes, and a won endgame would accept nearly all moves."""
    labels = labels_of(a1a8="2", b1b8="3", c1c8="5", d1d8=9000, e1e2="-4")
    assert accepted_moves(labels, 1.0) == ["a1a8"]
    assert accepted_moves(labels, 0.0, mate_slack=1) == ["a1a8", "b1b8"]
    assert accepted_moves(labels, 0.0, mate_slack=9) == ["a1a8", "b1b8", "c1c8"]


def test_when_every_move_gets_mated_the_longest_resistance_is_accepted() -> None:
    labels = labels_of(a1a2="-1", b1b2="-4", c1c2="-6", d1d2="-6")
    assert accepted_moves(labels, 1.0) == ["c1c2", "d1d2"]
    assert accepted_moves(labels, 0.0, mate_slack=2) == ["b1b2", "c1c2", "d1d2"]


def test_a_finished_game_accepts_no_move() -> None:
    assert accepted_moves(labels_of(), 1.0) == []


@pytest.mark.parametrize(("delta", "slack"), [(-0.1, 0), (1.5, 0), (float("nan"), 0), (0.1, -1)])
def test_a_senseless_threshold_is_refused(delta: float, slack: int) -> None:
    with pytest.raises(ValueError, match="delta must lie in"):
        accepted_moves(labels_of(e2e4=1), delta, slack)


def test_lines_are_matched_by_move_bounds_are_no_scores_and_depths_are_not_mixed() -> None:
    lines = [
        "info string NNUE evaluation enabled",
        "info depth 3 seldepth 4 multipv 2 score cp 7 nodes 9 nps 1 time 0 pv d2d4 d7d5",
        "info depth 3 seldepth 9 multipv 1 score mate -2 nodes 9 nps 1 time 0 pv e2e4",
        "info depth 4 seldepth 9 multipv 1 score cp 12 nodes 9 nps 1 time 0 pv d2d4",
        "info depth 4 seldepth 9 multipv 2 score cp 99 upperbound nodes 9 nps 1 time 0 pv e2e4 e7e5",
        "info depth 5 currmove e2e4 currmovenumber 1",
    ]
    tables = scores_by_depth(lines)
    assert tables == {3: {"d2d4": MoveScore(cp=7), "e2e4": MoveScore(mate=-2)}, 4: {"d2d4": MoveScore(cp=12)}}
    assert deepest_complete(tables, ["e2e4", "d2d4"]) == (3, {"e2e4": MoveScore(mate=-2), "d2d4": MoveScore(cp=7)})
    assert deepest_complete(tables, ["e2e4", "d2d4", "a2a3"]) is None


# ---- settings and the program -------------------------------------------------------------------------------------------------------


def test_a_missing_stockfish_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_module, "DEBIAN_STOCKFISH", tmp_path / "none")
    with pytest.raises(UserError, match=r"apt install stockfish.*brew install stockfish.*engine\.path"):
        find_stockfish()
    with pytest.raises(UserError, match=r"engine\.path=/no/such/engine"):
        Engine(EngineSettings(path="/no/such/engine"))


def test_stockfish_is_found_where_debian_puts_it_though_not_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "games" / "stockfish"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_module, "DEBIAN_STOCKFISH", program)
    assert find_stockfish() == program


@pytest.mark.parametrize(
    ("key", "value"), [("mode", "time"), ("depth", 0), ("nodes", 0), ("hash_mb", 0), ("workers", -1), ("deadline_s", 0.0)]
)
def test_a_bad_setting_names_its_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=f"engine.{key}={value}"):
        EngineSettings(**{key: value})


@pytest.mark.parametrize("script", ["exec sleep 600", "exit 3", "exec cat"])
def test_a_program_that_is_no_engine_is_an_error_and_leaves_no_process(tmp_path: Path, script: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    before = children(os.getpid())
    with pytest.raises(UserError, match=r"set engine\.path"):
        Engine(EngineSettings(path=str(program), start_timeout_s=0.5))
    assert children(os.getpid()) == before


def test_an_engine_that_starts_but_cannot_search_is_an_error(tmp_path: Path) -> None:
    """As Stockfish without its net does: it would otherwise make every position unscorable."""
    with pytest.raises(UserError, match="does not search"):
        Engine(EngineSettings(path=fake_engine(tmp_path, "sys.exit(1)"), workers=1))


# ---- labels of positions ------------------------------------------------------------------------------------------------------------


@needs_stockfish
@pytest.mark.parametrize("mode", ["depth", "searchmoves"])
def test_every_legal_move_has_a_score_searched_alike(mode: str) -> None:
    boards = [*some_positions(6), chess.Board(MATE_IN_ONE), chess.Board("4k3/P7/8/8/8/8/7p/4K3 w - - 0 1")]
    with Engine(EngineSettings(mode=mode, depth=4, nodes=3000 if mode == "depth" else 300, workers=2)) as engine:
        labels = engine.label(boards)
        assert mode in engine.identity and "nnue" in engine.identity and "Stockfish" in engine.identity
    assert [set(label.scores) for label in labels] == [{move.uci() for move in board.legal_moves} for board in boards]
    assert all(1 <= label.depth <= 4 if mode == "depth" else label.depth == 0 for label in labels)
    assert engine.counts == {"asked": 8, "searched": 8}


@needs_stockfish
def test_scores_are_the_movers_and_mates_are_distances() -> None:
    queen_up, queen_down = chess.Board("4k3/8/8/8/8/8/PP6/3QK3 w - - 0 1"), chess.Board("4k3/8/8/8/8/8/PP6/3QK3 b - - 0 1")
    stalemating = chess.Board("k7/8/1K6/8/8/8/8/2Q5 w - - 0 1")
    boards = [chess.Board(MATE_IN_ONE), chess.Board(ONE_MOVE_THEN_MATED), queen_up, queen_down, stalemating]
    with Engine(EngineSettings(workers=1)) as engine:
        mating, mated, up, down, stalemate = engine.label(boards)
    assert mating.scores["a1a8"] == MoveScore(mate=1) and accepted_moves(mating, 0.05) == ["a1a8"]
    assert mated.scores == {"h8h7": MoveScore(mate=-1)} and accepted_moves(mated, 0.0) == ["h8h7"]
    assert expected_score(up.scores["d1d4"]) > 0.9 and all(expected_score(score) < 0.1 for score in down.scores.values())
    assert stalemate.scores["c1c7"] == MoveScore(cp=0) and stalemate.scores["c1c8"] == MoveScore(mate=1)


@needs_stockfish
def test_labels_depend_neither_on_order_nor_on_processes_nor_on_clocks() -> None:
    boards = some_positions(20)
    aged = [chess.Board(f"{position_key(board)} 60 90") for board in boards]
    with Engine(EngineSettings(**QUICK)) as one, Engine(EngineSettings(**QUICK | {"workers": 3})) as three:
        expected = one.label(boards)
        assert one.label(boards[::-1])[::-1] == expected
        assert three.label(aged) == expected
    assert one.identity == three.identity


def test_finished_and_illegal_positions_never_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mated, stalemate, bare_kings = "R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1", "k7/2Q5/1K6/8/8/8/8/8 b - - 0 1", "8/8/4k3/8/8/3K4/8/8 w - - 0 1"
    no_kings, king_capturable = "8/8/8/8/8/8/8/8 w - - 0 1", "4k3/8/8/8/8/8/8/4RK2 w - - 0 1"
    bad_castling = "4k3/8/8/8/8/8/8/4K3 w KQ - 0 1"
    with Engine(EngineSettings(path=fake_engine(tmp_path, "pass"), workers=1)) as engine:
        monkeypatch.setattr(EngineProcess, "search", None)
        labels = engine.label([chess.Board(fen) for fen in (mated, stalemate, bare_kings, no_kings, king_capturable)])
        labels += engine.label([chess.Board(bad_castling), chess.Board.from_chess960_pos(0)])
    assert [dict(label.scores) for label in labels[:2]] == [{}, {}]
    assert set(labels[2].scores.values()) == {MoveScore(cp=0)} and len(labels[2].scores) == 8
    # Rights without rooks are no rights, so that position is bare kings again; Chess960 castling cannot be asked for.
    assert labels[3:5] == [None, None] and labels[5].scores.keys() == chess_moves("4k3/8/8/8/8/8/8/4K3 w - - 0 1") and labels[6] is None
    assert engine.counts == {"asked": 7, "decided": 4, "unscorable": 3, "unscorable_invalid": 3}


def chess_moves(fen: str) -> set[str]:
    return {move.uci() for move in chess.Board(fen).legal_moves}


@needs_stockfish
def test_equal_positions_are_searched_once_and_order_is_kept() -> None:
    board, other = chess.Board(HARMLESS), chess.Board(MATE_IN_ONE)
    with Engine(EngineSettings(**QUICK)) as engine:
        first, second, third = engine.label([board, other, board])
    assert first is third and first.position == position_key(board) and second.position == position_key(other)
    assert engine.counts == {"asked": 3, "duplicate": 1, "searched": 2}


# ---- engines that fail --------------------------------------------------------------------------------------------------------------


@needs_stockfish
@needs_proc
def test_a_killed_process_is_replaced_and_its_position_searched_again() -> None:
    boards = some_positions(60)
    with Engine(EngineSettings(**QUICK)) as undisturbed:
        expected = undisturbed.label(boards)
    with Engine(EngineSettings(**QUICK | {"workers": 2})) as engine:

        def kill_one() -> None:
            eventually(lambda: engine.counts["searched"] >= 3)
            engines = [pid for pid in children(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().startswith("stockfish")]
            os.kill(engines[0], signal.SIGKILL)  # other children of the test's process are none of ours

        killer = threading.Thread(target=kill_one)
        killer.start()
        assert engine.label(boards) == expected
        killer.join()
        assert (engine.counts["restarts"], engine.counts["unscorable"], engine.counts["searched"]) == (1, 0, 60)


def test_a_position_that_crashes_the_engine_twice_is_unscorable_and_counted(tmp_path: Path) -> None:
    path = fake_engine(tmp_path, "if trouble: os.kill(os.getpid(), signal.SIGSEGV)")
    with Engine(EngineSettings(path=path, workers=1)) as engine:
        labels = engine.label([chess.Board(HANGS), chess.Board(HARMLESS)])
    assert labels[0] is None and labels[1].scores["a1b1"] == MoveScore(cp=40)
    assert engine.counts == {"asked": 2, "searched": 1, "restarts": 2, "unscorable": 1, "unscorable_crash": 1}


def test_a_silent_engine_meets_the_deadline_and_the_others_go_on(tmp_path: Path) -> None:
    """chess.engine knows a timeout only for searches limited by time."""
    path = fake_engine(tmp_path, "if trouble: time.sleep(600)")
    with Engine(EngineSettings(path=path, workers=2, deadline_s=1.0)) as engine:
        labels = engine.label([chess.Board(HANGS), chess.Board(HARMLESS), chess.Board(MATE_IN_ONE)])
    assert labels[0] is None and labels[1] is not None and labels[2] is not None
    assert engine.counts == {"asked": 3, "searched": 2, "restarts": 2, "unscorable": 1, "unscorable_deadline": 1}


@pytest.mark.parametrize(("on_go", "multipv"), [("shown = shown[:2][::-1]", 500), ("pass", 3)])
def test_a_table_that_lacks_moves_is_refused_and_searched_per_move(tmp_path: Path, on_go: str, multipv: int) -> None:
    with Engine(EngineSettings(path=fake_engine(tmp_path, on_go, multipv=multipv), workers=1)) as engine:
        (labels,) = engine.label([chess.Board(MATE_IN_ONE)])
    assert labels.scores.keys() == chess_moves(MATE_IN_ONE)
    assert engine.counts == {"asked": 1, "searched": 1, "searched_per_move": 1}


@pytest.mark.parametrize("mode", ["depth", "searchmoves"])
def test_a_move_without_a_score_makes_the_position_unscorable_not_zero(tmp_path: Path, mode: str) -> None:
    path = fake_engine(tmp_path, "shown = [move for move in shown if move != 'a1a8']")
    with Engine(EngineSettings(path=path, workers=1, mode=mode)) as engine:
        assert engine.label([chess.Board(MATE_IN_ONE)]) == [None]
    assert engine.counts["unscorable"] == engine.counts["unscorable_incomplete"] == 1


@needs_proc
def test_no_process_is_left_after_an_error_in_the_block_or_when_it_cannot_restart(tmp_path: Path) -> None:
    before = children(os.getpid())
    program = Path(fake_engine(tmp_path, "if trouble: os._exit(1)"))
    with pytest.raises(ZeroDivisionError), Engine(EngineSettings(path=str(program), workers=2)) as engine:
        engine.label([chess.Board(HARMLESS), chess.Board(MATE_IN_ONE)])
        assert len(children(os.getpid())) == len(before) + 2
        raise ZeroDivisionError
    assert children(os.getpid()) == before
    with pytest.raises(UserError, match="cannot be started"), Engine(EngineSettings(path=str(program), workers=1)) as engine:
        program.unlink()
        engine.label([chess.Board(HANGS)])
    assert children(os.getpid()) == before
    engine.close()  # once more does no harm


CHILD_SCRIPT = """
import sys, chess
from chessrl.engine import Engine, EngineSettings
from tests.test_engine import HANGS, HARMLESS, children
import os
def main():
    engine = Engine(EngineSettings(path=sys.argv[1], workers=1, nodes=10**9, depth=60, deadline_s=500))
    print(*children(os.getpid()), flush=True)
    try:
        engine.label([chess.Board(sys.argv[2])])
    except KeyboardInterrupt:
        print(engine.label([chess.Board(HARMLESS)])[0] is not None, len(children(os.getpid())))
        engine.close()
        print(children(os.getpid()))
main()
"""


def start_child(path: str, fen: str) -> tuple[subprocess.Popen[str], int]:
    """A Python process in the midst of a search that does not end, and its engine's process id."""
    command = [sys.executable, "-c", CHILD_SCRIPT, path, fen]
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    process = int(child.stdout.readline())
    assert is_running(process)
    time.sleep(0.3)  # let the search begin
    return child, process


@needs_proc
@pytest.mark.parametrize("program", ["deaf fake", pytest.param("stockfish", marks=needs_stockfish)])
def test_a_killed_parent_leaves_no_orphan(tmp_path: Path, program: str) -> None:
    """The fake never looks at its closed input, so that only the operating system ends it."""
    if program == "deaf fake":
        child, process = start_child(fake_engine(tmp_path, "if trouble: time.sleep(600)"), HANGS)
    else:
        child, process = start_child("", chess.STARTING_FEN)
    with child:
        child.kill()
    assert eventually(lambda: not is_running(process))


@needs_proc
def test_an_interrupt_ends_the_search_and_the_engine_can_be_used_again(tmp_path: Path) -> None:
    child, process = start_child(fake_engine(tmp_path, "if trouble: time.sleep(600)"), HANGS)
    with child:
        child.send_signal(signal.SIGINT)
        assert child.stdout.read().splitlines() == ["True 1", "[]"]
    assert child.returncode == 0 and not is_running(process)


# ---- the cache ----------------------------------------------------------------------------------------------------------------------


@needs_stockfish
def test_a_cache_hit_asks_no_engine_and_other_limits_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards, cache = [*some_positions(5), chess.Board(MATE_IN_ONE)], tmp_path / "folder" / "labels.sqlite"
    with Engine(EngineSettings(**QUICK), cache) as engine:
        expected = engine.label(boards)
    for other in ({"depth": 3}, {"nodes": 2000}, {"hash_mb": 2}, {"mode": "searchmoves", "nodes": 100}):
        with Engine(EngineSettings(**QUICK | other), cache) as engine:
            engine.label(boards[:2])
            assert engine.counts == {"asked": 2, "searched": 2}
    with Engine(EngineSettings(**QUICK | {"workers": 2, "deadline_s": 9.0}), cache) as engine:
        monkeypatch.setattr(EngineProcess, "search", None)
        assert engine.label(boards) == expected
        assert engine.counts == {"asked": 6, "cached": 6}


def test_another_engine_misses_the_cache_and_unscorable_positions_are_not_kept(tmp_path: Path) -> None:
    cache, boards = tmp_path / "labels.sqlite", [chess.Board(HARMLESS), chess.Board(HANGS)]
    for name in ("Fake 1", "Fake 2", "Fake 1"):
        path = fake_engine(tmp_path, "if trouble: os._exit(1)", name=name)
        with Engine(EngineSettings(path=path, workers=1), cache) as engine:
            engine.label(boards)
    assert engine.counts == {"asked": 2, "cached": 1, "restarts": 2, "unscorable": 1, "unscorable_crash": 1}


def test_a_castling_of_chess960_is_found_again_under_the_name_it_was_searched_by(tmp_path: Path) -> None:
    """A Chess960 board has the key of a chess position where king and rooks stand as in chess, and calls castling e1h1, not e1g1."""
    board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1", chess960=True)
    for found in ("searched", "cached"):
        with Engine(EngineSettings(path=fake_engine(tmp_path, "pass"), workers=1), tmp_path / "labels.sqlite") as engine:
            [labels] = engine.label([board])
        assert "e1g1" in labels.scores and engine.counts[found] == 1


def test_a_long_list_is_looked_up_whole_and_only_what_is_stored_is_found(tmp_path: Path) -> None:
    boards = {position_key(board): board for board in some_positions(1200)}
    stored = list(boards)[::2]
    with LabelCache(tmp_path / "labels.sqlite", "engine") as cache:
        cache.put(MoveLabels(key, 8, {move.uci(): MoveScore(cp=len(key)) for move in boards[key].legal_moves}) for key in stored)
        found = cache.get(boards)
    assert len(boards) > 1000 and found.keys() == set(stored)
    assert all(set(labels.scores.values()) == {MoveScore(cp=len(key))} for key, labels in found.items())


WRITER_SCRIPT = """
import sys
from pathlib import Path
from chessrl.engine_labels import LabelCache, MoveLabels, MoveScore, position_key
from tests.test_engine import some_positions
with LabelCache(Path(sys.argv[1]), "engine") as cache:
    for board in some_positions(40, seed=int(sys.argv[2])):
        cache.put([MoveLabels(position_key(board), 8, {move.uci(): MoveScore(cp=1) for move in board.legal_moves})])
        assert cache.get({position_key(board): board})
"""


def test_two_processes_write_one_cache(tmp_path: Path) -> None:
    path, environment = tmp_path / "labels.sqlite", os.environ | {"PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER_SCRIPT, path, seed], cwd=ROOT, env=environment) for seed in "12"]
    assert [writer.wait() for writer in writers] == [0, 0]
    with LabelCache(path, "engine") as cache:
        written = {position_key(board): board for seed in (1, 2) for board in some_positions(40, seed)}
        assert cache.get(written).keys() == written.keys()


def test_a_damaged_cache_or_one_of_another_schema_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.sqlite"
    path.write_bytes(b"no database at all, " * 100)
    with pytest.raises(UserError, match=r"labels\.sqlite is unusable .*delete the file"):
        LabelCache(path, "engine")
    for statement in ("PRAGMA user_version = 99", "CREATE TABLE something (a)"):
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
        with pytest.raises(UserError, match=r"labels\.sqlite is unusable \(schema .* where schema 2 was expected"):
            LabelCache(path, "engine")
    with pytest.raises(UserError, match="cannot be opened"):
        LabelCache(tmp_path, "engine")


@pytest.mark.parametrize(
    "change", [*(f"scores = '{text}'" for text in ("e2e4=x", "e2e4", "e2e4=#0", "e2e4=5", "")), "scores = replace(scores, '#-3', '#3')", "depth = 9"]
)
def test_a_damaged_row_is_an_error_that_names_the_position(tmp_path: Path, change: str) -> None:
    board = chess.Board()
    asked = {position_key(board): board}
    with LabelCache(tmp_path / "labels.sqlite", "engine") as cache:
        full = MoveLabels(position_key(board), 8, {move.uci(): MoveScore(mate=-3) for move in board.legal_moves})
        cache.put([full])
        assert cache.get(asked) == {position_key(board): full}
        with sqlite3.connect(cache.path) as connection:
            connection.execute(f"UPDATE labels SET {change}")
        connection.close()
        with pytest.raises(UserError, match=r"unusable .*rnbqkbnr"):
            cache.get(asked)
