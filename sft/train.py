"""Supervised fine-tuning on traces and answers, from a pretrained parent, or on from a fine-tuned policy or one after RL (a bridge)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from chessrl import notation, world
from chessrl.budgets import scale_rate
from chessrl.checkpoint import load_model, load_newest_state
from chessrl.config import Config, SftConfig
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer
from chessrl.run import Run, adopt_parent, identity_of, read_summary, resolve_device
from chessrl.training import (
    GIVEN,
    PARTS,
    Example,
    Stopwatch,
    TrainingState,
    accumulate_gradient,
    build_optimizer,
    learning_rate,
    optimizer_step,
    token_batches,
)
from chessrl.verifier import engine_identity
from sft.data import build, training_puzzles
from sft.examples import ANSWER, TRACE
from sft.trace_cache import proposing_model, teacher_summary
from sft.traces import TraceReport
from sft.validation import EarlyStop, Validation, named_losses


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the parent, the puzzles, the stage's keys, precision and device kind."""
    parent = adopt_parent(config, ("pretrain", "sft", "rl"))
    check(config, parent)
    scale_rate(config.sft.optimizer, Cost.of(config.model).parameters_without_embeddings)
    trace = config.sft.trace
    kept = {
        "parent": parent["run_id"],
        "puzzles": world.puzzle_hash(config),
        "state": config.world.state,
        "sft": identity_of(config.sft),
        "precision": config.run.arithmetic,
        "device": resolve_device(config.run.device).type,
    }
    if trace.enabled and trace.proposal == "teacher":
        kept["teacher"] = teacher_summary(config)["run_id"]
    if trace.enabled and "engine" in (trace.proposal, trace.order, trace.answer):
        kept["engine"] = engine_identity(config)
    return kept


def check(config: Config, parent: Mapping[str, Any]) -> None:
    """Refuse what cannot be trained."""
    trace = config.sft.trace
    if parent["stage"] != "pretrain" and trace.enabled and trace.proposal == "model":
        raise UserError(
            f"parent={config.parent} is a run of stage {parent['stage']}, which no longer plays on without <T> and <call_env>, so that its samples "
            "are no lines: choose sft.trace.proposal=teacher, engine or uniform"
        )
    if config.model.vocabulary < notation.REFERENCE_TRACE_SIZE:
        raise UserError(
            f"parent={config.parent}: a model of {config.model.vocabulary} tokens knows neither <T> nor <call_env>: adopt it with "
            f"vocabulary={notation.REFERENCE_TRACE_SIZE} (python -m chessrl.adopt)"
        )
    if config.sft.puzzles:
        training_puzzles(config)


def train(run: Run) -> None:
    """The whole stage, from puzzles to ``model/`` and ``summary.json``."""
    config, settings = run.config, run.config.sft
    parent = Path(config.parent)
    model = load_model(parent / "model", precision=config.run.precision, compiled=config.run.compile, device=run.device)
    cost = Cost.of(model.config)
    puzzles = training_puzzles(config)
    held_out = world.puzzles_of_split(config, "validation")[: settings.validation_puzzles]
    report = TraceReport()
    proposer = proposing_model(config, model)
    examples, held_out_examples = build(proposer, puzzles, config, report), build(proposer, held_out, config, TraceReport())
    # 2N for each token read or sampled to build the traces, N of the model that proposed them
    sampling = Cost.of(proposer.config).forward_flops(report.sampled_tokens + report.prompt_tokens)
    del proposer  # a teacher may be large
    validation = Validation(held_out, held_out_examples, longest_trace(examples), config)
    lengths = np.array([len(example.tokens) for example in examples])
    batches, every = plan(lengths, settings)
    state, stop = TrainingState(model, build_optimizer(model, settings.optimizer)), EarlyStop(settings.patience)
    if resumed := run.resume():
        state.load(resumed)
        stop.load(resumed)
    stopwatch = Stopwatch()
    steps = len(batches)
    held_out_values: dict[str, float] = {}
    for step in run.loop(state.step, state.step if stop.over else steps):
        chosen = [examples[index] for index in batches[step - 1]]
        losses = accumulate_gradient(model, chosen, run.micro_batch_tokens)
        rate = learning_rate(settings.optimizer, step, steps)
        norm = optimizer_step(model, state.optimizer, rate, settings.optimizer.clip)
        state.counters.add_training(cost, torch.tensor([len(example.tokens) for example in chosen]), losses.trained)
        state.step = step
        metrics = {"step": step, **state.counters.as_dict(), **named_losses(losses, "", "/"), "lr": rate, "grad_norm": norm}
        metrics |= stopwatch.lap(sum(len(example.tokens) for example in chosen))
        if step % every == 0 or step == steps:
            held_out_values = validation.measure(model, run.micro_batch_tokens)
            metrics |= held_out_values
            tqdm.write(f"sft step {step}/{steps}: loss {losses.mean:.4f}, {progress_line(held_out_values)}")
            if stop.improved(held_out_values["validation/loss"], step) and settings.patience is not None:
                run.keep("best", step, state.state_dict())
        run.log(metrics)
        if step in settings.save_steps:
            run.export(model, f"models/step-{step}")
        run.checkpoint(step, step == steps or stop.over, lambda: state.state_dict() | stop.state_dict())
        if stop.over:
            break
    final_step = state.step
    if settings.patience is not None:
        final_step = take_best(run, model, stop)
    if not held_out_values or final_step != state.step:  # resumed after the last step, or another step's weights
        held_out_values = validation.measure(model, run.micro_batch_tokens)
    run.export(model, "model")
    run.write("traces.json", report.as_dict())
    ancestors = read_summary(parent)
    values = state.counters.as_dict() | held_out_values | {"step": final_step, "traces": settings.trace.enabled, "puzzles": len(puzzles)}
    values["tokens_of_examples"] = tokens_by_part(examples)
    values["tokens_per_sequence"] = float(lengths.mean())  # what a policy trained on these writes: the expected length of a rollout
    before = ancestors["flops_by_stage"]  # a policy that was fine-tuned before has spent some on it already
    spent = {"traces": before.get("traces", 0) + sampling, "sft": before.get("sft", 0) + state.counters.flops}
    values |= {"flops_by_stage": before | spent, "world": ancestors["world"]}
    run.summarise(model.config, ancestors["parents"] | {ancestors["stage"]: ancestors["run_id"]}, values)


def plan(lengths: np.ndarray, settings: SftConfig) -> tuple[list[np.ndarray], int]:
    """The examples of every step, and how many steps an epoch has: what lies between two validations."""
    epochs = settings.epochs
    if settings.tokens is not None:
        epochs = max(1, math.ceil(settings.tokens / lengths.sum()))
    batches = token_batches(lengths, settings.batch_tokens, settings.data_seed, epochs=epochs, tokens=settings.tokens)
    return batches, max(1, len(batches) // epochs)


def longest_trace(examples: Sequence[Example]) -> int:
    """Tokens before ``</T>`` of the longest trace, 0 without traces."""
    return max(0, max(int((example.parts == TRACE).sum()) for example in examples) - 1)


def progress_line(values: dict[str, float]) -> str:
    """``validation 1.2345 nats per trained token, pass@1 0.12, pass@4 0.34``."""
    solved = "".join(f", pass@{name.rsplit('_', 1)[1]} {value:.3f}" for name, value in values.items() if "pass_at" in name)
    return f"validation {values['validation/loss']:.4f} nats per trained token{solved}"


def take_best(run: Run, model: Transformer, stop: EarlyStop) -> int:
    """Give the model the weights of the validation with the lowest loss; returns their step."""
    best = load_newest_state(run.directory / "best", torch.device("cpu"), lambda state: state["step"] == stop.best_step)
    if best is None:
        raise UserError(f"{run.directory}/best holds no whole state of step {stop.best_step}: delete the run directory, then run again")
    model.load_state_dict(best["model"])
    return stop.best_step


def tokens_by_part(examples: Sequence[Example]) -> dict[str, int]:
    """Tokens of one pass over the examples: given (prompts and the opponent's moves), trace, answer. What arms are compared by."""
    counts = np.sum([np.bincount(example.parts, minlength=PARTS) for example in examples], axis=0)
    return {name: int(counts[part]) for name, part in (("given", GIVEN), ("trace", TRACE), ("answer", ANSWER))}
