"""Material sets of the endgame world, random positions of them, and the key under which mirror images are the same position."""

from __future__ import annotations

import chess
import numpy as np

# Name -> weight in the pack's games. The first king's side is called strong; which colour it has is drawn per position.
# Three-men sets weigh little: their positions are few, and every one that a game visits is lost to the puzzles.
GAME_WEIGHTS: dict[str, float] = {
    **{"KQK": 0.5, "KRK": 0.7, "KPK": 0.7},
    **{"KQQK": 1.0, "KQRK": 1.0, "KRRK": 1.0, "KQBK": 0.7, "KQNK": 0.7, "KRBK": 0.7, "KRNK": 0.7, "KBBK": 0.7, "KBNK": 0.5},
    **{"KQPK": 1.0, "KRPK": 1.0, "KPPK": 1.0, "KQKR": 1.0, "KQKB": 0.7, "KQKN": 0.7, "KQKP": 1.0, "KRKP": 1.0, "KRKB": 0.7, "KRKN": 0.7},
    **{"KPKP": 0.7, "KQRKR": 1.0, "KQRKQ": 1.0, "KQQKQ": 1.0, "KQQKR": 1.0, "KRRKR": 1.0, "KRRKB": 1.0, "KRRKN": 1.0, "KQBKR": 1.0},
    **{"KQNKR": 1.0, "KQPKQ": 1.0, "KRPKR": 1.0, "KRPKP": 1.0, "KQPKP": 1.0, "KRBKN": 0.7, "KRPPK": 1.0, "KBBKP": 0.7},
}

_CODE = {kind: code for code, kind in enumerate((chess.KING, chess.QUEEN, chess.ROOK, chess.BISHOP, chess.KNIGHT, chess.PAWN))}


def _symmetry(flip_file: bool, flip_rank: bool, transpose: bool) -> list[int]:
    """Where each square goes: files reversed, ranks reversed, then the a1-h8 diagonal exchanged."""
    images = []
    for square in chess.SQUARES:
        file, rank = chess.square_file(square) ^ (7 * flip_file), chess.square_rank(square) ^ (7 * flip_rank)
        images.append(chess.square(rank, file) if transpose else chess.square(file, rank))
    return images


_PAWN_SYMMETRIES = [_symmetry(flip, False, False) for flip in (False, True)]
_ALL_SYMMETRIES = [_symmetry(file, rank, transpose) for file in (False, True) for rank in (False, True) for transpose in (False, True)]


def _king_minimising(symmetries: list[list[int]]) -> list[list[list[int]]]:
    """For each king square the symmetries that give it its least image; only these can give the least key, which leads with the king."""
    return [[images for images in symmetries if images[king] == min(each[king] for each in symmetries)] for king in chess.SQUARES]


_WITH_PAWNS, _WITHOUT_PAWNS = _king_minimising(_PAWN_SYMMETRIES), _king_minimising(_ALL_SYMMETRIES)


def canonical_key(board: chess.Board) -> int:
    """One integer below 2^51 for up to five men: equal for positions that are mirror images of one another.

    Board and side to move count; clocks, castling rights and en passant do not. The side to move is made White (ranks mirrored); the key
    is then the least over the file mirror and, without pawns, over rank mirror and diagonal transposition. Each man is ten bits, the
    mover's king first.
    """
    flip = 0 if board.turn == chess.WHITE else 56
    own = board.occupied_co[board.turn]
    men = []
    for square in chess.scan_forward(board.occupied):
        code = _CODE[board.piece_type_at(square)] + (0 if own >> square & 1 else 6)
        men.append((code * 64, square ^ flip))
    symmetries = (_WITH_PAWNS if board.pawns else _WITHOUT_PAWNS)[board.king(board.turn) ^ flip]
    keys = []
    for images in symmetries:
        key = 1
        for man in sorted(code + images[square] for code, square in men):
            key = key << 10 | man
        keys.append(key)
    return min(keys)


def sides(material: str) -> tuple[str, str]:
    """``KQKR`` -> (``KQ``, ``KR``)."""
    weak = material.index("K", 1)
    return material[:weak], material[weak:]


def random_position(material: str, generator: np.random.Generator) -> chess.Board:
    """A uniformly drawn legal position with a legal move: colours, side to move and squares random, no castling or en-passant rights."""
    strong, weak = sides(material)
    while True:
        colour, turn = (bool(bit) for bit in generator.integers(0, 2, size=2))
        squares = generator.choice(64, size=len(material), replace=False).tolist()
        board = chess.Board(None)
        board.turn = turn
        for square, letter, owner in zip(squares, material, [colour] * len(strong) + [not colour] * len(weak)):
            board.set_piece_at(square, chess.Piece(chess.Piece.from_symbol(letter).piece_type, owner))
        if board.is_valid() and not board.is_insufficient_material() and any(board.generate_legal_moves()):
            return board
