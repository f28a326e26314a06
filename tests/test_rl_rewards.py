"""Reward parts on rollouts of known outcome, verifiers that err, labels, the oracle, and attacks on what is paid."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import fields, replace

import chess
import pytest
import torch
from omegaconf import OmegaConf

from chessrl import notation
from chessrl.config import RewardConfig
from chessrl.engine_labels import MoveLabels, MoveScore, expected_score, position_key
from chessrl.environment import build_environment, solver_decisions
from chessrl.errors import UserError
from chessrl.launch import CONF, compose
from chessrl.puzzles import prompt_tokens
from chessrl.randomness import combine, stream_key
from chessrl.sampler import NO_END_THINK, OUTCOMES, Rollout, SamplingSettings, rollout
from rl import judges as judges_module
from rl.answers import NO_MOVE, answer_keys, played_moves
from rl.judges import Judges, judges_of
from rl.labels import MajorityLabels
from rl.rewards import (
    PARTS,
    Evidence,
    Labels,
    Told,
    check_reward,
    oracle_verdict,
    overlong_penalty,
    reward_parts,
    total_reward,
    verdict,
)
from tests.test_sampler import PUZZLES, trained_model

GROUP = 64


@functools.cache
def sampled(protocol: str = "think", group: int = GROUP, step: int = 0) -> Rollout:
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    settings = SamplingSettings(protocol, 1.0, 6, step=step)
    return rollout(trained_model(protocol), build_environment(PUZZLES), list(range(len(PUZZLES))), prompts, group, settings)


def evidence_of(result: Rollout, protocol: str = "think", config: RewardConfig | None = None, step: int = 0, **given) -> Evidence:
    environment = given.pop("environment", None) or build_environment(PUZZLES)
    samples = torch.arange(len(result.lengths)) % GROUP
    key = combine(combine(stream_key(0, "rl-reward", step, torch.device("cpu")), environment.puzzle_key[result.puzzles]), samples)
    chosen = {"judges": Judges(), "labels": None} | given
    return Evidence(
        rollout=result, environment=environment, moves=played_moves(result, protocol), key=key, config=config or RewardConfig("test"),
        longest=7 + 2 * 8, **chosen,
    )  # fmt: skip


def part(name: str, evidence: Evidence) -> torch.Tensor:
    return reward_parts(evidence, {name: 1.0})[name]


def moves_by_python_chess(row: int, result: Rollout, protocol: str) -> list[chess.Move]:
    """The solver moves of an episode that were closed by <call_env>, read by plain loops."""
    puzzle = PUZZLES[int(result.puzzles[row])]
    tokens = result.tokens[row, : result.lengths[row]].tolist()
    policy = result.policy[row].tolist()
    if protocol == "think":
        if notation.END_THINK not in tokens:
            return []
        tokens, policy = tokens[(cut := tokens.index(notation.END_THINK) + 1) :], policy[cut:]
    board, line, moves, written = puzzle.board(), list(puzzle.moves[puzzle.lead :]), [], []
    for token, own in zip(tokens, policy):
        if not own:
            continue
        if token != notation.CALL_ENV:
            written.append(token)
            continue
        try:
            move = notation.parse_move(board, written, strict=False)
        except notation.NotationError:
            return moves
        moves.append(move)
        written = []
        if len(line) > 1 and move.uci() == line[0]:
            board.push(move)
            board.push_uci(line[1])
            line = line[2:]
    return moves


# ---- what an episode played -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["think", "answer"])
def test_moves_are_read_back_as_the_sampler_judged_them(protocol):
    result = sampled(protocol, group=16)
    moves = played_moves(result, protocol)
    several = 0
    for row in range(len(result.lengths)):
        if OUTCOMES[int(result.outcome[row])] == "illegal":
            continue  # its last move has a key and no python-chess move
        puzzle = PUZZLES[int(result.puzzles[row])]
        boards = [board for board, _, _ in solver_decisions(puzzle)]
        expected = [notation.move_key(board, move) for board, move in zip(boards, moves_by_python_chess(row, result, protocol))]
        assert [key for key in moves[row].tolist() if key != NO_MOVE] == expected
        several += len(expected) > 1
    assert several > 0


def test_answers_are_equal_where_their_moves_are_however_wide_the_table():
    narrow, wide = torch.tensor([[5, 7], [5, NO_MOVE]]), torch.tensor([[5, 7, NO_MOVE], [5, NO_MOVE, NO_MOVE], [7, 5, NO_MOVE]])
    keys = answer_keys(wide)
    assert answer_keys(narrow).tolist() == keys[:2].tolist()
    assert len(set(keys.tolist())) == 3


# ---- parts ------------------------------------------------------------------------------------------------------------------------------


def test_reward_parts_follow_the_outcome():
    result = sampled()
    weights = {"line": 1.0, "legal": 0.1, "format": 0.1}
    parts = reward_parts(evidence_of(result), weights)
    assert len(set(result.outcome.tolist())) >= 5
    for row, code in enumerate(result.outcome.tolist()):
        outcome = OUTCOMES[code]
        assert parts["line"][row] == (outcome == "solved")
        assert parts["legal"][row] == (outcome in ("solved", "wrong"))
        assert parts["format"][row] == (outcome in ("solved", "wrong", "illegal"))
    assert total_reward(parts, weights).max().item() == pytest.approx(1.2)


def test_behaviour_pays_captures_and_checks_of_a_legal_first_move():
    result = sampled()
    environment = build_environment(PUZZLES)
    tables = judges_of(replace(compose("rl", []), reward=RewardConfig("b", {"behaviour": 1.0})), PUZZLES, environment)
    paid = part("behaviour", evidence_of(result, judges=tables))
    for row in range(len(result.lengths)):
        moves = moves_by_python_chess(row, result, "think")
        board = PUZZLES[int(result.puzzles[row])].board()
        assert paid[row] == bool(moves and (board.is_capture(moves[0]) or board.gives_check(moves[0])))
    assert 0 < paid.mean() < 1


def test_length_is_a_share_of_the_longest_episode():
    paid = part("length", evidence_of(sampled()))
    assert torch.equal(paid, sampled().policy.sum(1) / 23) and paid.max() <= 1


def test_random_rewards_have_their_rate_and_are_the_episodes_own():
    config = RewardConfig("random", {"random": 1.0}, random_rate=0.3)
    result = sampled(group=GROUP)
    paid = part("random", evidence_of(result, config=config))
    assert paid.mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / len(paid)))
    assert torch.equal(paid, part("random", evidence_of(result, config=config)))
    assert not torch.equal(paid, part("random", evidence_of(result, config=config, step=1)))
    assert abs(torch.corrcoef(torch.stack([paid, part("line", evidence_of(result))]))[0, 1]) < 0.2
    some = Rollout(**{field.name: getattr(result, field.name)[GROUP : 2 * GROUP] for field in fields(Rollout)})
    assert torch.equal(part("random", evidence_of(some, config=config)), paid[GROUP : 2 * GROUP]), "its batch-mates decided"


# ---- engine -----------------------------------------------------------------------------------------------------------------------------


def test_the_engines_score_of_the_last_move_is_paid_and_a_position_without_labels_tells_nothing(monkeypatch):
    labels = {}
    for puzzle in PUZZLES:
        for number, (board, _, _) in enumerate(solver_decisions(puzzle)):
            scores = {move.uci(): MoveScore(cp=40 * place - 300) for place, move in enumerate(board.legal_moves)}
            labels[position_key(board)] = MoveLabels(position_key(board), 1, scores) if number == 0 else None
    monkeypatch.setattr(judges_module, "engine_labels", lambda config, puzzles: (labels, "test"))
    environment = build_environment(PUZZLES)
    tables = judges_of(replace(compose("rl", []), reward=RewardConfig("e", {"engine_score": 1.0})), PUZZLES, environment)
    result = sampled()
    paid = part("engine_score", evidence_of(result, judges=tables))
    seen = Counter()
    for row, code in enumerate(result.outcome.tolist()):
        moves = moves_by_python_chess(row, result, "think")
        if OUTCOMES[code] not in ("solved", "wrong"):
            assert paid[row] == 0
        elif len(moves) == 1:
            board = PUZZLES[int(result.puzzles[row])].board()
            assert paid[row].item() == pytest.approx(expected_score(labels[position_key(board)].scores[moves[0].uci()]), abs=1e-6)
            seen["scored"] += 1
        else:
            assert paid[row].isnan()
            seen["unknown"] += 1
    assert seen["scored"] > 10 and seen["unknown"] > 10


def test_a_move_refused_where_the_engine_could_not_score_is_neither_right_nor_wrong():
    """A grader's timeout counted as 0 would teach that the move was bad."""
    result = sampled()
    environment = build_environment(PUZZLES)
    unscored = torch.zeros(len(environment.legal_key), dtype=torch.bool)
    unscored[environment.root[0]] = True
    paid = part("engine", evidence_of(result, judges=Judges(unscored=unscored)))
    wrong = torch.tensor([OUTCOMES[code] == "wrong" for code in result.outcome.tolist()])
    assert paid[wrong & (result.puzzles == 0)].isnan().all() and (wrong & (result.puzzles == 0)).any()
    rest = ~(wrong & (result.puzzles == 0))
    assert torch.equal(paid[rest], result.solved[rest].float())


# ---- labels -----------------------------------------------------------------------------------------------------------------------------


def labels_of(samples: int = 16) -> MajorityLabels:
    prompts = [prompt_tokens(puzzle, "snapshot", think=True) for puzzle in PUZZLES]
    settings = SamplingSettings("think", 1.0, 6, stage="rl-labels")
    return MajorityLabels(trained_model("think"), build_environment(PUZZLES), prompts, samples, settings)


def test_the_label_is_the_most_frequent_legal_answer_of_the_start_policy():
    table = labels_of()
    labels = table.of(list(range(len(PUZZLES))), 1)
    prompts = [prompt_tokens(puzzle, "snapshot", think=True) for puzzle in PUZZLES]
    settings = SamplingSettings("think", 1.0, 6, stage="rl-labels")
    votes = rollout(trained_model("think"), build_environment(PUZZLES), list(range(len(PUZZLES))), prompts, 16, settings)
    keys = answer_keys(played_moves(votes, "think"))
    assert labels.known.sum() >= 4
    for place in range(len(PUZZLES)):
        rows = [row for row in range(len(keys)) if int(votes.puzzles[row]) == place and bool(votes.legal[row])]
        assert bool(labels.known[place]) == bool(rows)
        if not rows:
            continue
        counts = Counter(tuple(move.uci() for move in moves_by_python_chess(row, votes, "think")) for row in rows)
        winner = next(row for row in rows if keys[row] == labels.answer[place])
        assert counts[tuple(move.uci() for move in moves_by_python_chess(winner, votes, "think"))] == max(counts.values())
        assert bool(labels.right[place]) == bool(votes.solved[winner])
    assert int(torch.cat(table.lengths).sum()) == int((votes.prompt_lengths + votes.lengths).sum()), "what labels cost is counted"


def test_labels_do_not_depend_on_when_and_with_whom_a_puzzle_comes_up():
    whole = labels_of().of(list(range(len(PUZZLES))), 2)
    table = labels_of()
    for place in reversed(range(len(PUZZLES))):
        alone = table.of([place], 2)
        assert alone.answer.tolist() == whole.answer[2 * place : 2 * place + 2].tolist()


def test_majority_pays_the_label_and_incorrect_only_where_it_is_wrong():
    result = sampled()
    moves = played_moves(result, "think")
    keys = answer_keys(moves)
    chosen = [next((row for row in range(p * GROUP, (p + 1) * GROUP) if result.legal[row]), p * GROUP) for p in range(len(PUZZLES))]
    answer = keys[chosen].repeat_interleave(GROUP)
    right = result.by_line[chosen].repeat_interleave(GROUP)
    known = result.legal[chosen].repeat_interleave(GROUP)
    known[:GROUP] = False
    evidence = evidence_of(result, labels=Labels(answer, known, right))
    majority, incorrect = part("majority", evidence), part("incorrect", evidence)
    assert majority[~known].isnan().all()
    matches = (keys == answer) & result.legal
    assert torch.equal(majority[known], matches[known].float()) and matches[known].any()
    told = known & ~right
    assert incorrect[~told].isnan().all() and torch.equal(incorrect[told], matches[told].float())
    assert told.any() and (known & right).any()


# ---- verifiers that err -----------------------------------------------------------------------------------------------------------------


def test_a_noisy_verifier_has_its_rates_and_its_oracle_has_none():
    config = RewardConfig("noisy", {"line": 1.0}, true_positive_rate=0.8, false_positive_rate=0.3)
    right, wrong = [], []
    for step in range(8):
        result = sampled(step=step)
        evidence = evidence_of(result, config=config, step=step)
        paid = part("line", evidence)
        assert torch.equal(oracle_verdict(evidence), result.by_line)
        right += paid[result.by_line].tolist()
        wrong += paid[~result.by_line].tolist()
    for values, rate in ((right, 0.8), (wrong, 0.3)):
        assert len(values) > 500
        assert sum(values) / len(values) == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / len(values)))


def test_an_oracle_engine_accepts_its_own_moves_the_lines_and_mates(monkeypatch):
    """Of an episode that the training verifier refused, the oracle may still approve; of one cut short it never does."""
    result = sampled()
    row = next(row for row, code in enumerate(result.outcome.tolist()) if OUTCOMES[code] == "wrong" and int(result.moves[row]) == 0)
    place, move = int(result.puzzles[row]), moves_by_python_chess(row, result, "think")[0].uci()
    accepted = {position_key(PUZZLES[place].board()): [move]}
    labels = {}
    for puzzle in PUZZLES:
        for board, _, _ in solver_decisions(puzzle):
            wanted = accepted.get(position_key(board), [])
            scores = {move.uci(): MoveScore(cp=500 if move.uci() in wanted else -500) for move in board.legal_moves}
            labels[position_key(board)] = MoveLabels(position_key(board), 1, scores) if wanted else None
    monkeypatch.setattr(judges_module, "engine_labels", lambda config, puzzles: (labels, "test"))
    environment = build_environment(PUZZLES)
    config = RewardConfig("o", {"line": 1.0}, oracle="engine")
    tables = judges_of(replace(compose("rl", []), reward=config), PUZZLES, environment)
    verdict = oracle_verdict(evidence_of(result, judges=tables))
    approved = 0
    for row, code in enumerate(result.outcome.tolist()):
        moves = [move.uci() for move in moves_by_python_chess(row, result, "think")]
        by_oracle = int(result.puzzles[row]) == place and OUTCOMES[code] == "wrong" and moves == [move]
        assert bool(verdict[row]) == (bool(result.by_line[row]) or by_oracle), (OUTCOMES[code], moves)
        approved += by_oracle
    assert approved > 0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"line": 1.0}, [1.0, 0.0, 0.0]),
        ({"line": 2.0, "format": 0.5, "length": -0.1}, [1.0, 0.0, 0.0]),  # what shapes the reward opens no gap
        ({"engine": 1.0, "line": 3.0}, [1.0, 0.25, 0.0]),
        ({"format": 0.5, "length": -0.5}, [0.75, 0.9, 0.4]),  # no verifier: all parts, from -0.5 .. 0.5 to 0 .. 1
        ({"line": -1.0}, [0.0, 1.0, 1.0]),
    ],
)
def test_the_verdict_that_the_oracle_is_compared_with_by_hand(weights, expected):
    parts = {"line": [1.0, 0.0, 0.0], "engine": [1.0, 1.0, 0.0], "format": [1.0, 1.0, 0.0], "length": [0.5, 0.2, 0.2]}
    found = verdict({part: torch.tensor(parts[part]) for part in weights}, weights)
    assert found.tolist() == pytest.approx(expected)
    untold = verdict({part: torch.tensor([math.nan, 0.0, 0.0]) for part in weights}, weights)
    assert untold.isnan().tolist() == [True, False, False]


# ---- what cannot be told ----------------------------------------------------------------------------------------------------------------


def test_nan_from_a_part_raises_with_the_episode(monkeypatch):
    monkeypatch.setitem(PARTS, "broken", lambda evidence: evidence.rollout.by_line / 0.0)
    with pytest.raises(ValueError, match="reward part broken is not a number for episode"):
        reward_parts(evidence_of(sampled()), {"broken": 1.0})


def test_a_part_that_cannot_tell_leaves_the_whole_reward_untold(monkeypatch):
    known = torch.arange(len(sampled().lengths)) % 3 > 0
    monkeypatch.setitem(PARTS, "sometimes", lambda evidence: Told(evidence.rollout.legal, known))
    weights = {"line": 1.0, "sometimes": 0.5}
    parts = reward_parts(evidence_of(sampled()), weights)
    assert torch.equal(total_reward(parts, weights).isnan(), ~known)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RewardConfig("x", {}), "reward.weights is empty"),
        (RewardConfig("x", {"style": 1.0}), "reward.weights.style"),
        (RewardConfig("x", {"engine": 1.0}, "line"), "needs reward.accept=engine"),
        (RewardConfig("x", {"line": 1.0}, "oracle"), "reward.accept='oracle'"),
    ],
)
def test_rewards_that_cannot_be_paid_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        check_reward(config)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "reward").glob("*.yaml")))
def test_every_reward_preset_names_parts_that_exist(name):
    config = compose("rl", [f"reward={name}"])
    check_reward(config.reward)
    assert config.reward.name == name


def test_every_part_is_paid_by_some_preset():
    paid = {part for path in (CONF / "reward").glob("*.yaml") for part in OmegaConf.load(path).weights}
    assert paid | {"legal"} == set(PARTS)


# ---- overlong traces --------------------------------------------------------------------------------------------------------------------


def test_soft_overlong_punishment_follows_dapos_formula():
    """Lmax 20, Lc 5, penalty 1: 0 up to 15, (15 - |y|) / 5 up to 20, -1 beyond."""
    result = sampled("answer")
    lengths = torch.tensor([0, 14, 15, 16, 18, 20, 20])
    outcome = torch.tensor([0, 0, 0, 0, 0, 0, NO_END_THINK])
    made = replace(result, trace_lengths=lengths, outcome=outcome)
    expected = [0.0 if n <= 15 else (n - 15) / 5 for n in lengths.tolist()]
    assert overlong_penalty(made, 20, 0.25, 1.0).tolist() == pytest.approx(expected)
    assert overlong_penalty(made, 20, 0.25, 0.5)[-1] == 0.5
