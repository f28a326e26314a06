"""Sampler and trainer see the same policy: bounds of |stored log-probability - the trainer's score of the same token| by precision.

Measured on this file's model, scaled so that its choices are as sharp as a trained policy's, over both caches, with and without traces (seeds 0 and
1, traces of up to 24 tokens): fp32 at most 3.8e-6; bf16 a mean of up to 3.7e-3 and at most 2.4e-2; fp64 no more than fp32 can store. On a
fine-tuned policy of 1M parameters: fp32 at most 1.5e-5; bf16 a mean of 7.3e-3 and at most 0.15. Bounds are about twice (bf16), five times (fp32)
what this model showed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chessrl.environment import build_environment
from chessrl.launch import compose
from chessrl.model import Transformer, build_model
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import Rollout, SamplingSettings, rollout
from rl.update import build_batch, score
from tests.test_sampler import PUZZLES

LARGEST = {"fp32": 2e-5, "bf16": 6e-2, "fp64": 1e-6}  # nats
MEAN = {"fp32": 5e-6, "bf16": 8e-3, "fp64": 1e-7}
FAULT = {"fp32": 1e-4, "bf16": 1e-2, "fp64": 1e-5}  # of a sampler whose log-probabilities are off: must not pass
SHARPNESS = 3.0  # initial weights make a nearly uniform policy, on which rounding hardly shows


def policy(precision: str, shares_prompts: bool) -> Transformer:
    model = build_model(compose("rl", ["model=nano"]).model, seed=0, precision=precision)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SHARPNESS)
    model.shares_prompts = shares_prompts  # which cache the sampler takes, and how the trainer reads prompts
    return model


def episodes(model: Transformer, protocol: str) -> Rollout:
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    return rollout(model, build_environment(PUZZLES), range(len(PUZZLES)), prompts, 8, SamplingSettings(protocol, 1.0, 16))


def drift(model: Transformer, sampled: Rollout) -> tuple[float, float]:
    """Largest and mean difference (nats) over the tokens that the policy sampled."""
    batch = build_batch(sampled)
    difference = (score(model, batch, 1.0, 512) - batch.sampled)[batch.policy].abs()
    return difference.max().item(), difference.mean().item()


@pytest.mark.parametrize("protocol", ["think", "answer"])
@pytest.mark.parametrize(
    ("precision", "shares_prompts"), [("fp32", False), ("fp32", True), ("fp64", False), ("fp64", True), ("bf16", True)]
)  # bf16 always shares
def test_stored_log_probabilities_drift_from_the_trainers_by_rounding_alone(precision, shares_prompts, protocol):
    model = policy(precision, shares_prompts)
    sampled = episodes(model, protocol)
    largest, mean = drift(model, sampled)
    assert largest <= LARGEST[precision] and mean <= MEAN[precision]
    faulty = replace(sampled, logprobs=sampled.logprobs + FAULT[precision] * sampled.policy)
    largest, mean = drift(model, faulty)
    assert largest > LARGEST[precision] or mean > MEAN[precision], "the bounds would let a fault of the sampler pass"
