"""Mining: which errors make a puzzle, how the line goes on, how hard it is; the command's account, resume and independence of workers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import chess
import pandas as pd
import pytest

from chessrl.engine import find_stockfish
from chessrl.engine_labels import MoveScore
from chessrl.errors import UserError
from chessrl.mining import MiningSettings, mine
from chessrl.mining_engine import EngineSearch, EngineStart, best_moves
from chessrl.mining_search import GameResult, MinedGame, MiningRules, ScoredMove, Unscorable, mine_game
from chessrl.mining_store import MiningStore
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import read_lichess_csv
from chessrl.puzzles import load_puzzles, rating_bin
from chessrl.sources import ReadReport

RULES = MiningRules(scan_nodes=100, verify_nodes=1000, ladder_first=16, ladder_last=256)


def stockfish_or_skip() -> str:
    try:
        return str(find_stockfish())
    except UserError as error:
        pytest.skip(str(error))


class Oracle:
    """A search that answers from ``best``: {epd: [(move, score of its player), ...]}; every other move of every position is worth 0 centipawns.

    ``strong_from`` hides the listed moves of a position from searches of fewer nodes; ``asked`` holds (epd, nodes, lines) of every search.
    """

    def __init__(self, best: dict[str, list[tuple[str, MoveScore]]], strong_from: dict[str, int] | None = None) -> None:
        self.best, self.strong_from = best, strong_from or {}
        self.asked: list[tuple[str, int, int]] = []

    async def __call__(self, board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        epd = board.epd()
        self.asked.append((epd, nodes, lines))
        listed = self.best.get(epd, []) if nodes >= self.strong_from.get(epd, 0) else []
        named = [ScoredMove(chess.Move.from_uci(uci), score) for uci, score in listed]
        others = [ScoredMove(move, MoveScore(cp=0)) for move in board.legal_moves if move not in {entry.move for entry in named}]
        good = [entry for entry in named if (entry.score.mate is None and entry.score.cp >= 0) or (entry.score.mate or 0) > 0]
        return [*good, *others, *(entry for entry in named if entry not in good)][: min(lines, board.legal_moves.count())]


def run(work) -> GameResult:
    """Result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the search waited for something")


def game(text: str, fen: str | None = None) -> MinedGame:
    board = chess.Board(fen or chess.STARTING_FEN)
    return MinedGame("game1234", fen, tuple(board.push_san(san) for san in text.split()))


def position(game: MinedGame, ply: int) -> chess.Board:
    board = chess.Board(game.start_fen or chess.STARTING_FEN)
    for move in game.moves[:ply]:
        board.push(move)
    return board


def epd(game: MinedGame, ply: int, *more: str) -> str:
    board = position(game, ply)
    for uci in more:
        board.push_uci(uci)
    return board.epd()


def cp(value: int) -> MoveScore:
    return MoveScore(cp=value)


SCHOLAR = game("e4 e5 Bc4 Nc6 Qh5 Nf6")  # 3... Nf6 lets in 4. Qxf7#
MATE = ("h5f7", MoveScore(mate=1))
FORK = game("e4 e5 Nf3 d6 Nc3 Qh4")  # 3... Qh4 hangs the queen


def test_a_mate_that_was_let_in_becomes_a_puzzle_with_its_history() -> None:
    (puzzle,) = run(mine_game(SCHOLAR, RULES, Oracle({epd(SCHOLAR, 6): [MATE]}))).puzzles
    assert puzzle.moves == ("g8f6", "h5f7")
    assert puzzle.lead == 1
    assert puzzle.fen == position(SCHOLAR, 5).fen()
    assert puzzle.history == tuple(move.uci() for move in SCHOLAR.moves[:5])
    assert puzzle.game == "game1234"
    assert puzzle.id == "mined-game1234-6"
    assert set(puzzle.themes) == {"mate", "mateIn1", "oneMove", "opening", "winsMaterial"}


def test_a_cheap_search_of_every_position_and_a_careful_one_of_suspects() -> None:
    oracle = Oracle({epd(FORK, 6): [("f3h4", cp(900))]})
    result = run(mine_game(FORK, RULES, oracle))
    assert result.outcomes == {"puzzle": 1}
    assert result.positions == len(FORK.moves) + 1
    assert oracle.asked[: result.positions] == [(epd(FORK, ply), 100, 1) for ply in range(result.positions)]
    careful = [asked for asked in oracle.asked if asked[1] == 1000]
    # The answers, the position before the error, then the line: the reply and the next answers, which are not clear.
    assert careful[:2] == [(epd(FORK, 6), 1000, 2), (epd(FORK, 5), 1000, 1)]
    assert [(nodes, lines) for _, nodes, lines in careful[2:]] == [(1000, 1), (1000, 2)]


def test_themes_and_length_of_a_won_piece() -> None:
    (puzzle,) = run(mine_game(FORK, RULES, Oracle({epd(FORK, 6): [("f3h4", cp(900))]}))).puzzles
    assert puzzle.moves == ("d8h4", "f3h4")
    assert {"crushing", "hangingPiece", "winsMaterial", "oneMove"} <= set(puzzle.themes)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([("f3h4", cp(900)), ("h2h3", cp(850))], "no_clearly_best_answer"),
        ([("f3h4", MoveScore(mate=4)), ("h2h3", MoveScore(mate=6))], "no_clearly_best_answer"),
        ([("f3h4", MoveScore(mate=4)), ("h2h3", cp(850))], "puzzle"),  # the only mate
        ([("f3h4", MoveScore(mate=1)), ("h2h3", MoveScore(mate=2))], "puzzle"),  # a mate at once: any is accepted
    ],
)
def test_the_answer_must_be_clear(answers: list[tuple[str, MoveScore]], outcome: str) -> None:
    assert run(mine_game(FORK, RULES, Oracle({epd(FORK, 6): answers}))).outcomes == {outcome: 1}


def test_a_position_already_lost_before_the_move_holds_no_error() -> None:
    oracle = Oracle({epd(FORK, 6): [("f3h4", cp(900))]}, strong_from={})

    async def search(board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        found = await oracle(board, nodes, lines)
        lost = nodes == 1000 and board.epd() == epd(FORK, 5)  # the careful search alone sees it
        return [ScoredMove(entry.move, cp(-800)) for entry in found] if lost else found

    assert run(mine_game(FORK, RULES, search)).outcomes == {"no_error_on_a_second_look": 1}


def test_the_fall_is_measured_for_the_player_who_moved() -> None:
    """White is won for before and after his move: the same scores seen from the wrong side would fall by 1."""
    plain = game("e4 e5 Nf3 Nc6")
    oracle = Oracle({epd(plain, 2): [("g1f3", cp(900))], epd(plain, 3): [(move.uci(), cp(-900)) for move in position(plain, 3).legal_moves]})
    outcomes = run(mine_game(plain, RULES, oracle)).outcomes
    # The only suspects are Black's moves e5 (0 -> -900) and Nc6 (no: -900 -> 0 is a gift, White then errs).
    assert outcomes.total() == 1


def test_letting_in_a_mate_is_an_error_even_of_a_lost_side_unless_it_was_mated_already() -> None:
    def outcomes(before: MoveScore) -> dict[str, int]:
        table = {epd(SCHOLAR, 6): [MATE], epd(SCHOLAR, 5): [(move.uci(), before) for move in position(SCHOLAR, 5).legal_moves]}
        return dict(run(mine_game(game("e4 e5 Bc4 Nc6 Qh5 Nf6"), RULES, Oracle(table))).outcomes)

    assert outcomes(cp(-3000))["puzzle"] == 1
    assert "puzzle" not in outcomes(MoveScore(mate=-3))


def test_the_line_goes_on_while_the_answer_is_clear_and_ends_with_the_solver() -> None:
    start = epd(FORK, 6, "f3h4", "a7a6")
    second = epd(FORK, 6, "f3h4", "a7a6", "h4f5", "a6a5")
    table = {
        epd(FORK, 6): [("f3h4", cp(900))],
        epd(FORK, 6, "f3h4"): [("a7a6", cp(0))],
        start: [("h4f5", cp(300))],  # ahead, but less than at the first move
        epd(FORK, 6, "f3h4", "a7a6", "h4f5"): [("a6a5", cp(0))],
        second: [("f5g7", cp(1500)), ("c3d5", cp(1490))],
    }
    (puzzle,) = run(mine_game(FORK, RULES, Oracle(table))).puzzles
    assert puzzle.moves == ("d8h4", "f3h4", "a7a6", "h4f5")
    assert {"short", "advantage"} <= set(puzzle.themes)  # by the last solver move's score
    (cut,) = run(mine_game(FORK, MiningRules(max_line_moves=3, ladder_last=256), Oracle(table))).puzzles
    assert cut.moves == ("d8h4", "f3h4")
    assert "crushing" in cut.themes


def test_forced_moves_at_the_end_of_a_line_are_cut_off() -> None:
    """After Rxa2 Qd1+ only Bf1 is legal, which asks for nothing; it belongs to the line only if a choice follows."""
    fen = "7k/8/8/8/8/3B1q2/r4PPP/R5K1 b - - 0 1"
    won = game("Kg8", fen)
    table = {epd(won, 1): [("a1a2", cp(900))], epd(won, 1, "a1a2"): [("f3d1", cp(0))]}
    assert position(won, 1).copy().is_valid()
    (puzzle,) = run(mine_game(won, RULES, Oracle(table))).puzzles
    assert puzzle.moves == ("h8g8", "a1a2")
    forced = ("a1a2", "f3d1", "d3f1")
    table |= {epd(won, 1, *forced): [("g8h8", cp(0))], epd(won, 1, *forced, "g8h8"): [("a2a8", cp(900))]}
    (longer,) = run(mine_game(won, RULES, Oracle(table))).puzzles
    assert longer.moves == ("h8g8", *forced, "g8h8", "a2a8")


def test_a_line_does_not_repeat_a_position() -> None:
    """A perpetual check: king and queen come back, so the line ends instead of filling up to the limit."""
    fen = "6k1/5ppp/8/8/8/8/qq3PPP/3Q2K1 b - - 0 1"
    lost = game("h6 Qd8 Kh7", fen)
    first = position(lost, 1)
    table = {first.epd(): [("d1d8", cp(0))]}
    for move in first.legal_moves:
        if move.uci() != "d1d8":
            table[first.epd()].append((move.uci(), cp(-900)))
    board = first.copy()
    for uci, reply in (("d1d8", "g8h7"), ("d8d3", "h7g8"), ("d3d8", "g8h7")):
        table.setdefault(board.epd(), [(uci, cp(0)), *((move.uci(), cp(-900)) for move in board.legal_moves if move.uci() != uci)])
        board.push_uci(uci)
        table.setdefault(board.epd(), [(reply, cp(0))])
        board.push_uci(reply)
    before = position(lost, 0)
    table[before.epd()] = [("h7h5", cp(900))]
    puzzles = run(mine_game(lost, RULES, Oracle(table))).puzzles
    (puzzle,) = [puzzle for puzzle in puzzles if puzzle.moves[0] == "h7h6"]
    assert puzzle.moves == ("h7h6", "d1d8", "g8h7", "d8d3", "h7g8", "d3d8")
    assert "equality" in puzzle.themes


def test_plain_recaptures_are_left_out_unless_asked_for() -> None:
    trade = game("e4 d5 exd5")
    takes = {epd(trade, 3): [("d8d5", cp(700))]}
    assert run(mine_game(trade, RULES, Oracle(takes))).outcomes == {"only_a_recapture": 1}
    kept = run(mine_game(trade, MiningRules(keep_recaptures=True, ladder_last=256), Oracle(takes)))
    assert [puzzle.moves for puzzle in kept.puzzles] == [("e4d5", "d8d5")]


def test_a_position_with_one_legal_move_asks_for_nothing() -> None:
    fen = "7k/8/8/8/8/5q2/8/6K1 b - - 0 1"
    checked = game("Qe2 Kh1", fen)
    assert position(checked, 1).legal_moves.count() == 1
    oracle = Oracle({epd(checked, 1): [("g1h1", cp(900))]})
    assert run(mine_game(checked, RULES, oracle)).outcomes["only_one_legal_move"] == 1


@pytest.mark.parametrize(("found_from", "nodes", "bin"), [(0, 16, "B0"), (17, 32, "B1"), (100, 128, "B4"), (256, 256, "B5"), (257, None, None)])
def test_difficulty_is_the_smallest_budget_from_which_on_the_move_is_found(found_from: int, nodes: int | None, bin: str | None) -> None:
    """A ladder of 16, 32, 64, 128, 256: five budgets, which stand for ratings 400, 1000, .. 2800."""
    rules = MiningRules(scan_nodes=1000, verify_nodes=1000, ladder_first=16, ladder_last=256)
    result = run(mine_game(FORK, rules, Oracle({epd(FORK, 6): [("f3h4", cp(900))]}, {epd(FORK, 6): found_from})))
    if nodes is None:
        assert result.outcomes == {"not_found_with_most_nodes": 1}
    else:
        assert [(puzzle.difficulty, puzzle.bin) for puzzle in result.puzzles] == [(nodes, bin)]


def test_a_move_found_early_and_lost_again_counts_from_where_it_is_kept() -> None:
    oracle = Oracle({epd(FORK, 6): [("f3h4", cp(900))]})

    async def search(board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        found = await oracle(board, nodes, lines)
        return found[::-1] if nodes == 64 else found

    async def swapped(board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        return (await search(board, nodes, 2))[:lines]

    (puzzle,) = run(mine_game(FORK, RULES, swapped)).puzzles
    assert puzzle.difficulty == 128


def test_difficulty_is_that_of_the_hardest_move_of_the_line() -> None:
    second = epd(FORK, 6, "f3h4", "a7a6")
    table = {epd(FORK, 6): [("f3h4", cp(900))], epd(FORK, 6, "f3h4"): [("a7a6", cp(0))], second: [("h4f5", cp(1200))]}
    for hidden, nodes in (({second: 100}, 128), ({epd(FORK, 6): 100}, 128), ({epd(FORK, 6): 100, second: 20}, 128), ({}, 16)):
        rules = MiningRules(scan_nodes=1000, verify_nodes=1000, ladder_last=256)
        (puzzle,) = run(mine_game(FORK, rules, Oracle(table, hidden))).puzzles
        assert (len(puzzle.moves), puzzle.difficulty) == (4, nodes)


def test_a_budget_too_small_for_any_answer_has_not_found_the_move() -> None:
    oracle = Oracle({epd(FORK, 6): [("f3h4", cp(900))]})

    async def search(board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        if nodes == 16:
            raise Unscorable(board.fen())
        return await oracle(board, nodes, lines)

    (puzzle,) = run(mine_game(FORK, RULES, search)).puzzles
    assert puzzle.difficulty == 32


def test_the_default_ladder_maps_to_bins_as_documented() -> None:
    rules = MiningRules()
    assert {nodes: rating_bin(rules.rating_of(nodes)) for nodes in rules.ladder()} == {
        **dict.fromkeys((16, 32, 64), "B0"),
        **dict.fromkeys((128, 256), "B1"),
        **dict.fromkeys((512, 1024), "B2"),
        **dict.fromkeys((2048, 4096), "B3"),
        **dict.fromkeys((8192, 16384), "B4"),
        **dict.fromkeys((32768, 65536), "B5"),
    }


def test_a_game_from_a_set_up_position_has_no_history() -> None:
    fen = "4k3/8/8/3q4/8/8/3R4/3K4 b - - 0 1"
    set_up = game("Kf7 Kc1 Kg7", fen)
    (puzzle,) = run(mine_game(set_up, RULES, Oracle({epd(set_up, 1): [("d2d5", cp(900))]}))).puzzles
    assert (puzzle.fen, puzzle.history) == (chess.Board(fen).fen(), ())
    assert "endgame" in puzzle.themes


# ---- what the engine prints ---------------------------------------------------------------------------------------------------------------

LINES = [
    "info depth 1 seldepth 1 multipv 1 score cp 30 nodes 20 nps 1 time 1 pv e2e4",
    "info depth 1 seldepth 1 multipv 2 score mate 3 nodes 20 nps 1 time 1 pv d2d4",
    "info depth 2 seldepth 2 multipv 1 score cp 10 nodes 90 nps 1 time 1 pv d2d4 d7d5",
    "info depth 2 seldepth 2 multipv 2 score mate -3 nodes 90 nps 1 time 1 pv e2e4 e7e5",
    "info depth 3 seldepth 3 multipv 1 score cp 15 nodes 100 nps 1 time 1 pv g1f3",
]


def test_two_lines_come_from_one_iteration_and_are_ranked_by_score() -> None:
    board = chess.Board()
    assert [(entry.move.uci(), entry.score) for entry in best_moves(LINES, board, 2)] == [("d2d4", cp(10)), ("e2e4", MoveScore(mate=-3))]
    assert [entry.move.uci() for entry in best_moves(LINES[:2], board, 2)] == ["d2d4", "e2e4"]  # a mate before centipawns
    assert [entry.move.uci() for entry in best_moves(LINES, board, 1)] == ["g1f3"]
    assert best_moves(LINES, board, 3) == []
    only = chess.Board("7k/8/8/8/8/8/4q3/6K1 w - - 0 1")
    assert len(best_moves(["info depth 1 score cp 5 nodes 2 pv g1h1"], only, 2)) == 1


def fake_engine(tmp_path: Path, body: str) -> EngineStart:
    program = tmp_path / "engine"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nfor line in sys.stdin:\n"
        "    if line.strip() == 'uci': print('id name fake\\nuciok', flush=True)\n"
        "    if line.strip() == 'isready': print('readyok', flush=True)\n"
        f"    if line.startswith('go'):\n{body}\n"
    )
    program.chmod(0o755)
    return EngineStart(program, 1, deadline_s=5.0, start_timeout_s=10.0)


def searched(start: EngineStart) -> tuple[list[ScoredMove] | None, EngineSearch]:
    """What a search gives, None where it is unscorable."""
    search = EngineSearch(start)

    async def work() -> list[ScoredMove]:
        try:
            return await search(chess.Board(), 10, 1)
        finally:
            await search.end()

    try:
        return asyncio.run(work()), search
    except Unscorable:
        return None, search


def test_an_engine_that_dies_once_is_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "died"
    body = (
        f"        if not os.path.exists({str(mark)!r}):\n            open({str(mark)!r}, 'w').close(); os._exit(1)\n"
        "        print('info depth 1 score cp 5 nodes 1 pv e2e4\\nbestmove e2e4', flush=True)"
    )
    found, search = searched(fake_engine(tmp_path, body))
    assert [entry.move.uci() for entry in found] == ["e2e4"]
    assert search.counts == {"restarts": 1, "searches": 1}


def test_an_engine_that_dies_twice_leaves_the_game_unscorable(tmp_path: Path) -> None:
    found, search = searched(fake_engine(tmp_path, "        os._exit(1)"))
    assert found is None
    assert search.counts == {"restarts": 2}


# ---- the command ----------------------------------------------------------------------------------------------------------------------

HEADERS = '[Event "Rated Blitz game"]\n[Site "https://lichess.org/{}"]\n[Result "{}"]\n\n{} {}\n\n'
PGN = (
    HEADERS.format("aaaaaaaa", "1-0", "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7#", "1-0")
    + HEADERS.format("bbbbbbbb", "0-1", "1. f3 e5 2. g4 Qh4#", "0-1")
    + HEADERS.format("cccccccc", "1-0", "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7#", "1-0")  # the first one again
    + HEADERS.format("dddddddd", "1-0", "1. e4 e5", "1-0")  # too short
    + HEADERS.format("eeeeeeee", "1-0", "1. e4 e5 2. Nf3 d6 3. Nc3 Qh4 4. Nxh4 a6 5. Bc4 a5", "1-0")
)
SMALL = {"scan_nodes": 300, "verify_nodes": 2000, "ladder_last": 1024, "min_plies": 4}


def settings(folder: Path, **keys: object) -> MiningSettings:
    stockfish_or_skip()
    folder.mkdir(exist_ok=True)
    source = folder.parent / "games.pgn"
    source.write_text(PGN)
    return MiningSettings(**{"sources": (str(source),), "out": str(folder), **SMALL, **keys})


def test_the_account_adds_up_and_workers_change_nothing(tmp_path: Path) -> None:
    one, two = (mine(settings(tmp_path / name, workers=workers)) for name, workers in (("one", 1), ("two", 2)))
    assert {puzzle.id for puzzle in one.puzzles} >= {"mined-aaaaaaaa-6", "mined-bbbbbbbb-3"}
    assert not any(puzzle.game == "cccccccc" for puzzle in one.puzzles)
    for name in ("reading", "searched_games", "suspect_moves"):
        entry = one.account[name]
        assert entry["read"] == entry["kept"] + sum(entry["dropped"].values())
    assert one.account["reading"]["dropped"] == {"too_few_plies": 1}
    assert one.account["searched_games"] == {"read": 4, "kept": 3, "dropped": {"duplicate": 1}}
    assert one.account["suspect_moves"]["kept"] == len(one.puzzles) == sum(one.account["bins"].values())
    assert load_puzzles(tmp_path / "one" / "puzzles.parquet") == one.puzzles == two.puzzles
    for name in ("puzzles.parquet", "mining.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_lichess_table_is_read_back_as_the_same_puzzles(tmp_path: Path) -> None:
    rules = settings(tmp_path / "out")
    mined = mine(rules).puzzles
    read = read_lichess_csv(tmp_path / "out" / "puzzles.csv", PuzzleFilters(), ReadReport())
    assert [replace(puzzle, difficulty=0) for puzzle in read] == [replace(puzzle, difficulty=0) for puzzle in mined]  # bins and histories too
    assert [puzzle.difficulty for puzzle in read] == [rules.rating_of(puzzle.difficulty) for puzzle in mined]


def test_every_mined_line_is_legal_and_asked_of_the_side_to_move(tmp_path: Path) -> None:
    for puzzle in mine(settings(tmp_path / "out")).puzzles:
        board = chess.Board()
        for uci in (*puzzle.history, *puzzle.moves):
            if board.fen() == puzzle.fen:
                error = puzzle.moves[0]
                assert uci == error
            board.push_uci(uci)  # raises for an illegal move
        assert len(puzzle.moves) % 2 == 0


def test_a_killed_mining_goes_on_and_ends_as_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mine(settings(tmp_path / "whole"))
    keys = settings(tmp_path / "killed")
    stored: list[int] = []
    put = MiningStore.put

    def put_and_die(store: MiningStore, place: int, result: GameResult, engine_s: float) -> None:
        put(store, place, result, engine_s)
        stored.append(place)
        if len(stored) == 2:
            raise OSError("the machine went down")

    with monkeypatch.context() as patch:
        patch.setattr(MiningStore, "put", put_and_die)
        with pytest.raises(OSError, match="went down"):
            mine(keys)
    assert not (tmp_path / "killed" / "puzzles.parquet").exists()
    again: list[int] = []

    def put_and_note(store: MiningStore, place: int, result: GameResult, engine_s: float) -> None:
        again.append(place)
        put(store, place, result, engine_s)

    monkeypatch.setattr(MiningStore, "put", put_and_note)
    assert mine(keys).puzzles == whole.puzzles
    assert sorted(stored + again) == [0, 1, 2, 3]
    for name in ("puzzles.parquet", "mining.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    mine(settings(tmp_path / "out", max_games=1))
    with pytest.raises(UserError, match=r"holds results of other sources, settings or another engine \(margin was 0.3, is 0.4\)"):
        mine(settings(tmp_path / "out", max_games=1, margin=0.4))


def test_a_stop_signal_ends_the_command_at_once_and_its_engine(tmp_path: Path) -> None:
    keys = settings(tmp_path / "out")
    slow = ["verify_nodes=500000000", "deadline_s=5000"]  # the first suspect would take many minutes
    words = ["scan_nodes=300", "min_plies=4", f"sources={keys.sources[0]}", f"out={keys.out}", *slow]
    command = subprocess.Popen([sys.executable, "-m", "chessrl.mining", *words], stderr=subprocess.PIPE, text=True)
    engines: list[int] = []
    while not engines:
        assert command.poll() is None
        time.sleep(0.05)
        if (tmp_path / "out" / "mining.sqlite").exists():  # before it an engine is only asked for its name
            engines = [child for child in children(command.pid) if "stockfish" in Path(f"/proc/{child}/cmdline").read_text()]
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 128 + signal.SIGTERM, errors
    assert not any(is_running(engine) for engine in engines)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(process: int) -> list[int]:
    try:
        return [int(word) for task in Path(f"/proc/{process}/task").iterdir() for word in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"drop": 0.0}, "drop=0.0: expected a difference"),
        ({"ladder_last": 1000}, "ladder_last=1000: expected ladder_first=16 doubled"),
        ({"max_line_moves": 1}, "expected at least 2"),
        ({"verify_nodes": 0}, "at least 1 node"),
        ({"workers": 0}, "workers=0"),
        ({"exclude_time_classes": ("fast",)}, "exclude_time_classes=fast: expected some of ultrabullet"),
    ],
)
def test_bad_keys_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MiningSettings(sources=("x",), out="y", **keys)


def test_a_damaged_store_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mining.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(UserError, match="cannot be used"):
        MiningStore(path, json.dumps({}))


def test_tables_have_the_columns_of_the_puzzle_format(tmp_path: Path) -> None:
    mine(settings(tmp_path / "out", max_games=1))
    frame = pd.read_parquet(tmp_path / "out" / "puzzles.parquet")
    assert {"id", "fen", "moves", "lead", "difficulty", "bin", "themes", "split", "history", "game"} <= set(frame.columns)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"puzzles.parquet", "puzzles.csv", "mining.json", "mining.sqlite"}
