"""Traces: reading moves, prefix trees, their text by hand, and their making from a model's samples."""

from __future__ import annotations

import functools

import chess
import numpy as np
import pytest
import torch

from chessrl import notation
from chessrl.config import ModelConfig, TraceConfig
from chessrl.model import Transformer, build_model
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.traces import Line, Tree, leaf_lines, merge, next_move_length, read_plies, trace_tokens
from chessrl.training import next_token_logprobs, pad
from sft import traces
from sft.proposals import ModelProposal
from sft.traces import TraceReport, build_trees, inject_answer, rounded_lognormal
from tests.test_sampler import PUZZLES

TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16)
TWO_ROOKS = PUZZLES[1]
WIDE = TraceConfig(candidates=8, continuations_mean=2.0, continuations_sigma=0.5, length_mean=2.5, length_sigma=0.5, length_max=4)


def line(*ucis: str) -> Line:
    return tuple(map(chess.Move.from_uci, ucis))


def read(text: str, most: int, puzzle: Puzzle = TWO_ROOKS) -> tuple[list[str], bool]:
    plies, illegal = read_plies(puzzle.board(), notation.from_text(text), most)
    return [move.uci() for move in plies], illegal


# ---- trees and their text -------------------------------------------------------------------------------------------------------------


def test_lines_with_a_shared_prefix_become_one_branch_in_the_order_of_first_appearance():
    written = [("a2a7", "h8g8"), ("b1b8",), ("a2a7", "h8g8", "b1b8"), ("a2a7",), ("b1b7",), ("a2a7", "h8g8", "b1b7")]
    tree = merge(line(*ucis) for ucis in written)
    assert leaf_lines(tree) == [line("a2a7", "h8g8", "b1b8"), line("a2a7", "h8g8", "b1b7"), line("b1b8"), line("b1b7")]


def test_trace_text_by_hand():
    tree = merge([line("b1b8"), line("a2a7", "h8g8", "b1b8"), line("a2a7", "h8g8", "a7a8")])
    text = notation.to_text(trace_tokens(TWO_ROOKS.board(), leaf_lines(tree)))
    assert text == "R b1 b8 + <sep> R a2 a7 K h8 g8 R b1 b8 # <sep> R a2 a7 K h8 g8 R a7 a8 + </T>"


def test_an_empty_tree_is_a_closed_empty_trace():
    assert leaf_lines(merge([])) == []
    assert trace_tokens(TWO_ROOKS.board(), leaf_lines(merge([]))) == [notation.END_THINK]


def test_trace_tokens_leave_the_board_as_it_was():
    board = TWO_ROOKS.board()
    before = board.fen()
    trace_tokens(board, [line("a2a7", "h8g8")])
    assert board.fen() == before


# ---- reading --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most", "expected", "illegal"),
    [
        ("R a2 a7 K h8 g8 R b1 b8 #", 2, ["a2a7", "h8g8"], False),  # asked for no more
        ("R a2 a7 K h8 g8 <eos> R b1 b8 #", 4, ["a2a7", "h8g8"], True),  # a foreign token
        ("R a2 a7 R b1 b8", 4, ["a2a7"], True),  # it is the other side's turn
        ("R a2 b7", 2, [], True),
        ("R a2 a7 K h8", 2, ["a2a7"], True),  # cut off
        ("<sep> R a2 a7", 2, [], True),
        ("R a2 a7 <sep> K h8 g8", 2, ["a2a7"], True),
        ("R a2 a7 K h8 g8 R b1 b8 #", 9, ["a2a7", "h8g8", "b1b8"], False),  # mate is an end, not a fault
        ("Q a2 x a7 # K h8 g8", 2, ["a2a7", "h8g8"], False),  # spelling is not judged
        ("", 1, [], True),
        ("R a2 a7", 0, [], False),
    ],
)
def test_reading_stops_at_the_first_illegal_ply_or_foreign_token(text, most, expected, illegal):
    assert read(text, most) == (expected, illegal)


@pytest.mark.parametrize(
    "fen",
    [
        "r3k2r/pPpp1ppp/8/3Pp3/8/8/PPP2PPP/R3K2R w KQkq e6 0 1",  # castling, capture-promotion, en passant
        "1n2k3/P6P/8/8/8/8/8/4K3 w - - 0 1",
        "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1",
    ],
)
def test_a_moves_length_is_found_whatever_follows(fen):
    board = chess.Board(fen)
    for move in board.legal_moves:
        tokens = notation.move_tokens(board, move)
        for follower in ("<call_env>", "K", "O-O", "e4", "x", "<eos>"):
            assert next_move_length([*tokens, notation.TOKEN_ID[follower]]) == len(tokens), notation.to_text(tokens)
        assert next_move_length(tokens) == len(tokens)


# ---- making ----------------------------------------------------------------------------------------------------------------------------


@functools.cache
def wandering_model() -> Transformer:
    """A tiny model that has learned some random play from the positions of PUZZLES: its samples are often legal and rarely alike."""
    rng = np.random.default_rng(0)
    games = []
    for puzzle in PUZZLES:
        for _ in range(60):
            board, tokens = puzzle.board(), prompt_tokens(puzzle, "snapshot", think=False)
            while len(board.move_stack) < 4 and not board.is_game_over():
                moves = list(board.legal_moves)
                move = moves[rng.integers(len(moves))]
                tokens = tokens + notation.move_tokens(board, move)
                board.push(move)
            games.append(tokens)
    model = build_model(TINY, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        batch = [games[index] for index in rng.integers(len(games), size=32)]
        tokens = pad(batch, notation.PAD, torch.device("cpu"))
        (-next_token_logprobs(model, tokens) * (tokens[:, 1:] != notation.PAD)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def propose(model: Transformer, puzzles: list[Puzzle], config: TraceConfig, seed: int, report: TraceReport) -> list[Tree]:
    return build_trees(ModelProposal(model, config, "snapshot", seed), puzzles, config, seed=seed, report=report, done=lambda count: None)


def lines_of(model: Transformer, puzzles: list[Puzzle], config: TraceConfig = WIDE, seed: int = 0) -> dict[str, list[Line]]:
    trees = propose(model, puzzles, config, seed, TraceReport())
    return {puzzle.id: leaf_lines(tree) for puzzle, tree in zip(puzzles, trees)}


def test_trees_do_not_depend_on_the_other_puzzles_of_the_batch(monkeypatch):
    model = wandering_model()
    together = lines_of(model, PUZZLES)
    assert sum(map(len, together.values())) > 2 * len(PUZZLES), "the trees are too small to tell"
    assert lines_of(model, PUZZLES) == together
    assert lines_of(model, PUZZLES[::-1]) == together
    monkeypatch.setattr(traces, "PUZZLES_PER_BATCH", 2)
    assert lines_of(model, PUZZLES) == together
    for puzzle in PUZZLES:
        assert lines_of(model, [puzzle]) == {puzzle.id: together[puzzle.id]}
    assert lines_of(model, PUZZLES, seed=1) != together


def test_lines_are_legal_and_of_the_lengths_asked_for():
    found = lines_of(wandering_model(), PUZZLES)
    for puzzle in PUZZLES:
        for moves in found[puzzle.id]:
            assert 1 <= len(moves) <= WIDE.length_max
            board = puzzle.board()
            for move in moves:
                assert board.is_legal(move)
                board.push(move)
    assert {len(moves) for lines in found.values() for moves in lines} >= {1, 2, 3}


@pytest.mark.parametrize("length_max", [1, 2, 4])
def test_the_answers_opening_is_always_in_the_trace_when_injected(length_max):
    config = TraceConfig(length_max=length_max)
    for model in (wandering_model(), build_model(TINY, seed=0)):
        for puzzle in PUZZLES:
            answer = line(*puzzle.moves[puzzle.lead :][:length_max])
            assert any(moves[: len(answer)] == answer for moves in lines_of(model, [puzzle], config)[puzzle.id]), puzzle.id


def test_nothing_legal_sampled_and_nothing_injected_gives_empty_trees_and_is_counted():
    """A random model of 101 tokens writes a legal first move with probability below 1e-4."""
    report = TraceReport()
    config = TraceConfig(candidates=3, inject_answer=False)
    trees = propose(build_model(TINY, seed=0), PUZZLES, config, 0, report)
    assert trees == [{}] * len(PUZZLES)
    assert report.counts["first moves"] == report.counts["illegal first moves"] == 3 * len(PUZZLES)
    assert report.counts["puzzles"] == len(PUZZLES) and report.counts["lines"] == 0


def test_every_sample_is_counted():
    report = TraceReport()
    propose(wandering_model(), PUZZLES, WIDE, 0, report)
    assert report.counts["first moves"] == WIDE.candidates * len(PUZZLES)
    assert report.counts["answer sampled"] + report.counts["answer injected"] == report.counts["puzzles"] == len(PUZZLES)
    assert 0 < report.counts["illegal first moves"] < report.counts["first moves"]
    assert report.counts["illegal continuations"] <= report.counts["continuations"] > 0
    assert report.sampled_tokens >= WIDE.candidates * len(PUZZLES) and report.prompt_tokens > 0


def test_an_answer_that_was_sampled_is_not_put_in_twice():
    lines, report = [line("b1b7"), line("a2a7", "h8g8")], TraceReport()
    assert inject_answer(TWO_ROOKS, TWO_ROOKS.board(), lines, 2, 0, report) is lines
    assert report.counts == {"answer sampled": 1}
    longer = inject_answer(TWO_ROOKS, TWO_ROOKS.board(), lines, 3, 0, report)
    assert sorted(map(len, longer)) == [1, 2, 3] and report.counts["answer injected"] == 1


def test_the_injected_answer_has_no_fixed_place():
    """With 4 places and 40 puzzles, a uniform choice misses one of them with probability 4 x 0.75^40 < 1e-4."""
    lines = [line("b1b7"), line("b1b6"), line("b1b5")]
    places = set()
    for number in range(40):
        puzzle = Puzzle(f"{number}", TWO_ROOKS.fen, TWO_ROOKS.moves, 0, 2, "B2")
        places.add(inject_answer(puzzle, puzzle.board(), lines, 2, 0, TraceReport()).index(line("a2a7", "h8g8")))
    assert places == {0, 1, 2, 3}


def test_rounded_lognormal_has_the_mean_and_stays_in_range():
    rng = np.random.Generator(np.random.Philox(key=[0, 0]))
    values = rounded_lognormal(rng, 6.0, 0.4, 1, 1000, 40_000)
    assert values.mean() == pytest.approx(6.0, abs=0.06)  # standard error 0.0125
    assert np.log(values).std() == pytest.approx(0.4, abs=0.03)
    assert set(rounded_lognormal(rng, 2.5, 0.8, 2, 4, 1000)) == {2, 3, 4}
    assert set(rounded_lognormal(rng, 3.0, 0.0, 1, 10, 100)) == {3}
