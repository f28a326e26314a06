"""Rows of a Lichess table: what is kept, what is left out and by which count."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from chessrl.errors import UserError
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import PuzzleRows, puzzle_of_row, read_lichess_csv, read_rows
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport, zstd
from tests.lichess_rows import FEN, HEADER, MOVES, row, write


def screened(folder: Path, *rows: str, header: str = HEADER, **filters) -> tuple[PuzzleRows, ReadReport]:
    report = ReadReport()
    found = read_rows([write(folder / "puzzles.csv", *rows, header=header)], PuzzleFilters(**filters), 0, report)
    assert report.read == report.kept + sum(report.dropped.values()) and report.kept == len(found)
    return found, report


def replayed(folder: Path, *rows: str, header: str = HEADER) -> tuple[list[Puzzle], ReadReport]:
    report = ReadReport()
    found = read_lichess_csv(write(folder / "puzzles.csv", *rows, header=header), PuzzleFilters(), report)
    assert report.read == report.kept + sum(report.dropped.values()) and report.kept == len(found)
    return found, report


def ids(rows: PuzzleRows) -> list[str]:
    return rows.table["id"].to_pylist()


def test_ids_that_look_like_numbers_stay_text_and_ratings_stay_whole(tmp_path):
    found, report = replayed(tmp_path, row("00008"), row("1e100", rating=""), row("NA"), row("null"), row("1e200"))
    assert [one.id for one in found] == ["00008", "NA", "null", "1e200"]
    assert all(one.difficulty == 1500 and isinstance(one.difficulty, int) for one in found)
    assert report.dropped == {"bad_rating": 1}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(rating="15.5"), "bad_rating"),
        (row(rating="-5"), "bad_rating"),
        (row(rating="１500"), "bad_rating"),  # a wide digit, which int() would read
        (row(rating="99999999999999999999"), "bad_rating"),
        (row(""), "no_id"),
        (row(fen="6k1/5ppp/8/8/8/8/5PPP b - - 0 1"), "bad_fen"),
        (row(fen="6k1/5ppp/8/8/8/8/5PPP/R5K1"), "bad_fen"),
        (row(fen=""), "bad_fen"),
        (row(moves="h7h6 Ra8"), "bad_moves"),
        (row(moves="h7h6 0000"), "bad_moves"),
        (row(moves=""), "bad_moves"),
        (row(moves="h7h6 a1a8 g8h7"), "odd_number_of_moves"),
        (row(moves=" ".join(["h7h6"] * 14)), "line_too_long"),
        ("00008,too,few", "wrong_number_of_fields"),
        (row() + ",", "wrong_number_of_fields"),
        ('"' + row("q"), "not_csv"),  # a quote that never closes takes no other row with it
        (row("q").replace("q,", "q\r,"), "not_csv"),
    ],
)
def test_bad_row_is_counted_by_reason_and_takes_no_other_with_it(tmp_path, bad, reason):
    found, report = screened(tmp_path, row("aaaaa"), bad, "", row("bbbbb"))
    assert ids(found) == ["aaaaa", "bbbbb"] and report.dropped == {reason: 1} and report.read == 3


def test_bytes_that_are_not_utf8_cost_their_row_alone(tmp_path):
    path = tmp_path / "puzzles.csv"
    lines = [HEADER.encode(), row("a").encode(), row("b").encode().replace(b"short", b"sh\xffrt"), b'"\xff' + row("c").encode(), row("d").encode()]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    report = ReadReport()
    assert ids(read_rows([path], PuzzleFilters(), 0, report)) == ["a", "d"]
    assert report.dropped == {"not_utf8": 2} and report.read == 4


def test_quoted_fields_are_read(tmp_path):
    found, report = screened(tmp_path, '"x,1",' + row().split(",", 1)[1], row("y"))
    assert sorted(ids(found)) == ["x,1", "y"] and not report.dropped


def test_replay_finds_illegal_lines_and_positions(tmp_path):
    rows = (row("a"), row("b", moves="h7h6 a1b8"), row("c", fen="8/5ppp/8/8/8/8/5PPP/R5K1 b - - 0 1"), row("d", fen="9/8/8/8/8/8/8/8 b - - 0 1"))
    assert len(screened(tmp_path, *rows)[0]) == 3
    found, report = replayed(tmp_path, *rows)
    assert [one.id for one in found] == ["a"] and report.dropped == {"illegal_move": 1, "bad_fen": 2}


def test_fields_of_a_row_reach_the_puzzle(tmp_path):
    (one,), _ = replayed(tmp_path, row(url="https://lichess.org/787zsVup/black#48") + ",2023.01.31", header=HEADER + ",UTCDate")
    assert (one.id, one.fen, one.moves, one.difficulty, one.bin) == ("00008", FEN, tuple(MOVES.split()), 1500, "B2")
    assert (one.lead, one.game, one.themes, one.date) == (1, "787zsVup", ("endgame", "short"), 20230131)


def test_missing_columns_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="Rating, Themes"):
        screened(tmp_path, "a,b,c", header="PuzzleId,FEN,Moves")
    with pytest.raises(UserError, match="names a column twice"):
        screened(tmp_path, row(), header=HEADER.replace("NbPlays", "Themes"))
    (tmp_path / "games.pgn").write_text("")
    (tmp_path / "empty.csv").write_text("")
    for path in (tmp_path / "games.pgn", tmp_path / "none.csv", tmp_path / "empty.csv"):
        with pytest.raises(UserError, match=r"database\.lichess\.org.*world\.puzzles"):
            read_rows([path], PuzzleFilters(), 0, ReadReport())


def test_truncated_zst_table_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "puzzles.csv.zst"
    path.write_bytes(zstd.compress("\n".join((HEADER, *(row(str(number)) for number in range(500)))).encode())[:-40])
    with pytest.raises(UserError, match=r"at byte [\d,]+ of"):
        read_rows([path], PuzzleFilters(), 0, ReadReport())


def test_a_table_without_rows_is_empty(tmp_path):
    found, report = screened(tmp_path)
    assert len(found) == 0 and report.read == 0


# ---- filters ----------------------------------------------------------------------------------------------------------------------------

ASKED = {"max_deviation": 80, "min_popularity": 0, "min_plays": 10}


def test_an_empty_field_that_a_filter_asks_for_drops_the_row_or_is_counted_apart(tmp_path):
    rows = (row("full"), row("none", deviation="", popularity="", plays=""), row("odd", plays="many"), row("high", deviation="81"))
    found, report = screened(tmp_path, *rows, **ASKED)
    assert ids(found) == ["full"] and report.dropped == {"no_deviation": 1, "bad_plays": 1, "deviation_too_high": 1}
    found, report = screened(tmp_path, *rows, **ASKED, missing="keep")
    assert ids(found) == ["full", "none"] and found.kept_without == {"deviation": 1, "popularity": 1, "plays": 1}
    found, report = screened(tmp_path, *rows)
    assert len(found) == 4 and not found.kept_without, "no filter asks for these fields"
    with pytest.raises(UserError, match="missing=maybe: expected one of keep, drop"):
        PuzzleFilters(missing="maybe")


def test_a_filter_whose_column_the_file_lacks_finds_every_field_empty(tmp_path):
    header = "PuzzleId,FEN,Moves,Rating,Themes"
    _, report = screened(tmp_path, f"a,{FEN},{MOVES},1500,x", header=header, min_plays=1)
    assert report.dropped == {"no_plays": 1}


def test_screening_agrees_with_a_loop_over_the_rows(tmp_path):
    """Every filter at once on 3,000 rows with faults of every kind, against a plain reading of what the filters mean."""
    draw = random.Random(5)
    kinds = ("mate short", "fork", "", "pin mate", "opening")
    rows = []
    for number in range(3000):
        fields = {
            "rating": draw.choice(["", "x", *map(str, range(300, 3000, 100))]),
            "deviation": draw.choice(["", "70", "80", "81", "1e2"]),
            "popularity": draw.choice(["", "-100", "-1", "0", "1", "100"]),
            "plays": draw.choice(["", "9", "10", "11"]),
            "themes": draw.choice(kinds),
            "moves": " ".join(["a2a3"] * draw.choice([1, 2, 2, 2, 4, 4, 12, 13, 14])),
        }
        rows.append((f"i{number}", fields))
    bad = {f"i{number}" for number in range(0, 3000, 7)}

    def reason(identifier: str, fields: dict[str, str]) -> str:
        moves = len(fields["moves"].split())
        themes = set(fields["themes"].split())
        if not fields["rating"].isdigit():
            return "bad_rating"
        if moves % 2 or moves > 12:
            return "odd_number_of_moves" if moves % 2 else "line_too_long"
        if not 600 <= int(fields["rating"]) <= 2400:
            return "rating_too_low" if int(fields["rating"]) < 600 else "rating_too_high"
        for name, low, high in (("deviation", 0, 80), ("popularity", 0, 1000), ("plays", 10, 1000)):
            if not fields[name]:
                return f"no_{name}"
            if not fields[name].lstrip("-").isdigit():
                return f"bad_{name}"
            if not low <= int(fields[name]) <= high:
                return f"{name}_too_low" if int(fields[name]) < low else f"{name}_too_high"
        if not themes & {"mate", "fork"}:
            return "theme_not_wanted"
        if themes & {"pin"}:
            return "theme_excluded"
        return "known_bad" if identifier in bad else ""

    expected = {identifier: reason(identifier, fields) for identifier, fields in rows}
    found, report = screened(
        tmp_path,
        *(row(identifier, **fields) for identifier, fields in rows),
        min_rating=600, max_rating=2400, **ASKED, themes=("mate", "fork"), exclude_themes=("pin",), bad_ids=frozenset(bad),
    )  # fmt: skip
    counts = Counter(expected.values())
    assert len(found) == counts.pop("") > 20 and report.dropped == counts
    assert ids(found) == [identifier for identifier, why in expected.items() if not why]


# ---- several files ----------------------------------------------------------------------------------------------------------------------


def test_of_rows_with_one_id_the_first_stays_with_what_later_ones_know(tmp_path):
    header = f"{HEADER},PGN,UTCDate"
    first = write(tmp_path / "a.csv", row("x", rating="1500"), row("y"))
    second = write(tmp_path / "b.csv", f"{row('x', rating='900')},1. e4,2023.01.31", f"{row('x')},1. d4,2024.01.31", f"{row('z')},,", header=header)
    report = ReadReport()
    found = read_rows([first, second], PuzzleFilters(), 0, report)
    assert ids(found) == ["x", "y", "z"] and found.ratings.tolist() == [1500] * 3
    assert found.movetexts == {"x": "1. e4"} and found.dates.tolist() == [20230131, 0, 0]
    assert report.dropped == {"duplicate_id": 2} and [record["name"] for record in report.files] == ["a.csv", "b.csv"]


def test_a_row_takes_the_date_of_a_later_one_that_ends_the_table(tmp_path):
    header = f"{HEADER},UTCDate"
    table = write(tmp_path / "a.csv", f"{row('x')},", f"{row('y')},", f"{row('x')},2023.01.31", header=header)
    found = read_rows([table], PuzzleFilters(), 0, ReadReport())
    assert ids(found) == ["x", "y"] and found.dates.tolist() == [20230131, 0]


def test_batches_join_into_one_table(tmp_path, monkeypatch):
    rows = [row(f"p{number}", themes=("a b", "c", "")[number % 3], rating=str(1000 + number)) for number in range(50)]
    whole, _ = screened(tmp_path, *rows)
    monkeypatch.setattr("chessrl.puzzle_rows._LINES_PER_BATCH", 7)
    parts, _ = screened(tmp_path, *rows)
    assert ids(parts) == ids(whole) and parts.ratings.tolist() == whole.ratings.tolist() == list(range(1000, 1050))
    themes = [[found.theme_sets[code] for code in found.theme_codes] for found in (whole, parts)]
    assert themes[0] == themes[1] == [(("a", "b"), ("c",), ())[number % 3] for number in range(50)]


def test_no_damage_to_the_bytes_stops_the_reading_or_the_count(tmp_path):
    """Rows with random bytes put in, taken out or changed: every line is read and counted, and what is kept can be looked at."""
    draw = random.Random(1)
    path = tmp_path / "puzzles.csv"
    for _ in range(60):
        lines = [bytearray(row(f"p{number}", url="https://lichess.org/787zsVup#4").encode()) for number in range(20)]
        for line in lines:
            for _ in range(draw.choice([0, 0, 1, 3])):
                place, byte = draw.randrange(len(line)), draw.choice([*b'",\r\0 \xff\xc3-/1aZ', draw.randrange(256)])
                if byte == ord("\n"):
                    continue
                line[place : place + draw.choice([0, 1, 1, 9])] = bytes([byte])
        path.write_bytes(HEADER.encode() + b"\n" + b"\n".join(lines) + b"\n")
        report = ReadReport()
        found = read_rows([path], PuzzleFilters(), 0, report)
        assert report.read == 20 == report.kept + sum(report.dropped.values()) and report.kept == len(found)
        assert all(isinstance(puzzle_of_row(found, number), Puzzle | str) for number in range(len(found)))
