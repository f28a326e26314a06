"""The verifier audit: verdicts against python-chess, attacks against the rules, the oracle against an exhaustive search."""

from __future__ import annotations

import json
from dataclasses import asdict

import chess
import pytest

from analysis.verifier_audit import read_audits
from chessrl import notation
from chessrl.attacks import ATTACKS, BEHIND_TRACE, attack_answers, attack_table, play
from chessrl.audit import Judge, alternatives, audit, judges_of, played_moves, proof_judge, reward_judge, verdict_of_episode, verdicts
from chessrl.checkpoint import save_model
from chessrl.engine import find_stockfish
from chessrl.engine_labels import position_key
from chessrl.environment import build_environment, solver_decisions
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.puzzles import accepted_moves, prompt_tokens
from chessrl.sampler import OUTCOMES, SamplingSettings, rollout
from tests.test_sampler import PUZZLES, TINY, play_reference, trained_model

GREEDY = {protocol: SamplingSettings(protocol, 0.0, 12) for protocol in ("answer", "think")}


def result_of(protocol: str, samples: int = 16):
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    settings = SamplingSettings(protocol, 1.0, 6, seed=3)
    return rollout(trained_model(protocol), build_environment(PUZZLES), range(len(PUZZLES)), prompts, samples, settings)


def by_line(board: chess.Board, line_move: chess.Move) -> list[chess.Move]:
    return accepted_moves(board, line_move)


# ---- verdicts -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["answer", "think", "game"])
def test_moves_read_back_replay_to_the_outcome(protocol):
    result = result_of(protocol)
    outcomes = set()
    for row, code in enumerate(result.outcome.tolist()):
        puzzle, outcome = PUZZLES[int(result.puzzles[row])], OUTCOMES[code]
        moves = played_moves(result, row, puzzle, protocol)
        outcomes.add(outcome)
        board, line = puzzle.board(), list(puzzle.moves[puzzle.lead :])
        for number, move in enumerate(moves):
            assert board.is_legal(move)
            on_line = move.uci() == line[2 * number]
            board.push(move)
            if number + 1 < len(moves):
                assert on_line, "only the last move may leave the line"
                board.push_uci(line[2 * number + 1])
        if outcome == "solved":
            assert board.is_checkmate() or board.move_stack[-1].uci() == line[-1]
        elif outcome == "wrong":
            assert moves and not board.is_checkmate() and moves[-1].uci() != line[2 * len(moves) - 2]
        else:
            assert [move.uci() for move in moves] == line[: 2 * len(moves) : 2], "an episode that broke off played the line until then"
    assert {"solved", "wrong", "illegal"} <= outcomes


def test_the_proof_says_what_the_environment_says():
    table = verdicts(result_of("answer"), PUZZLES, "answer", [proof_judge(PUZZLES)], 0, 16)
    assert table["oracle"].tolist() == table["line"].tolist() and 0 < table["line"].mean() < 1
    assert (table["line"] | ~table["line_only"]).all() and (table["line"] & ~table["line_only"]).any(), "some episodes mate beside the line"
    assert table["sample"].tolist() == list(range(16)) * len(PUZZLES)


def test_a_judge_decides_the_move_off_the_line_and_the_moves_before_it():
    puzzle = PUZZLES[1]  # a2a7 h8g8 b1b8
    decisions = solver_decisions(puzzle)
    keys = [position_key(board) for board, _, _ in decisions]
    line, off = chess.Move.from_uci("a2a7"), chess.Move.from_uci("b1b7")
    generous = Judge("j", {keys[0]: frozenset({"a2a7"}), keys[1]: frozenset({"b1b7"})})
    assert verdict_of_episode(generous, puzzle, [line, off], judged=True, finished=False) is True
    assert verdict_of_episode(generous, puzzle, [line, decisions[1][1]], judged=True, finished=True) is False, "it refuses the line's last move"
    assert verdict_of_episode(generous, puzzle, [line], judged=False, finished=False) is False, "an episode that broke off is wrong"
    untold = Judge("j", {keys[0]: None, keys[1]: frozenset({"b1b7"})})
    assert verdict_of_episode(untold, puzzle, [line, off], judged=True, finished=False) is None
    assert verdict_of_episode(untold, puzzle, [line, decisions[1][1]], judged=True, finished=True) is False, "one refused move decides"


def test_the_rewards_engine_pays_line_and_mates_whatever_the_engine_says():
    puzzle = PUZZLES[1]  # a2a7 h8g8 b1b8
    decisions = solver_decisions(puzzle)
    keys = [position_key(board) for board, _, _ in decisions]
    first, last, off, wrong = (chess.Move.from_uci(move) for move in ("a2a7", "b1b8", "b1b7", "b1b6"))
    engine = Judge("engine", {keys[0]: None, keys[1]: frozenset({"b1b7"})})
    judge = reward_judge("paid", engine, [puzzle])
    said = [verdict_of_episode(judge, puzzle, [first, move], judged=True, finished=move == last) for move in (last, off, wrong)]
    assert said == [True, True, False]
    assert verdict_of_episode(judge, puzzle, [off], judged=True, finished=False) is None, "the engine could not score the first position"


def test_alternatives_count_decisions_with_another_accepted_move():
    many = next(puzzle for puzzle in PUZZLES if puzzle.id == "many-mates")
    keys = [position_key(board) for board, _, _ in solver_decisions(many)]
    judge = Judge("j", {keys[0]: frozenset({"a1a8"}), keys[1]: None})
    table = alternatives([many], [judge]).set_index("verifier")
    assert table.loc["j", ["decisions", "with_alternative", "line_refused", "untold"]].tolist() == [2, 1, 1, 1]
    expected = sum(len(accepted_moves(board, line)) > 1 for board, line, _ in solver_decisions(many))
    assert table.loc["line", "with_alternative"] == expected > 0


# ---- attacks ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["answer", "think"])
def test_every_attack_is_wrong_by_python_chess_and_ends_as_the_environment_says(protocol):
    budget = GREEDY[protocol].thinking_budget if protocol == "think" else None
    environment = build_environment(PUZZLES)
    seen = set()
    for place, puzzle in enumerate(PUZZLES):
        for attack, text in attack_answers(puzzle, by_line, budget).items():
            result = play(environment, [place], [text], GREEDY[protocol])
            written = result.tokens[0, : int(result.lengths[0])].tolist()
            outcome, _, policy = play_reference(puzzle, written, protocol, GREEDY[protocol].thinking_budget, "lenient")
            assert OUTCOMES[int(result.outcome[0])] == outcome != "solved", (puzzle.id, attack)
            assert len(policy) == len(written)
            seen.add(attack)
    assert seen == set(ATTACKS) - (set() if protocol == "think" else set(BEHIND_TRACE))


def test_a_verifier_that_accepts_every_legal_move_is_fooled_by_legal_attacks_alone():
    everything = {
        position_key(board): [move.uci() for move in board.legal_moves] for puzzle in PUZZLES for board, _, _ in solver_decisions(puzzle)
    }
    environments = {"line": build_environment(PUZZLES), "gullible": build_environment(PUZZLES, everything)}
    table = attack_table(PUZZLES, environments, by_line, GREEDY["answer"])
    rates = table.groupby(["attack", "verifier"])["fooled"].mean()
    assert (rates.xs("line", level="verifier") == 0).all()
    assert rates["check_spam", "gullible"] == rates["mate_claim", "gullible"] == 1
    assert rates["illegal_move", "gullible"] == rates["empty_answer", "gullible"] == 0
    assert rates["illegal_move", "format"] == 1 and rates["illegal_move", "legal"] == 0 and rates["empty_answer", "format"] == 0
    assert rates["mate_claim", "legal"] == 1


def test_promotion_noise_asks_for_a_piece_that_the_oracle_refuses():
    promotes = next(puzzle for puzzle in PUZZLES if puzzle.id == "promotes")
    board, line, _ = solver_decisions(promotes)[0]
    text = attack_answers(promotes, by_line, None)["promotion_flag_noise"]
    move = notation.parse_move(board, text[:-1], strict=False)
    assert move.promotion not in (None, line.promotion) and move not in accepted_moves(board, line)


# ---- the command --------------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def stockfish():
    try:
        find_stockfish()
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("stockfish")
def test_an_engine_as_oracle_accepts_the_mates_of_a_line(tmp_path):
    config = compose("audit", [f"outputs={tmp_path}", "audit.depths=[1]", "audit.oracle_depth=6", "engine.workers=1"])
    judges, identities = judges_of(config, PUZZLES, "engine")
    assert [judge.name for judge in judges] == ["engine_depth_1", "line_or_engine_depth_1", "oracle"] and "depth=6" in identities["oracle"]
    for puzzle in (puzzle for puzzle in PUZZLES if puzzle.difficulty <= 2 and puzzle.id != "en-passant" and puzzle.id != "long-castle"):
        board, line, _ = solver_decisions(puzzle)[-1]
        mates = {move.uci() for move in accepted_moves(board, line)}
        assert judges[-1].accepted[position_key(board)] == mates, "between mates the distance decides"
    assert [judge.name for judge in judges_of(config, PUZZLES, "proof")[0]] == ["engine_depth_1", "line_or_engine_depth_1", "deep_engine", "oracle"]


@pytest.mark.usefixtures("stockfish")
def test_the_command_audits_once_and_its_folder_can_be_read(tmp_path, capsys):
    run = tmp_path / "sft-0123456789ab"
    save_model(trained_model("answer"), run / "model")
    model = asdict(TINY)
    summary = {"stage": "sft", "run_id": run.name, "parents": {}, "world": {"name": "endgame", "state": "snapshot"}, "model": model, "step": 7}
    (run / "summary.json").write_text(json.dumps(summary | {"traces": False}))
    (run / "status.json").write_text(json.dumps({"state": "completed"}))
    words = [f"parent={run}", f"outputs={tmp_path}", "evaluate.max_puzzles=6", "evaluate.samples=4", "evaluate.ks=[1]", "run.device=cpu"]
    settings = compose("audit", [*words, "audit.depths=[1]", "audit.oracle_depth=3", "engine.workers=1"])
    assert audit(settings) == 0
    [found] = read_audits(run)
    assert (len(found.verdicts), len(found.puzzles), found.record["step"], found.record["oracle"]) == (24, 6, 7, "proof")
    assert found.record["verifiers"] == ["line_only", "line", "engine_depth_1", "line_or_engine_depth_1", "deep_engine"]
    assert set(found.attacks["attack"]) == set(ATTACKS) - set(BEHIND_TRACE) and not found.attacks.query("verifier == 'line'")["fooled"].any()
    audit(compose("audit", [*words, "audit.depths=[1]", "audit.oracle_depth=3", "engine.workers=1"]))
    assert "is finished, skipped" in capsys.readouterr().out
