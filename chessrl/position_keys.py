"""Keys of positions by placement and side to move, fast enough for every position of every game.

The key is the polyglot Zobrist hash over pieces and side to move alone: castling rights and the en-passant square are left out, so that one
key stands for all their variants (chessrl.decontamination has those). Puzzles are split by it, so that no two splits share a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import chess
import chess.polyglot

from chessrl.errors import UserError
from chessrl.notation import CAPTURE, CASTLE_LONG, CASTLE_SHORT, FIRST_PIECE, FIRST_SQUARE, PIECE_LETTERS, PROMOTION

_WHITE_TO_MOVE = chess.polyglot.POLYGLOT_RANDOM_ARRAY[780]
_EMPTY = -1
_KIND = {letter: kind for kind, letter in enumerate("pPnNbBrRqQkK")}  # polyglot's order: 2 * (piece type - 1) + is white
_PAWNS, _ROOKS, _KINGS = ((2 * (piece - 1), 2 * (piece - 1) + 1) for piece in (chess.PAWN, chess.ROOK, chess.KING))
_KEYS = [[chess.polyglot.POLYGLOT_RANDOM_ARRAY[64 * kind + square] for square in range(64)] for kind in range(12)]


def position_key(board: chess.Board) -> int:
    """Key (64 bits) of a board's placement and side to move."""
    key = _WHITE_TO_MOVE if board.turn == chess.WHITE else 0
    for square, piece in board.piece_map().items():
        key ^= _KEYS[_KIND[piece.symbol()]][square]
    return key


def line_keys(fen: str, moves: Iterable[chess.Move]) -> list[int]:
    """Keys of ``fen`` and of the position after each move (castling as e1g1 or e1h1): one more than there are moves.

    Moves are taken as legal. Raises UserError where the FEN cannot be read or a move leaves an empty square.
    """
    squares, white, key = _read_placement(fen)
    keys = [key]
    for move in moves:
        start, end = move.from_square, move.to_square
        kind = squares[start]
        if kind == _EMPTY:
            raise UserError(f"the line from {fen!r} plays {move.uci()} from an empty square: expected legal moves; correct the table")
        taken = squares[end]
        own_rook = _ROOKS[white]
        squares[start] = _EMPTY
        key ^= _KEYS[kind][start] ^ _WHITE_TO_MOVE
        if kind in _KINGS and (taken == own_rook or (abs(end - start) == 2 and taken == _EMPTY)):
            first = start - start % 8  # the a-file square of the king's rank
            rook_start, rook_end, end = (first + 7, first + 5, first + 6) if end > start else (first, first + 3, first + 2)
            squares[rook_start] = _EMPTY
            squares[rook_end] = own_rook
            key ^= _KEYS[own_rook][rook_start] ^ _KEYS[own_rook][rook_end]
        elif taken != _EMPTY:
            key ^= _KEYS[taken][end]
        elif kind in _PAWNS and (end - start) % 8:  # en passant: a pawn changes its file to an empty square
            behind = end - 8 if white else end + 8
            key ^= _KEYS[squares[behind]][behind]
            squares[behind] = _EMPTY
        if move.promotion:
            kind = 2 * (move.promotion - 1) + white
        squares[end] = kind
        key ^= _KEYS[kind][end]
        white = not white
        keys.append(key)
    return keys


def moves_of_plies(plies: Iterable[tuple[int, ...]], white_first: bool = True) -> list[chess.Move]:
    """Moves of canonical token plies, without a board; ``white_first`` says who plays the first."""
    moves = []
    white = white_first
    for tokens in plies:
        moves.append(_move_of_tokens(tokens, white))
        white = not white
    return moves


@cache  # a game's moves repeat across games: there are some thousands of them in all
def _move_of_tokens(tokens: Sequence[int], white: bool) -> chess.Move:
    if tokens[0] in (CASTLE_SHORT, CASTLE_LONG):
        king = chess.E1 if white else chess.E8
        return chess.Move(king, king + 2 if tokens[0] == CASTLE_SHORT else king - 2)
    to_token = tokens[3] if tokens[2] == CAPTURE else tokens[2]
    promotion = None
    if PROMOTION in tokens:
        letter = PIECE_LETTERS[tokens[tokens.index(PROMOTION) + 1] - FIRST_PIECE]
        promotion = chess.PIECE_SYMBOLS.index(letter.lower())
    return chess.Move(_square(tokens[1]), _square(to_token), promotion)


def _square(token: int) -> int:
    file, rank = divmod(token - FIRST_SQUARE, 8)  # tokens are file-major, python-chess squares rank-major
    return chess.square(file, rank)


def _read_placement(fen: str) -> tuple[list[int], bool, int]:
    """Kinds by square, whether White moves, and the key."""
    try:
        board = chess.BaseBoard(fen.split()[0])
    except (ValueError, IndexError) as error:
        raise UserError(f"{fen!r} is not a position in FEN ({error}); correct the table") from error
    white = fen.split()[1:2] != ["b"]
    squares = [_EMPTY] * 64
    key = _WHITE_TO_MOVE if white else 0
    for square, piece in board.piece_map().items():
        squares[square] = _KIND[piece.symbol()]
        key ^= _KEYS[squares[square]][square]
    return squares, white, key
