"""Episodes of puzzles, sampled and paid: rollout, evidence, reward parts, baseline and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chessrl import distributed, notation
from chessrl.config import LABELLED_PARTS, Config
from chessrl.environment import Environment
from chessrl.model import Transformer
from chessrl.randomness import combine, stream_key
from chessrl.sampler import Rollout, SamplingSettings, rollout
from rl.answers import answer_keys, played_moves
from rl.gathering import gathered
from rl.judges import Judges
from rl.labels import MajorityLabels
from rl.rewards import Evidence, oracle_verdict, overlong_penalty, reward_parts, total_reward, verdict
from rl.sampling import Scored


class Scorer:
    """Samples a policy's episodes and pays them. ``start`` is the policy that RL began with, of which the labels are made."""

    def __init__(
        self, config: Config, policy: Transformer, start: Transformer, environment: Environment, prompts: Sequence[Sequence[int]], judges: Judges
    ):
        self.config, self.policy, self.environment, self.prompts, self.judges = config, policy, environment, prompts, judges
        self.labels: MajorityLabels | None = None
        if any(part in config.reward.weights for part in LABELLED_PARTS):
            settings = replace(self._sampling(0), stage="rl-labels")
            self.labels = MajorityLabels(start, environment, prompts, config.reward.label_samples, settings)
        self.greedy_lengths: list[Tensor] = []

    def score(self, puzzles: Sequence[int], step: int) -> Scored:
        """A group of episodes of each puzzle."""
        algorithm, settings = self.config.algorithm, self.config.rl
        sampling = self._sampling(step)
        evidence = self._evidence(puzzles, algorithm.group, sampling)
        parts = reward_parts(evidence, self.config.reward.weights)
        paid, judged = total_reward(parts, self.config.reward.weights), verdict(parts, self.config.reward.weights)
        rewards = paid
        if algorithm.overlong_share:
            off = overlong_penalty(evidence.rollout, settings.thinking_budget, algorithm.overlong_share, algorithm.overlong_penalty)
            parts["overlong"] = -off
            rewards = rewards - off
        rewards = rewards.view(-1, algorithm.group)
        if algorithm.baseline == "greedy":
            rewards = rewards - self._greedy_rewards(puzzles, sampling)[:, None]
        return Scored(evidence.rollout, parts, rewards, paid, judged, oracle_verdict(evidence), answer_keys(evidence.moves))

    def spent_elsewhere(self) -> Tensor:
        """Lengths (prompts included) of the episodes sampled for labels and greedy baselines since the last look: they cost, too."""
        lists = [self.greedy_lengths] + ([self.labels.lengths] if self.labels else [])
        lengths = torch.cat([torch.zeros(0, dtype=torch.int64), *(part for held in lists for part in held)])
        for held in lists:
            held.clear()
        return lengths

    def _sampling(self, step: int) -> SamplingSettings:
        settings = self.config.rl
        return SamplingSettings(
            settings.protocol, settings.temperature, settings.thinking_budget, settings.spelling, seed=settings.seed, stage="rl", step=step
        )

    def _evidence(self, puzzles: Sequence[int], group: int, sampling: SamplingSettings) -> Evidence:
        own = distributed.portion(puzzles)
        episodes = gathered(rollout(self.policy, self.environment, own, [self.prompts[index] for index in own], group, sampling))
        samples = torch.arange(len(episodes.lengths), device=episodes.lengths.device) % group
        key = stream_key(sampling.seed, f"{sampling.stage}-reward", sampling.step, samples.device)
        return Evidence(
            rollout=episodes,
            environment=self.environment,
            judges=self.judges,
            moves=played_moves(episodes, sampling.protocol),
            labels=self.labels.of(puzzles, group) if self.labels else None,
            key=combine(combine(key, self.environment.puzzle_key[episodes.puzzles]), samples),
            config=self.config.reward,
            longest=self._longest(sampling),
        )

    def _longest(self, sampling: SamplingSettings) -> int:
        trace = sampling.thinking_budget + 1 if sampling.protocol == "think" else 0
        return trace + int(self.environment.decisions.max()) * (notation.LONGEST_MOVE + 1)

    def _greedy_rewards(self, puzzles: Sequence[int], sampling: SamplingSettings) -> Tensor:
        """(prompts,) what the greedy episode is paid (ReMax, arXiv 2310.10505)."""
        evidence = self._evidence(puzzles, 1, replace(sampling, temperature=0.0, stage="rl-greedy"))
        self.greedy_lengths.append(lengths_of(evidence.rollout).cpu())
        weights = self.config.reward.weights
        return total_reward(reward_parts(evidence, weights), weights)


def lengths_of(episodes: Rollout) -> Tensor:
    """(B,) tokens of prompt and episode."""
    return episodes.prompt_lengths + episodes.lengths
