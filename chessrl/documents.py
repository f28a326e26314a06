"""Training documents of a whole batch of games at once: the same as ``corpus.make_document`` writes game by game."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chessrl.game_batch import GameBatch, bounds, runs
from chessrl.notation import (
    BLACK_TO_MOVE,
    BOS,
    EN_PASSANT,
    END_POSITION,
    EOS,
    FIRST_SQUARE,
    PIECE_LETTERS,
    POSITION,
    TOKEN_ID,
    WHITE_TO_MOVE,
)
from chessrl.replay import Boards

_RIGHTS = np.array([TOKEN_ID[name] for name in ("<K>", "<Q>", "<k>", "<q>")], dtype=np.uint8)
_PIECES = np.array([TOKEN_ID[letter] for letter in (*PIECE_LETTERS, *PIECE_LETTERS.lower())], dtype=np.uint8)
_RANK = np.zeros(13, dtype=np.uint8)  # place in _PIECES of a board array's piece code: 2 * piece type, less 1 for Black
for _place, _letter in enumerate("KQRBNP"):
    _code = 2 * (1 + "PNBRQK".index(_letter))
    _RANK[_code], _RANK[_code - 1] = _place, _place + 6
_FILE_MAJOR = np.arange(64).reshape(8, 8).T.ravel()  # squares in the order of their tokens

NO_DOCUMENT = ("", "no_moves", "history_needs_the_standard_start", "no_move_fits_the_context")  # what Documents.fault indexes


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of a batch's games end to end; a game without one has length 0. Arrays over [games] but ``tokens``."""

    tokens: np.ndarray  # [tokens] uint8
    lengths: np.ndarray  # int64
    loss_tokens: np.ndarray  # int64
    truncated: np.ndarray  # bool
    first_ply: np.ndarray  # int64: the plies of the game that it holds, up to, not including, end_ply
    end_ply: np.ndarray  # int64
    fault: np.ndarray  # uint8, into NO_DOCUMENT; 0 for a game with a document


def history_documents(batch: GameBatch, standard: np.ndarray, context: int) -> Documents:
    """``<bos> moves.. <eos>``; ``standard`` [games] bool says which games start from the standard position: others have no history."""
    games = len(batch)
    prefix = np.full(games, BOS, dtype=np.uint8)
    faults = np.where(standard, 0, NO_DOCUMENT.index("history_needs_the_standard_start"))
    return _documents(batch, np.zeros(games, dtype=np.int64), prefix, np.ones(games, dtype=np.int64), faults, context)


def snapshot_documents(batch: GameBatch, cuts: np.ndarray, boards: Boards, context: int) -> Documents:
    """``<bos> <pos>..</pos> moves.. <eos>`` from ply ``cuts[i]`` on, where game i stands as ``boards`` says."""
    prefix, lengths = _snapshots(boards)
    return _documents(batch, cuts, prefix, lengths, np.zeros(len(batch), dtype=np.int64), context)


def _documents(
    batch: GameBatch, cuts: np.ndarray, prefix: np.ndarray, prefix_lengths: np.ndarray, faults: np.ndarray, context: int
) -> Documents:
    """``faults`` [games]: why a game has no document, 0 for those that are to get one."""
    ply_bounds, game_bounds = batch.ply_bounds, batch.game_bounds
    first = game_bounds[:-1] + cuts
    start, end = ply_bounds[first], ply_bounds[game_bounds[1:]]
    whole = prefix_lengths + (end - start) + 1 <= context
    last = np.searchsorted(ply_bounds, start + context - prefix_lengths, side="right") - 1  # the last ply bound within the context
    end_ply = np.where(whole, game_bounds[1:], np.clip(last, first, game_bounds[1:]))
    stop = ply_bounds[end_ply]
    faults = np.where((faults == 0) & (stop == start), NO_DOCUMENT.index("no_move_fits_the_context"), faults)
    faults = np.where(batch.game_plies == 0, NO_DOCUMENT.index("no_moves"), faults).astype(np.uint8)
    written = faults == 0
    moves = np.where(written, stop - start, 0)
    closing = (written & whole).astype(np.int64)
    prefixes = np.where(written, prefix_lengths, 0)
    lengths = prefixes + moves + closing
    place = bounds(lengths)
    tokens = np.empty(place[-1], dtype=np.uint8)
    tokens[runs(place[:-1], prefixes)] = prefix[runs(bounds(prefix_lengths)[:-1], prefixes)]
    tokens[runs(place[:-1] + prefixes, moves)] = batch.tokens[runs(start, moves)]
    tokens[place[1:][closing > 0] - 1] = EOS
    return Documents(tokens, lengths, moves + closing, written & ~whole, cuts, end_ply - game_bounds[:-1], faults)


def _snapshots(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
    """``<bos> <pos> .. </pos>`` of each board end to end, as ``notation.snapshot_tokens`` writes it, and their lengths [games]."""
    games = len(boards.pieces)
    passing = np.full(games, -1, dtype=np.int64)
    for game in np.flatnonzero(boards.en_passant >= 0).tolist():  # pins are python-chess's business: about 1 % of boards come here
        if boards.board(game).has_legal_en_passant():
            passing[game] = boards.en_passant[game]
    by_token = boards.pieces[:, _FILE_MAJOR]
    game, square = np.nonzero(by_token)
    kind = _RANK[by_token[game, square]]
    order = np.argsort(game * 16 + kind, kind="stable")  # squares stay in the order of their tokens within a kind
    men = np.bincount(game, minlength=games)
    rights = (boards.rights[:, None] >> np.arange(4) & 1).astype(bool)
    fixed = 3 + rights.sum(axis=1) + 2 * (passing >= 0)
    lengths = fixed + 2 * men + 1
    place = bounds(lengths)
    tokens = np.empty(place[-1], dtype=np.uint8)
    start = place[:-1]
    tokens[start], tokens[start + 1] = BOS, POSITION
    tokens[start + 2] = np.where(boards.white_to_move, WHITE_TO_MOVE, BLACK_TO_MOVE)
    holder, right = np.nonzero(rights)
    tokens[start[holder] + 3 + (np.cumsum(rights, axis=1) - 1)[holder, right]] = _RIGHTS[right]
    open_games = np.flatnonzero(passing >= 0)
    behind = passing[open_games]
    tokens[start[open_games] + fixed[open_games] - 2] = EN_PASSANT
    tokens[start[open_games] + fixed[open_games] - 1] = FIRST_SQUARE + (behind % 8) * 8 + behind // 8
    pairs = runs(start + fixed, 2 * men)
    tokens[pairs[::2]] = _PIECES[kind[order]]
    tokens[pairs[1::2]] = FIRST_SQUARE + square[order]
    tokens[place[1:] - 1] = END_POSITION
    return tokens, lengths
