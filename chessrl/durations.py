"""How long the stages would take on this machine: the steps of a run, each at the rate that ``chessrl.rates`` measured.

A stage is tokens trained or scored, steps of the optimiser and rollouts. What a rollout costs rests on how many of its episodes are still being
written at each token: about normal around the expected length, beside a few that never end by themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chessrl.budgets import expected_game_tokens, expected_prompt_tokens
from chessrl.config import Config
from chessrl.rates import Rates, Work
from chessrl.sampler import COMPACT_SHARE

# What is no model's work: rough shares and seconds from runs on two cores (AMD EPYC, Zen 4); the engine's and the report's are assumed.
COMMAND_S = 4.0  # of every command: imports, data read, folders written
GAMES_PER_S = 1500  # games to tokens, on all cores
PUZZLE_S = 1.2e-3  # of a traced puzzle beside sampling: its lines read, merged and written
EPISODE_S = 6e-5  # of an evaluated episode beside sampling: its row of the table, its share of the bootstrap
ENGINE_S = 0.05  # of a position whose moves engines judge: a tenth of a second each, two at a time
REPORT_S = 10.0
ENGINE_PUZZLES = 200  # chessrl.pipeline's
WRITTEN = 0.78  # of an example's tokens after its prompt an episode writes so many: most end at their first wrong move (23 of 29 measured)
SPREAD = 0.4  # standard deviation of an episode's new tokens, as a share of their mean
ENDLESS = 0.006  # of fine-tuned episodes never close their trace
ANSWER_TOKENS = 5  # of an episode of a move or two without a trace
PUZZLES_PER_BATCH = 128  # traced together
MOVE_TOKENS = 7  # the longest move: so many tokens are sampled for each ply of a trace


@dataclass(frozen=True, slots=True)
class Episodes:
    """A rollout: how many sequences, of how many new tokens on average and at most, and the prompts before them."""

    sequences: int
    prompts: int
    prompt_tokens: int
    new_tokens: float
    most_tokens: int
    endless: float


def work_of(config: Config, sequence: int, threads: int) -> Work:
    """What has to be timed for the estimate of ``config``."""
    return Work(
        config.model, config.run.precision, config.run.compile, threads, config.run.micro_batch_tokens, expected_game_tokens(config), sequence,
        expected_prompt_tokens(config), config.algorithm.group,
    )  # fmt: skip


def pretraining_s(config: Config, rates: Rates, steps: int, tokens: int) -> float:
    """The corpus, the steps, and the validations between them."""
    settings, game = config.pretrain, expected_game_tokens(config)
    corpus = config.world.max_games or tokens / game
    held_out = min(settings.validation_games, corpus * config.world.validation_share) * game
    validations = math.ceil(steps / settings.validation_every)
    training = tokens * rates.game_training_s + steps * rates.optimizer_s + rates.first_s
    return COMMAND_S + corpus / GAMES_PER_S + training + validations * held_out * rates.game_scoring_s


def fine_tuning_s(config: Config, rates: Rates, steps: int, tokens: int, sequence: int) -> float:
    """The traces that are proposed, the steps, and a validation after each epoch."""
    settings, trace = config.sft, config.sft.trace
    puzzles = fine_tuning_puzzles(config) + settings.validation_puzzles
    proposing = 0.0
    if trace.enabled:
        proposing = puzzles * PUZZLE_S
        if trace.proposal in ("model", "teacher"):
            first = PUZZLES_PER_BATCH * trace.candidates
            plies = max(0, trace.length_max - 1)
            tokens_s = rates.token_s(first) + plies * rates.token_s(first * trace.continuations_mean / 2)
            proposing += puzzles / PUZZLES_PER_BATCH * MOVE_TOKENS * tokens_s
    training = tokens * rates.sequence_training_s + steps * rates.optimizer_s + rates.first_s
    validations = settings.epochs * settings.validation_puzzles * sequence * rates.sequence_scoring_s
    return COMMAND_S + proposing + training + validations


def fine_tuning_puzzles(config: Config) -> int:
    """Puzzles that fine-tuning sees."""
    available = len(config.sft.puzzles) or config.world.sft_puzzles
    return min(config.sft.max_puzzles or available, available)


def reinforcement_s(config: Config, rates: Rates, steps: int, sequence: int) -> float:
    """Rollouts, reference, updates; and the validations between them."""
    settings, algorithm = config.rl, config.algorithm
    rollouts = settings.prompts * algorithm.group
    own = rollout_s(_episodes(config, rollouts, settings.prompts, sequence, settings.thinking_budget), rates)
    prompt = expected_prompt_tokens(config)
    read = rollouts * (prompt + written_tokens(config, sequence))
    if config.run.precision == "bf16":  # a prompt is read once for its group
        read -= (rollouts - settings.prompts) * prompt
    update = algorithm.epochs * (read * rates.sequence_training_s + algorithm.minibatches * rates.optimizer_s)
    validated = _episodes(
        config, settings.validation_puzzles * settings.validation_samples, settings.validation_puzzles, sequence, settings.thinking_budget
    )
    validation = sampled_s(validated, config.evaluate.batch, rates)
    step_s = own + read * rates.sequence_scoring_s + update
    return COMMAND_S + steps * step_s + rates.first_s + math.ceil(steps / settings.validation_every) * validation


def evaluations_s(config: Config, rates: Rates, sequence: int) -> float:
    """What the pipeline does after its stages: each policy evaluated, RL's by the engine as well, and the report."""
    settings, pipeline = config.evaluate, config.pipeline
    total = REPORT_S if pipeline.report else 0.0
    if not pipeline.evaluate:
        return total
    available = {"validation": config.world.validation_puzzles, "test": config.world.test_puzzles}.get(settings.split, config.world.test_puzzles)
    puzzles = min(settings.max_puzzles or available, available)
    for stage in pipeline.stages:
        further = len(config.rl.save_steps) if stage == "rl" and pipeline.evaluate_steps else 0
        policy = _episodes(config, puzzles * settings.samples, puzzles, sequence, settings.thinking_budget, thinks=stage != "pretrain")
        total += (1 + further) * (COMMAND_S + sampled_s(policy, settings.batch, rates) + policy.sequences * EPISODE_S)
    if pipeline.engine_evaluation:
        judged = min(ENGINE_PUZZLES, puzzles)
        policy = _episodes(config, judged * settings.samples, judged, sequence, settings.thinking_budget)
        total += COMMAND_S + judged * ENGINE_S + sampled_s(policy, settings.batch, rates)
    return total


def _episodes(config: Config, sequences: int, prompts: int, sequence: int, budget: int, thinks: bool = True) -> Episodes:
    prompt = expected_prompt_tokens(config)
    if thinks and config.sft.trace.enabled:
        return Episodes(sequences, prompts, prompt, written_tokens(config, sequence), budget + 2 * ANSWER_TOKENS, ENDLESS)
    return Episodes(sequences, prompts, prompt, ANSWER_TOKENS, 4 * ANSWER_TOKENS, 0.0)


def written_tokens(config: Config, sequence: int) -> float:
    """Tokens after the prompt of an episode: ``budget.rollout_tokens`` says it of rollouts themselves, else examples of ``sequence`` tokens do."""
    share = 1.0 if config.budget.rollout_tokens else WRITTEN
    return max(ANSWER_TOKENS, share * (sequence - expected_prompt_tokens(config)))


def sampled_s(episodes: Episodes, batch: int, rates: Rates) -> float:
    """Episodes sampled ``batch`` at a time, as an evaluation does."""
    batches = max(1, math.ceil(episodes.sequences / batch))
    share = Episodes(
        round(episodes.sequences / batches), max(1, round(episodes.prompts / batches)), episodes.prompt_tokens, episodes.new_tokens,
        episodes.most_tokens, episodes.endless,
    )  # fmt: skip
    return batches * rollout_s(share, rates)


def rollout_s(episodes: Episodes, rates: Rates) -> float:
    """Prompts read once, then token after token for the sequences that are still in the batch: the sampler drops finished ones by a share."""
    total = episodes.prompts * episodes.prompt_tokens * rates.sequence_scoring_s
    held = float(episodes.sequences)
    for place in range(episodes.most_tokens):
        alive = episodes.sequences * unfinished(episodes, place)
        if alive < 0.5:
            break
        if held - alive > COMPACT_SHARE * held:
            held = alive
        total += rates.token_s(held)
    return total


def unfinished(episodes: Episodes, tokens: int) -> float:
    """Share of the episodes that have more than so many new tokens."""
    spread = SPREAD * episodes.new_tokens
    ending = 0.5 * math.erfc((tokens - episodes.new_tokens) / (spread * math.sqrt(2)))
    return episodes.endless + (1 - episodes.endless) * ending
