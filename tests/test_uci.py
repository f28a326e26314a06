"""A policy behind UCI: legal moves only, drawn as the policy says, and the protocol as chess programs speak it."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import chess
import chess.engine
import numpy as np
import pytest
import torch

from chessrl import notation
from chessrl.checkpoint import save_model
from chessrl.errors import UserError
from chessrl.model import token_logprobs
from chessrl.player import Knowledge, PlaySettings, choose_move, open_policy
from chessrl.uci import UciEngine
from tests.uneven_policy import uneven_policy

KRK = "8/8/8/4k3/8/8/8/KR6 w - - 0 1"
ENDGAME = Knowledge("tiny", "snapshot", ("answer",), 5)


@pytest.fixture(scope="module")
def model():
    return uneven_policy()


@pytest.fixture(scope="module")
def run(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sft-0123456789ab"
    save_model(model, folder / "model")
    save_model(model, folder / "models" / "step-3")
    (folder / "summary.json").write_text(
        json.dumps({"stage": "sft", "run_id": folder.name, "traces": True, "world": {"name": "endgame", "state": "snapshot"}})
    )
    return folder


def talk(model, text: str, knowledge: Knowledge = ENDGAME, settings: PlaySettings | None = None) -> list[str]:
    said: list[str] = []
    UciEngine(model, knowledge, settings or PlaySettings(knowledge.protocols[0], thinking_budget=24), said.append).run(io.StringIO(text))
    return said


def best(said: list[str]) -> list[str]:
    return [line.removeprefix("bestmove ") for line in said if line.startswith("bestmove")]


def brute_force(model, board: chess.Board, temperature: float) -> dict[str, float]:
    """Probabilities over the legal moves, each scored in a forward pass of its own."""
    context = [notation.BOS, *notation.snapshot_tokens(board)]
    scores = {}
    for move in board.legal_moves:
        ply = notation.move_tokens(board, move)
        sequence = torch.tensor([[*context, *ply]])
        with torch.no_grad():
            logits = model(sequence)[:, len(context) - 1 : -1]
        scores[move.uci()] = float(token_logprobs(logits, sequence[:, len(context) :], temperature).double().sum())
    total = sum(map(np.exp, scores.values()))
    return {move: float(np.exp(score) / total) for move, score in scores.items()} | {"mass": float(total)}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_moves_are_drawn_with_the_policys_own_probabilities(model, temperature):
    board = chess.Board(KRK)
    expected = brute_force(model, board, temperature)
    choices = [choose_move(model, ENDGAME, board, PlaySettings("answer", temperature, seed)) for seed in range(200)]
    mass = expected.pop("mass")
    shares = {move.uci(): share for move, share in zip(choices[0].moves, choices[0].probabilities)}
    assert shares == pytest.approx(expected, abs=1e-5)
    assert choices[0].legal_mass == pytest.approx(mass, rel=1e-4)
    for move, share in expected.items():
        seen = np.mean([choice.move.uci() == move for choice in choices])
        assert abs(seen - share) < 4.5 * np.sqrt(share * (1 - share) / len(choices)) + 1e-9, move


def test_temperature_0_plays_the_likeliest_move_whatever_the_seed(model):
    board = chess.Board(KRK)
    expected = brute_force(model, board, 1.0)
    expected.pop("mass")
    moves = {choose_move(model, ENDGAME, board, PlaySettings("answer", 0.0, seed)).move.uci() for seed in range(5)}
    assert moves == {max(expected, key=expected.get)}


@pytest.mark.parametrize("protocols", [("answer",), ("game",), ("think", "answer")])
def test_an_untrained_policy_never_plays_an_illegal_move(model, protocols):
    board, said = chess.Board(KRK), []
    while len(board.move_stack) < 12 and not board.is_game_over():
        text = f"position fen {KRK} moves {' '.join(move.uci() for move in board.move_stack)}\ngo movetime 10\n"
        said = talk(model, text, Knowledge("tiny", "snapshot", protocols, 5))
        board.push(board.parse_uci(best(said)[0]))  # raises for an illegal one
    assert len(board.move_stack) > 5
    assert any(line.startswith("info string trace") for line in said) == (protocols[0] == "think")


def test_the_variation_shown_begins_with_the_move_played(model):
    for seed in range(5):
        said = talk(model, f"setoption name Seed value {seed}\nposition fen {KRK}\ngo\n", Knowledge("tiny", "snapshot", ("think", "answer"), 5))
        variation = next(line for line in said if " pv " in line).split(" pv ")[1].split()
        assert variation[0] == best(said)[0]
        board = chess.Board(KRK)
        for move in variation:
            board.push_uci(move)


def test_go_infinite_answers_at_stop_and_only_once(model):
    assert best(talk(model, f"position fen {KRK}\ngo infinite\nisready\n")) == []
    assert len(best(talk(model, f"position fen {KRK}\ngo infinite\nstop\nstop\n"))) == 1
    assert best(talk(model, "stop\n")) == []


def test_limits_are_said_to_be_ignored_once(model):
    said = talk(model, f"position fen {KRK}\ngo depth 3 nodes 9\ngo depth 3\n")
    assert len([line for line in said if "is ignored" in line]) == 2
    assert len(best(said)) == 2


def test_searchmoves_restricts_the_choice(model):
    assert best(talk(model, f"position fen {KRK}\ngo searchmoves b1b2 depth 1\n")) == ["b1b2"]


def test_a_finished_game_has_no_move(model):
    assert best(talk(model, "position fen R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1\ngo\n")) == ["(none)"]


@pytest.mark.parametrize(
    "command", ["position fen nonsense", "position startpos moves e2e5", "position fen 8/8/8/8/8/8/8/8 w - - 0 1", "position", "position kiwi"]
)
def test_a_position_that_cannot_be_is_said_so_and_the_one_before_stays(model, command):
    said = talk(model, f"position fen {KRK}\n{command}\ngo\n")
    assert any(line.startswith("info string position ignored") for line in said)
    assert chess.Board(KRK).is_legal(chess.Move.from_uci(best(said)[0]))


def test_unknown_commands_and_impossible_options_change_nothing(model):
    plain = talk(model, f"position fen {KRK}\ngo\n")
    odd = talk(
        model,
        "\nxyzzy\nsetoption name Temperature value -1\nsetoption name Temperature value nan\nsetoption name Seed value x\n"
        f"setoption name Protocol value think\nsetoption name Contempt value 3\nposition fen {KRK}\ngo\nquit\ngo\n",
    )
    assert [line for line in odd if not line.startswith(("info string option", "info string no option"))] == plain
    assert len(odd) == len(plain) + 5


def test_options_change_the_play(model):
    assert talk(model, f"setoption name Temperature value 0\nposition fen {KRK}\ngo\n") == talk(
        model, f"position fen {KRK}\ngo\n", settings=PlaySettings("answer", 0.0)
    )


def test_a_policy_of_history_knows_the_start_position_alone(model):
    knowledge = Knowledge("tiny", "history", ("game",))
    said = talk(model, "position startpos moves e2e4 e7e5\ngo\n", knowledge)
    assert any(line.startswith("info string policy") for line in said)
    foreign = talk(model, f"uci\nposition fen {KRK}\ngo\n", knowledge)
    assert any("games from the start position only" in line for line in foreign)
    assert not any(line.startswith("info string policy") for line in foreign)
    assert chess.Board(KRK).is_legal(chess.Move.from_uci(best(foreign)[0]))


def test_endgame_policies_say_how_many_men_they_know(model):
    assert any("3 to 5 men" in line for line in talk(model, "uci\n"))
    assert any("at most 5 men" in line for line in talk(model, "position startpos\ngo\n"))
    assert not any("5 men" in line for line in talk(model, f"position fen {KRK}\ngo\n"))


def test_a_folder_of_weights_alone_needs_to_be_told_its_state_and_protocol(run, model, tmp_path):
    save_model(model, tmp_path / "model")
    with pytest.raises(UserError, match="state=snapshot"):
        open_policy(tmp_path / "model")
    with pytest.raises(UserError, match="protocol="):
        open_policy(tmp_path / "model", "snapshot")
    assert open_policy(tmp_path / "model", "snapshot", "game")[1] == Knowledge("model", "snapshot", ("game",))
    expected = Knowledge(run.name, "snapshot", ("think", "answer"), 5)
    assert open_policy(run)[1] == open_policy(run / "models" / "step-3")[1] == expected
    assert open_policy(run, protocol="answer")[1].protocols == ("answer", "think")
    with pytest.raises(UserError, match="trained with snapshot"):
        open_policy(run, "history")
    with pytest.raises(UserError, match="no such folder"):
        open_policy(tmp_path / "none")


def test_a_chess_client_plays_with_the_command(run, tmp_path):
    """Through python-chess, which ends the engine by closing its input; ``tee`` keeps what was said."""
    said = tmp_path / "said"
    command = f"{shlex.quote(sys.executable)} -m chessrl.uci model={shlex.quote(str(run))} thinking_budget=16 | tee {shlex.quote(str(said))}"
    with chess.engine.SimpleEngine.popen_uci(["sh", "-c", command], timeout=120) as engine:
        assert set(engine.options) == {"Temperature", "Seed", "Protocol"}
        engine.configure({"Temperature": "0.5", "Protocol": "answer"})
        board = chess.Board(KRK)
        for _ in range(4):
            board.push(engine.play(board, chess.engine.Limit(time=0.1)).move)
    lines = said.read_text().splitlines()
    assert {line.split()[0] for line in lines} == {"id", "option", "uciok", "readyok", "info", "bestmove"}
    assert len(best(lines)) == 4
