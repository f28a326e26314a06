"""Losses and gradients against TRL's own code (extra ``compare``): ``GRPOTrainer._compute_loss`` on the same tensors and advantages."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rl.credit import assign
from tests.test_rl_algorithms import BUDGET, FORCED, GROUP, REWARDS, SEQUENCES, algorithm_of, our_gradient, policies
from tests.toy_policy import sequence_logprobs, toy_batch

pytest.importorskip("trl", reason="the extra compare is not installed")

LOSS_TYPES = {"grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr_grpo", "gspo": "grpo", "cispo": "cispo", "batch_std": "grpo"}


def trainer_of(name: str, config, logprobs: torch.Tensor) -> SimpleNamespace:
    """What ``_compute_loss`` asks of its trainer, which would otherwise need a model to load; the log-probabilities are given."""
    accelerator = SimpleNamespace(num_processes=1, gather=lambda values: values, reduce=lambda values, reduction: values, sync_gradients=True)
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *arguments, **keys: (logprobs, torch.zeros_like(logprobs), None),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=accelerator, _metrics=defaultdict(lambda: defaultdict(list)), current_gradient_accumulation_steps=1,
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False, _entropy_bonus_enabled=False,
        importance_sampling_level="sequence" if name == "gspo" else "token", loss_type=LOSS_TYPES[name], max_completion_length=BUDGET,
        model=SimpleNamespace(training=True), beta=config.beta,
        epsilon_low=config.clip_low, epsilon_high=config.clip_high + (name == "cispo"),  # TRL bounds the ratio itself there
    )  # fmt: skip


@pytest.mark.parametrize("name", LOSS_TYPES)
def test_losses_and_gradients_equal_those_of_trls_own_code(name):
    from trl import GRPOTrainer

    config = algorithm_of(name)
    policy, old, reference, _, _ = policies(name)
    measures, gradient = our_gradient(name, config)
    batch = toy_batch(SEQUENCES, FORCED, old)
    start = sequence_logprobs(reference, batch.tokens).detach()
    credit = assign(torch.tensor(REWARDS, dtype=torch.float64).view(-1, GROUP), batch.policy, batch.sampled, start, config)
    mask, prompt = batch.policy.double(), batch.tokens[:, :1]
    inputs = {
        "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": batch.tokens[:, 1:], "completion_mask": mask,
        "advantages": credit.advantages[:, 0].double(), "old_per_token_logps": sequence_logprobs(old, batch.tokens).detach(),
        "ref_per_token_logps": start, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer_of(name, config, sequence_logprobs(policy, batch.tokens)), SimpleNamespace(training=True), inputs)
    loss.backward()
    assert measures["loss"] == pytest.approx(loss.item(), abs=1e-5) and abs(loss.item()) > 1e-3
    theirs = torch.cat([policy.table.grad.flatten(), policy.out.grad.flatten()])
    assert theirs.abs().max() > 1e-3 and torch.allclose(gradient, theirs, atol=1e-5, rtol=0)
