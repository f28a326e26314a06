"""Lichess puzzle tables as published (5 million rows) -> compact columns of the rows that pass the filters, and a row -> a checked puzzle.

One line is one row. Every row is screened by vectorised checks of its fields; python-chess replays only the rows that ``puzzle_of_row`` is asked
for. A row left out is counted by the first reason that applies.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import chess
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from tqdm import tqdm

from chessrl.errors import UserError
from chessrl.puzzle_filters import PuzzleFilters, count_moves, integers, screen, text_column
from chessrl.puzzle_history import history_of
from chessrl.puzzles import Puzzle, rating_bin
from chessrl.sources import WHERE_TO_GET, ReadReport, check_source, file_record, read_lines

_REQUIRED = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
_DATES = ("UTCDate", "Date")
_OPTIONAL = ("RatingDeviation", "Popularity", "NbPlays", "GameUrl", "PGN", *_DATES)
_LINES_PER_BATCH = 50_000  # about 10 MB of text


@dataclass(slots=True)
class PuzzleRows:
    """The rows kept, N of them, as columns: about 130 bytes a row."""

    table: pa.Table  # strings: id, fen, moves, game (empty where unknown)
    ratings: np.ndarray  # (N,) int32
    line_moves: np.ndarray  # (N,) int32, the opponent's first included
    dates: np.ndarray  # (N,) int32: 20230131; 0 where unknown
    places: np.ndarray  # (N,) uint64: hash of (seed, id), the order of every draw
    theme_codes: np.ndarray  # (N,) int32, into theme_sets
    theme_sets: list[tuple[str, ...]]
    movetexts: dict[str, str]  # of the PGN column, by puzzle id
    kept_without: Counter[str] = field(default_factory=Counter)  # rows kept though a field is empty that a filter asks for

    def __len__(self) -> int:
        return len(self.ratings)

    def text(self, column: str, row: int) -> str:
        """One string of the table."""
        return self.table[column][row].as_py()


# ---- reading ----------------------------------------------------------------------------------------------------------------------------


def read_rows(sources: Iterable[Path | str], filters: PuzzleFilters, seed: int, report: ReadReport) -> PuzzleRows:
    """The rows of .csv and .csv.zst files that pass ``filters``, streamed; of rows with one id the first is kept, with the date and
    the PGN of a later one where it has none.

    ``report`` counts every row: read == kept + dropped by reason. Raises UserError for a missing or damaged file and for missing columns.
    """
    themes: dict[str, int] = {}
    kept_without: Counter[str] = Counter()
    movetexts: dict[str, str] = {}
    batches: list[pa.Table] = []
    with tqdm(desc="puzzle rows", unit="row", unit_scale=True, disable=None) as progress:
        for columns in _all_columns(sources, report, progress):
            kept = screen(columns, filters, report, kept_without)
            if "PGN" in kept.column_names:
                for identifier, text in zip(kept["PuzzleId"].to_pylist(), kept["PGN"].to_pylist()):
                    if text:
                        movetexts.setdefault(identifier, text)
            batches.append(_compact(kept, themes, seed))
    if not batches:
        batches = [_compact(_empty_columns(), themes, seed)]
    dates = np.concatenate([batch["date"].to_numpy() for batch in batches])
    fresh = np.ones(len(dates), bool)
    for earlier, later in _duplicates(batches):
        fresh[later] = False
        dates[earlier] = dates[earlier] or dates[later]
    if not fresh.all():
        report.dropped["duplicate_id"] += int((~fresh).sum())
        starts = np.cumsum([0, *map(len, batches)])
        for number, batch in enumerate(batches):  # one after another: two copies of everything would double the memory
            batches[number] = batch.filter(pa.array(fresh[starts[number] : starts[number + 1]]))
    report.kept = sum(map(len, batches))
    table = pa.concat_tables(batches)
    ratings, line_moves, places, codes = (table[name].to_numpy() for name in ("rating", "line_moves", "place", "themes"))
    table = table.select(["id", "fen", "moves", "game"])
    sets = [tuple(words.split()) for words in themes]
    return PuzzleRows(table, ratings, line_moves, dates[fresh], places, codes, sets, movetexts, kept_without)


def _all_columns(sources: Iterable[Path | str], report: ReadReport, progress: tqdm) -> Iterator[pa.Table]:
    """Batches of rows with the right number of fields, as strings."""
    for source in sources:
        path = Path(source)
        check_source(path, ".csv", "world.puzzles")
        report.files.append(file_record(path))
        lines = read_lines(path, report)
        header = _header(path, next(lines, b""))
        while batch := list(islice(lines, _LINES_PER_BATCH)):
            plain, others = [], []
            commas = len(header) - 1
            for line in batch:
                if b'"' in line or b"\r" in line or b"\0" in line or line.count(b",") != commas:
                    others.append(line)
                else:
                    plain.append(line)
            before = report.read
            yield _parse(header, plain, report)
            quoted = [row for row in (_read_quoted(line, len(header), report) for line in others if line) if row]
            if quoted:
                yield _wanted(pa.table([pa.array(values, pa.string()) for values in zip(*quoted)], names=header))
            progress.update(report.read - before)


def _header(path: Path, line: bytes) -> list[str]:
    header = next(csv.reader([line.decode("utf-8", "replace")]), [])
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise UserError(f"{path}: the first line names no column {', '.join(missing)}. {WHERE_TO_GET['world.puzzles']}")
    if len(set(header)) < len(header):
        raise UserError(f"{path}: the first line names a column twice ({', '.join(header)}); give each column its own name")
    return header


def _parse(header: list[str], lines: list[bytes], report: ReadReport) -> pa.Table:
    """Columns of lines without quotes, whose fields have been counted. Lines that are not UTF-8 are dropped."""
    report.read += len(lines)
    body = b"\n".join(lines)
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        readable = [line for line in lines if _is_utf8(line)]
        report.dropped["not_utf8"] += len(lines) - len(readable)
        lines, body = readable, b"\n".join(readable)
    if not lines:
        return _empty_columns()
    table = pyarrow.csv.read_csv(
        pa.BufferReader(body),
        read_options=pyarrow.csv.ReadOptions(column_names=header, use_threads=False, block_size=len(body) + 1),
        parse_options=pyarrow.csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False),
    )
    return _wanted(table)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_quoted(line: bytes, columns: int, report: ReadReport) -> list[str] | None:
    """Fields of a line with quotes or odd characters; None, and counted, where they are not a row."""
    report.read += 1
    try:
        row = next(csv.reader([line.decode("utf-8")], strict=True))
    except UnicodeDecodeError:
        report.drop("not_utf8")
    except (csv.Error, StopIteration):
        report.drop("not_csv")
    else:
        if len(row) == columns:
            return row
        report.drop("wrong_number_of_fields")
    return None


def _wanted(table: pa.Table) -> pa.Table:
    return table.select([name for name in table.column_names if name in _REQUIRED or name in _OPTIONAL])


def _empty_columns() -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in _REQUIRED})


# ---- columns ----------------------------------------------------------------------------------------------------------------------------


def _compact(columns: pa.Table, themes: dict[str, int], seed: int) -> pa.Table:
    """What is kept of a batch; ``themes`` numbers the theme sets met so far."""
    encoded = columns["Themes"].combine_chunks().dictionary_encode()
    numbers = [themes.setdefault(text, len(themes)) for text in encoded.dictionary.to_pylist()]
    url = pc.extract_regex(text_column(columns, "GameUrl"), r"lichess\.org/(?P<game>[A-Za-z0-9]{8})")
    return pa.table(
        {
            "id": columns["PuzzleId"],
            "fen": columns["FEN"],
            "moves": columns["Moves"],
            "game": pc.fill_null(pc.struct_field(url, "game"), ""),
            "rating": integers(columns["Rating"]),
            "line_moves": count_moves(columns["Moves"]).astype(np.int32),
            "date": _dates(columns),
            "place": np.array([_place(seed, identifier) for identifier in columns["PuzzleId"].to_pylist()], np.uint64),
            "themes": np.array(numbers, np.int32)[encoded.indices.to_numpy()],
        }
    )


def _dates(columns: pa.Table) -> np.ndarray:
    """20230131 of 2023.01.31 or 2023-01-31 in the first date column that there is; 0 where unknown."""
    name = next((name for name in _DATES if name in columns.column_names), "")
    text = text_column(columns, name)
    known = pc.match_substring_regex(text, r"^[0-9]{4}[.-][0-9]{2}[.-][0-9]{2}$")
    return pc.if_else(known, pc.replace_substring_regex(text, "[.-]", ""), "0").cast(pa.int32()).to_numpy()


def _place(seed: int, identifier: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {identifier}".encode(), digest_size=8).digest(), "little")


def _duplicates(batches: list[pa.Table]) -> Iterator[tuple[int, int]]:
    """Row numbers (first one, later one) of rows with one id. Such rows have one place as well."""
    places = np.concatenate([batch["place"].to_numpy() for batch in batches])
    order = np.argsort(places, kind="stable")
    suspects = np.flatnonzero(places[order][1:] == places[order][:-1])
    ids = pa.chunked_array([chunk for batch in batches for chunk in batch["id"].chunks], pa.string())
    first = None
    for place in suspects.tolist():
        earlier, later = int(order[place]), int(order[place + 1])
        first = earlier if first is None or ids[earlier] != ids[first] else first
        if ids[first] == ids[later]:  # else two ids of one hash
            yield first, later


# ---- one row ----------------------------------------------------------------------------------------------------------------------------


def puzzle_of_row(rows: PuzzleRows, row: int) -> Puzzle | str:
    """The puzzle of a row, replayed by python-chess, or the reason why it is none.

    A move text of the PGN column gives the history; one that does not lead to the FEN is a reason to leave the row out.
    """
    identifier, fen = rows.text("id", row), rows.text("fen", row)
    moves = tuple(rows.text("moves", row).split())
    if fault := _line_fault(fen, moves):
        return fault
    history: tuple[str, ...] | None = ()
    if movetext := rows.movetexts.get(identifier):
        history = history_of(movetext, fen, moves[0])
        if history is None:
            return "history_does_not_lead_to_fen"
    rating = int(rows.ratings[row])
    return Puzzle(
        id=identifier,
        fen=fen,
        moves=moves,
        lead=1,
        difficulty=rating,
        bin=rating_bin(rating),
        themes=rows.theme_sets[rows.theme_codes[row]],
        history=history,
        game=rows.text("game", row),
        date=int(rows.dates[row]),
    )


def _line_fault(fen: str, moves: Iterable[str]) -> str | None:
    """Why a line cannot be played, or None."""
    try:
        board = chess.Board(fen)
    except ValueError:
        return "bad_fen"
    if not board.is_valid():
        return "bad_fen"
    for move in moves:
        try:
            board.push_uci(move)
        except ValueError:
            return "illegal_move"
    return None


def read_lichess_csv(path: Path | str, filters: PuzzleFilters, report: ReadReport) -> list[Puzzle]:
    """All puzzles of a Lichess table that pass ``filters`` and python-chess, in its order and without a split: for tables of some 100,000 rows."""
    rows = read_rows([path], filters, 0, report)
    outcomes = [puzzle_of_row(rows, row) for row in range(len(rows))]
    puzzles = [outcome for outcome in outcomes if isinstance(outcome, Puzzle)]
    report.dropped.update(outcome for outcome in outcomes if isinstance(outcome, str))
    report.kept = len(puzzles)
    return puzzles
