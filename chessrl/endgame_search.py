"""Proven distance to mate: an exhaustive search for five men that reads the retrograde tables once a capture has left four.

The search decides "does the side to move mate within n moves?" over every move of both sides. Results are remembered in both directions
(mates proven, bounds refuted), so that asking for n = 1, 2, 3, ... and for each move of a puzzle costs little more than asking once.
"""

from __future__ import annotations

import chess

from chessrl import endgame_tables

_Key = tuple[int, ...]


def _key(board: chess.Board) -> _Key:
    """What decides play from here on, without clocks; the kinds of men are known from the five boards of pieces other than pawns."""
    en_passant = board.ep_square if board.ep_square is not None else -1
    own = board.occupied_co[board.turn]
    return (own, board.occupied, board.kings, board.queens, board.rooks, board.bishops, board.knights, board.turn, en_passant)


class MateSearch:
    """Distances to mate of positions without castling rights. One object keeps its memory; ``positions`` counts what it has looked into."""

    def __init__(self) -> None:
        self.positions = 0
        self._proven: dict[_Key, int] = {}  # least number of moves known to mate
        self._refuted: dict[_Key, int] = {}  # largest number of moves known not to mate
        self._refutation: dict[_Key, chess.Move] = {}  # reply that last refuted a move's mate

    def mate_in(self, board: chess.Board, limit: int) -> int | None:
        """Moves (1 to ``limit``) in which the side to move mates against the longest defence, or None. ``board`` is left as it was."""
        return next((n for n in range(1, limit + 1) if self.mates_within(board, n)), None)

    def mated_in(self, board: chess.Board, limit: int) -> int | None:
        """Moves (0 to ``limit``) in which the side to move is mated against its longest defence, or None."""
        return next((n for n in range(limit + 1) if self.mated_within(board, n)), None)

    def mates_within(self, board: chess.Board, moves: int) -> bool:
        """Whether the side to move mates within ``moves`` moves whatever the other side does. ValueError beyond the tables' depth."""
        if moves > endgame_tables.LONGEST_MATE:
            raise ValueError(f"mate in {moves}: the tables under the search end at {endgame_tables.LONGEST_MATE}")
        if moves <= 0:
            return False
        if _in_tables(board):
            distance = endgame_tables.won_in(board)
            return distance is not None and distance <= moves
        key = _key(board)
        proven = self._proven.get(key)
        if proven is not None and proven <= moves:
            return True
        if self._refuted.get(key, 0) >= moves:
            return False
        self.positions += 1
        found = self._has_mating_move(board, moves)
        if found:
            self._proven[key] = moves
        else:
            self._refuted[key] = moves
        return found

    def _has_mating_move(self, board: chess.Board, moves: int) -> bool:
        for move in _checks_first(board) if moves > 1 else board.generate_legal_moves():
            if moves == 1 and not board.gives_check(move):
                continue
            board.push(move)
            mated = self.mated_within(board, moves - 1)
            board.pop()
            if mated:
                return True
        return False

    def mated_within(self, board: chess.Board, moves: int) -> bool:
        """Whether the side to move is mated within ``moves`` moves of the other side whatever it does; 0 asks for checkmate now."""
        if moves == 0:
            return board.is_checkmate()
        if _in_tables(board):
            distance = endgame_tables.lost_in(board)
            return distance is not None and distance <= moves
        key = _key(board)
        replies = list(board.generate_legal_moves())
        if not replies:
            return board.is_check()
        first = self._refutation.get(key)
        replies.sort(key=lambda reply: (reply != first, not board.is_capture(reply)))
        for reply in replies:
            board.push(reply)
            holds = not self.mates_within(board, moves)
            board.pop()
            if holds:
                self._refutation[key] = reply
                return False
        return True


def _in_tables(board: chess.Board) -> bool:
    return board.occupied.bit_count() <= endgame_tables.LARGEST and not board.has_legal_en_passant()


def _checks_first(board: chess.Board) -> list[chess.Move]:
    """Legal moves, checks first: a mate is found sooner; a refutation needs them all anyway."""
    return sorted(board.generate_legal_moves(), key=board.gives_check, reverse=True)
