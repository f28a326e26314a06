"""Opening, middlegame or endgame: the phase of a position, from the board alone, by the rule with which Lichess tags its puzzles.

The rule is scalachess's ``Divider`` applied to one board (lichess-puzzler, ``phaser``). Queens, rooks, bishops and knights of both sides count
as pieces. Endgame: at most 6 pieces. Otherwise middlegame: at most 10 pieces, or fewer than 4 men of a side on its own back rank, or a
mixedness above 150. Otherwise opening. Mixedness adds up, over the 49 squares of 2x2, how far the two armies have met in each.
"""

from __future__ import annotations

import chess

PHASES = ("opening", "middlegame", "endgame")
MOST_ENDGAME_PIECES = 6
MOST_MIDDLEGAME_PIECES = 10
FEWEST_HOME_MEN = 4
MOST_OPENING_MIXEDNESS = 150


def phase_of(board: chess.Board) -> str:
    """One of PHASES."""
    pieces = (board.occupied & ~(board.kings | board.pawns)).bit_count()
    if pieces <= MOST_ENDGAME_PIECES:
        return "endgame"
    white, black = board.occupied_co[chess.WHITE], board.occupied_co[chess.BLACK]
    home_men = min((white & chess.BB_RANK_1).bit_count(), (black & chess.BB_RANK_8).bit_count())
    if pieces <= MOST_MIDDLEGAME_PIECES or home_men < FEWEST_HOME_MEN or mixedness(white, black) > MOST_OPENING_MIXEDNESS:
        return "middlegame"
    return "opening"


def mixedness(white: int, black: int) -> int:
    """How far the armies have met; ``white`` and ``black`` are the squares they stand on, as bitboards."""
    return sum(scores[(white & square).bit_count()][(black & square).bit_count()] for square, scores in _SQUARES)


def _score(rank: int, white: int, black: int) -> int:
    """Score of one square of 2x2 whose lower rank is ``rank`` (1..7), with so many men of each side in it."""
    if white and black:
        by_men = {(1, 1): 5 + abs(3 - rank), (2, 1): 4 + rank, (3, 1): 5 + rank, (1, 2): 10 - rank, (1, 3): 11 - rank, (2, 2): 7}
        return by_men.get((white, black), 0)
    men, ranks_ahead = (white, rank) if white else (black, 8 - rank)  # a side alone: the farther from home, the more
    if men == 0:
        return 0
    if men == 1:
        return 9 - rank if white else 1 + rank
    if men == 2:
        return ranks_ahead if ranks_ahead > 2 else 0
    return 2 + ranks_ahead if ranks_ahead > 1 else 0


_COUNTS = range(5)
_SQUARES = [
    (0x0303 << (file + 8 * (rank - 1)), [[_score(rank, white, black) for black in _COUNTS] for white in _COUNTS])
    for rank in range(1, 8)
    for file in range(7)
]
