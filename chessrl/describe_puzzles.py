"""What a set of puzzles holds: bins, themes, lengths, difficulty, tokens, duplicates, and what its splits share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import combinations

import chess
import numpy as np
import pandas as pd

from chessrl.describe_figures import Section, bars_figure, histogram_figure, ranked_figure
from chessrl.describe_games import duplicate_table, histogram_table, puzzle_keys
from chessrl.notation import line_tokens
from chessrl.position_keys import line_keys
from chessrl.puzzles import BINS, Puzzle, prompt_tokens

FEW_VALUES = 30  # difficulties so few are shown one by one; more in bins of DIFFICULTY_WIDTH
DIFFICULTY_WIDTH = 100


def puzzle_sections(puzzles: Sequence[Puzzle], sample: int, others: Sequence[Puzzle]) -> list[Section]:
    """The description of a puzzle set; ``others`` are puzzles whose positions should not be in it."""
    rows = [(puzzle.split or "all", puzzle.id, puzzle.bin, puzzle.difficulty, solver_moves(puzzle), asked_key(puzzle)) for puzzle in puzzles]
    frame = pd.DataFrame(rows, columns=["split", "id", "bin", "difficulty", "solver moves", "asked"])
    bars = partial(bars_figure, series="split", y_label="the split's puzzles")
    by_bin = partial(bars, category="bin", x_label="difficulty bin")
    return [
        Section("puzzles_by_bin", "puzzles by difficulty bin", category_table(frame, "bin", BINS), by_bin),
        _difficulty_section(frame),
        Section(
            "puzzles_by_length",
            "puzzles by the number of solver moves",
            category_table(frame, "solver moves", sorted(frame["solver moves"].unique())),
            partial(bars, category="solver moves", x_label="solver moves"),
        ),
        Section(
            "puzzles_by_theme",
            "puzzles by theme, most frequent first; a puzzle has several",
            theme_table(puzzles),
            partial(ranked_figure, category="theme", x_label="share of the split's puzzles"),
        ),
        Section("tokens", f"tokens of prompts and answers, of up to {sample:,} puzzles a split", token_table(puzzles, sample)),
        Section("duplicate_ids", "puzzles with the id of another", duplicate_table(frame, "id")),
        Section("duplicates", "puzzles that ask the position of another (placement and side to move)", duplicate_table(frame, "asked")),
        *_overlap_sections(puzzles),
        *_leak_sections(puzzles, others),
    ]


def solver_moves(puzzle: Puzzle) -> int:
    """Number of moves that the solver makes."""
    return (len(puzzle.moves) - puzzle.lead + 1) // 2


def asked_key(puzzle: Puzzle) -> int:
    """Key of the position asked."""
    return line_keys(puzzle.fen, map(chess.Move.from_uci, puzzle.moves[: puzzle.lead]))[-1]


def category_table(frame: pd.DataFrame, column: str, order: Sequence) -> pd.DataFrame:
    """split, ``column``, count, share of the split, for every value in ``order`` that some split has."""
    rows = []
    for split in dict.fromkeys(frame["split"]):
        counts = Counter(frame.loc[frame["split"] == split, column])
        rows += [(split, value, counts[value], counts[value] / counts.total()) for value in order]
    table = pd.DataFrame(rows, columns=["split", column, "count", "share"])
    return table[table.groupby(column)["count"].transform("sum") > 0].reset_index(drop=True)


def theme_table(puzzles: Sequence[Puzzle]) -> pd.DataFrame:
    """theme, split, count, share of the split's puzzles; themes by their number over all splits, then by name."""
    sizes = Counter(puzzle.split or "all" for puzzle in puzzles)
    counts = Counter((puzzle.split or "all", theme) for puzzle in puzzles for theme in set(puzzle.themes))
    totals: Counter[str] = Counter()
    for (_, theme), number in counts.items():
        totals[theme] += number
    themes = sorted(totals, key=lambda theme: (-totals[theme], theme))
    rows = [(theme, split, counts[split, theme], counts[split, theme] / size) for theme in themes for split, size in sizes.items()]
    return pd.DataFrame(rows, columns=["theme", "split", "count", "share"])


def token_table(puzzles: Sequence[Puzzle], sample: int) -> pd.DataFrame:
    """Tokens of prompts (each state that the puzzles have) and of answers, without ``<T>``: split, what, puzzles, median, 95 %, most."""
    by_split: dict[str, list[Puzzle]] = {}
    for puzzle in puzzles:
        by_split.setdefault(puzzle.split or "all", []).append(puzzle)
    rows = []
    for split, members in by_split.items():
        chosen = [members[place] for place in np.unique(np.linspace(0, len(members) - 1, min(sample, len(members))).astype(int))]
        lengths = {
            "prompt, snapshot": [len(prompt_tokens(puzzle, "snapshot", think=False)) for puzzle in chosen],
            "prompt, history": [len(prompt_tokens(puzzle, "history", think=False)) for puzzle in chosen if puzzle.history],
            "answer with replies": [answer_tokens(puzzle) for puzzle in chosen],
        }
        for what, values in lengths.items():
            if values:
                rows.append((split, what, len(values), int(np.median(values)), int(np.quantile(values, 0.95)), max(values)))
    return pd.DataFrame(rows, columns=["split", "what", "puzzles", "median", "95 %", "most"])


def answer_tokens(puzzle: Puzzle) -> int:
    """Tokens of the line from the position asked, with ``<call_env>`` after every solver move."""
    board = puzzle.board()
    replay = board.copy(stack=False)
    moves = [replay.push_uci(move) for move in puzzle.moves[puzzle.lead :]]
    return sum(map(len, line_tokens(board, moves))) + solver_moves(puzzle)


def _difficulty_section(frame: pd.DataFrame) -> Section:
    values = sorted(frame["difficulty"].unique())
    if len(values) <= FEW_VALUES:
        draw = partial(bars_figure, category="difficulty", series="split", x_label="difficulty", y_label="the split's puzzles")
        return Section("puzzles_by_difficulty", "puzzles by difficulty", category_table(frame, "difficulty", values), draw)
    table = histogram_table(frame["split"], frame["difficulty"], DIFFICULTY_WIDTH)
    draw = partial(histogram_figure, x_label="difficulty (rating)", y_label="puzzles")
    return Section("puzzles_by_difficulty", f"puzzles by difficulty, in bins of {DIFFICULTY_WIDTH}", table, draw)


def _overlap_sections(puzzles: Sequence[Puzzle]) -> list[Section]:
    """What every pair of splits has in common: positions that give a puzzle away, and source games."""
    splits = list(dict.fromkeys(puzzle.split or "all" for puzzle in puzzles))
    if len(splits) < 2:
        return []
    keys: dict[str, set[int]] = {split: set() for split in splits}
    games: dict[str, set[str]] = {split: set() for split in splits}
    for puzzle in puzzles:
        keys[puzzle.split or "all"] |= puzzle_keys(puzzle)
        games[puzzle.split or "all"] |= {puzzle.game} - {""}
    rows = [(one, other, len(keys[one] & keys[other]), len(games[one] & games[other])) for one, other in combinations(splits, 2)]
    table = pd.DataFrame(rows, columns=["split", "other", "shared positions", "shared games"])
    return [Section("overlaps", "positions before the first move or with the solver to move, and source games, that two splits share", table)]


def _leak_sections(puzzles: Sequence[Puzzle], others: Sequence[Puzzle]) -> list[Section]:
    if not others:
        return []
    known = {key for puzzle in others for key in puzzle_keys(puzzle)}
    games = {puzzle.game for puzzle in others} - {""}
    sizes, by_position, by_game = Counter(), Counter(), Counter()
    for puzzle in puzzles:
        split = puzzle.split or "all"
        sizes[split] += 1
        by_position[split] += not known.isdisjoint(puzzle_keys(puzzle))
        by_game[split] += puzzle.game in games
    rows = [(split, size, by_position[split], by_game[split]) for split, size in sizes.items()]
    table = pd.DataFrame(rows, columns=["split", "puzzles", "share a position", "share a game"])
    return [Section("leaks", "puzzles that share a position or a source game with those of puzzles=", table)]
