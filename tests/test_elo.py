"""Matches and what their scores mean: formulas, bounds, both colours, endings, and a match that was interrupted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import chess
import numpy as np
import pytest

from chessrl.checkpoint import save_model
from chessrl.config import ModelConfig
from chessrl.elo import EloSettings, RandomMover, board_of, elo_of_score, estimate, open_opponent, play_game, play_match
from chessrl.engine import find_stockfish
from chessrl.errors import UserError
from chessrl.model import build_model
from chessrl.player import Choice

TINY = ModelConfig("tiny", layers=1, hidden=16, ffn=16, heads=2, kv_heads=1, head_dim=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pretrain-0123456789ab"
    save_model(build_model(TINY, seed=0), folder / "model")
    (folder / "summary.json").write_text(json.dumps({"stage": "pretrain", "run_id": folder.name, "world": {"name": "endgame", "state": "snapshot"}}))
    return folder


def scripted(moves: list[str]):
    """A policy and an opponent that play one line, whoever's turn it is."""

    def move(board: chess.Board) -> chess.Move:
        return board.parse_uci(moves[len(board.move_stack)])

    class Opponent:
        name = "scripted"

        def play(self, board: chess.Board, game: int) -> chess.Move:
            return move(board)

    return (lambda board: Choice(move(board), (move(board),), np.ones(1), 0.5)), Opponent()


def test_elo_is_logistic_in_the_score():
    assert elo_of_score(0.5) == 0
    assert elo_of_score(0.75) == pytest.approx(190.848, abs=1e-3)  # 400 log10 3
    assert elo_of_score(0.25) == pytest.approx(-190.848, abs=1e-3)
    assert elo_of_score(10 / 11) == pytest.approx(400)
    assert (elo_of_score(0.0), elo_of_score(1.0)) == (-math.inf, math.inf)


def test_the_interval_is_that_of_the_mean_over_pairs():
    pairs = np.random.default_rng(0).choice([0, 0.25, 0.5, 0.75, 1.0], 400)
    found = estimate(pairs)
    half = 1.96 * pairs.std() / 20
    assert (found.score_low, found.score_high) == pytest.approx((pairs.mean() - half, pairs.mean() + half), abs=0.1 * half)
    assert found.elo_low == pytest.approx(elo_of_score(found.score_low)) and found.elo_low < found.elo < found.elo_high


@pytest.mark.parametrize("score, word, sign", [(1.0, "at least +", 1), (0.0, "at most -", -1)])
def test_a_one_sided_score_gives_a_bound_and_no_number(score, word, sign):
    found = estimate(np.full(20, score))
    z = 1.959964
    near = (z * z / 20) / (1 + z * z / 20)  # Wilson's limit of 0 successes in 20
    assert (found.score_high if score == 0 else 1 - found.score_low) == pytest.approx(near, rel=1e-4)
    assert math.isinf(found.elo) and word in found.text("X") and "no number" in found.text("X")
    assert f"{elo_of_score(near):+.0f}".lstrip("-+") in found.text("X")


def test_games_end_by_the_rules_and_score_for_the_policys_colour():
    policy, opponent = scripted(["f2f3", "e7e5", "g2g4", "d8h4"])  # White is mated
    assert (play_game(0, "", policy, opponent, 99).score, play_game(1, "", policy, opponent, 99).score) == (0.0, 1.0)
    game = play_game(1, "", policy, opponent, 99)
    assert (game.ending, game.policy, game.policy_moves, game.legal_mass) == ("checkmate", "black", 2, 0.5)
    policy, opponent = scripted(["g1f3", "g8f6", "f3g1", "f6g8"] * 9)
    game = play_game(0, "", policy, opponent, 99)
    assert (game.ending, game.score, len(game.moves.split())) == ("threefold_repetition", 0.5, 8)
    assert board_of("").move_stack == []
    assert play_game(0, "", policy, opponent, 3).ending == "length"
    shuffle = ["b1b2", "a8a7"]
    policy, opponent = scripted(shuffle)
    assert play_game(0, "k7/8/8/8/8/8/7P/KR6 w - - 98 80", policy, opponent, 99).ending == "fifty_moves"


def test_an_interrupted_match_goes_on_to_the_same_games(run, tmp_path):
    def settings(out: str) -> EloSettings:
        return EloSettings(str(run), str(tmp_path / out), level="random", games=6, most_plies=12)

    for out in ("whole", "cut"):
        (tmp_path / out).mkdir()
    result = play_match(settings("whole"), tmp_path / "whole")
    play_match(settings("cut"), tmp_path / "cut")
    games = tmp_path / "cut" / "games.jsonl"
    lines = games.read_text().splitlines(keepends=True)
    games.write_text("".join(lines[:3]) + lines[3][:40])  # killed while it wrote the fourth
    assert play_match(settings("cut"), tmp_path / "cut") == result
    assert games.read_text() == (tmp_path / "whole" / "games.jsonl").read_text()
    records = [json.loads(line) for line in lines]
    assert [record["policy"] for record in records] == ["white", "black"] * 3
    assert [record["start"] for record in records[::2]] == [record["start"] for record in records[1::2]]
    assert result["wins"] + result["draws"] + result["losses"] == result["games"] == 6
    assert result["score"] == np.mean([record["score"] for record in records])
    with pytest.raises(UserError, match="another temperature"):
        play_match(EloSettings(str(run), str(tmp_path / "cut"), level="random", games=6, most_plies=12, temperature=0.5), tmp_path / "cut")


def test_starts_are_read_from_a_file_and_faults_name_the_line(run, tmp_path):
    file = tmp_path / "starts.txt"
    file.write_text("e2e4 e7e5\n8/8/8/4k3/8/8/8/KR6 b - - 0 1\n")
    settings = {"model": str(run), "out": str(tmp_path), "level": "random", "games": 4, "most_plies": 2, "positions": str(file)}
    play_match(EloSettings(**settings), tmp_path)
    starts = [json.loads(line)["start"] for line in (tmp_path / "games.jsonl").read_text().splitlines()]
    assert starts == [line for line in file.read_text().splitlines() for _ in range(2)]
    file.write_text("e2e4\ne2e5\n")
    with pytest.raises(UserError, match="line 2"):
        play_match(EloSettings(**settings), tmp_path)
    with pytest.raises(UserError, match="expected 3"):
        play_match(EloSettings(**settings | {"games": 6}), tmp_path)
    with pytest.raises(UserError, match="even number"):
        EloSettings(str(run), "x", games=3)


def test_a_uniform_mover_is_uniform_and_repeatable():
    board = chess.Board("8/8/8/4k3/8/8/8/KR6 w - - 0 1")
    mover = RandomMover(0)
    moves = [mover.play(board, game).uci() for game in range(1700)]
    assert moves == [mover.play(board, game).uci() for game in range(1700)]
    counts = np.array([moves.count(move.uci()) for move in board.legal_moves])
    expected = 1700 / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square with 16 degrees: 1e-4 at 45


def test_levels_that_stockfish_lacks_are_named(run):
    try:
        find_stockfish()
    except UserError:
        pytest.skip("no Stockfish")
    for level, message in (("elo:1", "UCI_Elo"), ("skill:21", "0 to 20"), ("strong", "skill:N"), ("elo:x", "skill:N")):
        with pytest.raises(UserError, match=message), open_opponent(EloSettings(str(run), "x", level=level)):
            pass
    with open_opponent(EloSettings(str(run), "x", level="skill:0", nodes=100)) as opponent:
        board = chess.Board("8/8/8/4k3/8/8/8/KR6 w - - 0 1")
        assert board.is_legal(opponent.play(board, 0)) and "Skill Level 0" in opponent.name


def test_an_engine_that_dies_is_one_line_and_keeps_the_games(run, tmp_path):
    program = tmp_path / "engine"
    program.write_text(
        "#!/bin/sh\nwhile read -r word rest; do case $word in\n"
        "uci) echo id name Fragile; echo option name Skill Level type spin default 0 min 0 max 20; echo uciok;;\n"
        "isready) echo readyok;; go) exit 3;; esac; done\n"
    )
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"Fragile Skill Level 0 .* goes on with game 0"):
        play_match(EloSettings(str(run), str(tmp_path), level="skill:0", games=2, engine=str(program)), tmp_path)
    assert not (tmp_path / "games.jsonl").exists()
