"""What training loops share, and the gradients of pretraining and fine-tuning, against plain computations."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from chessrl import notation
from chessrl.config import Config, ModelConfig, OptimizerConfig, PretrainConfig
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer, build_model
from chessrl.puzzles import Puzzle
from chessrl.traces import leaf_lines, merge, trace_tokens
from chessrl.training import (
    GIVEN,
    Counters,
    Example,
    accumulate_gradient,
    build_optimizer,
    evaluate_losses,
    learning_rate,
    micro_batches,
    next_token_logprobs,
    optimizer_step,
    shuffled,
    token_batches,
)
from pretrain import train as pretrain
from sft.examples import ANSWER, TRACE, build_example
from sft.validation import named_losses

TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16)
TWO_ROOKS = Puzzle("two-rooks", "7k/8/8/8/8/8/R7/1R4K1 w - - 0 1", ("a2a7", "h8g8", "b1b8"), 0, 2, "B2")
BACK_RANK = Puzzle("back-rank", "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", ("a1a8",), 0, 1, "B1")
AFTER_REPLY = Puzzle("after-reply", "6k1/5ppp/8/8/8/8/r4PPP/R5K1 b - - 0 1", ("a2b2", "a1a8"), 1, 900, "B1")
DOCUMENTS = [
    np.array(notation.from_text(text))
    for text in (
        "<bos> P e2 e4 P e7 e5 B f1 c4 N b8 c6 Q d1 h5 N g8 f6 Q h5 x f7 # <eos>",
        "<bos> <pos> <white> K g1 R a2 R b1 k h8 </pos> R a2 a7 K h8 g8 R b1 b8 # <eos>",
        "<bos> P d2 d4 <eos>",
        "<bos> <pos> <black> K e1 Q d1 P a2 P b2 k e8 r a8 </pos> R a8 x a2 <eos>",
    )
]


# ---- batches ---------------------------------------------------------------------------------------------------------------------------


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, 120, count)


def test_every_document_comes_once_per_epoch():
    lengths = lengths_of(200)
    batches = token_batches(lengths, 700, seed=3, epochs=3)
    order = np.concatenate(batches)
    for epoch in range(3):
        assert sorted(order[epoch * 200 : (epoch + 1) * 200]) == list(range(200))
    assert not np.array_equal(order[:200], order[200:400]), "the second epoch has the order of the first"


def test_batches_hold_about_the_tokens_asked_for():
    lengths = lengths_of(500)
    batches = token_batches(lengths, 1000, seed=0)
    totals = np.cumsum([lengths[batch].sum() for batch in batches])
    assert len(batches) == -(-lengths.sum() // 1000)  # no drift: after n batches about n x 1000 tokens were seen
    assert (np.abs(totals[:-1] - 1000 * np.arange(1, len(batches))) < lengths.max()).all()


def test_batches_are_a_function_of_their_arguments():
    first = token_batches(lengths_of(50), 300, seed=1, epochs=2)
    np.random.seed(7)  # the global generator must not matter
    again, other = token_batches(lengths_of(50), 300, seed=1, epochs=2), token_batches(lengths_of(50), 300, seed=2, epochs=2)
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in other]
    assert shuffled(50, 1, 0).tolist() != shuffled(50, 0, 1).tolist()


@pytest.mark.parametrize("tokens", [1, 999, 5000, 7321])
def test_batches_end_with_the_document_that_reaches_the_tokens(tokens):
    lengths = lengths_of(100)
    order = np.concatenate(token_batches(lengths, 400, seed=0, epochs=2, tokens=tokens))
    assert lengths[order].sum() >= tokens > lengths[order[:-1]].sum()


@pytest.mark.parametrize("budget", [1, 130, 1000, 10**6])
def test_micro_batches_stay_within_the_budget_and_lose_no_row(budget):
    lengths = lengths_of(300).tolist()
    groups = micro_batches(lengths, budget)
    assert sorted(place for group in groups for place in group) == list(range(300))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[place] for place in group) <= budget
    if budget == 10**6:
        assert len(groups) == 1


# ---- schedule, optimiser, counting -----------------------------------------------------------------------------------------------------


def test_learning_rate_at_its_corners():
    config = OptimizerConfig(lr=2.0, min_lr_ratio=0.25, warmup_ratio=0.1, schedule="cosine")
    assert learning_rate(config, 1, 100) == pytest.approx(0.2)  # a tenth of the way up
    assert learning_rate(config, 10, 100) == pytest.approx(2.0)
    assert learning_rate(config, 55, 100) == pytest.approx(2.0 * (0.25 + 0.75 / 2))  # half-way down
    assert learning_rate(config, 100, 100) == pytest.approx(0.5)
    rates = [learning_rate(config, step, 100) for step in range(1, 101)]
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)


def test_learning_rate_without_warm_up_and_in_a_single_step():
    config = OptimizerConfig(lr=2.0, warmup_ratio=0.0, schedule="constant")
    assert [learning_rate(config, step, 5) for step in range(1, 6)] == [2.0] * 5
    cosine = OptimizerConfig(lr=2.0, min_lr_ratio=0.1, warmup_ratio=0.0)
    assert learning_rate(cosine, 1, 1) == pytest.approx(0.2)
    assert all(math.isfinite(learning_rate(OptimizerConfig(warmup_ratio=1.0), step, 3)) for step in (1, 2, 3))


def test_unknown_schedule_is_refused_at_the_first_step_not_after_the_warm_up():
    with pytest.raises(UserError, match=r"optimizer\.schedule='linear': expected cosine, constant or wsd"):
        learning_rate(OptimizerConfig(schedule="linear", warmup_ratio=0.5), 1, 100)


def test_matrices_decay_and_norms_do_not():
    model = build_model(TINY, seed=0)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3))
    decay = {id(parameter): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if "norm" in name else 0.3), name


def test_an_optimiser_step_clips_reports_the_norm_before_and_clears_the_gradients():
    model = build_model(TINY, seed=0)
    optimizer = build_optimizer(model, OptimizerConfig())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    count = sum(parameter.numel() for parameter in model.parameters())
    clipped = []
    optimizer.register_step_pre_hook(lambda *_: clipped.append(sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5))
    norm = optimizer_step(model, optimizer, rate=0.5, clip=0.25)
    assert norm.item() == pytest.approx(3.0 * count**0.5, rel=1e-4)
    assert clipped == [pytest.approx(0.25, rel=1e-3)]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counters_add_6nt_and_attention():
    counters, cost = Counters(), Cost.of(TINY)
    counters.add_training(cost, torch.tensor([3, 5]), 4)
    counters.add_training(cost, torch.tensor([2]), 1)
    assert (counters.tokens, counters.loss_tokens) == (10, 5)
    assert counters.flops == 6 * cost.parameters_without_embeddings * (8 + 2)
    pairs = 6 + 15 + 3  # n (n + 1) / 2 of each document
    assert counters.flops_with_attention - counters.flops == 3 * pairs * 4 * TINY.layers * TINY.heads * TINY.head_dim


# ---- pretraining -----------------------------------------------------------------------------------------------------------------------


def test_a_snapshot_carries_no_loss_and_all_moves_of_a_history_do():
    examples = [pretrain.game_example(DOCUMENTS[1]), pretrain.game_example(DOCUMENTS[2])]
    trained = [notation.to_text(example.tokens[example.parts != GIVEN].tolist()) for example in examples]
    assert trained == ["R a2 a7 K h8 g8 R b1 b8 # <eos>", "P d2 d4 <eos>"]


def gradients(model: Transformer) -> list[Tensor]:
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


def one_by_one(model: Transformer, tokens: list[np.ndarray], trained: list[np.ndarray]) -> tuple[float, list[Tensor]]:
    """Loss and gradient of the mean over all trained tokens, one unpadded document at a time. ``trained`` marks tokens."""
    total = sum(int(marks.sum()) for marks in trained)
    loss = torch.zeros((), dtype=torch.float64)
    for ids, marks in zip(tokens, trained):
        logprobs = model(torch.as_tensor(ids)[None])[0, :-1].double().log_softmax(-1)
        loss = loss - logprobs[torch.arange(len(ids) - 1), torch.as_tensor(ids[1:])][torch.as_tensor(marks[1:])].sum() / total
    loss.backward()
    return loss.item(), gradients(model)


@pytest.mark.parametrize("budget", [1, 40, 60, 10**6])
def test_pretraining_gradient_does_not_depend_on_micro_batches(budget):
    model = build_model(TINY, seed=0)
    trained = []
    for document in DOCUMENTS:
        closing = np.flatnonzero(document == notation.END_POSITION)
        trained.append(np.arange(len(document)) > (closing[0] if len(closing) else 0))
    expected_loss, expected = one_by_one(model, DOCUMENTS, trained)
    games = [pretrain.game_example(document) for document in DOCUMENTS]
    losses = accumulate_gradient(model, games, budget)
    assert losses.trained == sum(int(marks.sum()) for marks in trained)
    assert losses.mean == pytest.approx(expected_loss, abs=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients(model), expected))
    assert evaluate_losses(model, games, budget).mean == pytest.approx(expected_loss, abs=1e-5)


def planned(tokens: int, batch_tokens: int, allow_repeats: bool = False) -> list[np.ndarray]:
    settings = PretrainConfig(tokens=tokens, batch_tokens=batch_tokens, allow_repeats=allow_repeats)
    return pretrain.plan(SimpleNamespace(lengths=np.full(100, 10)), Config(pretrain=settings))


def test_more_tokens_than_the_corpus_holds_are_refused_unless_repeats_are_allowed():
    assert np.concatenate(planned(1000, 100)).size == 100
    with pytest.raises(UserError, match=r"pretrain\.tokens=1,001 is more than the 1,000 training tokens.*pretrain\.allow_repeats=true"):
        planned(1001, 100)
    repeated = np.concatenate(planned(2500, 100, allow_repeats=True))
    assert repeated.size == 250 and np.bincount(repeated).tolist().count(3) == 50


# ---- fine-tuning -----------------------------------------------------------------------------------------------------------------------


def parts_of(puzzle: Puzzle, lines: list[tuple[str, ...]] | None) -> list[tuple[int, str]]:
    """An example as runs of (part, text)."""
    trace = None
    if lines is not None:
        board, played = puzzle.board(), []
        for line in lines:
            after, moves = board.copy(), []
            for uci in line:
                moves.append(after.push_uci(uci))
            played.append(tuple(moves))
        trace = trace_tokens(puzzle.board(), leaf_lines(merge(played)))
    example = build_example(puzzle, trace, "snapshot")
    cuts = np.flatnonzero(np.diff(example.parts)) + 1
    runs = zip(np.split(example.parts, cuts), np.split(example.tokens, cuts))
    return [(int(parts[0]), notation.to_text(tokens.tolist())) for parts, tokens in runs]


def test_example_of_a_two_move_puzzle_by_hand():
    """Given: prompt, <T>, the opponent's reply. Trained: </T> with the trace, <call_env> with the answer."""
    assert parts_of(TWO_ROOKS, [("a2a7", "h8g8"), ("b1b8",)]) == [
        (GIVEN, "<bos> <pos> <white> K g1 R a2 R b1 k h8 </pos> <T>"),
        (TRACE, "R a2 a7 K h8 g8 <sep> R b1 b8 + </T>"),
        (ANSWER, "R a2 a7 <call_env>"),
        (GIVEN, "K h8 g8"),
        (ANSWER, "R b1 b8 # <call_env>"),
    ]


def test_example_without_a_trace_has_no_think_token():
    assert parts_of(BACK_RANK, None) == [
        (GIVEN, "<bos> <pos> <white> K g1 R a1 P f2 P g2 P h2 k g8 p f7 p g7 p h7 </pos>"),
        (ANSWER, "R a1 a8 # <call_env>"),
    ]


def test_the_opponents_lead_move_belongs_to_the_prompt():
    given, answer = parts_of(AFTER_REPLY, None)
    assert given[0] == GIVEN and given[1].endswith("</pos> R a2 b2")
    assert answer == (ANSWER, "R a1 a8 + <call_env>")  # the rook on b2 can go between


def test_an_empty_tree_still_closes_the_trace():
    assert parts_of(BACK_RANK, [])[1] == (TRACE, "</T>")


@pytest.mark.parametrize("budget", [1, 60, 10**6])
@pytest.mark.parametrize("traces", [True, False])
def test_fine_tuning_gradient_does_not_depend_on_micro_batches(budget, traces):
    model = build_model(TINY, seed=0)
    puzzles = [TWO_ROOKS, BACK_RANK, AFTER_REPLY]
    first = [(puzzle.board().parse_uci(puzzle.moves[puzzle.lead]),) for puzzle in puzzles]
    texts = [trace_tokens(puzzle.board(), [line]) if traces else None for puzzle, line in zip(puzzles, first)]
    examples = [build_example(puzzle, text, "snapshot") for puzzle, text in zip(puzzles, texts)]
    expected_loss, expected = one_by_one(model, [e.tokens for e in examples], [e.parts != GIVEN for e in examples])
    losses = accumulate_gradient(model, examples, budget)
    assert losses.trained == sum(int((e.parts != GIVEN).sum()) for e in examples)
    assert losses.mean == pytest.approx(expected_loss, abs=1e-5)
    assert ("loss/trace" in named_losses(losses, "", "/")) == traces
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients(model), expected))
    validation = named_losses(evaluate_losses(model, examples, budget), "validation/", "_")
    assert validation["validation/loss"] == pytest.approx(expected_loss, abs=1e-5)
    if traces:
        counts = {part: sum(int((e.parts == part).sum()) for e in examples) for part in (TRACE, ANSWER)}
        parted = validation["validation/loss_trace"] * counts[TRACE] + validation["validation/loss_answer"] * counts[ANSWER]
        assert parted / sum(counts.values()) == pytest.approx(expected_loss, abs=1e-5)


def test_given_tokens_do_not_enter_the_loss():
    """Another opponent reply at the end of the context changes the loss of what follows alone: cut off what follows and nothing changes."""
    model = build_model(TINY, seed=0)
    example = build_example(TWO_ROOKS, None, "snapshot")
    reply = slice(len(example.tokens) - 8, len(example.tokens) - 5)
    assert notation.to_text(example.tokens[reply].tolist()) == "K h8 g8"
    other = example.tokens.copy()
    other[reply] = notation.from_text("Q a1 b2")
    cut = [Example(tokens[: reply.stop], example.parts[: reply.stop]) for tokens in (example.tokens, other)]
    assert evaluate_losses(model, cut[:1], 1000).mean == evaluate_losses(model, cut[1:], 1000).mean


def test_scores_apply_the_temperature():
    model, tokens = build_model(TINY, seed=0), torch.as_tensor(DOCUMENTS[0])[None]
    with torch.no_grad():
        expected = (model(tokens)[0, :-1] / 0.7).log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        assert torch.allclose(next_token_logprobs(model, tokens, 0.7)[0], expected, atol=1e-6)
