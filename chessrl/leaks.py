"""Contamination on purpose: test puzzles whose games are put into the corpus, for experiments that ask what a leak does.

The corpus's manifest, the summaries of all runs that descend from it, their evaluations and the report say so (``leak``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, chain
from typing import Any

import chess

from chessrl.config import LeakConfig
from chessrl.errors import UserError
from chessrl.games import Game
from chessrl.notation import line_tokens
from chessrl.puzzles import Puzzle

LEAKED_SPLIT = "test"


def leaked_ids(puzzles: Iterable[Puzzle], leak: LeakConfig) -> frozenset[str]:
    """Ids of the share ``leak.fraction`` of the test puzzles, rounded, chosen by a hash of (seed, id): a larger share holds a smaller one.

    Raises UserError where a fraction above 0 comes to no puzzle.
    """
    if not leak.fraction:
        return frozenset()
    test = [puzzle.id for puzzle in puzzles if puzzle.split == LEAKED_SPLIT]
    chosen = sorted(test, key=lambda identifier: _place(leak.seed, identifier))[: round(leak.fraction * len(test))]
    if not chosen:
        raise UserError(f"world.leak.fraction={leak.fraction}: that is none of the {len(test):,} {LEAKED_SPLIT} puzzles; leak more, or 0")
    return frozenset(chosen)


def _place(seed: int, identifier: str) -> bytes:
    return hashlib.blake2b(f"leak {seed} {identifier}".encode(), digest_size=8).digest()


def leaked_games(puzzles: Sequence[Puzzle], ids: Set[str]) -> Iterator[Game]:
    """A game for each of the puzzles in ``ids``, in their order: the moves up to it, where they are known, and its line; ``site`` is its id.

    Without those moves the game starts at the puzzle's ``fen``.
    """
    for puzzle in puzzles:
        if puzzle.id in ids:
            start_fen = None if puzzle.history else puzzle.fen
            board = chess.Board(start_fen or chess.STARTING_FEN)
            replay = board.copy()
            moves = [replay.push_uci(move) for move in (*puzzle.history, *puzzle.moves)]
            plies = [tuple(ply) for ply in line_tokens(board, moves)]
            yield Game(tuple(chain.from_iterable(plies)), tuple(accumulate(map(len, plies))), start_fen, site=puzzle.id)


def leak_label(leak: Mapping[str, Any]) -> str:
    """A leak record in a few characters, such as ``10% x 3``."""
    return f"{100 * leak['fraction']:g}% x {leak['copies']}"
