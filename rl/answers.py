"""The moves that episodes played, read back from their tokens as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from chessrl import notation
from chessrl.environment import Environment
from chessrl.grammar import DEAD, START, MoveGrammar
from chessrl.randomness import combine
from chessrl.sampler import Rollout

NO_MOVE = -1


def played_moves(rollout: Rollout, protocol: str) -> Tensor:
    """(B, D) ``notation.move_key`` of each solver move that was closed by ``<call_env>``, NO_MOVE beyond the last; D is the most of any episode.

    Of the policy's tokens only those after its trace are read (``protocol`` think) with the grammar that the sampler judges them by.
    """
    grammar = MoveGrammar.on(rollout.tokens.device)
    count, width = rollout.tokens.shape
    zeros = torch.zeros(count, dtype=torch.int64, device=rollout.tokens.device)
    begins = rollout.trace_lengths + 1 if protocol == "think" else zeros
    state, key, number = zeros + START, zeros, zeros
    most = int((rollout.policy & (rollout.tokens == notation.CALL_ENV)).sum(1).amax().clamp(min=1))
    moves = torch.full((count, most), NO_MOVE, device=rollout.tokens.device)
    for place in range(width):
        token = rollout.tokens[:, place]
        reading = rollout.policy[:, place] & (begins <= place) & (state != DEAD)
        called = reading & grammar.complete[state] & (token == notation.CALL_ENV)
        moves[called, number[called]] = key[called]
        number = number + called
        writing = reading & ~called
        key = torch.where(called, 0, torch.where(writing, key + grammar.key_change(state, token), key))
        state = torch.where(called, START, torch.where(writing, grammar.transition[state, token], state))
    return moves


def answer_keys(moves: Tensor) -> Tensor:
    """(B,) one key per sequence of moves (B, D): equal for equal answers, however wide the table."""
    key = torch.zeros_like(moves[:, 0])
    for place in range(moves.shape[1]):
        key = torch.where(moves[:, place] == NO_MOVE, key, combine(key, moves[:, place]))
    return key


def nodes_of_moves(environment: Environment, rollout: Rollout, moves: Tensor) -> Tensor:
    """(B, D) the decision at which each move was played: a line's decisions follow one another, and any other move ends the episode."""
    return environment.root[rollout.puzzles][:, None] + torch.arange(moves.shape[1], device=moves.device)


def looked_up(environment: Environment, table: Tensor, nodes: Tensor, moves: Tensor, missing: float | bool) -> Tensor:
    """Values of moves (any shape) at ``nodes`` (same shape) in a table (N, L) beside ``Environment.legal_key``; ``missing`` for illegal ones."""
    nodes = nodes.clamp(max=len(table) - 1)
    matches = (environment.legal_key[nodes] == moves[..., None]) & (moves[..., None] != NO_MOVE)
    values = table[nodes].gather(-1, matches.int().argmax(-1, keepdim=True)).squeeze(-1)
    return torch.where(matches.any(-1), values, missing)
