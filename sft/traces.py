"""Traces for fine-tuning, built from the pretrained model's own samples (science.md section 10).

Per puzzle: first moves are sampled; from each legal one some continuations of some length. Illegal moves end a line and are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import chess
import numpy as np
import torch
from tqdm import tqdm

from chessrl import distributed
from chessrl.config import TraceConfig
from chessrl.model import Transformer
from chessrl.notation import LONGEST_MOVE, move_tokens
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.randomness import combine, stream_key, string_key
from chessrl.sampler import continue_text
from chessrl.traces import Line, Tree, merge, read_plies

PUZZLES_PER_BATCH = 128


@dataclass(slots=True)
class TraceReport:
    """What the building of traces did: counts of lines and puzzles, and the tokens sampled for it."""

    counts: Counter[str] = field(default_factory=Counter)
    sampled_tokens: int = 0
    prompt_tokens: int = 0

    def take_sum(self, reports: Sequence[TraceReport]) -> None:
        """Become the sum of other reports."""
        self.counts = Counter()
        for report in reports:
            self.counts.update(report.counts)
        self.sampled_tokens = sum(report.sampled_tokens for report in reports)
        self.prompt_tokens = sum(report.prompt_tokens for report in reports)


def build_trees(
    model: Transformer, puzzles: Sequence[Puzzle], config: TraceConfig, *, state: str, seed: int, report: TraceReport
) -> list[Tree]:
    """One prefix tree per puzzle. The same puzzle, seed and model give the same tree, whatever the other puzzles are."""
    trees = []
    for start in tqdm(range(0, len(puzzles), PUZZLES_PER_BATCH), desc="traces", unit="batch", disable=not distributed.is_first()):
        trees += _trees_of_batch(model, puzzles[start : start + PUZZLES_PER_BATCH], config, state, seed, report)
    return trees


def _trees_of_batch(
    model: Transformer, puzzles: Sequence[Puzzle], config: TraceConfig, state: str, seed: int, report: TraceReport
) -> list[Tree]:
    prompts = [prompt_tokens(puzzle, state, think=False) for puzzle in puzzles]
    boards = [puzzle.board() for puzzle in puzzles]
    candidates = _first_moves(model, puzzles, prompts, boards, config, seed, report)
    lines = _continue(model, puzzles, prompts, boards, candidates, config, seed, report)
    trees = []
    for puzzle, board, sampled in zip(puzzles, boards, lines):
        if config.inject_answer:
            sampled = inject_answer(puzzle, board, sampled, config.length_max, seed, report)
        report.counts["puzzles"] += 1
        report.counts["lines"] += len(sampled)
        trees.append(merge(sampled))
    return trees


def _keys(puzzles: Sequence[Puzzle], draws: int, seed: int, part: int, device: torch.device) -> torch.Tensor:
    """(puzzles, draws) random keys, a function of the puzzle's id, the draw, the seed and the part of the work."""
    base = torch.tensor([string_key(puzzle.id) for puzzle in puzzles], device=device)
    return combine(combine(stream_key(seed, "traces", part, device), base)[:, None], torch.arange(draws, device=device)[None])


def _first_moves(
    model: Transformer,
    puzzles: Sequence[Puzzle],
    prompts: list[list[int]],
    boards: list[chess.Board],
    config: TraceConfig,
    seed: int,
    report: TraceReport,
) -> list[list[chess.Move]]:
    """Distinct legal first moves of each puzzle in the order of their sampling."""
    sampled = continue_text(
        model, prompts, _keys(puzzles, config.candidates, seed, 0, model.device), LONGEST_MOVE, config.temperature
    ).cpu()
    report.sampled_tokens += sampled.numel()
    report.prompt_tokens += sum(map(len, prompts))
    moves = []
    for board, texts in zip(boards, sampled.tolist()):
        read = [read_plies(board, text, 1) for text in texts]
        report.counts["first moves"] += len(read)
        report.counts["illegal first moves"] += sum(not line for line, _ in read)
        moves.append(list(dict.fromkeys(line[0] for line, _ in read if line)))
    return moves


def rounded_lognormal(rng: np.random.Generator, mean: float, sigma: float, low: int, high: int, size: int) -> np.ndarray:
    """Integers of a log-normal with the given mean (before rounding) and spread, clipped to [low, high]."""
    values = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    return np.clip(np.rint(values), low, high).astype(int)


def _continue(
    model: Transformer,
    puzzles: Sequence[Puzzle],
    prompts: list[list[int]],
    boards: list[chess.Board],
    candidates: list[list[chess.Move]],
    config: TraceConfig,
    seed: int,
    report: TraceReport,
) -> list[list[Line]]:
    """Lines of each puzzle: continuations of each first move, all of the batch sampled together."""
    lines: list[list[Line]] = [[] for _ in puzzles]
    jobs = []  # (puzzle, first move, plies still to sample) in the order of the lines
    for place, puzzle in enumerate(puzzles):
        rng = np.random.Generator(np.random.Philox(key=[seed, string_key(puzzle.id) % 2**64]))
        for move in candidates[place]:
            count = int(
                rounded_lognormal(
                    rng, config.continuations_mean, config.continuations_sigma, config.continuations_min, config.continuations_max, 1
                )[0]
            )
            for length in rounded_lognormal(rng, config.length_mean, config.length_sigma, config.length_min, config.length_max, count):
                jobs.append((place, move, int(length) - 1))
    texts = _sample_continuations(model, puzzles, prompts, boards, jobs, config, seed, report)
    for (place, move, plies), text in zip(jobs, texts):
        after = boards[place].copy(stack=False)
        after.push(move)
        rest, illegal = read_plies(after, text, plies)
        report.counts["illegal continuations"] += illegal
        lines[place].append((move, *rest))
    return lines


def _sample_continuations(
    model: Transformer, puzzles: Sequence[Puzzle], prompts: list[list[int]], boards: list[chess.Board],
    jobs: list[tuple[int, chess.Move, int]], config: TraceConfig, seed: int, report: TraceReport,
) -> list[list[int]]:  # fmt: skip
    """Tokens after prompt and first move for every job; none for jobs without further plies."""
    asked = [index for index, (_, _, plies) in enumerate(jobs) if plies > 0]
    texts: list[list[int]] = [[] for _ in jobs]
    if not asked:
        return texts
    keys = _keys(puzzles, max(1, len(jobs)), seed, 1, model.device)
    within = Counter[int]()
    rows, row_keys = [], []
    for index in asked:
        place, move, _ = jobs[index]
        rows.append(prompts[place] + move_tokens(boards[place], move))
        row_keys.append(keys[place, within[place]])
        within[place] += 1
    new_tokens = LONGEST_MOVE * max(jobs[index][2] for index in asked)
    sampled = continue_text(model, rows, torch.stack(row_keys)[:, None], new_tokens, config.temperature).cpu()[:, 0]
    report.sampled_tokens += sampled.numel()
    report.prompt_tokens += sum(map(len, rows))
    for index, text in zip(asked, sampled.tolist()):
        texts[index] = text
    return texts


def inject_answer(puzzle: Puzzle, board: chess.Board, lines: list[Line], most: int, seed: int, report: TraceReport) -> list[Line]:
    """The solution's first ``most`` plies put among the lines, at a random place, unless a line begins with them already."""
    answer: list[chess.Move] = []
    after = board.copy(stack=False)
    for uci in puzzle.moves[puzzle.lead :][:most]:
        answer.append(after.parse_uci(uci))
        after.push(answer[-1])
    wanted = tuple(answer)
    if any(line[: len(wanted)] == wanted for line in lines):
        report.counts["answer sampled"] += 1
        return lines
    report.counts["answer injected"] += 1
    rng = np.random.Generator(np.random.Philox(key=[seed + 1, string_key(puzzle.id) % 2**64]))
    place = int(rng.integers(len(lines) + 1))
    return [*lines[:place], wanted, *lines[place:]]
