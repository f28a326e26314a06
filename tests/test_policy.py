"""Legal-move scores: the tree in one pass equals one sequence per move, behind every context and protocol."""

import chess
import numpy as np
import pytest
import torch

from chessrl import notation
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.environment import build_environment
from chessrl.model import build_model, token_logprobs
from chessrl.policy import decisions_of, exact_success, measure_policy, move_tree, sampled_traces, score_moves
from chessrl.puzzles import load_puzzles, prompt_tokens
from chessrl.sampler import SamplingSettings, rollout
from tests.uneven_policy import TINY, uneven_policy


@pytest.fixture(scope="module")
def model():
    return uneven_policy()


@pytest.fixture(scope="module")
def puzzles():
    return load_puzzles(PACK / PUZZLES_FILE, "test", ["B2", "B3"])[:6]


def one_by_one(model, context: list[int], board: chess.Board, temperature: float) -> list[float]:
    """A forward pass of its own for every legal move."""
    scores = []
    for move in sorted(board.legal_moves, key=lambda move: move.uci()):
        ply = notation.move_tokens(board, move)
        sequence = torch.tensor([[*context, *ply]])
        logits = model(sequence)[:, len(context) - 1 : -1]
        scores.append(float(token_logprobs(logits, sequence[:, len(context) :], temperature).sum()))
    return scores


def test_a_tree_shares_the_tokens_that_moves_begin_with():
    tree = move_tree([(5, 9, 10), (5, 9, 11), (6, 9, 10, 75)])
    assert tree.tokens.tolist() == [5, 9, 10, 11, 6, 9, 10, 75]
    assert tree.parents.tolist() == [-1, 0, 1, 1, -1, 4, 5, 6]
    assert tree.depths.tolist() == [0, 1, 2, 2, 0, 1, 2, 3]
    assert tree.paths.sum(1).tolist() == [3, 3, 4]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@torch.no_grad()
def test_scores_of_the_tree_equal_one_pass_per_move(model, puzzles, temperature):
    castling_en_passant_promotion = "r3k2r/pPpp1ppp/8/4pP2/8/8/PPPP1PPP/R3K2R w KQkq e6 0 2"
    boards = [chess.Board(), puzzles[0].board(), chess.Board(castling_en_passant_promotion)]
    contexts = [[notation.BOS, *notation.snapshot_tokens(board), *([notation.THINK] * place)] for place, board in enumerate(boards)]
    trees = [move_tree([notation.move_tokens(board, move) for move in sorted(board.legal_moves, key=lambda move: move.uci())]) for board in boards]
    scores = score_moves(model, contexts, trees, temperature, pass_tokens=200)  # several passes, padded
    for score, context, board in zip(scores, contexts, boards):
        np.testing.assert_allclose(score, one_by_one(model, context, board, temperature), atol=1e-5)
    assert np.std(scores[0]) > 0.1


@torch.no_grad()
def test_a_later_decision_is_scored_behind_the_line_played_so_far(model, puzzles):
    puzzle = next(puzzle for puzzle in puzzles if len(puzzle.moves) >= 3)
    table = measure_policy(model, [puzzle], "snapshot", "answer")
    board = puzzle.board()
    context = prompt_tokens(puzzle, "snapshot", think=False)
    for place, uci in enumerate(puzzle.moves[puzzle.lead : puzzle.lead + 2]):
        context += [*notation.move_tokens(board, board.parse_uci(uci)), *([notation.CALL_ENV] if place == 0 else [])]
        board.push_uci(uci)
    second = table[table["decision"] == 1].iloc[0]
    np.testing.assert_allclose(second["logprobs"], one_by_one(model, context, board, 1.0), atol=1e-5)
    assert second["moves"][second["solution"]] == puzzle.moves[puzzle.lead + 2]
    assert second["solution"] in second["solving"]


def test_the_game_protocol_has_no_call_token(puzzles):
    puzzle = next(puzzle for puzzle in puzzles if len(puzzle.moves) >= 3)
    assert notation.CALL_ENV in decisions_of(puzzle, "answer")[1].played
    assert notation.CALL_ENV not in decisions_of(puzzle, "game")[1].played


@torch.no_grad()
def test_each_trace_gives_a_row_and_the_legal_mass_is_a_probability(model, puzzles):
    settings = SamplingSettings("think", 1.0, 12, seed=3)
    prompts = [prompt_tokens(puzzle, "snapshot", think=True) for puzzle in puzzles]
    traces, cut = sampled_traces(model, build_environment(puzzles), prompts, 8, settings, batch=16)
    assert sum(map(len, traces)) + cut == 8 * len(puzzles)
    assert sum(map(len, traces)) > 0
    assert all(trace[-1] == notation.END_THINK and notation.END_THINK not in trace[:-1] for of_puzzle in traces for trace in of_puzzle)
    table = measure_policy(model, puzzles, "snapshot", "think", traces)
    counts = table.groupby(["puzzle", "decision"]).size()
    for puzzle, of_puzzle in zip(puzzles, traces):
        if of_puzzle:
            assert counts[puzzle.id].tolist() == [len(of_puzzle)] * len(decisions_of(puzzle, "think"))
    for row in table.head(5).itertuples():
        assert 0 < np.exp(np.asarray(row.logprobs, float)).sum() <= 1
        place = [puzzle.id for puzzle in puzzles].index(row.puzzle)
        if row.decision == 0:
            context = [*prompts[place], *traces[place][row.trace]]
            np.testing.assert_allclose(row.logprobs, one_by_one(model, context, puzzles[place].board(), 1.0), atol=1e-5)


@torch.no_grad()
def test_exact_success_sums_over_the_lines_that_solve(model, puzzles):
    """By enumeration: every accepted way through the puzzle, each scored as one sequence."""
    for puzzle, exact in zip(puzzles, exact_success(model, puzzles, "snapshot", 0.8)):
        total = 0.0
        prompt = prompt_tokens(puzzle, "snapshot", think=False)
        decisions = decisions_of(puzzle, "answer")
        for decision in decisions:
            for move in decision.solving:
                if move == decision.solution and decision is not decisions[-1]:
                    continue  # goes on
                answer = [*decision.played, *decision.plies[move], notation.CALL_ENV]
                sequence = torch.tensor([[*prompt, *answer]])
                logprobs = token_logprobs(model(sequence)[:, len(prompt) - 1 : -1], sequence[:, len(prompt) :], 0.8)[0]
                total += float(logprobs[_sampled_places(puzzle, decision.number, len(decision.plies[move]))].sum().exp())
        assert exact == pytest.approx(total, rel=1e-4)


def _sampled_places(puzzle, decision: int, last_length: int) -> list[int]:
    """Places in the answer that the policy samples: solver moves and <call_env>, not the opponent's replies."""
    board, places, start = puzzle.board(), [], 0
    for number, uci in enumerate(puzzle.moves[puzzle.lead : puzzle.lead + 2 * decision]):
        length = len(notation.move_tokens(board, board.parse_uci(uci)))
        if number % 2 == 0:
            places += range(start, start + length + 1)
            length += 1
        start += length
        board.push_uci(uci)
    return places + list(range(start, start + last_length + 1))


def test_exact_success_is_the_rate_of_strictly_spelt_samples(puzzles):
    """A model that plays the first legal tokens often enough to be measured: fine-tuned on the answers for a moment."""
    model = build_model(TINY, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    texts = []
    for puzzle in puzzles:
        decision = decisions_of(puzzle, "answer")[-1]
        texts.append([*prompt_tokens(puzzle, "snapshot", think=False), *decision.played, *decision.plies[decision.solution], notation.CALL_ENV])
    for _ in range(60):
        optimizer.zero_grad()
        for text in texts:
            sequence = torch.tensor([text])
            (-token_logprobs(model(sequence)[:, :-1], sequence[:, 1:]).mean()).backward()
        optimizer.step()
    exact = exact_success(model, puzzles, "snapshot", 1.0)
    prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in puzzles]
    settings = SamplingSettings("answer", 1.0, 8, spelling="strict", seed=5)
    result = rollout(model, build_environment(puzzles), list(range(len(puzzles))), prompts, 400, settings)
    rate = result.solved.view(len(puzzles), 400).double().mean(1).numpy()
    assert exact.max() > 0.05
    assert (np.abs(rate - exact) < 4.5 * np.sqrt(exact * (1 - exact) / 400) + 1e-3).all()
