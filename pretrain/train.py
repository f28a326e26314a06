"""Pretraining: next-token prediction on games, one document per row, so that no game sees another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from chessrl import notation, world
from chessrl.checkpoint import save_model
from chessrl.config import Config
from chessrl.corpus import Corpus
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer, build_model
from chessrl.run import Run, identity_of, resolve_device
from chessrl.training import (
    Stopwatch,
    TrainingState,
    build_optimizer,
    learning_rate,
    loss_mask,
    micro_batches,
    next_token_logprobs,
    optimizer_step,
    pad,
    token_batches,
)


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the corpus, the model, the stage's keys, precision and device kind."""
    return {
        "data": Corpus.open(world.corpus_folder(config), "train").manifest["hash"],
        "model": identity_of(config.model),
        "pretrain": identity_of(config.pretrain),
        "precision": config.run.precision,
        "device": resolve_device(config.run.device).type,
    }


def train(run: Run) -> None:
    """The whole stage, from corpus to ``model/`` and ``summary.json``."""
    config, settings = run.config, run.config.pretrain
    corpus, validation = world.open_corpus(config)
    batches = plan(corpus, config)
    model = build_model(config.model, seed=settings.seed, precision=config.run.precision, device=run.device)
    cost = Cost.of(config.model)
    state = TrainingState(model, build_optimizer(model, settings.optimizer))
    if resumed := run.resume():
        state.load(resumed)
    held_out = [validation.document(index) for index in range(min(len(validation), settings.validation_games))]
    stopwatch = Stopwatch()
    steps = len(batches)
    validation_loss = None
    for step in run.loop(state.step, steps):
        documents = [corpus.document(index) for index in batches[step - 1]]
        loss, loss_tokens = accumulate_gradient(model, documents, run.micro_batch_tokens)
        rate = learning_rate(settings.optimizer, step, steps)
        norm = optimizer_step(model, state.optimizer, rate, settings.optimizer.clip)
        lengths = torch.tensor([len(document) for document in documents])
        state.counters.add_training(cost, lengths, loss_tokens)
        state.step = step
        metrics = {"step": step, **state.counters.as_dict(), "loss": loss, "lr": rate, "grad_norm": norm} | stopwatch.lap(
            int(lengths.sum())
        )
        if step % settings.validation_every == 0 or step == steps:
            validation_loss = metrics["validation/loss"] = mean_loss(model, held_out, run.micro_batch_tokens)
            tqdm.write(f"pretrain step {step}/{steps}: loss {loss:.4f}, validation {validation_loss:.4f} nats per move token")
        run.log(metrics)
        if step in settings.save_steps:
            save_model(model, run.directory / "models" / f"step-{step}")
        run.checkpoint(step, step == steps, state.state_dict)
    save_model(model, run.directory / "model")
    if validation_loss is None:  # resumed after the last step
        validation_loss = mean_loss(model, held_out, run.micro_batch_tokens)
    values = {
        "step": steps,
        "validation/loss": validation_loss,
        "data": run.identity["data"],
        "flops_by_stage": {"pretrain": state.counters.flops},
    }
    world_of_run = {"name": config.world.name, "state": config.world.state}
    run.summarise(config.model, {}, state.counters.as_dict() | values | {"world": world_of_run})


def plan(corpus: Corpus, config: Config) -> list[np.ndarray]:
    """The documents of every step. Refuses more tokens than the corpus holds, unless repeats are allowed, and fewer than one batch."""
    settings, held = config.pretrain, int(corpus.lengths.sum())
    if settings.tokens < settings.batch_tokens:
        raise UserError(
            f"pretrain.tokens={settings.tokens} is less than one step of pretrain.batch_tokens={settings.batch_tokens}: raise it"
        )
    if settings.tokens > held and not settings.allow_repeats:
        raise UserError(
            f"pretrain.tokens={settings.tokens:,} is more than the {held:,} training tokens of the corpus: "
            "lower it, give more games, or set pretrain.allow_repeats=true"
        )
    epochs = -(-settings.tokens // held)
    return token_batches(corpus.lengths, settings.batch_tokens, settings.data_seed, epochs=epochs, tokens=settings.tokens)


def accumulate_gradient(model: Transformer, documents: list[np.ndarray], budget: int) -> tuple[float, int]:
    """Add the gradient of the mean loss over all loss tokens of the step, whatever the micro-batches. Returns that loss and their number."""
    rows = _padded_micro_batches(documents, budget, model.device)
    normaliser = sum(int(mask.sum()) for _, mask in rows)
    total = 0.0
    for tokens, mask in rows:
        loss = -(next_token_logprobs(model, tokens) * mask).sum() / normaliser
        loss.backward()
        total += loss.item()
    return total, normaliser


@torch.no_grad()
def mean_loss(model: Transformer, documents: list[np.ndarray], budget: int) -> float:
    """Nats per loss token."""
    rows = _padded_micro_batches(documents, budget, model.device)
    total = sum(-(next_token_logprobs(model, tokens).double() * mask).sum().item() for tokens, mask in rows)
    return total / sum(int(mask.sum()) for _, mask in rows)


def _padded_micro_batches(documents: list[np.ndarray], budget: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, loss mask) of each micro-batch."""
    rows = []
    for places in micro_batches([len(document) for document in documents], budget):
        chosen = [documents[place] for place in places]
        tokens = pad(chosen, notation.PAD, device)
        rows.append((tokens, loss_mask(tokens, torch.tensor([len(document) for document in chosen], device=device))))
    return rows
