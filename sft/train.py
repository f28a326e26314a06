"""Supervised fine-tuning on traces and answers, from a pretrained parent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from chessrl import world
from chessrl.budgets import scale_rate
from chessrl.checkpoint import load_model
from chessrl.config import Config
from chessrl.model import Cost
from chessrl.run import Run, adopt_parent, identity_of, read_summary, resolve_device
from chessrl.training import (
    GIVEN,
    PARTS,
    Example,
    PartLosses,
    Stopwatch,
    TrainingState,
    accumulate_gradient,
    build_optimizer,
    evaluate_losses,
    learning_rate,
    optimizer_step,
    token_batches,
)
from chessrl.verifier import engine_identity
from sft.data import build
from sft.examples import ANSWER, TRACE
from sft.trace_cache import proposing_model, teacher_summary
from sft.traces import TraceReport


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the parent, the puzzles, the stage's keys, precision and device kind."""
    parent = adopt_parent(config, ("pretrain",))
    scale_rate(config.sft.optimizer, Cost.of(config.model).parameters_without_embeddings)
    trace = config.sft.trace
    kept = {
        "parent": parent["run_id"],
        "puzzles": world.puzzle_hash(config),
        "state": config.world.state,
        "sft": identity_of(config.sft),
        "precision": config.run.precision,
        "device": resolve_device(config.run.device).type,
    }
    if trace.enabled and trace.proposal == "teacher":
        kept["teacher"] = teacher_summary(config)["run_id"]
    if trace.enabled and "engine" in (trace.proposal, trace.order, trace.answer):
        kept["engine"] = engine_identity(config)
    return kept


def train(run: Run) -> None:
    """The whole stage, from puzzles to ``model/`` and ``summary.json``."""
    config, settings = run.config, run.config.sft
    parent = Path(config.parent)
    model = load_model(parent / "model", precision=config.run.precision, device=run.device)
    cost = Cost.of(model.config)
    puzzles = world.puzzles_of_split(config, "sft")[: settings.max_puzzles]
    held_out = world.puzzles_of_split(config, "validation")[: settings.validation_puzzles]
    report = TraceReport()
    proposer = proposing_model(config, model)
    examples, validation = build(proposer, puzzles, config, report), build(proposer, held_out, config, TraceReport())
    proposing_cost = Cost.of(proposer.config)
    del proposer  # a teacher may be large
    lengths = np.array([len(example.tokens) for example in examples])
    batches = token_batches(lengths, settings.batch_tokens, settings.data_seed, epochs=settings.epochs)
    state = TrainingState(model, build_optimizer(model, settings.optimizer))
    if resumed := run.resume():
        state.load(resumed)
    stopwatch = Stopwatch()
    steps = len(batches)
    every = max(1, steps // settings.epochs)
    held_out_loss: dict[str, float] = {}
    for step in run.loop(state.step, steps):
        chosen = [examples[index] for index in batches[step - 1]]
        losses = accumulate_gradient(model, chosen, run.micro_batch_tokens)
        rate = learning_rate(settings.optimizer, step, steps)
        norm = optimizer_step(model, state.optimizer, rate, settings.optimizer.clip)
        state.counters.add_training(cost, torch.tensor([len(example.tokens) for example in chosen]), losses.trained)
        state.step = step
        metrics = {"step": step, **state.counters.as_dict(), **named_losses(losses, "", "/"), "lr": rate, "grad_norm": norm}
        metrics |= stopwatch.lap(sum(len(example.tokens) for example in chosen))
        if step % every == 0 or step == steps:
            held_out_loss = named_losses(evaluate_losses(model, validation, run.micro_batch_tokens), "validation/", "_")
            metrics |= held_out_loss
            tqdm.write(
                f"sft step {step}/{steps}: loss {losses.mean:.4f}, validation {held_out_loss['validation/loss']:.4f} nats per trained token"
            )
        run.log(metrics)
        if step in settings.save_steps:
            run.export(model, f"models/step-{step}")
        run.checkpoint(step, step == steps, state.state_dict)
    run.export(model, "model")
    run.write("traces.json", report.as_dict())
    if not held_out_loss:  # resumed after the last step
        held_out_loss = named_losses(evaluate_losses(model, validation, run.micro_batch_tokens), "validation/", "_")
    ancestors = read_summary(parent)
    values = state.counters.as_dict() | held_out_loss | {"step": steps, "traces": settings.trace.enabled, "puzzles": len(puzzles)}
    values["tokens_of_examples"] = tokens_by_part(examples)
    values["tokens_per_sequence"] = float(lengths.mean())  # what a policy trained on these writes: the expected length of a rollout
    sampling = proposing_cost.forward_flops(report.sampled_tokens + report.prompt_tokens)  # 2N for each token read or sampled to build the traces
    values |= {
        "flops_by_stage": ancestors["flops_by_stage"] | {"traces": sampling, "sft": state.counters.flops},
        "world": ancestors["world"],
    }
    run.summarise(model.config, {"pretrain": ancestors["run_id"]}, values)


def tokens_by_part(examples: Sequence[Example]) -> dict[str, int]:
    """Tokens of one pass over the examples: given (prompts and the opponent's moves), trace, answer. What arms are compared by."""
    counts = np.sum([np.bincount(example.parts, minlength=PARTS) for example in examples], axis=0)
    return {name: int(counts[part]) for name, part in (("given", GIVEN), ("trace", TRACE), ("answer", ANSWER))}


def named_losses(losses: PartLosses, prefix: str, separator: str) -> dict[str, float]:
    """``loss`` in all, of the trace (where there is one) and of the answer, in nats per trained token."""
    parts = {"trace": losses.of(TRACE), "answer": losses.of(ANSWER)}
    return {f"{prefix}loss": losses.mean} | {f"{prefix}loss{separator}{name}": value for name, value in parts.items() if value is not None}
