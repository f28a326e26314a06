"""Many games as flat arrays: the form in which a block of games is tokenised, replayed and cut into documents without a loop over moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import chess
import numpy as np

from chessrl.notation import CAPTURE, CASTLE_LONG, CASTLE_SHORT, CHECK, FIRST_PIECE, FIRST_SQUARE, LONGEST_MOVE, MATE, PROMOTION, TOKEN_ID

_PIECES = range(FIRST_PIECE, FIRST_PIECE + 6)
_SQUARE_OF_TOKEN = np.zeros(256, dtype=np.int64)  # python-chess's square (rank-major) of a square token (file-major)
for _place in range(64):
    _SQUARE_OF_TOKEN[FIRST_SQUARE + _place] = chess.square(*divmod(_place, 8))
_PIECE_TYPE = np.zeros(256, dtype=np.uint8)  # python-chess's piece type of a piece token
for _letter in "KQRBNP":
    _PIECE_TYPE[TOKEN_ID[_letter]] = chess.Piece.from_symbol(_letter).piece_type


@dataclass(frozen=True, slots=True)
class GameBatch:
    """Games end to end as canonical move tokens; arrays are aligned over all plies or all games."""

    tokens: np.ndarray  # [tokens] uint8
    ply_tokens: np.ndarray  # [plies] int64: how many tokens a ply has, 1 to 7
    game_plies: np.ndarray  # [games] int64

    def __len__(self) -> int:
        return len(self.game_plies)

    @property
    def ply_bounds(self) -> np.ndarray:
        """Where each ply starts in ``tokens``, and the end: [plies + 1]."""
        return bounds(self.ply_tokens)

    @property
    def game_bounds(self) -> np.ndarray:
        """Where each game starts among the plies, and the end: [games + 1]."""
        return bounds(self.game_plies)

    def select(self, games: np.ndarray) -> GameBatch:
        """The games of a boolean mask [games], in their order."""
        if games.all():
            return self
        plies = np.repeat(games, self.game_plies)
        return GameBatch(self.tokens[np.repeat(plies, self.ply_tokens)], self.ply_tokens[plies], self.game_plies[games])

    def plies(self, games: Iterable[int]) -> Iterator[list[tuple[int, ...]]]:
        """Tokens of some games, ply by ply."""
        ply_bounds, game_bounds = self.ply_bounds, self.game_bounds
        for game in games:
            ends = ply_bounds[game_bounds[game] : game_bounds[game + 1] + 1].tolist()
            yield [tuple(self.tokens[start:end].tolist()) for start, end in pairwise(ends)]

    @classmethod
    def of_plies(cls, games: Sequence[Sequence[Sequence[int]]]) -> GameBatch:
        """Of games given as lists of token tuples."""
        plies = list(chain.from_iterable(games))
        return cls(
            np.fromiter(chain.from_iterable(plies), dtype=np.uint8),
            np.fromiter(map(len, plies), dtype=np.int64, count=len(plies)),
            np.fromiter(map(len, games), dtype=np.int64, count=len(games)),
        )


@dataclass(frozen=True, slots=True)
class Moves:
    """What a batch's plies do to a board, each array over [plies]. Castling has neither squares nor piece: they depend on who plays."""

    from_square: np.ndarray  # int64, python-chess's numbering
    to_square: np.ndarray  # int64
    promotion: np.ndarray  # uint8, python-chess's piece type or 0
    castling: np.ndarray  # uint8: 0 none, 1 kingside, 2 queenside
    pawn: np.ndarray  # bool
    capture: np.ndarray  # bool


def moves_of_batch(batch: GameBatch) -> Moves:
    """Squares and kinds of every ply, read from its tokens, which are taken as well-formed."""
    starts = batch.ply_bounds[:-1]
    tokens = np.concatenate([batch.tokens, np.zeros(LONGEST_MOVE, dtype=np.uint8)])
    piece = tokens[starts]
    castling = (piece == CASTLE_SHORT).astype(np.uint8) + 2 * (piece == CASTLE_LONG).astype(np.uint8)
    capture = (tokens[starts + 2] == CAPTURE) & (castling == 0)
    target = starts + 2 + capture
    promoting = (tokens[target + 1] == PROMOTION) & (castling == 0)
    promotion = np.zeros(len(starts), dtype=np.uint8)
    promotion[promoting] = _PIECE_TYPE[tokens[target[promoting] + 2]]
    return Moves(
        _SQUARE_OF_TOKEN[tokens[starts + 1]], _SQUARE_OF_TOKEN[tokens[target]], promotion, castling, piece == TOKEN_ID["P"], capture
    )


def bounds(lengths: np.ndarray) -> np.ndarray:
    """Cumulative sum with a leading zero: where each of consecutive runs starts, and the end."""
    result = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=result[1:])
    return result


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Indices of the runs ``starts[i] .. starts[i] + lengths[i] - 1``, end to end."""
    before = bounds(lengths)
    return np.repeat(starts - before[:-1], lengths) + np.arange(before[-1])


# ---- token streams ----------------------------------------------------------------------------------------------------------------------

_START, _SQUARE, _TAKES, _IS, _SUFFIX = range(5)
_CLASS = np.full(256, 255, dtype=np.uint8)
_CLASS[list(_PIECES)] = _START
_CLASS[FIRST_SQUARE : FIRST_SQUARE + 64] = _SQUARE
_CLASS[[CAPTURE, PROMOTION]] = _TAKES, _IS
_CLASS[[CHECK, MATE]] = _SUFFIX


def split_plies(tokens: np.ndarray, game_tokens: np.ndarray) -> tuple[GameBatch, np.ndarray]:
    """Cut games of bare move tokens ``[tokens]`` into plies: the batch of the readable ones, and which games those are (bool [games]).

    A game is readable when it is nothing but moves in the grammar ``piece square [x] square [= piece] [+ or #]`` or castling ``[+ or #]``.
    """
    kinds = _CLASS[tokens]
    castles = (tokens == CASTLE_SHORT) | (tokens == CASTLE_LONG)
    promoted = np.zeros(len(tokens), dtype=bool)
    promoted[1:] = tokens[:-1] == PROMOTION
    token_bounds = bounds(game_tokens)
    nonempty = game_tokens > 0
    firsts = token_bounds[:-1][nonempty]
    promoted[firsts] = False
    starts_ply = (castles | (kinds == _START)) & ~promoted
    readable = nonempty.copy()
    readable[nonempty] = starts_ply[firsts]
    starts_ply[firsts] = True  # so that a game which begins amiss does not lengthen the last ply of the one before
    ply_starts = np.flatnonzero(starts_ply)
    ply_tokens = np.diff(np.append(ply_starts, len(tokens)))
    padded = np.concatenate([kinds, np.full(LONGEST_MOVE + 1, 255, dtype=np.uint8)])
    length = np.ones(len(ply_starts), dtype=np.int64)  # tokens that the grammar reads
    plain = ~castles[ply_starts]
    place = ply_starts[plain]
    good = padded[place + 1] == _SQUARE
    takes = padded[place + 2] == _TAKES
    target = place + 2 + takes
    good &= padded[target] == _SQUARE
    promotes = (padded[target + 1] == _IS) & (target + 1 < place + ply_tokens[plain])
    good &= ~promotes | (padded[target + 2] == _START)
    length[plain] = np.where(good, 4 + takes + 2 * promotes - 1, 0)
    length += (padded[ply_starts + length] == _SUFFIX) & (length < ply_tokens)
    game_of_ply = np.searchsorted(token_bounds, ply_starts, side="right") - 1
    readable[game_of_ply[length != ply_tokens]] = False
    game_plies = np.bincount(game_of_ply, minlength=len(game_tokens))
    of_readable = readable[game_of_ply]
    batch = GameBatch(tokens[np.repeat(readable, game_tokens)], ply_tokens[of_readable], game_plies[readable])
    return batch, readable
