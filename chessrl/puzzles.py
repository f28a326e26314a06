"""Puzzle records: the Lichess reader, difficulty bins, splits, prompts, and which moves count as solving.

``python -m chessrl.puzzles sources=FILE[,FILE] out=FOLDER`` writes ``puzzles.parquet`` and ``puzzles.json`` (what was dropped, by reason).
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import chess
import chess.pgn
import pandas as pd
from pyarrow import ArrowInvalid

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.notation import BOS, THINK, line_tokens, snapshot_tokens
from chessrl.position_keys import line_keys
from chessrl.sources import WHERE_TO_GET, ReadReport, check_source, file_record, read_lines

BINS = ("B0", "B1", "B2", "B3", "B4", "B5")
SPLITS = ("sft", "rl", "validation", "test", "private")
STATES = ("snapshot", "history")
_HIGHEST_RATING = (800, 1200, 1600, 2000, 2400)  # of B0 to B4
_REQUIRED_COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
_MOVES = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?(?: [a-h][1-8][a-h][1-8][nbrq]?)*")
_GAME_URL = re.compile(r"lichess\.org/([A-Za-z0-9]{8})")


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

    def board(self) -> chess.Board:
        """The position in which the solver is asked: ``fen`` and the lead moves, with an empty move stack."""
        board = chess.Board(self.fen)
        for move in self.moves[: self.lead]:
            board.push(board.parse_uci(move))
        board.clear_stack()
        return board


@dataclass(frozen=True, slots=True)
class PuzzleFilters:
    """Which rows of a Lichess table are kept. Ratings are inclusive; a line counts every listed move, the opponent's first included."""

    min_rating: int | None = None
    max_rating: int | None = None
    max_line_moves: int = 12
    verify: bool = False  # replay every line with python-chess


def rating_bin(rating: int) -> str:
    """B0 up to 800, B1 (800, 1200], B2 (1200, 1600], B3 (1600, 2000], B4 (2000, 2400], B5 above."""
    return BINS[sum(rating > highest for highest in _HIGHEST_RATING)]


# ---- reading ----------------------------------------------------------------------------------------------------------------------------


def read_lichess_csv(path: Path | str, filters: PuzzleFilters, report: ReadReport) -> list[Puzzle]:
    """Puzzles of a Lichess table (.csv or .csv.zst), without a split. Rows left out are counted by reason in ``report``.

    A ``PGN`` column, where there is one, gives the history; it must lead to the FEN. Raises UserError for a missing or damaged file and for
    missing columns.
    """
    path = Path(path)
    check_source(path, ".csv", "world.puzzles")
    report.files.append(file_record(path))
    rows = _csv_rows(path, report)
    header = next(rows, [])
    missing = [name for name in _REQUIRED_COLUMNS if name not in header]
    if missing:
        raise UserError(f"{path}: the first line names no column {', '.join(missing)}. {WHERE_TO_GET['world.puzzles']}")
    puzzles = []
    for row in rows:
        if not row:
            continue
        report.read += 1
        outcome = _read_row(dict(zip(header, row)) if len(row) == len(header) else None, filters)
        if isinstance(outcome, str):
            report.drop(outcome)
        else:
            puzzles.append(outcome)
            report.kept += 1
    return puzzles


def _csv_rows(path: Path, report: ReadReport) -> Iterator[list[str]]:
    rows = csv.reader(_text_lines(path, report))
    try:
        yield from rows
    except csv.Error as error:
        raise UserError(f"{path}: line {rows.line_num} is not CSV ({error}); expected the table as Lichess publishes it") from error


def _text_lines(path: Path, report: ReadReport) -> Iterator[str]:
    for number, line in enumerate(read_lines(path, report), start=1):
        try:
            yield line.decode("utf-8") + "\n"  # the reader needs line ends inside quoted fields
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: line {number} is not UTF-8; fetch or save the file again") from error


def _read_row(row: dict[str, str] | None, filters: PuzzleFilters) -> Puzzle | str:
    """The puzzle of a row, or the reason why it is left out."""
    if row is None:
        return "wrong_number_of_fields"
    if not row["PuzzleId"]:
        return "no_id"
    if not row["Rating"].isascii() or not row["Rating"].isdigit():
        return "bad_rating"
    if not _is_fen(row["FEN"]):
        return "bad_fen"
    if not _MOVES.fullmatch(row["Moves"]):
        return "bad_moves"
    rating, moves = int(row["Rating"]), tuple(row["Moves"].split())
    if len(moves) % 2:
        return "odd_number_of_moves"
    if len(moves) > filters.max_line_moves:
        return "line_too_long"
    if filters.min_rating is not None and rating < filters.min_rating:
        return "rating_too_low"
    if filters.max_rating is not None and rating > filters.max_rating:
        return "rating_too_high"
    if filters.verify and (fault := _line_fault(row["FEN"], moves)):
        return fault
    history: tuple[str, ...] | None = ()
    if row.get("PGN"):
        history = _history(row["PGN"], row["FEN"], moves[0])
        if history is None:
            return "history_does_not_lead_to_fen"
    url = _GAME_URL.search(row.get("GameUrl", ""))
    return Puzzle(
        id=row["PuzzleId"],
        fen=row["FEN"],
        moves=moves,
        lead=1,
        difficulty=rating,
        bin=rating_bin(rating),
        themes=tuple(row["Themes"].split()),
        history=history,
        game=url.group(1) if url else "",
    )


def _is_fen(text: str) -> bool:
    if len(text.split()) < 4:  # python-chess would fill in what is missing
        return False
    try:
        chess.Board(text)
    except ValueError:
        return False
    return True


def _line_fault(fen: str, moves: Iterable[str]) -> str | None:
    """Why a line cannot be played, or None."""
    board = chess.Board(fen)
    if not board.is_valid():
        return "bad_fen"
    for move in moves:
        try:
            board.push_uci(move)
        except ValueError:
            return "illegal_move"
    return None


def _history(movetext: str, fen: str, first_move: str) -> tuple[str, ...] | None:
    """UCI moves from the start position to ``fen``, or None. A PGN that goes one move further, past the opponent's error, is cut."""
    game = chess.pgn.read_game(io.StringIO(movetext))
    if game is None or game.errors:
        return None
    board = game.board()
    moves = [move.uci() for move in game.mainline_moves()]
    for move in moves:
        board.push_uci(move)
    if moves and moves[-1] == first_move and board.fen().split()[:2] != fen.split()[:2]:
        board.pop()
        moves.pop()
    return tuple(moves) if board.fen().split()[:2] == fen.split()[:2] else None


# ---- tables -----------------------------------------------------------------------------------------------------------------------------

_WORD_COLUMNS = ("moves", "themes", "history")
_COLUMNS = tuple(column.name for column in fields(Puzzle))
_OPTIONAL_COLUMNS = ("game",)


def save_puzzles(puzzles: Iterable[Puzzle], path: Path | str) -> None:
    """Write a puzzle table (parquet), tuples as space-separated words; the file appears whole or not at all."""
    path = Path(path)
    puzzles = list(puzzles)
    columns = {name: [getattr(puzzle, name) for puzzle in puzzles] for name in _COLUMNS}
    for name in _WORD_COLUMNS:
        columns[name] = [" ".join(words) for words in columns[name]]
    make_folder(path.parent, "out")
    temporary = path.with_name(path.name + ".tmp")
    pd.DataFrame(columns).astype({"lead": "int64", "difficulty": "int64"}).to_parquet(temporary, compression="zstd", index=False)
    temporary.replace(path)


def load_puzzles(path: Path | str, split: str | None = None, bins: Iterable[str] | None = None) -> list[Puzzle]:
    """Puzzles of a table, in its order, of one split and some bins where given. Raises UserError for a missing file or column."""
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


# ---- command ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PuzzleSettings:
    """Keys of ``python -m chessrl.puzzles``: Lichess tables in, ``out``/puzzles.parquet and puzzles.json (the account) out."""

    sources: tuple[str, ...]
    out: str
    sft: int = 4000
    rl: int = 6000
    validation: int = 800
    test: int = 1500
    private: int = 400
    rl_easy_share: float = 0.7  # of the rl split in B1 and B2
    verify: bool = True
    seed: int = 0


def main(arguments: list[str]) -> None:
    """Read, split and save puzzles; prints one line for each."""
    from chessrl.puzzle_splits import split_puzzles  # builds on this module

    settings = parse_settings(PuzzleSettings, arguments)
    reading, splitting = ReadReport(), ReadReport()
    filters = PuzzleFilters(verify=settings.verify)
    puzzles = [puzzle for source in settings.sources for puzzle in read_lichess_csv(source, filters, reading)]
    sizes = {split: getattr(settings, split) for split in SPLITS}
    chosen = split_puzzles(puzzles, sizes, settings.seed, splitting, easy_share={"rl": settings.rl_easy_share})
    out = Path(settings.out)
    save_puzzles(chosen, out / "puzzles.parquet")
    account = {"settings": asdict(settings), "rows": reading.as_dict(), "split": splitting.as_dict()}
    (out / "puzzles.json").write_text(json.dumps(account, indent=1) + "\n", encoding="utf-8")
    print(f"rows: {reading.summary()}\nsplit: {splitting.summary()}\nwritten to {out / 'puzzles.parquet'}")


if __name__ == "__main__":
    sys.exit(run_command(main))
