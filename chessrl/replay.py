"""Many games replayed at once: boards as arrays, one ply of all games per step, about 100 times as fast as python-chess.

Gives the polyglot Zobrist hash of every position (equal to ``chess.polyglot.zobrist_hash`` and to pgn-extract's ``--hashcomments``) and
the boards at given plies. Moves are taken as legal; an illegal one gives a wrong board, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import chess
import chess.polyglot
import numpy as np

from chessrl.game_batch import GameBatch, moves_of_batch

# A piece on a board array: 0 for none, else 2 * piece type - (1 if black else 0) = polyglot's kind + 1, so that an odd code is black.
_RANDOM = np.array(chess.polyglot.POLYGLOT_RANDOM_ARRAY, dtype=np.uint64)
_PIECE_KEYS = np.concatenate([np.zeros(64, dtype=np.uint64), _RANDOM[: 12 * 64]])  # index: 64 * code + square
_WHITE_TO_MOVE = _RANDOM[780]
_EN_PASSANT_KEYS = _RANDOM[772:780]  # by file
_RIGHTS = (chess.BB_H1, chess.BB_A1, chess.BB_H8, chess.BB_A8)  # bits 0-3 of castling rights: K Q k q
_CASTLING_KEYS = np.zeros(16, dtype=np.uint64)
for _rights in range(16):
    for _bit in range(4):
        if _rights >> _bit & 1:
            _CASTLING_KEYS[_rights] ^= _RANDOM[768 + _bit]
_KEPT_RIGHTS = np.full(64, 15, dtype=np.uint8)  # what castling rights survive a move from or to a square
_KEPT_RIGHTS[[chess.E1, chess.H1, chess.A1, chess.E8, chess.H8, chess.A8]] = 12, 14, 13, 3, 11, 7
_PAWN, _ROOK = 2 * chess.PAWN, 2 * chess.ROOK  # White's; Black's are one less


@dataclass(frozen=True, slots=True)
class Boards:
    """Positions as arrays, one row a game."""

    pieces: np.ndarray  # [games, 64] uint8 by python-chess's square: 0, or 2 * piece type, less 1 for Black
    white_to_move: np.ndarray  # [games] bool
    rights: np.ndarray  # [games] uint8: castling rights, bits K Q k q
    en_passant: np.ndarray  # [games] int8: square behind a pawn that may be taken if the taker is not pinned, or -1

    def board(self, game: int) -> chess.Board:
        """One of them for python-chess."""
        board = chess.Board(None)
        for square in np.flatnonzero(self.pieces[game]).tolist():
            code = int(self.pieces[game, square])
            board.set_piece_at(square, chess.Piece((code + 1) // 2, code % 2 == 0))
        board.turn = bool(self.white_to_move[game])
        board.castling_rights = sum(rook for bit, rook in enumerate(_RIGHTS) if self.rights[game] >> bit & 1)
        board.ep_square = int(self.en_passant[game]) if self.en_passant[game] >= 0 else None
        return board


@dataclass(slots=True)
class _State:
    """Boards in play; games sorted by length, longest first, so that those still going on are a prefix."""

    pieces: np.ndarray  # [games * 64] uint8
    white_started: np.ndarray  # [games] bool
    rights: np.ndarray  # [games] uint8
    en_passant: np.ndarray  # [games] int8
    key: np.ndarray  # [games] uint64


@dataclass(frozen=True, slots=True)
class _Plies:
    """Every ply of a batch as squares, castling as the king's move, with what it does beyond moving a piece."""

    start: np.ndarray
    end: np.ndarray
    promotion: np.ndarray
    kind: np.ndarray  # uint8, one of the constants below


_PLAIN, _CASTLING, _DOUBLE_PUSH, _PAWN_CAPTURE, _PROMOTION = range(5)


def replay(batch: GameBatch, starts: Mapping[int, str], cuts: np.ndarray | None = None) -> tuple[np.ndarray, Boards | None]:
    """Hash of every position of every game, and the boards after ``cuts[i]`` plies of game i where cuts are given.

    ``starts`` has the FEN of each game that does not start from the standard position; a cut lies before the game's last ply. Hashes are
    [plies + games] uint64: for each game its start position, then the position after each ply.
    """
    order = np.argsort(-batch.game_plies, kind="stable")
    lengths = batch.game_plies[order]
    first_ply = batch.game_bounds[:-1][order]
    first_hash = first_ply + order  # one more hash than plies for each game before
    state = _start(order, starts)
    plies = _plies(batch, order, state.white_started)
    hashes = np.empty(len(batch.ply_tokens) + len(batch), dtype=np.uint64)
    hashes[first_hash] = state.key
    boards = due = None
    if cuts is not None:
        boards = _no_boards(len(batch))
        due = np.split(np.argsort(cuts[order], kind="stable"), np.cumsum(np.bincount(cuts))[:-1]) if len(batch) else []
    longest = int(lengths[0]) if len(lengths) else 0
    playing = np.searchsorted(-lengths, -np.arange(longest), side="left")  # how many games have more than so many plies
    base = 64 * np.arange(len(batch))
    for ply, count in enumerate(playing.tolist()):
        if due is not None and ply < len(due):
            _copy(state, due[ply], ply, order, boards)
        index = first_ply[:count] + ply
        _step(state, base[:count], plies, index, ply)
        hashes[first_hash[:count] + (ply + 1)] = state.key[:count]
    return hashes, boards


def _start(order: np.ndarray, starts: Mapping[int, str]) -> _State:
    standard = chess.Board()
    games = len(order)
    state = _State(
        np.tile(_codes(standard), games),
        np.ones(games, dtype=bool),
        np.full(games, 15, dtype=np.uint8),
        np.full(games, -1, dtype=np.int8),
        np.full(games, chess.polyglot.zobrist_hash(standard), dtype=np.uint64),
    )
    place = {game: row for row, game in enumerate(order.tolist())} if starts else {}
    for game, fen in starts.items():
        board, row = chess.Board(fen), place[game]
        state.pieces[64 * row : 64 * row + 64] = _codes(board)
        state.white_started[row] = board.turn
        rights = board.clean_castling_rights()
        state.rights[row] = sum(1 << bit for bit, rook in enumerate(_RIGHTS) if rights & rook)
        if board.ep_square is not None and board.has_pseudo_legal_en_passant():
            state.en_passant[row] = board.ep_square
        state.key[row] = chess.polyglot.zobrist_hash(board)
    return state


def _codes(board: chess.Board) -> np.ndarray:
    codes = np.zeros(64, dtype=np.uint8)
    for square, piece in board.piece_map().items():
        codes[square] = 2 * piece.piece_type - (piece.color == chess.BLACK)
    return codes


def _plies(batch: GameBatch, order: np.ndarray, white_started: np.ndarray) -> _Plies:
    moves = moves_of_batch(batch)
    started = np.empty(len(batch), dtype=bool)
    started[order] = white_started
    number = np.arange(len(batch.ply_tokens)) - np.repeat(batch.game_bounds[:-1], batch.game_plies)
    white = np.repeat(started, batch.game_plies) ^ (number % 2 == 1)
    castling = np.flatnonzero(moves.castling)
    rank = np.where(white[castling], 0, 56)
    start, end = moves.from_square, moves.to_square
    start[castling] = chess.E1 + rank
    end[castling] = np.where(moves.castling[castling] == 1, chess.G1, chess.C1) + rank
    kind = np.zeros(len(start), dtype=np.uint8)
    kind[moves.pawn & (np.abs(start - end) == 16)] = _DOUBLE_PUSH
    kind[moves.pawn & moves.capture] = _PAWN_CAPTURE
    kind[moves.promotion > 0] = _PROMOTION
    kind[castling] = _CASTLING
    return _Plies(start, end, moves.promotion, kind)


def _step(state: _State, base: np.ndarray, plies: _Plies, index: np.ndarray, ply: int) -> None:
    """Play ply ``index[i]`` of the i-th game, for the first games that still go on."""
    count = len(index)
    key, rights, en_passant = state.key[:count], state.rights[:count], state.en_passant[:count]
    start, end, kind = plies.start[index], plies.end[index], plies.kind[index]
    at_start, at_end = base + start, base + end
    piece, taken = state.pieces[at_start], state.pieces[at_end]
    expired = np.flatnonzero(en_passant >= 0)
    key[expired] ^= _EN_PASSANT_KEYS[en_passant[expired] & 7]
    en_passant[expired] = -1
    row = piece.astype(np.int64) << 6
    key ^= _PIECE_KEYS[row | start] ^ _PIECE_KEYS[row | end] ^ _PIECE_KEYS[(taken.astype(np.int64) << 6) | end] ^ _WHITE_TO_MOVE
    kept = rights & _KEPT_RIGHTS[start] & _KEPT_RIGHTS[end]
    changed = np.flatnonzero(kept != rights)
    key[changed] ^= _CASTLING_KEYS[rights[changed]] ^ _CASTLING_KEYS[kept[changed]]
    rights[changed] = kept[changed]
    state.pieces[at_end] = piece
    state.pieces[at_start] = 0
    special = np.flatnonzero(kind)
    kinds = kind[special]
    castling, push, capture, promotion = (special[kinds == code] for code in (_CASTLING, _DOUBLE_PUSH, _PAWN_CAPTURE, _PROMOTION))
    if len(castling):
        _move_rooks(state, castling, end[castling])
    if len(push):
        _open_en_passant(state, push, end[push], (start[push] + end[push]) // 2)
    passing = capture[taken[capture] == 0]
    if len(passing):
        behind = end[passing] ^ 8  # the square of the pawn taken
        pawns = state.pieces[base[passing] + behind]
        key[passing] ^= _PIECE_KEYS[(pawns.astype(np.int64) << 6) | behind]
        state.pieces[base[passing] + behind] = 0
    if len(promotion):
        white = state.white_started[promotion] ^ bool(ply % 2)
        pieces = 2 * plies.promotion[index[promotion]] - ~white
        squares = end[promotion]
        key[promotion] ^= _PIECE_KEYS[(piece[promotion].astype(np.int64) << 6) | squares] ^ _PIECE_KEYS[(pieces.astype(np.int64) << 6) | squares]
        state.pieces[at_end[promotion]] = pieces


def _move_rooks(state: _State, games: np.ndarray, kings: np.ndarray) -> None:
    kingside = (kings & 7) == 6
    start, end = np.where(kingside, kings + 1, kings - 2), np.where(kingside, kings - 1, kings + 1)
    row = np.where(kings < 8, _ROOK, _ROOK - 1) << 6
    state.key[games] ^= _PIECE_KEYS[row | start] ^ _PIECE_KEYS[row | end]
    state.pieces[64 * games + start] = 0
    state.pieces[64 * games + end] = row >> 6


def _open_en_passant(state: _State, games: np.ndarray, pawns: np.ndarray, behind: np.ndarray) -> None:
    """Where a pawn of the other side stands beside one that has just passed it (polyglot's rule, pins apart)."""
    takers = np.where(pawns >= 32, _PAWN, _PAWN - 1).astype(np.uint8)  # a push to the fifth rank is Black's
    file, place = pawns & 7, 64 * games + pawns
    left = (file > 0) & (state.pieces[place - (file > 0)] == takers)
    right = (file < 7) & (state.pieces[place + (file < 7)] == takers)
    beside = np.flatnonzero(left | right)
    state.key[games[beside]] ^= _EN_PASSANT_KEYS[file[beside]]
    state.en_passant[games[beside]] = behind[beside]


def _no_boards(games: int) -> Boards:
    return Boards(
        np.zeros((games, 64), dtype=np.uint8), np.zeros(games, dtype=bool), np.zeros(games, dtype=np.uint8), np.zeros(games, dtype=np.int8)
    )


def _copy(state: _State, rows: np.ndarray, ply: int, order: np.ndarray, boards: Boards) -> None:
    games = order[rows]
    boards.pieces[games] = state.pieces.reshape(-1, 64)[rows]
    boards.white_to_move[games] = state.white_started[rows] ^ bool(ply % 2)
    boards.rights[games] = state.rights[rows]
    boards.en_passant[games] = state.en_passant[rows]
