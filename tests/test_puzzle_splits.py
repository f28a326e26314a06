"""The draw of splits: mixes, balance over themes and lengths, disjointness, accounts, mirrored puzzles."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import chess
import numpy as np
import pytest

from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import PuzzleRows, puzzle_of_row, read_rows
from chessrl.puzzle_splits import NO_POOL, Registry, draw_splits, even_quotas, mirror_all, mirrored, quotas
from chessrl.puzzles import BINS, Puzzle, rating_bin, solver_position_keys
from chessrl.sources import ReadReport
from tests.lichess_rows import FEN, MOVES, rook_rows, row, write

RATING_OF_BIN = {"B0": 700, "B1": 1000, "B2": 1400, "B3": 1800, "B4": 2200, "B5": 2600}


def rows_of(folder, lines: list[str], seed: int = 0) -> PuzzleRows:
    return read_rows([write(folder / "puzzles.csv", *lines)], PuzzleFilters(), seed, ReadReport())


def draw(rows: PuzzleRows, wanted: dict[str, dict[str, int]], pools: np.ndarray | None = None) -> tuple[list[Puzzle], ReadReport]:
    report = ReadReport()
    pools = np.zeros(len(rows), np.int8) if pools is None else pools
    chosen = draw_splits(rows, pools, wanted, lambda number: puzzle_of_row(rows, number), Registry(), report)
    assert report.read == len(rows) == report.kept + sum(report.dropped.values()) and report.kept == len(chosen)
    return chosen, report


# ---- sizes ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "weights", "expected"),
    [
        (10, {"B1": 1, "B2": 1}, [5, 5]),
        (11, {"B1": 1, "B2": 1}, [6, 5]),
        (100, {"B1": 35, "B2": 35, "B3": 10, "B4": 10, "B5": 10}, [35, 35, 10, 10, 10]),
        (1480, {"B1": 308, "B2": 298, "B3": 267, "B4": 287, "B5": 320}, [308, 298, 267, 287, 320]),  # the test set of Shen et al.
        (1, {"B1": 1, "B2": 3}, [0, 1]),
        (0, {"B1": 1}, [0]),
    ],
)
def test_a_mix_becomes_counts_that_add_up(size, weights, expected):
    assert list(quotas(size, weights).values()) == expected and sum(expected) == size


def test_a_slice_is_as_even_as_what_there_is_allows():
    assert even_quotas(60, dict.fromkeys(BINS, 100)) == dict.fromkeys(BINS, 10)
    assert even_quotas(60, {"B0": 2, "B3": 100, "B5": 8}) == {"B0": 2, "B3": 50, "B5": 8}
    assert even_quotas(60, {"B4": 7}) == {"B4": 7}
    assert even_quotas(5, dict.fromkeys(BINS, 100)) == dict.fromkeys(BINS[:5], 1)
    for size in range(40):
        given = {"B0": 3, "B1": 0, "B2": 11, "B5": 9}
        counts = even_quotas(size, given)
        assert sum(counts.values()) == min(size, 23) and all(count <= given[name] for name, count in counts.items())
        full = [counts.get(name, 0) for name in given if counts.get(name, 0) < given[name]]
        assert not full or max(full) - min(full) <= 1


def test_every_split_gets_its_mix(tmp_path):
    rows = rows_of(tmp_path, rook_rows(600, rating=lambda number: str(RATING_OF_BIN[BINS[number % 6]])))
    wanted = {"sft": {"B1": 30, "B2": 30}, "rl": {"B0": 10, "B1": 35, "B5": 1}, "test": dict.fromkeys(BINS, 10)}
    chosen, _ = draw(rows, wanted)
    counts = Counter((one.split, one.bin) for one in chosen)
    assert counts == {(split, name): count for split, by_bin in wanted.items() for name, count in by_bin.items()}
    assert [one.split for one in chosen] == ["sft"] * 60 + ["rl"] * 46 + ["test"] * 60
    assert all(rating_bin(one.difficulty) == one.bin for one in chosen)


def test_where_puzzles_run_out_a_split_stays_smaller_and_no_other_bin_fills_it(tmp_path):
    rows = rows_of(tmp_path, rook_rows(20, rating=lambda number: "1000" if number < 5 else "1400"))
    chosen, report = draw(rows, {"sft": {"B1": 8, "B2": 4}, "test": {"B1": 8}})
    counts = Counter((one.split, one.bin) for one in chosen)
    assert counts["sft", "B1"] + counts["test", "B1"] == 5 and counts["sft", "B2"] == 4 and abs(counts["sft", "B1"] - counts["test", "B1"]) == 1
    assert report.dropped == {"not_drawn": 11}


# ---- balance ----------------------------------------------------------------------------------------------------------------------------


def theme_of(number: int) -> str:
    return ("mate", "mate fork", "mate pin", "mate", "rare pin" if number % 60 == 0 else "mate", "")[number % 6]


def slow_draw(rows: PuzzleRows, sizes: dict[str, int]) -> dict[str, list[int]]:
    """The sampler by its definition: every step looks at all rows left. Ties of themes go by name, of lengths to the shorter."""
    left = sorted(range(len(rows)), key=lambda number: int(rows.places[number]))
    themes_of = {number: set(rows.theme_sets[rows.theme_codes[number]]) or {""} for number in left}
    chosen: dict[str, list[int]] = {split: [] for split in sizes}
    while left and any(len(chosen[split]) < size for split, size in sizes.items()):
        split = min((one for one in sizes if len(chosen[one]) < sizes[one]), key=lambda one: ((len(chosen[one]) + 1) / sizes[one], one))
        themes = Counter(theme for number in chosen[split] for theme in themes_of[number])
        lengths = Counter(int(rows.line_moves[number]) for number in chosen[split])
        theme = min({theme for number in left for theme in themes_of[number]}, key=lambda one: (themes[one], one))
        with_theme = [number for number in left if theme in themes_of[number]]
        length = min({int(rows.line_moves[number]) for number in with_theme}, key=lambda one: (lengths[one], one))
        found = next(number for number in with_theme if rows.line_moves[number] == length)
        chosen[split].append(found)
        left.remove(found)
    return chosen


@pytest.mark.parametrize("sizes", [{"sft": 60, "test": 30}, {"rl": 40}, {"sft": 90, "rl": 45, "private": 7}, {"rl": 500, "test": 100}])
def test_the_draw_is_the_greedy_sampler(tmp_path, sizes):
    lines = rook_rows(300, themes=theme_of)
    rows = rows_of(tmp_path, lines)
    rows.line_moves = np.array([(2, 4, 4, 4, 6)[number % 5] for number in range(len(rows))], np.int32)
    by_id = dict(zip(rows.table["id"].to_pylist(), range(len(rows))))

    def puzzle_of(number: int) -> Puzzle | str:  # a line of the length that the row is said to have
        puzzle = puzzle_of_row(rows, number)
        assert isinstance(puzzle, Puzzle)
        return replace(puzzle, moves=puzzle.moves + puzzle.moves[1:] * (int(rows.line_moves[number]) - 2))

    class Anything(Registry):
        def claim(self, puzzle, split):
            return None

    wanted = {name: {"B2": size} for name, size in sizes.items()}
    chosen = draw_splits(rows, np.zeros(len(rows), np.int8), wanted, puzzle_of, Anything(), ReadReport())
    found = defaultdict(set)
    for one in chosen:
        found[one.split].add(by_id[one.id])
    assert found == {split: set(numbers) for split, numbers in slow_draw(rows, sizes).items()}


def test_a_rare_theme_is_shared_among_the_splits(tmp_path):
    rows = rows_of(tmp_path, rook_rows(400, themes=lambda number: "rare" if number % 40 == 0 else "mate"))
    chosen, _ = draw(rows, {"sft": {"B2": 60}, "test": {"B2": 40}})
    counts = Counter(one.split for one in chosen if one.themes == ("rare",))
    assert counts == {"sft": 6, "test": 4}  # all ten are drawn, in proportion to the sizes


def test_the_first_puzzles_of_a_split_are_of_every_bin(tmp_path):
    rows = rows_of(tmp_path, rook_rows(600, rating=lambda number: str(RATING_OF_BIN[BINS[number % 6]])))
    chosen, _ = draw(rows, {"test": dict.fromkeys(BINS, 50)})
    counts = Counter(one.bin for one in chosen[:60])
    assert min(counts[name] for name in BINS) >= 2, "a prefix, as evaluate.max_puzzles takes it, must be a fair sample"


def test_draw_depends_on_seed_and_ids_but_not_on_order(tmp_path):
    lines = rook_rows(200, themes=theme_of)

    def drawn(lines, seed):
        return [one for one in draw(rows_of(tmp_path, lines, seed), {"sft": {"B2": 30}, "test": {"B2": 20}})[0]]

    first = drawn(lines, 0)
    assert first == drawn(lines, 0) == drawn(lines[::-1], 0)
    assert {one.id for one in first} != {one.id for one in drawn(lines, 1)}


# ---- disjointness -----------------------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_by_position_and_by_game(tmp_path):
    rows = rows_of(tmp_path, rook_rows(600, url=lambda number: f"https://lichess.org/game{number % 150:04d}"))
    chosen, report = draw(rows, {"sft": {"B2": 100}, "rl": {"B2": 100}, "test": {"B2": 100}})
    assert Counter(one.split for one in chosen) == {"sft": 100, "rl": 100, "test": 100}
    owner: dict = {}
    for one in chosen:
        for link in (*solver_position_keys(one), one.game):
            assert owner.setdefault(link, one.split) == one.split
    assert report.dropped["shares_a_position_or_game_with_another_split"] > 0
    assert len({one.game for one in chosen}) < len(chosen), "a split may hold several puzzles of a game"


@pytest.mark.parametrize("games", [("", ""), ("https://lichess.org/aaaaaaaa", "https://lichess.org/bbbbbbbb")])
def test_a_line_that_runs_through_another_puzzles_position_never_goes_to_another_split(tmp_path, games):
    board = chess.Board(FEN)
    for move in MOVES.split()[:2]:
        board.push_uci(move)
    lines = [row("long", url=games[0]), row("tail", fen=board.fen(), moves="g8h7 a8a7", url=games[1]), *rook_rows(6)]
    together = 0
    for seed in range(12):
        chosen, _ = draw(rows_of(tmp_path, lines, seed), {"sft": {"B2": 4}, "test": {"B2": 4}})
        splits = {one.id: one.split for one in chosen if one.id in ("long", "tail")}
        assert len(set(splits.values())) <= 1
        together += len(splits) == 2
    assert together, "in one split they may be together"


def test_a_position_is_asked_once(tmp_path):
    lines = rook_rows(20)
    again = lines[0].replace("p0000", "again").replace(" b - - 0 1", " b - - 7 31")  # counters are no part of a position
    chosen, report = draw(rows_of(tmp_path, [*lines, again]), {"test": {"B2": 30}})
    assert report.dropped == {"duplicate_position": 1} and len(chosen) == 20


def test_a_row_that_cannot_be_played_is_counted_and_replaced(tmp_path):
    lines = [*rook_rows(20), row("bad", moves="h7h6 a1b8")]
    chosen, report = draw(rows_of(tmp_path, lines), {"test": {"B2": 20}})
    assert len(chosen) == 20 and report.dropped["illegal_move"] + report.dropped["not_drawn"] == 1


# ---- pools ------------------------------------------------------------------------------------------------------------------------------


def test_a_slice_draws_from_its_pool_and_no_other_split_does(tmp_path):
    rows = rows_of(tmp_path, rook_rows(100))
    pools = (np.arange(100) % 5 - 1).astype(np.int8)  # NO_POOL, ordinary, held_out_theme, long_line, recent
    pool_of = dict(zip(rows.table["id"].to_pylist(), pools.tolist()))
    chosen, report = draw(rows, {"sft": {"B2": 15}, "test": {"B2": 15}, "test_themes": {"B2": 8}, "test_recent": {"B2": 20}}, pools)
    assert Counter((one.split, pool_of[one.id]) for one in chosen if one.split.startswith("test_")) == {("test_themes", 1): 8, ("test_recent", 3): 20}
    assert {pool_of[one.id] for one in chosen if one.split in ("sft", "test")} == {0}
    assert report.dropped == {"without_history": 20, "held_out_theme_not_drawn": 12, "long_line_not_drawn": 20} and NO_POOL == -1


# ---- mirrored ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fen", "moves", "expected"),
    [
        (FEN, MOVES, "h2h3 a8a1 g1h2 a1a2"),
        ("r3k2r/8/8/8/8/8/7P/R3K2R b KQkq - 0 1", "e8c8 e1g1", "e1c1 e8g8"),
        ("4k3/8/8/8/3p4/8/4P2P/4K3 w - - 0 1", "e2e4 d4e3", "e7e5 d5e6"),  # en passant
        ("4k3/7p/8/8/8/8/6p1/R3K2N b - - 0 1", "g2h1n a1a8", "g7h8n a8a1"),
    ],
)
def test_a_mirrored_puzzle_is_the_same_with_colours_exchanged(fen, moves, expected):
    puzzle = Puzzle("x", fen, tuple(moves.split()), 1, 1500, "B2", ("mate",), "test", ("e2e4",), "abcdefgh", 20230131)
    twin = mirrored(puzzle)
    assert twin.moves == tuple(expected.split())
    board, other = chess.Board(fen), chess.Board(twin.fen)
    for move, mirror_move in zip((*puzzle.moves, None), (*twin.moves, None)):
        assert other.is_valid() and other.turn != board.turn and other.castling_rights == chess.flip_vertical(board.castling_rights)
        assert {chess.square_mirror(square): (piece.piece_type, not piece.color) for square, piece in board.piece_map().items()} == {
            square: (piece.piece_type, piece.color) for square, piece in other.piece_map().items()
        }
        if move:
            assert {chess.square_mirror(one.to_square) for one in board.legal_moves} == {one.to_square for one in other.legal_moves}
            board.push_uci(move)
            other.push_uci(mirror_move)
    assert (twin.id, twin.split, twin.bin, twin.difficulty, twin.themes) == ("x-mirrored", "test_mirrored", "B2", 1500, ("mate",))
    assert (twin.history, twin.game, twin.date) == ((), "", 0)
    assert mirrored(twin).fen == fen and mirrored(twin).moves == puzzle.moves


def test_a_mirrored_position_that_a_split_holds_is_left_out():
    puzzle = Puzzle("x", FEN, tuple(MOVES.split()), 1, 1500, "B2", split="test")
    registry, report = Registry(), ReadReport()
    assert registry.claim(replace(mirrored(puzzle), split="sft"), "sft") is None
    other = replace(puzzle, id="y", fen="6k1/5ppp/8/8/8/8/5PP1/R5K1 b - - 0 1")
    assert [one.id for one in mirror_all([puzzle, other], registry, report)] == ["y-mirrored"]
    assert report.read == 2 and report.kept == 1 and sum(report.dropped.values()) == 1
