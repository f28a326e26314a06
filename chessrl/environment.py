"""The puzzle environment as data: a graph of solver decisions in tensors, walked by the sampler on the device.

A node is a solver decision. An edge is an accepted move: it leads to a forced opponent reply and the next node, or to "solved". Accepted are
the line's move and every mate, or with engine labels every move within a threshold; an accepted move off the line ends the episode solved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import chess
import numpy as np
import torch
from torch import Tensor

from chessrl import notation
from chessrl.engine_labels import position_key
from chessrl.puzzles import Puzzle, accepted_moves
from chessrl.randomness import string_key

SOLVED = -1  # in place of a next node


@dataclass(frozen=True, slots=True)
class Environment:
    """Tables of P puzzles with N nodes, at most E accepted and L legal moves each. All integer tensors are int64."""

    root: Tensor  # (P,) first node of each puzzle
    puzzle_key: Tensor  # (P,) hash of the puzzle's id: its place in a sample's random counter
    decisions: Tensor  # (P,) solver moves in the line
    edge_key: Tensor  # (N, E) notation.move_key of accepted moves, -1 padded
    edge_tokens: Tensor  # (N, E, 7) canonical tokens, <pad> padded
    edge_next: Tensor  # (N, E) next node or SOLVED
    edge_line: Tensor  # (N, E) bool: the line's move or a mate; false where only the engine accepts it
    edge_reply: Tensor  # (N, E, 7) the opponent's forced reply, <pad> padded; all <pad> when solved
    legal_key: Tensor  # (N, L) keys of all legal moves, -1 padded

    def to(self, device: torch.device) -> Environment:
        return Environment(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class _Edge:
    key: int
    tokens: list[int]
    reply: list[int]
    leads_on: bool  # to the next node of the line; otherwise solved
    by_line: bool


def build_environment(puzzles: Sequence[Puzzle], engine_accepted: Mapping[str, Sequence[str]] | None = None) -> Environment:
    """Tables of ``puzzles``. ``engine_accepted`` maps a position (``engine_labels.position_key``) to the UCI moves that the engine accepts there;
    without it the line's move and any mate are accepted.
    """
    nodes: list[list[_Edge]] = []
    legal: list[list[int]] = []
    roots = []
    for puzzle in puzzles:
        roots.append(len(nodes))
        for board, line_move, reply in solver_decisions(puzzle):
            by_line = accepted_moves(board, line_move)
            by_engine = [] if engine_accepted is None else map(chess.Move.from_uci, engine_accepted[position_key(board)])
            accepted = by_line + [move for move in by_engine if move not in by_line]
            nodes.append([_edge(board, move, reply if move == line_move else None, move in by_line) for move in accepted])
            legal.append([notation.move_key(board, move) for move in board.legal_moves])
    return _tables(puzzles, roots, nodes, legal)


def solver_decisions(puzzle: Puzzle) -> list[tuple[chess.Board, chess.Move, chess.Move | None]]:
    """Each solver decision along the line: the position, the line's move, and the opponent's reply (None after the last)."""
    board = puzzle.board()
    line = puzzle.moves[puzzle.lead :]
    decisions = []
    for index in range(0, len(line), 2):
        move = board.parse_uci(line[index])
        after = board.copy(stack=False)
        after.push(move)
        reply = after.parse_uci(line[index + 1]) if index + 1 < len(line) else None
        decisions.append((board, move, reply))
        board = after
        if reply is not None:
            board = after.copy(stack=False)
            board.push(reply)
    return decisions


def _edge(board: chess.Board, move: chess.Move, reply: chess.Move | None, by_line: bool) -> _Edge:
    tokens = notation.move_tokens(board, move)
    reply_tokens: list[int] = []
    if reply is not None:
        after = board.copy(stack=False)
        after.push(move)
        reply_tokens = notation.move_tokens(after, reply)
    return _Edge(notation.move_key(board, move), tokens, reply_tokens, reply is not None, by_line)


def _tables(puzzles: Sequence[Puzzle], roots: list[int], nodes: list[list[_Edge]], legal: list[list[int]]) -> Environment:
    count, most = len(nodes), max(len(edges) for edges in nodes)
    edge_key = np.full((count, most), -1, np.int64)
    edge_next = np.full((count, most), SOLVED, np.int64)
    edge_line = np.zeros((count, most), np.bool_)
    edge_tokens = np.full((count, most, notation.LONGEST_MOVE), notation.PAD, np.int64)
    edge_reply = np.full((count, most, notation.LONGEST_MOVE), notation.PAD, np.int64)
    legal_key = np.full((count, max(len(keys) for keys in legal)), -1, np.int64)
    for node, edges in enumerate(nodes):
        legal_key[node, : len(legal[node])] = legal[node]
        for place, edge in enumerate(edges):
            edge_key[node, place] = edge.key
            edge_line[node, place] = edge.by_line
            edge_tokens[node, place, : len(edge.tokens)] = edge.tokens
            edge_reply[node, place, : len(edge.reply)] = edge.reply
            if edge.leads_on:
                edge_next[node, place] = node + 1
    decisions = np.diff([*roots, count])
    keys = np.array([string_key(puzzle.id) for puzzle in puzzles], np.int64)
    arrays = (
        np.array(roots, np.int64),
        keys,
        decisions.astype(np.int64),
        edge_key,
        edge_tokens,
        edge_next,
        edge_line,
        edge_reply,
        legal_key,
    )
    return Environment(*(torch.from_numpy(array) for array in arrays))
