"""Tables and figures of a corpus, puzzles or games.

Examples:
    python -m chessrl.describe data=data/games
    python -m chessrl.describe data=data/games puzzles=data/puzzles/puzzles.parquet out=outputs/data
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from chessrl.command import parse_settings, run_command
from chessrl.corpus import MANIFEST
from chessrl.describe_corpus import corpus_sections
from chessrl.describe_figures import Section
from chessrl.describe_games import account_table, pgn_sections
from chessrl.describe_puzzles import puzzle_sections
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import save_figure
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import read_lichess_csv
from chessrl.puzzles import Puzzle, load_puzzles
from chessrl.sources import ReadReport

PUZZLE_TABLE = "puzzles.parquet"
_SHOWN_ROWS = 60  # of a table on the terminal; its file has all
_LONGEST_LINE = 1 << 16  # moves: a description leaves no puzzle out for its length


@dataclass(frozen=True, slots=True)
class DescribeSettings:
    """Keys of ``python -m chessrl.describe``."""

    data: str  # a corpus or puzzle folder, a puzzle table (.parquet), a Lichess puzzle file (.csv, .csv.zst) or games (.pgn, .pgn.zst)
    out: str = ""  # folder for NAME.csv of every table and NAME.png and .pdf of every figure; empty: tables on the terminal only
    puzzles: str = ""  # a puzzle table or file: how much of it the data gives away
    sample: int = 2000  # games, or puzzles, of each split that are replayed for phases and prompt lengths

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UserError(f"sample={self.sample}: expected at least 1")


def describe(settings: DescribeSettings) -> list[Section]:
    """The sections for the kind of data there is. Raises UserError for data of no such kind, and what the readers raise."""
    path = Path(settings.data)
    others = _read_puzzles(Path(settings.puzzles), "puzzles", ReadReport()) if settings.puzzles else []
    if (path / MANIFEST).is_file():
        return corpus_sections(path, settings.sample, others)
    if path.is_file() and path.name.lower().endswith((".pgn", ".pgn.zst")):
        return pgn_sections(path, settings.sample, others)
    report = ReadReport()
    puzzles = _read_puzzles(path, "data", report)
    if not puzzles:
        raise UserError(f"{path}: holds no puzzle ({report.summary()}); give another table")
    account = [Section("account", "records read, kept and left out by reason", account_table({"reading": report.as_dict()}))] if report.read else []
    return account + puzzle_sections(puzzles, settings.sample, others)


def _read_puzzles(path: Path, key: str, report: ReadReport) -> list[Puzzle]:
    """Puzzles of a table, of a folder with one, or of a Lichess file."""
    if (path / PUZZLE_TABLE).is_file():
        path = path / PUZZLE_TABLE
    if path.is_file() and path.suffix == ".parquet":
        return load_puzzles(path)
    if path.is_file() and path.name.lower().endswith((".csv", ".csv.zst")):
        return read_lichess_csv(path, PuzzleFilters(max_line_moves=_LONGEST_LINE), report)
    what = "a corpus folder, games (.pgn, .pgn.zst), " if key == "data" else ""
    raise UserError(f"{key}={path}: expected {what}a puzzle table (.parquet), a folder with {PUZZLE_TABLE}, or a Lichess file (.csv, .csv.zst)")


def write(sections: Sequence[Section], out: Path) -> None:
    """One CSV file per table and one PNG and PDF file per figure."""
    make_folder(out, "out")
    for section in sections:
        section.table.to_csv(out / f"{section.name}.csv", index=False)
        if section.draw is not None and len(section.table):
            save_figure(section.draw(section.table), out, section.name)


def terminal_text(section: Section) -> str:
    """A section for reading: its title, and its table with shares in percent."""
    table = _with_a_column_per_split(section.table) if {"split", "count", "share"} <= {*section.table.columns} else section.table
    shown = table.head(_SHOWN_ROWS)
    formatters = {name: "{:,}".format for name in shown.columns if pd.api.types.is_integer_dtype(shown[name])}
    formatters |= {"share": "{:.1%}".format}
    text = shown.to_string(index=False, formatters=formatters) if len(shown) else "nothing"
    more = f"\n... {len(table) - len(shown):,} rows more in its file" if len(table) > len(shown) else ""
    return f"{section.name}: {section.title}\n{text}{more}\n"


def _with_a_column_per_split(table: pd.DataFrame) -> pd.DataFrame:
    """The same numbers with a row per category, in the table's order."""
    keys = [name for name in table.columns if name not in ("split", "count", "share")]
    wide = table[keys].drop_duplicates().reset_index(drop=True)
    for split in dict.fromkeys(table["split"]):
        rows = table[table["split"] == split]
        cells = rows[keys].assign(**{split: [f"{count:,} ({share:.1%})" for count, share in zip(rows["count"], rows["share"])]})
        wide = wide.merge(cells, on=keys, how="left")
    return wide


def main(arguments: list[str]) -> None:
    """Print the description, and write it where asked to."""
    settings = parse_settings(DescribeSettings, arguments)
    sections = describe(settings)
    for section in sections:
        print(terminal_text(section))
    if settings.out:
        write(sections, Path(settings.out))
        print(f"tables and figures are in {settings.out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
