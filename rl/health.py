"""What a step's episodes were like, and a warning line, once each, when training looks ill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from typing import Any

from torch import Tensor
from tqdm import tqdm

from chessrl.config import AlgorithmConfig, HealthConfig
from chessrl.sampler import NO_END_THINK
from rl.objective import constant_groups
from rl.sampling import Scored


def rollout_metrics(scored: Scored, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Of all that was sampled in a step; names as in TRL where TRL has them.

    Means of rewards are over the episodes whose reward could be told, and missing where there is none; so are ``reward/verifier``
    (``rewards.verdict``) and ``reward/gap``, it less the oracle's verdict of the same episodes, while ``reward/oracle`` is over all.
    """
    episodes, solved = scored.episodes, scored.episodes.solved
    sampled = episodes.policy.sum(1).float()
    deviation = scored.rewards.std(1, correction=0)
    lengths = {"": sampled, "_correct": sampled[solved], "_incorrect": sampled[~solved]}
    metrics = {f"completions/mean_length{name}": values.mean().item() for name, values in lengths.items() if len(values)}
    metrics |= {
        "reward": told_mean(scored.paid),
        "reward_std": told_mean(deviation),
        **{f"reward/{part}": told_mean(values) for part, values in scored.parts.items()},
        "reward/oracle": scored.oracle.double().mean().item(),
        "reward/verifier": told_mean(scored.verdict),
        "reward/gap": told_mean(scored.verdict - scored.oracle.double()),
        "frac_reward_untold": scored.rewards.isnan().float().mean().item(),
        "frac_reward_zero_std": constant_groups(scored.rewards, algorithm.std_floor).float().mean().item(),
        "entropy": (episodes.entropies.double().sum() / episodes.policy.sum()).item(),
        "completions/mean_trace_length": episodes.trace_lengths.float().mean().item(),
        "completions/clipped_ratio": (episodes.outcome == NO_END_THINK).float().mean().item(),
        "completions/distinct_answers": distinct_answers(scored.answers, episodes.legal, algorithm.group),
        "policy/legal": episodes.legal.float().mean().item(),
        "policy/format": episodes.well_formed.float().mean().item(),
        "policy/strict_share_of_solved": (episodes.strict.sum() / solved.sum().clamp(min=1)).item(),
    }
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def told_mean(values: Tensor) -> float:
    """The mean of what is not NaN; NaN where that is nothing."""
    return values[~values.isnan()].mean().item()


def distinct_answers(answers: Tensor, legal: Tensor, group: int) -> float:
    """Mean over groups of the number of different legal answers; ``answers`` and ``legal`` are (B,)."""
    rows, counted = answers.view(-1, group).tolist(), legal.view(-1, group).tolist()
    return sum(len(set(compress(row, kept))) for row, kept in zip(rows, counted)) / len(rows)


class Watch:
    """Compares each step with the bounds of ``health.*`` and tells of each that is crossed, once in a run."""

    def __init__(self, bounds: HealthConfig):
        self.bounds = bounds
        self.told: set[str] = set()
        self.constant: dict[str, int] = {}  # steps in a row without variation, of the groups and of each reward part
        self.first_gap: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """What a resume must not forget, above all the first gap: the rise is from there."""
        return {"told": sorted(self.told), "constant": dict(self.constant), "first_gap": self.first_gap}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.told, self.constant, self.first_gap = set(state["told"]), dict(state["constant"]), state["first_gap"]

    def look(self, step: int, metrics: Mapping[str, float], parts: Mapping[str, Tensor]) -> None:
        """``metrics`` of the step (those of an update may be missing); ``parts`` (B,) values of each reward part."""
        bounds = self.bounds
        self._constant("groups", metrics["frac_reward_zero_std"] == 1)
        for part, values in parts.items():
            told = values[~values.isnan()]
            self._constant(f"part {part}", len(told) == 0 or bool((told == told[0]).all()))
        if self.first_gap is None:
            self.first_gap = metrics.get("reward/gap")
        widened = metrics.get("reward/gap", 0.0) - (self.first_gap or 0.0)
        crossed = {
            "entropy": (metrics["entropy"] < bounds.entropy, "the policy has collapsed: its samples hardly differ any more"),
            "kl": (
                max(metrics.get("kl", 0.0), metrics.get("kl_from_reference", 0.0)) > bounds.kl,
                "the policy is far from its reference: raise algorithm.beta or lower the learning rate?",
            ),
            "drift": (
                metrics.get("sampling/logp_difference/mean", 0.0) > bounds.drift,
                "sampler and trainer disagree on log-probabilities: use run.precision=fp32?",
            ),
            "grad_norm": (metrics.get("grad_norm", 0.0) > bounds.grad_norm, "the gradient is large: lower the learning rate?"),
            "reward_gap": (widened > bounds.reward_gap, "the verifier's verdict rises without the oracle's: it is being gamed"),
        }
        for name, (ill, meaning) in crossed.items():
            if ill:
                self._tell(name, f"step {step} crossed health.{name}={getattr(bounds, name):g}: {meaning}")
        steps = bounds.constant_steps
        for name, count in self.constant.items():
            if count >= steps and name == "groups":
                advice = "so nothing was learned: easier rl.bins, a larger group?"
                self._tell(name, f"{steps} steps in a row had equal rewards within every group, {advice}")
            elif count >= steps:
                self._tell(name, f"reward {name} was the same for every episode for {steps} steps in a row: it teaches nothing")

    def _constant(self, name: str, constant: bool) -> None:
        self.constant[name] = self.constant.get(name, 0) + 1 if constant else 0

    def _tell(self, name: str, message: str) -> None:
        if name not in self.told:
            self.told.add(name)
            tqdm.write(f"rl: {message}")
