"""Which rows of a Lichess puzzle table are kept: vectorised checks of every field, each row left out counted by the first reason that applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chessrl.errors import UserError
from chessrl.sources import ReadReport

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


def screen(columns: pa.Table, filters: PuzzleFilters, report: ReadReport, kept_without: Counter[str]) -> pa.Table:
    """The rows that fail no check."""
    alive = np.ones(len(columns), bool)
    for reason, failing in _checks(columns, filters):
        dropped = alive & failing
        if count := int(dropped.sum()):
            report.dropped[reason] += count
            alive &= ~failing
    for name, column, _, _ in _quality_filters(filters):
        kept_without[name] += int((alive & matches(text_column(columns, column), "^$")).sum())
    return columns.filter(pa.array(alive))


def _checks(columns: pa.Table, filters: PuzzleFilters) -> Iterator[tuple[str, np.ndarray]]:
    """(reason, rows that it applies to), each (N,) bool, in the order in which they are looked at."""
    yield "no_id", matches(columns["PuzzleId"], "^$")
    rating_text, moves = columns["Rating"], columns["Moves"]
    yield "bad_rating", ~matches(rating_text, "^[0-9]{1,4}$")
    yield "bad_fen", ~matches(columns["FEN"], _FEN)
    yield "bad_moves", ~matches(moves, _MOVES)
    count = count_moves(moves)
    yield "odd_number_of_moves", count % 2 == 1
    yield "line_too_long", count > filters.max_line_moves
    rating = integers(rating_text)
    yield "rating_too_low", rating < filters.min_rating
    yield "rating_too_high", rating > filters.max_rating
    for name, column, low, high in _quality_filters(filters):
        text = text_column(columns, column)
        empty = matches(text, "^$")
        yield f"bad_{name}", ~empty & ~matches(text, _INTEGER)
        if filters.missing == "drop":
            yield f"no_{name}", empty
        value = integers(text)
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


def text_column(columns: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or empty strings where the file has none."""
    if name in columns.column_names:
        return columns[name]
    return pa.chunked_array([pa.array([""] * len(columns), pa.string())])


def matches(text: pa.ChunkedArray, pattern: str) -> np.ndarray:
    return pc.match_substring_regex(text, pattern).to_numpy()


def integers(text: pa.ChunkedArray) -> np.ndarray:
    """Values of a column; 0 where there is no integer."""
    return pc.if_else(pc.match_substring_regex(text, _INTEGER), text, "0").cast(pa.int32()).to_numpy()


def count_moves(moves: pa.ChunkedArray) -> np.ndarray:
    return pc.add(pc.count_substring(moves, " "), 1).to_numpy()


def _of_codes(codes: np.ndarray, values: Sequence[bool]) -> np.ndarray:
    return np.array(values, bool)[codes]
