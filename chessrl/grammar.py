"""The grammar of a move as a finite automaton over tokens, in tensors: what the sampler reads moves with.

A move is ``piece square [x] square [= piece] [+|#]`` or ``O-O``/``O-O-O`` ``[+|#]``. Which piece is named, ``x`` and the suffix do not decide
which move it is (``notation.move_key``): squares, promotion and castling do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl import notation

START, AFTER_PIECE, AFTER_FROM, AFTER_CAPTURE, AFTER_TO, AFTER_EQUALS, AFTER_CHOICE, AFTER_SUFFIX, DEAD = range(9)
STATES = 9


@dataclass(frozen=True, slots=True)
class MoveGrammar:
    """``transition`` (STATES, vocabulary) next state; ``complete`` (STATES,) a move may end here."""

    transition: Tensor
    complete: Tensor

    @staticmethod
    def on(device: torch.device) -> MoveGrammar:
        size = len(notation.VOCABULARY)
        pieces = slice(notation.FIRST_PIECE, notation.FIRST_PIECE + 6)
        squares = slice(notation.FIRST_SQUARE, notation.FIRST_SQUARE + 64)
        table = torch.full((STATES, size), DEAD)
        table[START, pieces] = AFTER_PIECE
        table[START, [notation.CASTLE_SHORT, notation.CASTLE_LONG]] = AFTER_CHOICE
        table[AFTER_PIECE, squares] = AFTER_FROM
        table[AFTER_FROM, notation.CAPTURE] = AFTER_CAPTURE
        table[AFTER_FROM, squares] = AFTER_TO
        table[AFTER_CAPTURE, squares] = AFTER_TO
        table[AFTER_TO, notation.PROMOTION] = AFTER_EQUALS
        table[AFTER_EQUALS, pieces] = AFTER_CHOICE
        for state in (AFTER_TO, AFTER_CHOICE):
            table[state, [notation.CHECK, notation.MATE]] = AFTER_SUFFIX
        complete = torch.zeros(STATES, dtype=torch.bool)
        complete[[AFTER_TO, AFTER_CHOICE, AFTER_SUFFIX]] = True
        return MoveGrammar(table.to(device), complete.to(device))

    def key_change(self, state: Tensor, token: Tensor) -> Tensor:
        """What reading ``token`` in ``state`` adds to the move's key (both (B,)): the key is the sum over the move's tokens."""
        square = token - notation.FIRST_SQUARE
        change = torch.zeros_like(token)
        reached = self.transition[state, token]
        change = torch.where((state == AFTER_PIECE) & (reached == AFTER_FROM), square * (64 * 7), change)
        change = torch.where(reached == AFTER_TO, square * 7, change)
        change = torch.where(state == AFTER_EQUALS, token - notation.FIRST_PIECE + 1, change)
        castling = token - notation.CASTLE_SHORT + notation.CASTLE_SHORT_KEY
        return torch.where((state == START) & (reached == AFTER_CHOICE), castling, change)
