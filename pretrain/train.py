"""Pretraining: next-token prediction on games, one document per row, so that no game sees another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from chessrl import notation, world
from chessrl.branches import begin_from_family, family_folder
from chessrl.budgets import resolve_pretraining
from chessrl.config import Config
from chessrl.corpus import Corpus
from chessrl.errors import UserError
from chessrl.model import Cost, build_model
from chessrl.run import Run, identity_of, resolve_device
from chessrl.training import (
    GIVEN,
    Example,
    Stopwatch,
    TrainingState,
    accumulate_gradient,
    build_optimizer,
    evaluate_losses,
    learning_rate,
    optimizer_step,
    stable_steps,
    token_batches,
    warmup_steps,
)

MOVES = 1  # the part of a game that carries loss


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the corpus, the model, the stage's keys, precision and device kind."""
    resolve_pretraining(config)
    return {
        "data": world.corpus_hash(config),
        "model": identity_of(config.model),
        "pretrain": identity_of(config.pretrain),
        "precision": config.run.arithmetic,
        "device": resolve_device(config.run.device).type,
    }


def train(run: Run) -> None:
    """The whole stage, from corpus to ``model/`` and ``summary.json``."""
    config, settings = run.config, run.config.pretrain
    corpus, validation = world.open_corpus(config)
    batches = plan(corpus, config)
    model = build_model(config.model, seed=settings.seed, precision=config.run.precision, compiled=config.run.compile, device=run.device)
    cost = Cost.of(config.model)
    state = TrainingState(model, build_optimizer(model, settings.optimizer))
    steps = len(batches)
    warmup, stable = warmup_steps(settings.optimizer, steps), stable_steps(settings.optimizer, steps)
    branching = settings.optimizer.schedule == "wsd" and stable < steps
    resumed = run.resume() or (begin_from_family(run, warmup, stable) if branching else None)
    if resumed:
        state.load(resumed)
    held_out = [game_example(validation.document(index)) for index in range(min(len(validation), settings.validation_games))]
    stopwatch = Stopwatch()
    validation_loss = None
    for step in run.loop(state.step, steps):
        games = [game_example(corpus.document(index)) for index in batches[step - 1]]
        losses = accumulate_gradient(model, games, run.micro_batch_tokens)
        rate = learning_rate(settings.optimizer, step, steps)
        norm = optimizer_step(model, state.optimizer, rate, settings.optimizer.clip)
        lengths = torch.tensor([len(game.tokens) for game in games])
        state.counters.add_training(cost, lengths, losses.trained)
        state.step = step
        metrics = {"step": step, **state.counters.as_dict(), "loss": losses.mean, "lr": rate, "grad_norm": norm} | stopwatch.lap(
            int(lengths.sum())
        )
        if step % settings.validation_every == 0 or step == steps:
            validation_loss = metrics["validation/loss"] = evaluate_losses(model, held_out, run.micro_batch_tokens).mean
            tqdm.write(f"pretrain step {step}/{steps}: loss {losses.mean:.4f}, validation {validation_loss:.4f} nats per move token")
        run.log(metrics)
        if step in settings.save_steps:
            run.export(model, f"models/step-{step}")
        if branching and step == stable:
            run.keep(family_folder(run, warmup), step, state.state_dict())
        run.checkpoint(step, step == steps, state.state_dict)
    run.export(model, "model")
    if validation_loss is None:  # resumed after the last step
        validation_loss = evaluate_losses(model, held_out, run.micro_batch_tokens).mean
    values = {
        "step": steps,
        "validation/loss": validation_loss,
        "data": run.identity["data"],
        "flops_by_stage": {"pretrain": state.counters.flops},
    }
    world_of_run = {"name": config.world.name, "state": config.world.state}
    if "leak" in corpus.manifest:
        values["leak"] = corpus.manifest["leak"]
    run.summarise(config.model, {}, state.counters.as_dict() | values | {"world": world_of_run})


def plan(corpus: Corpus, config: Config) -> list[np.ndarray]:
    """The documents of every step. Refuses more tokens than the corpus holds, unless repeats are allowed."""
    settings, held = config.pretrain, int(corpus.lengths.sum())
    if settings.tokens > held and not settings.allow_repeats:
        raise UserError(
            f"pretrain.tokens={settings.tokens:,} is more than the {held:,} training tokens of the corpus: "
            "lower it, give more games, or set pretrain.allow_repeats=true"
        )
    epochs = -(-settings.tokens // held)
    return token_batches(corpus.lengths, settings.batch_tokens, settings.data_seed, epochs=epochs, tokens=settings.tokens)


def game_example(document: np.ndarray) -> Example:
    """A game's moves carry loss; ``<bos>`` and the snapshot before them do not."""
    tokens = np.asarray(document, np.int64)
    closing = np.flatnonzero(tokens == notation.END_POSITION)
    parts = np.full(len(tokens), MOVES)
    parts[: closing[0] + 1 if len(closing) else 1] = GIVEN
    return Example(tokens, parts)
