"""What a policy thinks of every legal move: log-probabilities at each solver decision of a puzzle, given each of its sampled traces.

The legal moves of a position share their first tokens, so they are scored as one tree in one forward pass behind their context: a node sees the
context and its own ancestors, at the position that it would have in a sequence of its own. Definitions: arXiv 2607.16097, appendix H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
import torch

from chessrl import notation
from chessrl.environment import Environment, build_environment, solver_decisions
from chessrl.model import Transformer, token_logprobs
from chessrl.puzzles import Puzzle, accepted_moves, prompt_tokens
from chessrl.sampler import NO_END_THINK, SamplingSettings, rollout
from chessrl.training import micro_batches

POLICY_COLUMNS = ("puzzle", "split", "bin", "decision", "trace", "moves", "logprobs", "solution", "solving")
PASS_TOKENS = 16_384  # padded tokens of one forward pass: bounds its memory


@dataclass(frozen=True, slots=True)
class MoveTree:
    """Legal moves as the prefix tree of their canonical tokens: nodes in an order in which parents come first."""

    tokens: np.ndarray  # (nodes,)
    parents: np.ndarray  # (nodes,) index of the parent, -1 for a first token
    depths: np.ndarray  # (nodes,) 0 for a first token
    paths: np.ndarray  # (moves, nodes) 1.0 where the node is part of the move


@dataclass(frozen=True, slots=True)
class Decision:
    """One solver decision: all legal moves in their canonical order, what solves, and the tokens of the line up to it."""

    number: int
    moves: tuple[str, ...]  # UCI
    plies: tuple[tuple[int, ...], ...]  # their canonical tokens
    solution: int  # index of the line's move
    solving: tuple[int, ...]  # indices of the accepted moves
    played: tuple[int, ...]  # answer tokens before it, <call_env> and replies included


def move_tree(plies: Sequence[Sequence[int]]) -> MoveTree:
    """The tree of moves given as token sequences, which are distinct."""
    places: dict[tuple[int, ...], int] = {}
    for ply in plies:
        for length in range(1, len(ply) + 1):
            places.setdefault(tuple(ply[:length]), len(places))
    prefixes = list(places)
    paths = np.zeros((len(plies), len(places)))
    for move, ply in enumerate(plies):
        paths[move, [places[tuple(ply[:length])] for length in range(1, len(ply) + 1)]] = 1.0
    return MoveTree(
        tokens=np.array([prefix[-1] for prefix in prefixes]),
        parents=np.array([places.get(prefix[:-1], -1) for prefix in prefixes]),
        depths=np.array([len(prefix) - 1 for prefix in prefixes]),
        paths=paths,
    )


def decisions_of(puzzle: Puzzle, protocol: str) -> list[Decision]:
    """The solver decisions along the line, as the policy meets them when it has played the line so far. Moves are ordered by their UCI text."""
    found = []
    played: list[int] = []
    for number, (board, line_move, reply) in enumerate(solver_decisions(puzzle)):
        legal = sorted(board.legal_moves, key=lambda move: move.uci())
        accepted = set(accepted_moves(board, line_move))
        plies = [tuple(notation.move_tokens(board, move)) for move in legal]
        solution = legal.index(line_move)
        solving = tuple(place for place, move in enumerate(legal) if move in accepted)
        found.append(Decision(number, tuple(move.uci() for move in legal), tuple(plies), solution, solving, tuple(played)))
        if reply is not None:
            closing = [] if protocol == "game" else [notation.CALL_ENV]
            after = board.copy(stack=False)
            after.push(line_move)
            played += [*plies[solution], *closing, *notation.move_tokens(after, reply)]
    return found


# ---- scoring ----------------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def score_moves(
    model: Transformer, contexts: Sequence[Sequence[int]], trees: Sequence[MoveTree], temperature: float = 1.0, pass_tokens: int = PASS_TOKENS
) -> list[np.ndarray]:
    """Log-probability (moves,) of every move of each tree after its context, float64: the sum over the move's canonical tokens.

    Passes hold sequences of like length, at most ``pass_tokens`` with their padding.
    """
    lengths = [len(context) + len(tree.tokens) for context, tree in zip(contexts, trees, strict=True)]
    scores: list[np.ndarray] = [np.empty(0)] * len(lengths)
    for places in micro_batches(lengths, pass_tokens):
        rows = _score_pass(model, [contexts[place] for place in places], [trees[place] for place in places], temperature)
        for place, row in zip(places, rows):
            scores[place] = row
    return scores


def _score_pass(model: Transformer, contexts: list[Sequence[int]], trees: list[MoveTree], temperature: float) -> list[np.ndarray]:
    width = max(len(context) + len(tree.tokens) for context, tree in zip(contexts, trees))
    count = len(contexts)
    tokens = np.full((count, width), notation.PAD)
    positions = np.zeros((count, width), np.int64)
    before = np.zeros((count, width), np.int64)  # the place whose logits predict this token
    visible = np.zeros((count, width, width), bool)
    visible[:, np.arange(width), np.arange(width)] = True  # padding sees itself: a row of no keys has no softmax
    for row, (context, tree) in enumerate(zip(contexts, trees)):
        start, end = len(context), len(context) + len(tree.tokens)
        tokens[row, :start], tokens[row, start:end] = context, tree.tokens
        positions[row, :start], positions[row, start:end] = np.arange(start), start + tree.depths
        before[row, start:end] = np.where(tree.parents < 0, start - 1, start + tree.parents)
        visible[row, :start, :start] = np.tri(start, dtype=bool)
        visible[row, start:end, :start] = True
        visible[row, start:end, start:end] = _ancestors(tree)
    device = model.device
    logits = model.forward_masked(*(torch.from_numpy(array).to(device) for array in (tokens, positions, visible)))
    index = torch.from_numpy(before).to(device)[..., None].expand(-1, -1, logits.shape[-1])
    scores = token_logprobs(logits.gather(1, index), torch.from_numpy(tokens).to(device), temperature).double().cpu().numpy()
    return [tree.paths @ scores[row, len(context) : len(context) + len(tree.tokens)] for row, (context, tree) in enumerate(zip(contexts, trees))]


def _ancestors(tree: MoveTree) -> np.ndarray:
    """(nodes, nodes) bool: whether the second node is the first or one of its ancestors."""
    seen = np.eye(len(tree.tokens), dtype=bool)
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


# ---- measuring --------------------------------------------------------------------------------------------------------------------------


def sampled_traces(
    model: Transformer, environment: Environment, prompts: Sequence[Sequence[int]], traces: int, settings: SamplingSettings, batch: int
) -> tuple[list[list[list[int]]], int]:
    """For each puzzle of ``environment`` the closed traces, </T> included, of ``traces`` rollouts; and how many were cut by the budget."""
    puzzles_at_once = max(1, batch // traces)
    closed: list[list[list[int]]] = []
    cut = 0
    for first in range(0, len(prompts), puzzles_at_once):
        chosen = range(first, min(first + puzzles_at_once, len(prompts)))
        result = rollout(model, environment, list(chosen), [prompts[place] for place in chosen], traces, settings)
        texts, lengths, ends = result.tokens.tolist(), result.trace_lengths.tolist(), (result.outcome == NO_END_THINK).tolist()
        cut += sum(ends)
        for place in range(len(chosen)):
            rows = range(place * traces, (place + 1) * traces)
            closed.append([texts[row][: lengths[row] + 1] for row in rows if not ends[row]])
    return closed, cut


def measure_policy(
    model: Transformer,
    puzzles: Sequence[Puzzle],
    state: str,
    protocol: str,
    traces: Sequence[Sequence[Sequence[int]]] | None = None,
    temperature: float = 1.0,
) -> pd.DataFrame:
    """POLICY_COLUMNS, one row per puzzle, decision and trace. ``traces``: of each puzzle, </T> included, for the think protocol; else None.

    moves: UCI, list; logprobs: list, nats, not normalised over the legal moves (the sum of their exp is the legal mass); solution: index of
    the line's move; solving: indices of all accepted moves. A puzzle without a closed trace has no row.
    """
    contexts, trees, rows = [], [], []
    for place, puzzle in enumerate(puzzles):
        prompt = prompt_tokens(puzzle, state, think=traces is not None)
        of_puzzle = [[]] if traces is None else traces[place]
        for decision in decisions_of(puzzle, protocol):
            tree = move_tree(decision.plies)
            for number, trace in enumerate(of_puzzle):
                contexts.append([*chain(prompt, trace, decision.played)])
                trees.append(tree)
                rows.append(
                    (puzzle.id, puzzle.split, puzzle.bin, decision.number, number, decision.moves, None, decision.solution, decision.solving)
                )
    scores = score_moves(model, contexts, trees, temperature)
    table = pd.DataFrame(rows, columns=list(POLICY_COLUMNS))
    table["logprobs"] = [row.astype(np.float32) for row in scores]
    return table


def policy_table(
    model: Transformer, puzzles: Sequence[Puzzle], state: str, sampling: SamplingSettings, traces: int, batch: int
) -> tuple[pd.DataFrame, int]:
    """``measure_policy`` at the sampling's temperature, behind ``traces`` sampled traces of each puzzle where its protocol is think; and how
    many traces the budget cut, which are left out. ``batch``: sequences sampled together.
    """
    closed, cut = None, 0
    if sampling.protocol == "think":
        prompts = [prompt_tokens(puzzle, state, think=True) for puzzle in puzzles]
        closed, cut = sampled_traces(model, build_environment(puzzles).to(model.device), prompts, traces, sampling, batch)
    return measure_policy(model, puzzles, state, sampling.protocol, closed, sampling.temperature), cut


def exact_success(model: Transformer, puzzles: Sequence[Puzzle], state: str, temperature: float = 1.0) -> np.ndarray:
    """Probability (puzzles,) that one sample without a trace solves the puzzle in canonical spelling, float64; by the line or any mate.

    The sum over all accepted lines of the product over their sampled tokens, <call_env> included. An accepted move off the line ends the
    episode solved, as in the environment. Under lenient spelling this is a lower bound: a move has other accepted spellings.
    """
    contexts, trees, chosen = [], [], []
    for place, puzzle in enumerate(puzzles):
        prompt = prompt_tokens(puzzle, state, think=False)
        for decision in decisions_of(puzzle, "answer"):
            contexts.append([*prompt, *decision.played])
            trees.append(move_tree([(*decision.plies[move], notation.CALL_ENV) for move in decision.solving]))
            chosen.append((place, decision))
    success, reached = np.zeros(len(puzzles)), np.ones(len(puzzles))
    last = {place: decision.number for place, decision in chosen}
    for (place, decision), logprobs in zip(chosen, score_moves(model, contexts, trees, temperature)):
        probabilities = dict(zip(decision.solving, np.exp(logprobs)))
        going_on = 0.0 if decision.number == last[place] else probabilities[decision.solution]
        success[place] += reached[place] * (sum(probabilities.values()) - going_on)
        reached[place] *= going_on
    return success
