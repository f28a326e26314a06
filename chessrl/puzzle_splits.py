"""The draw of splits from puzzle rows: balanced over themes and line lengths, with the wanted mix of ratings, sharing neither position nor game."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import chess
import numpy as np
from tqdm import tqdm

from chessrl.config import SLICES, SPLITS
from chessrl.puzzle_rows import PuzzleRows
from chessrl.puzzles import BINS, Puzzle, rating_bin, solver_position_keys
from chessrl.sources import ReadReport

# A row belongs to one pool; each pool serves splits of its own, so that what a slice holds out no other split has.
POOLS = ("ordinary", "held_out_theme", "long_line", "recent")
NO_POOL = -1  # without the moves that lead to it, where they are asked for
POOL_OF_SLICE = {"test_themes": "held_out_theme", "test_long": "long_line", "test_recent": "recent"}


def quotas(size: int, weights: Mapping[str, float]) -> dict[str, int]:
    """``size`` puzzles over the bins of ``weights`` in proportion, by largest remainders (ties: the first bin)."""
    total = sum(weights.values())
    exact = {name: size * weight / total for name, weight in weights.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: size - sum(counts.values())]:
        counts[name] += 1
    return counts


def even_quotas(size: int, available: Mapping[str, int]) -> dict[str, int]:
    """``size`` puzzles over the bins as evenly as what is ``available`` allows: the mix of a slice, whose bins are what they are.

    Bins may be any strata; those first by name get what cannot be divided.
    """
    counts = dict.fromkeys(sorted(available), 0)
    left = min(size, sum(available.values()))
    while left:
        open_bins = [name for name in counts if counts[name] < available[name]]
        share = max(1, left // len(open_bins))
        for name in open_bins:
            more = min(share, available[name] - counts[name], left)
            counts[name] += more
            left -= more
    return {name: count for name, count in counts.items() if count}


# ---- the draw ---------------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Registry:
    """Which split owns a solver's position (placement and side to move) or a source game."""

    asked: set[int] = field(default_factory=set)  # positions in which a drawn puzzle is asked
    owners: dict[int | str, str] = field(default_factory=dict)

    def claim(self, puzzle: Puzzle, split: str) -> str | None:
        """Enter the puzzle, or say why it cannot belong to ``split``."""
        keys = solver_position_keys(puzzle)
        if keys[0] in self.asked:
            return "duplicate_position"
        links: list[int | str] = [*keys, puzzle.game] if puzzle.game else list(keys)
        owners = {self.owners.get(link, split) for link in links}
        if owners != {split}:
            return "shares_a_position_or_game_with_another_split"
        self.asked.add(keys[0])
        self.owners.update(dict.fromkeys(links, split))
        return None


@dataclass(slots=True)
class _Counts:
    """What a split holds in one bin, by theme and by line length in moves."""

    themes: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)


class _Candidates:
    """The rows of one pool and bin, by theme and line length, each in the order of the draw."""

    def __init__(self, rows: PuzzleRows, chosen: np.ndarray):
        ordered = chosen[np.lexsort((rows.places[chosen], rows.line_moves[chosen]))]
        codes, lengths = rows.theme_codes[ordered], rows.line_moves[ordered]  # lengths ascend
        sets_of_theme: dict[str, list[int]] = defaultdict(list)
        for code in np.unique(codes).tolist():
            for theme in set(rows.theme_sets[code]) or {""}:  # rows without a theme are a theme of their own
                sets_of_theme[theme].append(code)
        self._queues: dict[str, dict[int, Iterator[np.int64]]] = {}
        member = np.zeros(len(rows.theme_sets), bool)
        for theme, codes_of_theme in sets_of_theme.items():
            member[:] = False
            member[codes_of_theme] = True
            places = np.flatnonzero(member[codes])
            found, starts = np.unique(lengths[places], return_index=True)
            self._queues[theme] = {length: iter(part) for length, part in zip(found.tolist(), np.split(ordered[places], starts[1:]))}
        self._taken: set[int] = set()

    def next(self, counts: _Counts) -> int | None:
        """The next row, looked at once: of the theme that ``counts`` has least of, and of that the line length it has least of."""
        while self._queues:
            theme = min(self._queues, key=lambda name: (counts.themes[name], name))
            queues = self._queues[theme]
            while queues:
                length = min(queues, key=lambda moves: (counts.lengths[moves], moves))
                for row in queues[length]:
                    if row not in self._taken:
                        self._taken.add(int(row))
                        return int(row)
                del queues[length]
            del self._queues[theme]
        return None


def draw_splits(
    rows: PuzzleRows,
    pools: np.ndarray,
    wanted: Mapping[str, Mapping[str, int]],
    puzzle_of: Callable[[int], Puzzle | str],
    registry: Registry,
    report: ReadReport,
) -> list[Puzzle]:
    """Draw puzzles by ``wanted`` (split -> bin -> puzzles), each with its ``split`` set; by split, then in the order of a hash of (seed, id).

    ``pools`` (N,) numbers each row's pool (POOLS, or NO_POOL); a slice draws from its own, the other splits from the ordinary one. Within a pool
    and bin the splits take turns in proportion to their sizes, each taking a row of the theme it has least of, then of the line length it has
    least of (the greedy sampler of Shen et al., for all splits at once, so that none gets all puzzles of a rare theme). ``puzzle_of`` checks a row.
    A row that shares a position or game with a puzzle of another split is left out, as is one that asks a position again. ``report`` counts every
    row by what became of it. Where puzzles run out the split stays smaller than wanted: compare.
    """
    report.read += len(rows)
    bins = np.array([int(rating_bin(rating)[1]) for rating in range(10_000)], np.int8)[rows.ratings]
    looked_at = np.zeros(len(POOLS), np.int64)
    drawn: dict[str, list[tuple[int, Puzzle]]] = {name: [] for name in wanted}
    with tqdm(desc="puzzles drawn", total=sum(sum(by_bin.values()) for by_bin in wanted.values()), unit="puzzle", disable=None) as progress:
        for pool, pool_name in enumerate(POOLS):
            splits = [name for name in wanted if POOL_OF_SLICE.get(name, "ordinary") == pool_name]
            for number, bin_name in enumerate(BINS):
                here = {name: count for name in splits if (count := wanted[name].get(bin_name, 0))}
                chosen = np.flatnonzero((pools == pool) & (bins == number)) if here else np.zeros(0, np.int64)
                for row, split, puzzle in _take_turns(rows, chosen, here, puzzle_of, registry):
                    looked_at[pool] += 1
                    if isinstance(puzzle, str):
                        report.drop(puzzle)
                        continue
                    drawn[split].append((int(rows.places[row]), replace(puzzle, split=split)))
                    progress.update()
    for pool, name in enumerate(POOLS):
        if left := int((pools == pool).sum()) - int(looked_at[pool]):
            report.dropped["not_drawn" if name == "ordinary" else f"{name}_not_drawn"] += left
    if left := int((pools == NO_POOL).sum()):
        report.dropped["without_history"] += left
    report.kept += sum(map(len, drawn.values()))
    order = [name for name in (*SPLITS, *SLICES) if name in drawn]
    return [puzzle for name in order for _, puzzle in sorted(drawn[name], key=lambda entry: (entry[0], entry[1].id))]


def _take_turns(
    rows: PuzzleRows, chosen: np.ndarray, sizes: Mapping[str, int], puzzle_of: Callable[[int], Puzzle | str], registry: Registry
) -> Iterator[tuple[int, str, Puzzle | str]]:
    """(row, split, its puzzle or why it is left out) of each row that is looked at, until every split is full or no row is left."""
    if not sizes:
        return
    candidates = _Candidates(rows, chosen)
    counts = {name: _Counts() for name in sizes}
    taken: Counter[str] = Counter()
    turns = [(1 / size, name) for name, size in sizes.items()]  # how full a split will be with one more: the emptiest is next
    heapq.heapify(turns)
    while turns:
        _, split = turns[0]
        row = candidates.next(counts[split])
        if row is None:
            return
        puzzle = puzzle_of(row)
        if isinstance(puzzle, Puzzle):
            puzzle = registry.claim(puzzle, split) or puzzle
        yield row, split, puzzle
        if isinstance(puzzle, str):
            continue
        taken[split] += 1
        counts[split].themes.update(puzzle.themes or ("",))
        counts[split].lengths[len(puzzle.moves)] += 1
        heapq.heappop(turns)
        if taken[split] < sizes[split]:
            heapq.heappush(turns, ((taken[split] + 1) / sizes[split], split))


# ---- mirrored ---------------------------------------------------------------------------------------------------------------------------


def mirrored(puzzle: Puzzle) -> Puzzle:
    """The same puzzle with colours exchanged and the board turned top to bottom, in split ``test_mirrored``. No game leads to it."""
    moves = tuple(_mirror_move(chess.Move.from_uci(move)).uci() for move in puzzle.moves)
    return replace(
        puzzle,
        id=f"{puzzle.id}-mirrored",
        fen=chess.Board(puzzle.fen).mirror().fen(),
        moves=moves,
        split="test_mirrored",
        history=(),
        game="",
        date=0,
    )


def _mirror_move(move: chess.Move) -> chess.Move:
    return chess.Move(chess.square_mirror(move.from_square), chess.square_mirror(move.to_square), move.promotion)


def mirror_all(puzzles: list[Puzzle], registry: Registry, report: ReadReport) -> list[Puzzle]:
    """The mirrored puzzles; one whose positions some split holds already is left out and counted."""
    kept = []
    for puzzle in puzzles:
        report.read += 1
        mirror = mirrored(puzzle)
        if reason := registry.claim(mirror, mirror.split):
            report.drop(reason)
        else:
            report.kept += 1
            kept.append(mirror)
    return kept
