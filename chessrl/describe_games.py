"""What a set of games holds: ratings, lengths, results, phases, duplicates, and positions shared with puzzles.

A frame of games has one row per game: split, plies, result, time_class, white_elo, black_elo (missing where unknown) and digest, equal for equal
start and moves.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import chess
import numpy as np
import pandas as pd
from tqdm import tqdm

from chessrl.corpus import game_moves
from chessrl.describe_figures import Section, bars_figure, histogram_figure
from chessrl.games import read_games
from chessrl.pgn_blocks import TIME_CLASSES, GameFilters
from chessrl.phases import PHASES, phase_of
from chessrl.position_keys import line_keys
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport

RATING_WIDTH = 100
PLIES_WIDTH = 10
EVERYTHING = GameFilters(exclude_time_classes=(), min_plies=1, rated_only=False, standard_start=False, terminated=False)
RESULTS = ("1-0", "1/2-1/2", "0-1", "*")


def pgn_sections(path: Path, sample: int, puzzles: Sequence[Puzzle]) -> list[Section]:
    """The description of a PGN file. Every game that can be read counts, whatever its result or length; the rest is in the account."""
    report = ReadReport()
    rows: list[tuple] = []
    phases = PhaseCount(sample)
    meetings = Meetings(puzzles)
    for game in tqdm(read_games([path], filters=EVERYTHING, report=report), desc="games", unit="game", disable=None):
        digest = hashlib.blake2b(f"{game.start_fen} {game.tokens}".encode(), digest_size=8).digest()
        rows.append(("all", len(game.ply_ends), game.result, game.time_class, game.white_elo, game.black_elo, digest, len(game.tokens)))
        if phases.wants_more() or puzzles:
            fen = game.start_fen or chess.STARTING_FEN
            moves = game_moves(game)
            phases.add("all", fen, moves)
            meetings.add("all", line_keys(fen, moves) if puzzles else [])
    columns = ["split", "plies", "result", "time_class", "white_elo", "black_elo", "digest", "tokens"]
    frame = pd.DataFrame(rows, columns=columns)
    tokens = frame["tokens"]
    totals = pd.DataFrame(
        [("games", len(frame)), ("plies", frame["plies"].sum()), ("tokens of moves", tokens.sum()), ("with <bos> and <eos>", (tokens + 2).sum())],
        columns=["what", "count"],
    )
    return [
        Section("account", "records read, kept and left out by reason", account_table({"reading": report.as_dict()})),
        Section("tokens", "tokens of the games as whole histories", totals),
        *game_sections(frame),
        phases.section("the first games"),
        Section("duplicates", "games with the start and the moves of another", duplicate_table(frame, "digest")),
        *meetings.sections(),
    ]


def account_table(entries: dict) -> pd.DataFrame:
    """Every account of a manifest (read = kept + dropped), one row per number: account, what, count."""
    rows = []
    for name, entry in entries.items():
        if isinstance(entry, dict) and {"read", "kept", "dropped"} <= entry.keys():
            rows += [(name, "read", entry["read"]), (name, "kept", entry["kept"])]
            rows += [(name, reason, number) for reason, number in sorted(entry["dropped"].items(), key=lambda item: -item[1])]
    return pd.DataFrame(rows, columns=["account", "what", "count"])


def game_sections(frame: pd.DataFrame) -> list[Section]:
    """Ratings, lengths and results, as far as the frame knows them."""
    sections = []
    if "white_elo" in frame and (rated := frame.dropna(subset=["white_elo", "black_elo"])).size:
        mean = (rated["white_elo"].astype(float) + rated["black_elo"].astype(float)) / 2
        table = histogram_table(rated["split"], mean, RATING_WIDTH)
        draw = partial(histogram_figure, x_label="mean rating of both players (Elo)", y_label="games")
        title = f"games by the players' mean rating; {len(frame) - len(rated):,} games lack a rating"
        sections.append(Section("games_by_rating", title, table, draw))
    draw = partial(histogram_figure, x_label="length (plies)", y_label="games")
    lengths = histogram_table(frame["split"], frame["plies"], PLIES_WIDTH)
    sections.append(Section("games_by_length", f"games by length in plies; the mean is {frame['plies'].mean():.1f}", lengths, draw))
    if "result" in frame:
        draw = partial(bars_figure, category="time_class", series="result", x_label="time class", y_label="games")
        sections.append(Section("results", "games by time class and result; shares of all games", outcome_table(frame), draw))
    return sections


def histogram_table(splits: pd.Series, values: pd.Series, width: int) -> pd.DataFrame:
    """Counts in bins of ``width``, every bin between the least and the greatest value for every split: split, low, high, count, share."""
    places = (values // width).astype(int)
    edges = np.arange(places.min(), places.max() + 1)
    rows = []
    for split in dict.fromkeys(splits):
        counts = places[splits == split].value_counts().reindex(edges, fill_value=0)
        rows += [(split, place * width, (place + 1) * width, count, count / counts.sum()) for place, count in counts.items()]
    return pd.DataFrame(rows, columns=["split", "low", "high", "count", "share"])


def outcome_table(frame: pd.DataFrame) -> pd.DataFrame:
    """time_class, result, count, share of all games."""
    counts = Counter(zip(frame["time_class"], frame["result"]))
    classes = [name for name in (*TIME_CLASSES, "unknown") if any(name == time_class for time_class, _ in counts)]
    results = [name for name in RESULTS if any(name == result for _, result in counts)]
    rows = [(name, result, counts[name, result], counts[name, result] / len(frame)) for name in classes for result in results]
    return pd.DataFrame(rows, columns=["time_class", "result", "count", "share"])


def duplicate_table(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows whose ``column`` another row before them has, within each split, and values that two splits share: what, rows, distinct, repeated."""
    rows = []
    for split in dict.fromkeys(frame["split"]):
        values = frame.loc[frame["split"] == split, column]
        rows.append((split, len(values), values.nunique(), int(values.duplicated().sum())))
    names = list(dict.fromkeys(frame["split"]))
    sets = {name: set(frame.loc[frame["split"] == name, column]) for name in names}
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            rows.append((f"{one} and {other}", len(sets[one]) + len(sets[other]), len(sets[one] | sets[other]), len(sets[one] & sets[other])))
    return pd.DataFrame(rows, columns=["what", "rows", "distinct", "repeated"])


@dataclass(slots=True)
class PhaseCount:
    """Moves by the phase (chessrl.phases) of the position they are played in, over the first ``most`` games of each split that are given."""

    most: int
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    games: Counter[str] = field(default_factory=Counter)

    def wants_more(self, split: str = "all") -> bool:
        return self.games[split] < self.most

    def add(self, split: str, fen: str, moves: Iterable[chess.Move]) -> None:
        """Count a game's moves, unless there are enough games of its split."""
        if not self.wants_more(split):
            return
        self.games[split] += 1
        board = chess.Board(fen)
        for move in moves:
            self.moves[split, phase_of(board)] += 1
            board.push(move)

    def section(self, which: str) -> Section:
        """``which`` games were given."""
        rows = []
        for split in self.games:
            total = sum(self.moves[split, phase] for phase in PHASES) or 1
            rows += [(split, phase, self.moves[split, phase], self.moves[split, phase] / total) for phase in PHASES]
        table = pd.DataFrame(rows, columns=["split", "phase", "count", "share"])
        games = ", ".join(f"{split} {number:,}" for split, number in self.games.items())
        title = f"moves by phase of the position (Lichess's rule, chessrl/phases.py), in {which} ({games})"
        draw = partial(bars_figure, category="phase", series="split", x_label="phase of the position", y_label="moves")
        return Section("moves_by_phase", title, table, draw)


class Meetings:
    """Games that pass through a position of a puzzle: the one before its first move, or one in which its solver is to move.

    Positions are compared by the 64-bit keys of ``chessrl.position_keys`` (placement and side to move).
    """

    def __init__(self, puzzles: Sequence[Puzzle]) -> None:
        self._puzzles = puzzles
        self._owners: dict[int, list[int]] = defaultdict(list)
        for number, puzzle in enumerate(puzzles):
            for key in puzzle_keys(puzzle):
                self._owners[key].append(number)
        self._games: Counter[str] = Counter()
        self._passing: Counter[tuple[str, str]] = Counter()
        self._met: dict[tuple[str, str], set[int]] = defaultdict(set)

    def add(self, split: str, keys: Iterable[int]) -> None:
        """Count a game with its positions' keys."""
        self._games[split] += 1
        if not self._owners:
            return
        met = {number for key in keys if key in self._owners for number in self._owners[key]}
        for name in {self._puzzles[number].split for number in met}:
            self._passing[split, name] += 1
        for number in met:
            self._met[split, self._puzzles[number].split].add(number)

    def sections(self) -> list[Section]:
        """Empty without puzzles."""
        if not self._puzzles:
            return []
        sizes = Counter(puzzle.split for puzzle in self._puzzles)
        rows = [
            (split, name or "all", games, self._passing[split, name], sizes[name], len(self._met[split, name]))
            for split, games in self._games.items()
            for name in sizes
        ]
        columns = ["split", "puzzles' split", "games", "games that pass through one", "puzzles", "puzzles met"]
        title = "games that pass through a position before a puzzle's first move or where its solver is to move"
        return [Section("leaks", title, pd.DataFrame(rows, columns=columns))]


def puzzle_keys(puzzle: Puzzle) -> set[int]:
    """Keys of the positions that give a puzzle away: its ``fen`` and every one in which its solver is to move."""
    keys = line_keys(puzzle.fen, map(chess.Move.from_uci, puzzle.moves))
    return {keys[0], *keys[puzzle.lead : len(puzzle.moves) : 2]}
