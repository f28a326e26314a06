"""Retrograde tables for up to four men: every position in which the side to move mates, or is mated, within four moves.

A set of positions of one material and side to move is an array of 64-bit words: one axis of 64 squares for each man but the white king,
whose squares are the bits of a word. Taking back a move is then a shift along an axis (or of the bits) and a mask of empty squares, the
same code for every material. Captures and promotions lead into the tables of the material that they leave. For each number of moves n

    lost[n] = in check without a move (n = 0), or has a move or is in check, and every move leads to won[n]
    won[n]  = some move leads to lost[n - 1]

both cumulative ("within n"). Positions in the tables have no castling and no en-passant right; a double step next to an enemy pawn leads
to a position that has one, and its worth is kept apart (``won_passing``, ``lost_passing``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import chess
import numpy as np

LONGEST_MATE = 4  # moves of the mating side
LARGEST = 4  # men

PositionSet = np.ndarray  # uint64, shape (64,) * (men - 1)

_KINDS = "KQRBNP"
_PROMOTIONS = "QRBN"
_ALL = np.uint64(2**64 - 1)
_BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)
_NOT_FILE = {1: ~np.uint64(chess.BB_FILE_H), -1: ~np.uint64(chess.BB_FILE_A), 0: _ALL}  # squares from which that step along a rank stays on
_STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
_DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))
_STEPS = {  # (ranks, files)
    "K": _STRAIGHT + _DIAGONAL,
    "Q": _STRAIGHT + _DIAGONAL,
    "R": _STRAIGHT,
    "B": _DIAGONAL,
    "N": ((1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)),
}
_SLIDERS = "QRB"


@dataclass(frozen=True, slots=True)
class Man:
    """One man of a table. ``axis`` is None for the white king."""

    axis: int | None
    kind: str
    white: bool

    @property
    def forward(self) -> int:
        return 1 if self.white else -1


def _shift(positions: PositionSet, axis: int | None, ranks: int, files: int) -> PositionSet:
    """The same positions with one man moved; those in which it would leave the board are gone."""
    if axis is None:
        stay, amount = positions & _NOT_FILE[files], 8 * ranks + files
        return stay << np.uint64(amount) if amount > 0 else stay >> np.uint64(-amount)
    board = positions.reshape(*positions.shape[:axis], 8, 8, *positions.shape[axis + 1 :])
    source, target = [slice(None)] * board.ndim, [slice(None)] * board.ndim
    for dimension, step in ((axis, ranks), (axis + 1, files)):
        source[dimension] = slice(max(0, -step), 8 - max(0, step))
        target[dimension] = slice(max(0, step), 8 - max(0, -step))
    moved = np.zeros_like(board)
    moved[tuple(target)] = board[tuple(source)]
    return moved.reshape(positions.shape)


class Table:
    """Sets of one material, indexed by side to move (``chess.WHITE`` is 1) and number of moves: ``won[side][n]``, ``lost[side][n]``."""

    def __init__(self, white: str, black: str) -> None:
        kinds = [(kind, False) for kind in black[:1]] + [(kind, True) for kind in white[1:]] + [(kind, False) for kind in black[1:]]
        self.white, self.black = white, black
        self.men = [Man(None, "K", True)] + [Man(axis, kind, owner) for axis, (kind, owner) in enumerate(kinds)]
        self.shape = (64,) * len(kinds)
        self.distinct = self._distinct()
        attacked = [self._attacked_king(chess.BLACK), self._attacked_king(chess.WHITE)]
        self.valid = [self.distinct & ~attacked[not side] for side in (chess.BLACK, chess.WHITE)]
        self._solve([self.valid[side] & attacked[side] for side in (chess.BLACK, chess.WHITE)])

    def _solve(self, check: list[PositionSet]) -> None:
        """Fills ``won`` and ``lost``. ``check[side]``: positions with that side to move and in check."""
        both = (chess.BLACK, chess.WHITE)
        nothing = np.zeros(self.shape, dtype=np.uint64)
        mobile = [self._leading_to(side, self.valid[not side], self.valid[not side], lambda sub, s=side: sub.valid[not s]) for side in both]
        mobile_passing = [mobile[side] | self._passing(side, lambda sub, s=side: sub.valid[not s]) for side in both]
        self.won, self.lost = [[nothing] for _ in both], [[check[side] & ~mobile[side]] for side in both]
        lost_passing = [check[side] & ~mobile_passing[side] for side in both]
        for n in range(1, LONGEST_MATE + 1):
            won_passing = []
            for side in both:

                def lost_before(sub: Table, s: bool = side, n: int = n) -> PositionSet:
                    return sub.lost[not s][n - 1]

                won = self.valid[side] & self._leading_to(side, self.lost[not side][n - 1], lost_passing[not side], lost_before)
                self.won[side].append(won)
                won_passing.append(won | (self.valid[side] & self._passing(side, lost_before)))
            for side in both:

                def not_won(sub: Table, s: bool = side, n: int = n) -> PositionSet:
                    return sub.valid[not s] & ~sub.won[not s][n]

                safe, safe_passing = (self.valid[not side] & ~won for won in (self.won[not side][n], won_passing[not side]))
                held = self.valid[side] & ~self._leading_to(side, safe, safe_passing, not_won)
                self.lost[side].append(held & (mobile[side] | check[side]))
                lost_passing[side] = held & ~self._passing(side, not_won) & (mobile_passing[side] | check[side])

    # ---- moves taken back ------------------------------------------------------------------------------------------------------------

    def _leading_to(
        self, side: bool, quiet: PositionSet, passing: PositionSet, converted: Callable[[Table], PositionSet]
    ) -> PositionSet:
        """Positions with ``side`` to move that have a move into a set of positions with the other side to move.

        The set is ``quiet`` for moves that keep the material, ``passing`` where the move was a pawn's double step, and ``converted`` of the
        table that a capture or promotion leads to. Own king in check is the caller's mask.
        """
        found = np.zeros(self.shape, dtype=np.uint64)
        victims = [man for man in self.men if man.white != side and man.kind != "K"]
        for man in self.men:
            if man.white != side:
                continue
            taken = np.zeros(self.shape, dtype=np.uint64)  # the man stands on its victim's square
            for victim in victims:
                taken |= self._left(converted, None, "", victim) & self._same_square(victim, man)
            if man.kind != "P":
                found |= self._unmoved(quiet | taken, man)
                continue
            last = self._ranks(man, 7 if man.white else 0)
            pushed = quiet.copy()
            for kind in _PROMOTIONS:
                pushed |= self._left(converted, man, kind, None) & last
                for victim in victims:
                    taken |= self._left(converted, man, kind, victim) & self._same_square(victim, man) & last
            found |= self._unmoved(taken, man, capture=True)
            found |= self._unmoved(pushed, man)
            fourth = self._ranks(man, 3 if man.white else 4)
            found |= self._unmoved(self._unmoved(passing & fourth, man), man)
        return found

    def _unmoved(self, reached: PositionSet, man: Man, capture: bool = False) -> PositionSet:
        """Positions from which one move of ``man`` gives ``reached``. ``capture`` says how a pawn moved; a double step is two moves."""
        found = np.zeros(self.shape, dtype=np.uint64)
        if not reached.any():
            return found
        steps = ((-man.forward, -1), (-man.forward, 1)) if capture else ((-man.forward, 0),)
        for ranks, files in _STEPS.get(man.kind, steps):
            moved = _shift(reached, man.axis, ranks, files)
            moved &= self.distinct
            while man.kind in _SLIDERS and moved.any():
                found |= moved
                moved = _shift(moved, man.axis, ranks, files)
                moved &= self.distinct
            found |= moved
        return found

    def _passing(self, side: bool, converted: Callable[[Table], PositionSet]) -> PositionSet:
        """Positions in which ``side`` takes en passant into ``converted``; the other side's pawn has just made its double step."""
        pawns = {man.white: man for man in self.men if man.kind == "P"}
        found = np.zeros(self.shape, dtype=np.uint64)
        if len(pawns) < 2:
            return found
        taker, victim = pawns[side], pawns[not side]
        rank = 3 if victim.white else 4
        behind = np.zeros((64, 64), dtype=np.uint64)  # [victim, taker after the capture]
        for square in range(8 * rank, 8 * rank + 8):
            behind[square, square + 8 * taker.forward] = _ALL
        if victim.axis > taker.axis:
            behind = behind.T
        reached = self._left(converted, None, "", victim) & self._along(behind, victim, taker)
        return found | self._unmoved(reached, taker, capture=True)

    def _left(self, converted: Callable[[Table], PositionSet], promoted: Man | None, kind: str, captured: Man | None) -> PositionSet:
        """``converted`` of the table after a promotion to ``kind`` or a capture, in this table's axes (a captured man's has length 1)."""
        rest = [man for man in self.men if man is not captured and man is not promoted]
        names = {owner: [man.kind for man in rest if man.white == owner] for owner in (chess.BLACK, chess.WHITE)}
        if promoted is not None:
            names[promoted.white].append(kind)
        white, black = ("".join(sorted(names[owner], key=_KINDS.index)) for owner in (chess.WHITE, chess.BLACK))
        positions = converted(table(white, black))
        if promoted is not None:
            place = 1 + white[1:].index(kind) if promoted.white else len(white) + black[1:].index(kind)
            own = promoted.axis - (captured is not None and captured.axis < promoted.axis)
            positions = np.moveaxis(positions, place, own)
        return positions if captured is None else np.expand_dims(positions, captured.axis)

    # ---- masks -----------------------------------------------------------------------------------------------------------------------

    def _along(self, values: np.ndarray, *men: Man) -> PositionSet:
        """``values``, with one axis per man in the order of the table's axes, ready to broadcast."""
        axes = {man.axis for man in men}
        return values.reshape([64 if axis in axes else 1 for axis in range(len(self.shape))])

    def _ranks(self, man: Man, rank: int) -> PositionSet:
        return self._along(np.where(np.arange(64) // 8 == rank, _ALL, np.uint64(0)), man)

    def _same_square(self, one: Man, other: Man) -> PositionSet:
        if one.axis is None or other.axis is None:
            return self._along(_BITS, other if one.axis is None else one)
        return self._along(np.where(np.eye(64, dtype=bool), _ALL, np.uint64(0)), one, other)

    def _distinct(self) -> PositionSet:
        """All men on different squares, pawns off the first and last rank."""
        positions = np.full(self.shape, _ALL)
        for index, man in enumerate(self.men):
            for other in self.men[:index]:
                positions &= ~self._same_square(man, other)
            if man.kind == "P":
                positions &= ~(self._ranks(man, 0) | self._ranks(man, 7))
        return positions

    def _attacked_king(self, owner: bool) -> PositionSet:
        """Positions in which ``owner``'s king is attacked."""
        king = next(man for man in self.men if man.kind == "K" and man.white == owner)
        attacked = np.zeros(self.shape, dtype=np.uint64)
        for man in self.men:
            if man.white != owner:
                attacked |= self._unmoved(np.broadcast_to(self._same_square(king, man), self.shape), man, capture=True)
        return attacked

    # ---- positions in and out --------------------------------------------------------------------------------------------------------

    def sample(self, side: bool, moves: int, count: int, generator: np.random.Generator) -> list[chess.Board]:
        """Up to ``count`` different positions, drawn uniformly, in which ``side`` moves and mates in exactly ``moves``, in random order."""
        exact = (self.won[side][moves] & ~self.won[side][moves - 1]).reshape(-1)
        words = np.flatnonzero(exact)
        ends = np.cumsum(np.bitwise_count(exact[words]), dtype=np.int64)
        if not words.size:
            return []
        total = int(ends[-1])
        ranks = generator.choice(total, size=min(count, total), replace=False, shuffle=True)
        boards = []
        for rank in ranks.tolist():
            at = int(np.searchsorted(ends, rank, side="right"))
            word = int(exact[words[at]])
            bits = list(chess.scan_forward(word))
            king = bits[rank - (int(ends[at]) - len(bits))]
            squares = [king, *(int(index) for index in np.unravel_index(words[at], self.shape))]
            board = chess.Board(None)
            board.turn = side
            for man, square in zip(self.men, squares):
                board.set_piece_at(square, chess.Piece(chess.Piece.from_symbol(man.kind).piece_type, man.white))
            boards.append(board)
        return boards


@cache
def table(white: str, black: str) -> Table:
    """The table of a material, kinds in the order KQRBNP, for instance ``table("KQ", "KR")``; built at its first use and kept."""
    if len(white) + len(black) > LARGEST:
        raise ValueError(f"{white} against {black}: tables hold at most {LARGEST} men")
    return Table(white, black)


def _locate(board: chess.Board) -> tuple[Table, bool, tuple[int, ...], int]:
    """Table, side to move in it, index of the word, bit of the word. The stronger side is White in the table, by a fixed order of names."""
    squares: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for colour in chess.COLORS:
        for square in chess.scan_forward(board.occupied_co[colour]):
            squares[colour].append((6 - board.piece_type_at(square), square))
    names = {}
    for colour in chess.COLORS:
        squares[colour].sort()
        names[colour] = "".join(_KINDS[order] for order, _ in squares[colour])
    strong = max(chess.COLORS, key=lambda colour: (len(names[colour]), [-order for order, _ in squares[colour]], colour))
    flip = 0 if strong == chess.WHITE else 56
    own, other = ([square ^ flip for _, square in squares[colour]] for colour in (strong, not strong))
    return table(names[strong], names[not strong]), board.turn == strong, (other[0], *own[1:], *other[1:]), own[0]


def _least(sets: list[PositionSet], index: tuple[int, ...], bit: int) -> int | None:
    return next((n for n, positions in enumerate(sets) if int(positions[index]) >> bit & 1), None)


def won_in(board: chess.Board) -> int | None:
    """Moves in which the side to move mates against the longest defence (1 to LONGEST_MATE), or None. ``board``: legal, no en passant."""
    own, side, index, bit = _locate(board)
    return _least(own.won[side], index, bit)


def lost_in(board: chess.Board) -> int | None:
    """Moves in which the side to move is mated (0 when it is checkmated, to LONGEST_MATE), or None. ``board``: legal, no en passant."""
    own, side, index, bit = _locate(board)
    return _least(own.lost[side], index, bit)
