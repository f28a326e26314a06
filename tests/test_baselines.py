"""Baselines without a policy, and play on held-out games: against enumeration, python-chess and one pass per move."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest
import torch

from analysis.puzzle_tables import BEST, puzzle_facts, read_quality
from chessrl import notation
from chessrl.baselines import engine_success, fact_table, make_baselines, quality_table, uniform_success
from chessrl.config import Config, ModelConfig
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.engine import Engine, EngineSettings, find_stockfish
from chessrl.engine_labels import MoveLabels, MoveScore, position_key
from chessrl.environment import solver_decisions
from chessrl.errors import UserError
from chessrl.game_measure import game_plies, games_table, measure_games
from chessrl.model import build_model
from chessrl.puzzles import Puzzle, load_puzzles

TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16)


def stockfish_is_here() -> bool:
    try:
        return bool(find_stockfish())
    except UserError:
        return False


needs_engine = pytest.mark.skipif(not stockfish_is_here(), reason="Stockfish is not installed")


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    every = load_puzzles(PACK / PUZZLES_FILE, "test", ["B1", "B2", "B3"])
    return [puzzle for puzzle in every if len(puzzle.moves) == 1][:4] + [puzzle for puzzle in every if len(puzzle.moves) == 3][:4]


# ---- uniform play -----------------------------------------------------------------------------------------------------------------------


def solves(puzzle: Puzzle, answer: tuple[str, ...]) -> bool:
    """By python-chess alone: the line's moves, or a mate."""
    board = puzzle.board()
    for place, move in enumerate(answer):
        board.push_uci(move)
        if board.is_checkmate():
            return True
        if move != puzzle.moves[puzzle.lead + 2 * place]:
            return False
        if puzzle.lead + 2 * place + 1 < len(puzzle.moves):
            board.push_uci(puzzle.moves[puzzle.lead + 2 * place + 1])
    return True


def test_uniform_play_solves_as_often_as_enumeration_says(puzzles: list[Puzzle]) -> None:
    for puzzle in puzzles:
        choices = [[move.uci() for move in board.legal_moves] for board, _, _ in solver_decisions(puzzle)]
        share = np.mean([solves(puzzle, answer) for answer in product(*choices)])
        assert uniform_success(puzzle) == pytest.approx(share, abs=1e-12)
        assert 0 < uniform_success(puzzle) < 1


@needs_engine
def test_stockfish_at_many_nodes_solves_mates_in_one_and_a_wrong_line_is_not_solved(puzzles: list[Puzzle]) -> None:
    with Engine(EngineSettings(workers=1)) as engine:
        assert engine_success(engine, puzzles[:4], 2000) == [1.0] * 4
        first = puzzles[4]
        other = next(move.uci() for move in first.board().legal_moves if move.uci() != first.moves[0])
        wrong = Puzzle("wrong", first.fen, (other,), 0, 2, "B2")
        assert engine_success(engine, [wrong], 2000) == [0.0]


@needs_engine
def test_tables_are_made_once_and_found_by_their_puzzles(tmp_path: Path) -> None:
    config = Config(outputs=str(tmp_path))
    config.world.name = "endgame"
    config.evaluate.split, config.evaluate.max_puzzles = "test", 3
    config.baselines.nodes, config.baselines.quality = [10], True
    config.engine.depth, config.engine.workers = 2, 1
    assert make_baselines(config) == 0
    made = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("*.parquet")}
    assert sorted(name.split("-")[0] for name in made) == ["baselines", "move_quality"]
    assert make_baselines(config) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("*.parquet")} == made

    class Somewhere:
        path = tmp_path / "sft-0123"

    chosen = load_puzzles(PACK / PUZZLES_FILE, "test")[:3]
    facts = puzzle_facts([Somewhere()], [puzzle.id for puzzle in chosen])
    assert facts["uniform"].tolist() == [uniform_success(puzzle) for puzzle in chosen] and set(facts["stockfish_10"]) <= {0.0, 1.0}
    assert puzzle_facts([Somewhere()], ["another"]) is None
    lost = read_quality([Somewhere()], np.array([chosen[0].id, "another"]), np.array([0, 0]), 64)
    legal = chosen[0].board().legal_moves.count()
    assert lost[0, :legal].min() == BEST and np.isnan(lost[0, legal:]).all() and np.isnan(lost[1]).all()


def test_facts_and_losses_follow_the_puzzles(puzzles: list[Puzzle]) -> None:
    table = fact_table(puzzles)
    assert table["decisions"].tolist() == [1] * 4 + [2] * 4 and table["puzzle"].tolist() == [puzzle.id for puzzle in puzzles]
    board = puzzles[0].board()
    moves = sorted(move.uci() for move in board.legal_moves)
    scores = {move: MoveScore(cp=0) for move in reversed(moves)} | {moves[1]: MoveScore(mate=1)}
    (row,) = quality_table(puzzles[:1], {position_key(board): MoveLabels(position_key(board), 1, scores)}).to_dict("records")
    assert row["moves"] == moves and row["lost"][1] == 0 and row["lost"][0] == pytest.approx(0.5, abs=0.01) and row["best"] == [1]
    mates = {move: MoveScore(mate=3 if move == moves[2] else 5) for move in moves}
    (slow,) = quality_table(puzzles[:1], {position_key(board): MoveLabels(position_key(board), 1, mates)}).to_dict("records")
    assert set(slow["lost"]) == {0.0} and slow["best"] == [2]
    assert quality_table(puzzles[:1], {position_key(board): None}).empty


# ---- games ------------------------------------------------------------------------------------------------------------------------------


def random_game(board: chess.Board, plies: int, seed: int) -> tuple[list[chess.Move], list[int]]:
    draw = random.Random(seed)
    moves, tokens = [], []
    for _ in range(plies):
        legal = sorted(board.legal_moves, key=lambda move: move.uci())
        if not legal:
            break
        moves.append(draw.choice(legal))
        tokens += notation.move_tokens(board, moves[-1])
        board.push(moves[-1])
    return moves, tokens


@pytest.mark.parametrize("snapshot", [False, True])
def test_moves_of_a_document_are_those_that_were_played(snapshot: bool) -> None:
    for seed in range(5):
        board = chess.Board("r3k2r/pPpp1ppp/8/4pP2/8/8/PPPP1PPP/R3K2R w KQkq e6 0 2") if snapshot else chess.Board()
        start = [notation.BOS, *(notation.snapshot_tokens(board) if snapshot else [])]
        moves, tokens = random_game(board, 30, seed)
        plies = game_plies([*start, *tokens, notation.EOS])
        assert plies[0][0] == len(start) and len(plies) == len(moves)
        assert [written[played] for _, written, played in plies][:1] == [tuple(tokens[: len(plies[0][1][plies[0][2]])])]
        assert sum(len(written[played]) for _, written, played in plies) == len(tokens)
        assert len(game_plies([*start, *tokens[:-1]])) in (len(moves) - 1, len(moves))  # cut in the last move, or in its check mark


class OneGame:
    """A corpus of one document."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = np.array(tokens)

    def __len__(self) -> int:
        return 1

    def document(self, index: int) -> np.ndarray:
        return self.tokens


@torch.no_grad()
def test_legal_mass_is_the_sum_over_moves_scored_one_by_one() -> None:
    model = build_model(TINY, seed=0)
    board = chess.Board()
    moves, tokens = random_game(board, 3, seed=1)
    rows = measure_games(model, OneGame([notation.BOS, *tokens]), 5)
    assert rows["ply"].tolist() == [1, 2, 3]
    board, context = chess.Board(), [notation.BOS]
    for row, played in zip(rows.itertuples(), moves):
        scores = {}
        for move in board.legal_moves:
            ply = notation.move_tokens(board, move)
            logits = model(torch.tensor([[*context, *ply]]))[0, len(context) - 1 : -1]
            scores[move] = float(torch.log_softmax(logits.float(), -1)[range(len(ply)), ply].sum())
        assert row.mass == pytest.approx(np.exp(list(scores.values())).sum(), rel=1e-4)
        assert row.top == float(max(scores, key=scores.get) == played)
        context += notation.move_tokens(board, played)
        board.push(played)


def test_plies_that_few_games_reach_are_left_out_and_the_others_averaged() -> None:
    rows = pd.DataFrame([(game, ply, 0.5 + 0.01 * game, float(game % 2)) for game in range(20) for ply in range(1, 4 if game < 5 else 3)])
    table = games_table(rows.set_axis(["game", "ply", "mass", "top"], axis=1), seed=0).table.set_index(["measure", "ply"])
    assert set(table.index.get_level_values("ply")) == {1, 2}
    assert table.loc[("legal mass", 1), "value"] == pytest.approx(0.595) and table.loc[("likeliest legal move was played", 2), "value"] == 0.5
    assert (table["ci_low"] < table["value"]).all() and set(table["games"]) == {20}
