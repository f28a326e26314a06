"""Themes of a puzzle that follow exactly from its line, with the names and the definitions of Lichess's tagger (lichess-puzzler).

``winsMaterial`` is ours: the count of material at the end of the line is better for the solver than before the opponent's error.
"""

from __future__ import annotations

from collections.abc import Sequence

import chess

from chessrl.engine_labels import MoveScore
from chessrl.phases import phase_of

# Lichess says crushing above 600 and advantage above 200 centipawns, else equality. Its engines count 208 units to the pawn, as Stockfish did before
# 15.1, which counts 361: the same scores are 346 and 115 there. Later versions are close to it.
CRUSHING_CENTIPAWNS = round(600 * 208 / 361)
ADVANTAGE_CENTIPAWNS = round(200 * 208 / 361)
PIECE_VALUES = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9, chess.KING: 0}
_SLIDERS = (chess.BISHOP, chess.ROOK, chess.QUEEN)
_LENGTHS = {1: "oneMove", 2: "short", 3: "long"}  # by solver moves
_LONGEST_NAMED_MATE = 5


def themes_of_line(fen: str, moves: Sequence[str], score: MoveScore | None) -> tuple[str, ...]:
    """Themes of a line in alphabetical order: ``moves`` (UCI) from ``fen``, the opponent's error first, the solver's move last.

    ``score`` is the best move's in the last position asked, for the solver; None leaves ``crushing``, ``advantage`` and ``equality`` out.
    """
    boards = [chess.Board(fen)]
    played = []
    for uci in moves:
        board = boards[-1].copy(stack=False)
        played.append(board.parse_uci(uci))
        board.push(played[-1])
        boards.append(board)
    solver_moves = len(moves) // 2
    themes = {phase_of(boards[1]), _LENGTHS.get(solver_moves, "veryLong")}
    if boards[-1].is_checkmate():
        themes |= {"mate", f"mateIn{min(solver_moves, _LONGEST_NAMED_MATE)}"}
    elif score is not None:
        themes.add(_size_of_advantage(score))
    if material(boards[-1], boards[1].turn) > material(boards[0], boards[1].turn):
        themes.add("winsMaterial")
    if _takes_hanging_piece(boards, played):
        themes.add("hangingPiece")
    asked = list(zip(boards[1::2], played[1::2]))
    if any(move.promotion for _, move in asked):
        themes.add("promotion")
    if _underpromotes(boards, played):
        themes.add("underPromotion")
    if any(board.is_en_passant(move) for board, move in asked):
        themes.add("enPassant")
    if any(board.checkers_mask().bit_count() > 1 for board in boards[2::2]):
        themes.add("doubleCheck")
    return tuple(sorted(themes))


def material(board: chess.Board, color: chess.Color) -> int:
    """Material of ``color`` less its opponent's, in pawns."""
    men = board.piece_map().values()
    return sum(PIECE_VALUES[man.piece_type] * (1 if man.color == color else -1) for man in men)


def _size_of_advantage(score: MoveScore) -> str:
    if score.mate is not None:
        return "crushing" if score.mate > 0 else "equality"
    assert score.cp is not None  # a score is one or the other
    return "crushing" if score.cp > CRUSHING_CENTIPAWNS else "advantage" if score.cp > ADVANTAGE_CENTIPAWNS else "equality"


def _takes_hanging_piece(boards: list[chess.Board], played: list[chess.Move]) -> bool:
    """The first solver move takes an undefended piece, not one that has just taken as much itself, and the gain stays."""
    error, answer = played[:2]
    taken = boards[1].piece_at(answer.to_square)
    if taken is None or taken.piece_type == chess.PAWN or _is_defended(boards[1], taken.color, answer.to_square):
        return False
    lost = boards[0].piece_at(error.to_square)
    if error.to_square == answer.to_square and lost is not None and PIECE_VALUES[lost.piece_type] >= PIECE_VALUES[taken.piece_type]:
        return False
    solver = boards[1].turn
    return len(played) < 4 or material(boards[4], solver) >= material(boards[2], solver)


def _is_defended(board: chess.Board, color: chess.Color, square: chess.Square) -> bool:
    """By a man of ``color``, or by one behind an attacker on the same line."""
    if board.attackers_mask(color, square):
        return True
    for attacker in board.attackers(not color, square):
        if board.piece_type_at(attacker) in _SLIDERS:
            without = board.copy(stack=False)
            without.remove_piece_at(attacker)
            if without.attackers_mask(color, square):
                return True
    return False


def _underpromotes(boards: list[chess.Board], played: list[chess.Move]) -> bool:
    """A promotion to less than a queen; one that mates counts only to a knight, since any other piece could have been a queen."""
    for after, move in zip(boards[2::2], played[1::2]):
        if after.is_checkmate():
            return move.promotion == chess.KNIGHT
        if move.promotion and move.promotion != chess.QUEEN:
            return True
    return False
