"""Puzzle records: difficulty bins, splits, tables, prompts, and which moves count as solving.

``python -m chessrl.puzzles sources=FILE[,FILE] out=FOLDER`` (chessrl.puzzle_build) makes a table of Lichess's puzzles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import chess

from chessrl.command import run_command
from chessrl.errors import UserError, make_folder
from chessrl.notation import BOS, THINK, line_tokens, snapshot_tokens
from chessrl.position_keys import line_keys

if TYPE_CHECKING:
    import pandas as pd  # imported below only where a table is read or written: every command's --help passes here

BINS = ("B0", "B1", "B2", "B3", "B4", "B5")
STATES = ("snapshot", "history")
_HIGHEST_RATING = (800, 1200, 1600, 2000, 2400)  # of B0 to B4


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One puzzle. ``moves[:lead]`` belong to the prompt; then solver and opponent alternate, and the solver has the last word."""

    id: str
    fen: str  # position before moves[0]
    moves: tuple[str, ...]  # UCI
    lead: int  # 1 for Lichess (the opponent's move), 0 for endgames
    difficulty: int  # Lichess rating, or distance to mate in solver moves
    bin: str  # B0..B5
    themes: tuple[str, ...] = ()
    split: str = ""
    history: tuple[str, ...] = ()  # UCI moves from the start position to ``fen``, where known
    game: str = ""  # id of the source game, where known
    date: int = 0  # of the source game, as 20230131; 0 where unknown

    def board(self) -> chess.Board:
        """The position in which the solver is asked: ``fen`` and the lead moves, with an empty move stack."""
        board = chess.Board(self.fen)
        for move in self.moves[: self.lead]:
            board.push(board.parse_uci(move))
        board.clear_stack()
        return board


def rating_bin(rating: int) -> str:
    """B0 up to 800, B1 (800, 1200], B2 (1200, 1600], B3 (1600, 2000], B4 (2000, 2400], B5 above."""
    return BINS[sum(rating > highest for highest in _HIGHEST_RATING)]


# ---- tables -----------------------------------------------------------------------------------------------------------------------------

_WORD_COLUMNS = ("moves", "themes", "history")
_COLUMNS = tuple(column.name for column in fields(Puzzle))
_OPTIONAL_COLUMNS = ("game", "date")


def save_puzzles(puzzles: Iterable[Puzzle], path: Path | str) -> None:
    """Write a puzzle table (parquet), tuples as space-separated words; the file appears whole or not at all."""
    import pandas as pd

    path = Path(path)
    puzzles = list(puzzles)
    columns = {name: [getattr(puzzle, name) for puzzle in puzzles] for name in _COLUMNS}
    for name in _WORD_COLUMNS:
        columns[name] = [" ".join(words) for words in columns[name]]
    make_folder(path.parent, "out")
    temporary = path.with_name(path.name + ".tmp")
    pd.DataFrame(columns).astype({"lead": "int64", "difficulty": "int64", "date": "int64"}).to_parquet(temporary, compression="zstd", index=False)
    temporary.replace(path)


def load_puzzles(path: Path | str, split: str | None = None, bins: Iterable[str] | None = None) -> list[Puzzle]:
    """Puzzles of a table, in its order, of one split and some bins where given. Raises UserError for a missing file or column."""
    import pandas as pd
    from pyarrow import ArrowInvalid

    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such puzzle table; make one with python -m chessrl.puzzles or python -m chessrl.endgame")
    try:
        frame = pd.read_parquet(path)
    except ArrowInvalid as error:
        raise UserError(f"{path}: not a parquet table ({str(error).splitlines()[0]}); make it again") from None
    return puzzles_of_table(frame, split, bins, name=str(path))


def puzzles_of_table(
    frame: pd.DataFrame, split: str | None = None, bins: Iterable[str] | None = None, name: str = "puzzle table"
) -> list[Puzzle]:
    """Puzzles of a table in memory; ``name`` is what an error calls it."""
    missing = [column for column in _COLUMNS if column not in frame.columns and column not in _OPTIONAL_COLUMNS]
    if missing:
        raise UserError(f"{name}: no column {', '.join(missing)}; make the table again")
    if split is not None:
        frame = frame[frame["split"] == split]
    if bins is not None:
        frame = frame[frame["bin"].isin(list(bins))]
    columns = {column: frame[column].tolist() for column in _COLUMNS if column in frame.columns}
    for column in _WORD_COLUMNS:
        columns[column] = [tuple(words.split()) for words in columns[column]]
    return [Puzzle(**dict(zip(columns, values))) for values in zip(*columns.values())]


# ---- prompts and answers ------------------------------------------------------------------------------------------------------------


def prompt_tokens(puzzle: Puzzle, state: str, *, think: bool) -> list[int]:
    """Ids of the prompt: ``<bos>``, the state, the lead moves, and ``<T>`` where a trace is asked for.

    ``snapshot`` writes the position of ``fen``; ``history`` the moves from the start position to it, and raises UserError without them.
    """
    if state not in STATES:
        raise UserError(f"state={state}: expected one of {', '.join(STATES)}")
    board = chess.Board(puzzle.fen)
    tokens = [BOS]
    if state == "snapshot":
        tokens += snapshot_tokens(board)
    else:
        if not puzzle.history and board.fen().split()[:2] != chess.STARTING_FEN.split()[:2]:
            raise UserError(f"puzzle {puzzle.id} has no moves from the start position, which state=history needs; use state=snapshot")
        tokens += _tokens_of_line(chess.Board(), puzzle.history)
    tokens += _tokens_of_line(board, puzzle.moves[: puzzle.lead])
    return [*tokens, THINK] if think else tokens


def _tokens_of_line(board: chess.Board, moves: Iterable[str]) -> list[int]:
    replay = board.copy(stack=False)
    parsed = [replay.push_uci(move) for move in moves]
    return [token for ply in line_tokens(board, parsed) for token in ply]


def accepted_moves(board: chess.Board, line_move: chess.Move | str) -> list[chess.Move]:
    """Moves that count as the right answer: the line's, first, and every other move that mates at once.

    Castling may be given as e1g1 or e1h1. Raises ValueError (of python-chess) if the line's move is illegal on ``board``.
    """
    expected = board.parse_uci(line_move if isinstance(line_move, str) else line_move.uci())
    return [expected, *(move for move in board.legal_moves if move != expected and _mates(board, move))]


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mates = board.is_checkmate()
    board.pop()
    return mates


def solver_position_keys(puzzle: Puzzle) -> list[int]:
    """Keys (chessrl.position_keys) of every position of the line in which the solver is to move, the asked one first."""
    return line_keys(puzzle.fen, map(chess.Move.from_uci, puzzle.moves))[puzzle.lead : len(puzzle.moves) : 2]


if __name__ == "__main__":
    from chessrl.puzzle_build import main  # builds on this module

    sys.exit(run_command(main))
