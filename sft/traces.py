"""Trees of lines for fine-tuning, whoever proposes the lines.

Per puzzle n first moves are proposed; from each different legal one m continuations, each to a length of l plies, the first move included. m and
l are rounded log-normals: ``*_mean`` is the mean of the log-normal itself, before it is rounded and clipped (not drawn again) to its range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import chess
import numpy as np

from chessrl.config import TraceConfig
from chessrl.puzzles import Puzzle
from chessrl.randomness import string_key
from chessrl.traces import Line, Tree, merge

PUZZLES_PER_BATCH = 128
BRANCHING_STREAM, INJECTION_STREAM, ORDER_STREAM, LAYOUT_STREAM, EXCHANGE_STREAM, FIRST_MOVES_STREAM, CONTINUATIONS_STREAM = (
    *(0, 1),  # next to each other from the beginning: kept, so that traces stay what they were
    *(number << 32 for number in range(2, 7)),  # far from any seed plus another stream
)


@dataclass(slots=True)
class TraceReport:
    """What the building of traces did: counts of lines and puzzles, and the tokens that a model sampled and read for it."""

    counts: Counter[str] = field(default_factory=Counter)
    sampled_tokens: int = 0
    prompt_tokens: int = 0

    def as_dict(self) -> dict[str, float]:
        """The counts, and the shares that are compared between runs."""
        counts = self.counts
        shares = {
            f"share of {part}": counts[part] / counts[whole]
            for part, whole in (
                ("answer injected", "puzzles"),
                ("traces that hold the answer's opening", "puzzles"),
                ("illegal first moves", "first moves"),
                ("illegal continuations", "continuations"),
            )
            if counts[whole]
        }
        return dict(counts) | shares | {"sampled_tokens": self.sampled_tokens, "prompt_tokens": self.prompt_tokens}

    def add(self, report: TraceReport) -> None:
        self.counts.update(report.counts)
        self.sampled_tokens += report.sampled_tokens
        self.prompt_tokens += report.prompt_tokens


@dataclass(frozen=True, slots=True)
class Continuation:
    """What is asked of a proposal: ``plies`` more plies after ``first`` on the board of puzzle ``place`` of the batch."""

    place: int
    first: chess.Move
    plies: int


class Proposal(Protocol):
    """Who proposes lines for a batch of puzzles. What a puzzle gets depends on the puzzle alone, not on the others of the batch."""

    def first_moves(self, puzzles: Sequence[Puzzle], report: TraceReport) -> list[list[chess.Move]]:
        """Different legal first moves of each puzzle, in their order."""
        ...

    def continuations(self, puzzles: Sequence[Puzzle], asked: Sequence[Continuation], report: TraceReport) -> list[Line]:
        """Legal plies after each first move, as many as asked for or fewer; ``asked`` goes puzzle by puzzle."""
        ...


def build_trees(
    proposal: Proposal, puzzles: Sequence[Puzzle], config: TraceConfig, *, seed: int, report: TraceReport, done: Callable[[int], object]
) -> list[Tree]:
    """One prefix tree per puzzle. The same puzzle, seed and proposal give the same tree, whatever the other puzzles are.

    ``done`` is told how many puzzles each batch held.
    """
    trees: list[Tree] = []
    for start in range(0, len(puzzles), PUZZLES_PER_BATCH):
        batch = puzzles[start : start + PUZZLES_PER_BATCH]
        trees += _trees_of_batch(proposal, batch, config, seed, report)
        done(len(batch))
    return trees


def _trees_of_batch(proposal: Proposal, puzzles: Sequence[Puzzle], config: TraceConfig, seed: int, report: TraceReport) -> list[Tree]:
    candidates = proposal.first_moves(puzzles, report)
    asked = [
        Continuation(place, move, plies)
        for place, puzzle in enumerate(puzzles)
        for move, plies in _branching(puzzle, candidates[place], config, seed)
    ]
    lines: list[list[Line]] = [[] for _ in puzzles]
    for one, rest in zip(asked, proposal.continuations(puzzles, asked, report)):
        lines[one.place].append((one.first, *rest))
    trees = []
    for puzzle, proposed in zip(puzzles, lines):
        report.counts["puzzles without a proposed line"] += not proposed
        if config.inject_answer:
            proposed = inject_answer(puzzle, puzzle.board(), proposed, config.length_max, seed, report)
        report.counts["puzzles"] += 1
        report.counts["lines"] += len(proposed)
        trees.append(merge(proposed))
    return trees


def _branching(puzzle: Puzzle, first_moves: Iterable[chess.Move], config: TraceConfig, seed: int) -> Iterable[tuple[chess.Move, int]]:
    """(first move, further plies) of every line of a puzzle."""
    rng = generator(puzzle, seed, BRANCHING_STREAM)
    for move in first_moves:
        (count,) = rounded_lognormal(
            rng, config.continuations_mean, config.continuations_sigma, config.continuations_min, config.continuations_max, 1
        )
        for length in rounded_lognormal(rng, config.length_mean, config.length_sigma, config.length_min, config.length_max, count):
            yield move, int(length) - 1


def generator(puzzle: Puzzle, seed: int, stream: int) -> np.random.Generator:
    """Random numbers of one puzzle and one purpose, whatever the other puzzles are."""
    return np.random.Generator(np.random.Philox(key=[(seed + stream) % 2**64, string_key(puzzle.id) % 2**64]))


def rounded_lognormal(rng: np.random.Generator, mean: float, sigma: float, low: int, high: int, size: int) -> np.ndarray:
    """Integers of a log-normal with the given mean (before rounding) and spread, clipped to [low, high]."""
    values = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    return np.clip(np.rint(values), low, high).astype(int)


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
    place = int(generator(puzzle, seed, INJECTION_STREAM).integers(len(lines) + 1))
    return [*lines[:place], wanted, *lines[place:]]
