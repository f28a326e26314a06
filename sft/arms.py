"""From trees to what is fine-tuned on: the order of children, the lines that are written, whose trace it is, its length, and the answer.

Every arm of a comparison is a composition of these keys of ``sft.trace`` over the same trees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import chess
import numpy as np

from chessrl.config import Config, TraceConfig
from chessrl.engine_labels import MoveLabels, position_key
from chessrl.environment import solver_decisions
from chessrl.notation import CALL_ENV, move_tokens
from chessrl.puzzles import Puzzle
from chessrl.trace_ranks import move_ranks
from chessrl.traces import Line, Tree, lines_within, positions_with_choice, reordered, trace_tokens, written_lines
from chessrl.verifier import cached_labels
from sft.traces import EXCHANGE_STREAM, LAYOUT_STREAM, ORDER_STREAM, generator

Labels = dict[str, MoveLabels | None]  # by position
Label = Callable[[Sequence[chess.Board]], Labels]
Order = Callable[[chess.Board, list[chess.Move]], list[chess.Move]]


# ---- order ------------------------------------------------------------------------------------------------------------------------------


def engine_order(labels: Labels) -> Order:
    """Best moves first; equal ones, and all moves of a position without labels, as they came."""

    def order(board: chess.Board, moves: list[chess.Move]) -> list[chess.Move]:
        known = labels[position_key(board)] if len(moves) > 1 else None
        if known is None:
            return moves
        ranks = move_ranks(known)
        return sorted(moves, key=lambda move: ranks[move.uci()])

    return order


def random_order(rng: np.random.Generator) -> Order:
    return lambda board, moves: [moves[place] for place in rng.permutation(len(moves))]


def ordered_trees(puzzles: Sequence[Puzzle], trees: Sequence[Tree], order: str, seed: int, label: Label) -> list[Tree]:
    """The trees with children in ``order`` (sft.trace.order)."""
    if order == "sampling":
        return list(trees)
    boards = [puzzle.board() for puzzle in puzzles]
    if order == "random":
        return [
            reordered(board, tree, random_order(generator(puzzle, seed, ORDER_STREAM))) for puzzle, board, tree in zip(puzzles, boards, trees)
        ]
    labels = label([position for board, tree in zip(boards, trees) for position in positions_with_choice(board, tree)])
    return [reordered(board, tree, engine_order(labels)) for board, tree in zip(boards, trees)]


# ---- answers ----------------------------------------------------------------------------------------------------------------------------


def line_answer(puzzle: Puzzle) -> Line:
    """The puzzle's own line from the solver's first move on."""
    moves = [move for _, move, reply in solver_decisions(puzzle) for move in (move, reply)]
    return tuple(move for move in moves if move is not None)


def best_lines(puzzles: Sequence[Puzzle], trees: Sequence[Tree], label: Label, counts: Counter[str]) -> list[Line]:
    """From every root the best child by the engine at each node, for whoever is to move; the line ends with the solver's move.

    A puzzle without a tree keeps its own line; where the engine cannot score a position the first child is taken. Both are counted.
    """
    boards = [puzzle.board() for puzzle in puzzles]
    nodes = list(trees)
    lines: list[list[chess.Move]] = [[] for _ in puzzles]
    while going := [place for place, node in enumerate(nodes) if node]:
        labels = label([boards[place] for place in going if len(nodes[place]) > 1])
        for place in going:
            known = labels[position_key(boards[place])] if len(nodes[place]) > 1 else None
            counts["best-line choices without a score"] += len(nodes[place]) > 1 and known is None
            ranks = move_ranks(known) if known is not None else {}
            move = min(nodes[place], key=lambda move: ranks.get(move.uci(), 0))
            lines[place].append(move)
            boards[place].push(move)
            nodes[place] = nodes[place][move]
    counts["answers of puzzles without a sampled line"] += sum(not line for line in lines)
    whole = [line[: len(line) - (len(line) % 2 == 0)] for line in lines]  # an opponent's last move answers nothing
    counts["answers off the puzzle's line"] += sum(
        bool(line) and tuple(line) != line_answer(puzzle)[: len(line)] for puzzle, line in zip(puzzles, whole)
    )
    return [tuple(line) or line_answer(puzzle) for puzzle, line in zip(puzzles, whole)]


def answer_tokens(board: chess.Board, answer: Line) -> list[list[int]]:
    """Tokens of every ply of an answer, the solver's with their ``<call_env>``."""
    after = board.copy(stack=False)
    plies = []
    for number, move in enumerate(answer):
        plies.append(move_tokens(after, move) + ([CALL_ENV] if number % 2 == 0 else []))
        after.push(move)
    return plies


# ---- traces -----------------------------------------------------------------------------------------------------------------------------


def exchanged(count: int, seed: int) -> list[int]:
    """Whose trace each of ``count`` puzzles gets, never its own: the next one along a random circle through all."""
    circle = np.random.Generator(np.random.Philox(key=[seed, EXCHANGE_STREAM])).permutation(count)
    after = np.empty(count, np.int64)
    after[circle] = np.roll(circle, -1)
    return after.tolist()


def trace_texts(
    puzzles: Sequence[Puzzle], trees: Sequence[Tree], config: TraceConfig, seed: int, label: Label, room: Sequence[int] | None,
    counts: Counter[str],
) -> list[list[int]]:  # fmt: skip
    """Every puzzle's trace as tokens, ``</T>`` included, with whole lines dropped where it exceeds sft.trace.budget or its ``room`` in tokens."""
    trees = ordered_trees(puzzles, trees, config.order, seed, label)
    written = [
        written_lines(tree, config.serialise, generator(puzzle, seed, LAYOUT_STREAM)) for puzzle, tree in zip(puzzles, trees)
    ]
    sources = exchanged(len(puzzles), seed) if config.content == "other_puzzle" else range(len(puzzles))
    texts = []
    for place, source in enumerate(sources):
        board, lines = puzzles[source].board(), written[source]
        answer = line_answer(puzzles[source])[: config.length_max]
        limits = [limit for limit in (config.budget, room[place] if room is not None else None) if limit is not None]
        kept = lines_within(board, lines, min(limits), keep=answer) if limits else lines
        texts.append(trace_tokens(board, kept))
        counts["written lines"] += len(kept)
        counts["lines over the budget"] += len(lines) - len(kept)
        counts["traces that hold the answer's opening"] += any(line[: len(answer)] == answer for line in kept)
    return texts


def engine_labels(config: Config, counts: Counter[str]) -> Label:
    """Labels by the engine of ``engine.*``, which is started only when something is asked; ``counts`` takes how many and how many failed."""

    def label(boards: Sequence[chess.Board]) -> Labels:
        if not boards:
            return {}
        found, _ = cached_labels(config, boards)
        counts["engine positions"] += len(boards)
        counts["engine positions without a score"] += sum(known is None for known in found)
        return {position_key(board): known for board, known in zip(boards, found)}

    return label
