"""Lichess puzzle tables as published (5 million rows) -> compact columns of the rows that pass the filters, and a row -> a checked puzzle.

One line is one row. Every row is screened by vectorised checks of its fields; python-chess replays only the rows that ``puzzle_of_row`` is asked
for. A row left out is counted by the first reason that applies.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from chessrl.puzzle_history import history_of
from chessrl.puzzles import Puzzle, rating_bin
from chessrl.sources import WHERE_TO_GET, ReadReport, check_source, file_record, read_lines

_REQUIRED = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")
_DATES = ("UTCDate", "Date")
_OPTIONAL = ("RatingDeviation", "Popularity", "NbPlays", "GameUrl", "PGN", *_DATES)
_LINES_PER_BATCH = 50_000  # about 10 MB of text
_FIELD = r"[1-8pnbrqkPNBRQK]{1,8}"
_FEN = rf"^{_FIELD}(?:/{_FIELD}){{7}} [wb] (?:-|[A-Ha-hKQkq]{{1,4}}) (?:-|[a-h][36])(?: [0-9]{{1,5}} [0-9]{{1,5}})?$"
_MOVES = r"^[a-h][1-8][a-h][1-8][nbrq]?(?: [a-h][1-8][a-h][1-8][nbrq]?)*$"
_INTEGER = r"^-?[0-9]{1,9}$"
_ANY = 10**9
MISSING = ("keep", "drop")


@dataclass(frozen=True, slots=True)
class PuzzleFilters:
    """Which rows of a Lichess table are kept; bounds are inclusive, and the defaults of the first six are the widest that Lichess has.

    A line counts every listed move, the opponent's first included. ``missing`` says what becomes of a row whose field is empty though a filter
    asks for it (a bound other than its default is set): ``drop`` counts it as ``no_deviation``, ``no_popularity`` or ``no_plays``; ``keep``
    keeps it and counts it apart.
    """

    min_rating: int = 0
    max_rating: int = 9999
    max_deviation: int = 500
    min_popularity: int = -100
    min_plays: int = 0
    max_line_moves: int = 12
    themes: tuple[str, ...] = ()  # at least one of these; none given: any
    exclude_themes: tuple[str, ...] = ()  # none of these
    bad_ids: frozenset[str] = frozenset()
    missing: str = "drop"

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            raise UserError(f"missing={self.missing}: expected one of {', '.join(MISSING)}")


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
    """The rows of .csv and .csv.zst files that pass ``filters``, streamed; of rows with one id the first is kept.

    ``report`` counts every row: read == kept + dropped by reason. Raises UserError for a missing or damaged file and for missing columns.
    """
    themes: dict[str, int] = {}
    kept_without: Counter[str] = Counter()
    movetexts: dict[str, str] = {}
    batches: list[pa.Table] = []
    with tqdm(desc="puzzle rows", unit="row", unit_scale=True, disable=None) as progress:
        for columns in _all_columns(sources, report, progress):
            kept = _screen(columns, filters, report, kept_without)
            if "PGN" in kept.column_names:
                movetexts |= {key: text for key, text in zip(kept["PuzzleId"].to_pylist(), kept["PGN"].to_pylist()) if text}
            batches.append(_compact(kept, themes, seed))
    batches = _without_duplicates(batches, report)
    report.kept = sum(map(len, batches))
    table = pa.concat_tables(batches) if batches else _compact(_empty_columns(), themes, seed)
    names = ("rating", "line_moves", "date", "place", "themes")
    ratings, line_moves, dates, places, codes = (table[name].to_numpy() for name in names)
    sets = [tuple(words.split()) for words in themes]
    return PuzzleRows(table.drop_columns(names), ratings, line_moves, dates, places, codes, sets, movetexts, kept_without)


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


# ---- screening --------------------------------------------------------------------------------------------------------------------------


def _screen(columns: pa.Table, filters: PuzzleFilters, report: ReadReport, kept_without: Counter[str]) -> pa.Table:
    """The rows that fail no check."""
    alive = np.ones(len(columns), bool)
    for reason, failing in _checks(columns, filters):
        dropped = alive & failing
        if count := int(dropped.sum()):
            report.dropped[reason] += count
            alive &= ~failing
    for name, column, _, _ in _quality_filters(filters):
        kept_without[name] += int((alive & _matches(_column(columns, column), "^$")).sum())
    return columns.filter(pa.array(alive))


def _checks(columns: pa.Table, filters: PuzzleFilters) -> Iterator[tuple[str, np.ndarray]]:
    """(reason, rows that it applies to), each (N,) bool, in the order in which they are looked at."""
    yield "no_id", _matches(columns["PuzzleId"], "^$")
    rating_text, moves = columns["Rating"], columns["Moves"]
    yield "bad_rating", ~_matches(rating_text, "^[0-9]{1,4}$")
    yield "bad_fen", ~_matches(columns["FEN"], _FEN)
    yield "bad_moves", ~_matches(moves, _MOVES)
    count = _count_moves(moves)
    yield "odd_number_of_moves", count % 2 == 1
    yield "line_too_long", count > filters.max_line_moves
    rating = _integers(rating_text)
    yield "rating_too_low", rating < filters.min_rating
    yield "rating_too_high", rating > filters.max_rating
    for name, column, low, high in _quality_filters(filters):
        text = _column(columns, column)
        empty = _matches(text, "^$")
        yield f"bad_{name}", ~empty & ~_matches(text, _INTEGER)
        if filters.missing == "drop":
            yield f"no_{name}", empty
        value = _integers(text)
        yield f"{name}_too_low", ~empty & (value < low)
        yield f"{name}_too_high", ~empty & (value > high)
    encoded = columns["Themes"].combine_chunks().dictionary_encode()
    words = [set(text.split()) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy()
    if filters.themes:
        yield "theme_not_wanted", _of_codes(codes, [entry.isdisjoint(filters.themes) for entry in words])
    if filters.exclude_themes:
        yield "theme_excluded", _of_codes(codes, [not entry.isdisjoint(filters.exclude_themes) for entry in words])
    if filters.bad_ids:
        yield "known_bad", pc.is_in(columns["PuzzleId"], pa.array(sorted(filters.bad_ids), pa.string())).to_numpy()


def _quality_filters(filters: PuzzleFilters) -> list[tuple[str, str, int, int]]:
    """(name, column, lowest, highest) of the filters that are set: those whose bound is not the widest."""
    widest = PuzzleFilters()
    bounds = (
        ("deviation", "RatingDeviation", 0, filters.max_deviation, filters.max_deviation != widest.max_deviation),
        ("popularity", "Popularity", filters.min_popularity, _ANY, filters.min_popularity != widest.min_popularity),
        ("plays", "NbPlays", filters.min_plays, _ANY, filters.min_plays != widest.min_plays),
    )
    return [bound[:4] for bound in bounds if bound[4]]


def _column(columns: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or empty strings where the file has none."""
    if name in columns.column_names:
        return columns[name]
    return pa.chunked_array([pa.array([""] * len(columns), pa.string())])


def _matches(text: pa.ChunkedArray, pattern: str) -> np.ndarray:
    return pc.match_substring_regex(text, pattern).to_numpy()


def _integers(text: pa.ChunkedArray) -> np.ndarray:
    """Values of a column; 0 where there is no integer."""
    return pc.if_else(pc.match_substring_regex(text, _INTEGER), text, "0").cast(pa.int32()).to_numpy()


def _count_moves(moves: pa.ChunkedArray) -> np.ndarray:
    return pc.add(pc.count_substring(moves, " "), 1).to_numpy()


def _of_codes(codes: np.ndarray, values: Sequence[bool]) -> np.ndarray:
    return np.array(values, bool)[codes]


# ---- columns ----------------------------------------------------------------------------------------------------------------------------


def _compact(columns: pa.Table, themes: dict[str, int], seed: int) -> pa.Table:
    """What is kept of a batch; ``themes`` numbers the theme sets met so far."""
    encoded = columns["Themes"].combine_chunks().dictionary_encode()
    numbers = [themes.setdefault(text, len(themes)) for text in encoded.dictionary.to_pylist()]
    url = pc.extract_regex(_column(columns, "GameUrl"), r"lichess\.org/(?P<game>[A-Za-z0-9]{8})")
    return pa.table(
        {
            "id": columns["PuzzleId"],
            "fen": columns["FEN"],
            "moves": columns["Moves"],
            "game": pc.fill_null(pc.struct_field(url, "game"), ""),
            "rating": _integers(columns["Rating"]),
            "line_moves": _count_moves(columns["Moves"]).astype(np.int32),
            "date": _dates(columns),
            "place": np.array([_place(seed, identifier) for identifier in columns["PuzzleId"].to_pylist()], np.uint64),
            "themes": np.array(numbers, np.int32)[encoded.indices.to_numpy()],
        }
    )


def _dates(columns: pa.Table) -> np.ndarray:
    """20230131 of 2023.01.31 or 2023-01-31 in the first date column that there is; 0 where unknown."""
    name = next((name for name in _DATES if name in columns.column_names), "")
    text = _column(columns, name)
    known = pc.match_substring_regex(text, r"^[0-9]{4}[.-][0-9]{2}[.-][0-9]{2}$")
    return pc.if_else(known, pc.replace_substring_regex(text, "[.-]", ""), "0").cast(pa.int32()).to_numpy()


def _place(seed: int, identifier: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {identifier}".encode(), digest_size=8).digest(), "little")


def _without_duplicates(batches: list[pa.Table], report: ReadReport) -> list[pa.Table]:
    """Batches without the later ones of rows with one id, which have one place as well."""
    if not batches:
        return batches
    places = np.concatenate([batch["place"].to_numpy() for batch in batches])
    order = np.argsort(places, kind="stable")
    suspects = np.flatnonzero(places[order][1:] == places[order][:-1])
    if not len(suspects):
        return batches
    ids = pa.chunked_array([chunk for batch in batches for chunk in batch["id"].chunks], pa.string())
    fresh = np.ones(len(places), bool)
    for earlier, later in zip(order[suspects].tolist(), order[suspects + 1].tolist()):
        if ids[earlier] == ids[later]:  # else two ids of one hash
            fresh[later] = False
    report.dropped["duplicate_id"] += int((~fresh).sum())
    starts = np.cumsum([0, *map(len, batches)])
    for number, batch in enumerate(batches):  # one after another: two copies of everything would double the memory
        batches[number] = batch.filter(pa.array(fresh[starts[number] : starts[number + 1]]))
    return batches


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
