"""Fine-tuning: documents apart from each other, what is trained, the plan, validation, and stopping early."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chessrl import notation, world
from chessrl.checkpoint import load_model
from chessrl.config import Config, SftConfig
from chessrl.environment import build_environment
from chessrl.evaluate import sample_policy
from chessrl.model import build_model
from chessrl.sampler import SamplingSettings
from chessrl.statistics import pass_at_k
from chessrl.traces import TraceReader, leaf_lines, trace_tokens
from chessrl.training import GIVEN, accumulate_gradient, evaluate_losses
from sft import train as sft_train
from sft.arms import line_answer
from sft.examples import ANSWER, TRACE, build_example
from sft.train import plan
from sft.validation import EarlyStop
from tests import tiny
from tests.test_sampler import PUZZLES, TINY
from tests.test_trace_trees import trees_of

EXAMPLES = [
    build_example(puzzle, trace_tokens(puzzle.board(), leaf_lines(tree)), "snapshot") for puzzle, tree in zip(PUZZLES, trees_of(PUZZLES))
]


# ---- documents --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 150, 10**6])
def test_a_batchs_loss_is_the_sum_of_its_documents_losses(budget):
    """One document per row: none sees another one, nor the padding. Trained parts: the sum of the given tokens takes the padding in."""
    model = build_model(TINY, seed=0, precision="fp64")
    alone = [evaluate_losses(model, [example], 10**6).sums[1:] for example in EXAMPLES]
    assert len({len(example.tokens) for example in EXAMPLES}) > 3
    assert np.allclose(evaluate_losses(model, EXAMPLES, budget).sums[1:], np.sum(alone, axis=0), rtol=1e-12)
    pair = evaluate_losses(model, EXAMPLES[:2], 10**6).sums[1:]
    assert np.allclose(pair, alone[0] + alone[1], rtol=1e-12)


def test_another_document_in_the_batch_changes_no_gradient():
    """The gradient of the mean over two documents is that of each, weighted by its trained tokens."""
    gradients, counts = [], []
    for chosen in (EXAMPLES[:1], EXAMPLES[1:2], EXAMPLES[:2]):
        model = build_model(TINY, seed=0, precision="fp64")
        counts.append(accumulate_gradient(model, chosen, 10**6).trained)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    weighted = (gradients[0] * counts[0] + gradients[1] * counts[1]) / counts[2]
    assert counts[2] == counts[0] + counts[1] and torch.allclose(gradients[2], weighted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("puzzle", "example"), list(zip(PUZZLES, EXAMPLES)), ids=[puzzle.id for puzzle in PUZZLES])
def test_which_tokens_are_trained(puzzle, example):
    """Not: prompt, <T>, the opponent's moves. But: the trace and its </T>, the solver's moves and their <call_env>."""
    tokens, parts = example.tokens.tolist(), example.parts.tolist()
    think, end = tokens.index(notation.THINK), tokens.index(notation.END_THINK)
    assert set(parts[: think + 1]) == {GIVEN} and set(parts[think + 1 : end + 1]) == {TRACE}
    board, place = puzzle.board(), end + 1
    for number, move in enumerate(line_answer(puzzle)):
        ply = notation.move_tokens(board, move) + ([notation.CALL_ENV] if number % 2 == 0 else [])
        assert tokens[place : place + len(ply)] == ply
        assert set(parts[place : place + len(ply)]) == {GIVEN if number % 2 else ANSWER}
        board.push(move)
        place += len(ply)
    assert place == len(tokens) and parts[-1] == ANSWER
    assert TraceReader(puzzle.board()).read(tokens[think + 1 :]).closed


# ---- the plan ---------------------------------------------------------------------------------------------------------------------------


def test_tokens_instead_of_epochs_bound_what_is_seen():
    lengths = np.random.default_rng(0).integers(20, 60, 100)
    for tokens in (500, int(lengths.sum()), 3 * int(lengths.sum()) + 100):
        batches, every = plan(lengths, SftConfig(tokens=tokens, batch_tokens=400))
        seen = np.concatenate(batches)
        assert lengths[seen].sum() >= tokens > lengths[seen[:-1]].sum()
        assert every == len(batches) // math.ceil(tokens / lengths.sum()) and every >= 1
    whole, every = plan(lengths, SftConfig(epochs=2, batch_tokens=400))
    assert np.bincount(np.concatenate(whole)).tolist() == [2] * 100 and every == len(whole) // 2


def test_arms_of_equal_tokens_spend_equal_flops(tiny_runs, tmp_path):
    flops = []
    for arm in ("none", "random"):
        config = tiny.config("sft", tmp_path, f"parent={tiny_runs['pretrain']}", f"arm={arm}", "sft.tokens=4000")
        status, directory = tiny.start("sft", config)
        assert status == 0
        flops.append(json.loads((directory / "summary.json").read_text())["flops_by_stage"]["sft"])
    assert flops[1] == pytest.approx(flops[0], rel=0.03)  # equal up to the last document


# ---- validation -------------------------------------------------------------------------------------------------------------------------


def run_sft(runs: dict[str, Path], outputs: Path, *overrides: str) -> Path:
    status, directory = tiny.start("sft", sft_config(runs, outputs, *overrides))
    assert status == 0
    return directory


def sft_config(runs: dict[str, Path], outputs: Path, *overrides: str) -> Config:
    return tiny.config("sft", outputs, f"parent={runs['pretrain']}", "sft.epochs=4", *overrides)


def test_validation_solves_puzzles_only_when_asked_and_changes_nothing_else(tiny_runs, tmp_path):
    plain = run_sft(tiny_runs, tmp_path)
    asked = run_sft(tiny_runs, tmp_path, "sft.validation_samples=4")
    measured = [line for line in tiny.metrics_of(asked) if "validation/loss" in line]
    assert len(measured) in (4, 5) and all(0 <= line["validation/pass_at_1"] <= line["validation/pass_at_4"] <= 1 for line in measured)
    without = [{key: value for key, value in line.items() if "pass_at" not in key} for line in tiny.metrics_of(asked)]
    assert without == tiny.metrics_of(plain)
    first, second = (load_file(directory / "model" / "model.safetensors") for directory in (plain, asked))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_validation_pass_at_k_is_that_of_an_evaluation(tiny_runs, tmp_path):
    directory = run_sft(tiny_runs, tmp_path, "sft.validation_samples=4", "arm=none", "sft.epochs=12")
    config = sft_config(tiny_runs, tmp_path)
    puzzles = world.puzzles_of_split(config, "validation")[: config.sft.validation_puzzles]
    model = load_model(directory / "model", precision="fp32", device=torch.device("cpu"))
    how = SamplingSettings("answer", 1.0, 0, stage="sft-validation")
    table = sample_policy(model, build_environment(puzzles), puzzles, "snapshot", 4, how, 100)
    solved = table.groupby("puzzle")["solved"].sum().to_numpy()
    last = tiny.metrics_of(directory)[-1]
    assert [last[f"validation/pass_at_{k}"] for k in (1, 4)] == [pytest.approx(pass_at_k(4, solved, k).mean()) for k in (1, 4)]


# ---- stopping early ---------------------------------------------------------------------------------------------------------------------


def test_patience_counts_validations_without_a_new_lowest_loss():
    stop, losses = EarlyStop(2), [3.0, 2.0, 2.5, 1.5, 1.5, 1.6]
    told = [(stop.improved(loss, step), stop.over) for step, loss in enumerate(losses, start=1)]
    assert told == [(True, False), (True, False), (False, False), (True, False), (False, False), (False, True)]
    assert (stop.best, stop.best_step) == (1.5, 4)
    again = EarlyStop(2)
    again.load(stop.state_dict())
    assert again == stop
    never = EarlyStop(None)
    assert not any((never.improved(1.0 + step, step) and step > 1) or never.over for step in range(1, 50))


OVERFIT = ["sft.max_puzzles=10", "sft.epochs=30", "sft.optimizer.lr=0.03", "sft.optimizer.schedule=constant", "sft.patience=2"]


def test_a_run_stops_when_validation_gets_worse_and_keeps_the_best_weights(tiny_runs, tmp_path):
    every = list(range(1, 200))
    directory = run_sft(tiny_runs, tmp_path, *OVERFIT, f"sft.save_steps={every}")
    lines = tiny.metrics_of(directory)
    losses = {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}
    best = min(losses, key=losses.get)
    assert best < max(losses) == lines[-1]["step"] and len([step for step in losses if step > best]) == 2, "it did not overfit, or not stop"
    kept, expected = (load_file(directory / name / "model.safetensors") for name in ("model", f"models/step-{best}"))
    assert all(torch.equal(kept[name], expected[name]) for name in kept)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["step"] == best and summary["validation/loss"] == pytest.approx(losses[best])
    assert summary["tokens"] == lines[-1]["tokens"], "the tokens after the best step were spent as well"


@pytest.mark.parametrize("interrupted_at", [2, 5])
def test_an_interrupted_run_stops_where_an_unbroken_one_does(interrupted_at, tiny_runs, tmp_path, monkeypatch):
    whole = run_sft(tiny_runs, tmp_path / "whole", *OVERFIT)
    assert tiny.metrics_of(whole)[-1]["step"] > interrupted_at
    measure = sft_train.learning_rate

    def failing(settings, step, steps):
        if step == interrupted_at + 1:
            raise RuntimeError("power failure")
        return measure(settings, step, steps)

    overrides = [*OVERFIT, "run.checkpoint_steps=1"]
    monkeypatch.setattr(sft_train, "learning_rate", failing)
    with pytest.raises(RuntimeError, match="power failure"):
        run_sft(tiny_runs, tmp_path / "broken", *overrides)
    monkeypatch.setattr(sft_train, "learning_rate", measure)
    broken = run_sft(tiny_runs, tmp_path / "broken", *overrides)
    assert tiny.metrics_of(broken) == tiny.metrics_of(whole)
    first, second = (load_file(directory / "model" / "model.safetensors") for directory in (whole, broken))
    assert all(torch.equal(first[name], second[name]) for name in first)
