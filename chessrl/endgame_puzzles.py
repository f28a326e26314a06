"""Puzzles of the endgame world: mates in one to four with proven distance and, before the last move, a single best move."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chess
import numpy as np
import pandas as pd

from chessrl import endgame_tables
from chessrl.endgame_games import PlainEngine
from chessrl.endgame_positions import GAME_WEIGHTS, canonical_key, random_position, sides
from chessrl.endgame_search import MateSearch
from chessrl.errors import UserError

DISTANCES = (1, 2, 3, 4)
MATERIALS = tuple(GAME_WEIGHTS)
SPLIT_SHARES = {"sft": 4000, "rl": 5500, "validation": 800, "test": 1500, "private": 400}
BIN_SHARES = {"B1": 0.28, "B2": 0.19, "B3": 0.25, "B4": 0.16, "B5": 0.12}
RL_BIN_SHARES = {"B1": 0.34, "B2": 0.24, "B3": 0.22, "B4": 0.12, "B5": 0.08}  # easier: a policy must sometimes solve what it learns from
FIVE_MEN_WEIGHT = {1: 1.0, 2: 1.0, 3: 0.3, 4: 0.025}  # by distance: a mate in four of five men takes seconds to prove
# Puzzles sought per wanted one, by distance: some are lost to games or share a decision with another, long lines most of all, and a cell
# that runs short is made up by the others of its bin. Of five men, which take a search, no more are sought than of mates in one.
SURPLUS = {1: 1.5, 2: 1.5, 3: 2.5, 4: 3.5}
TRIES_PER_PUZZLE = 90  # random five-men positions looked at per puzzle sought
CLAIM_NODES = 1000  # of the search that picks five-men positions worth a proof
PUZZLES_STREAM = 2
SPLITS_STREAM = 3


def bin_of(distance: int, men: int) -> str:
    """Difficulty bin: B1 mate in one of 3-4 men; B2 mate in one of 5 men or in two of 3; B3 mate in two of 4-5; B4 in three; B5 in four."""
    if distance >= 3:
        return "B4" if distance == 3 else "B5"
    if distance == 1:
        return "B1" if men < 5 else "B2"
    return "B2" if men == 3 else "B3"


@dataclass(frozen=True, slots=True)
class MatePuzzle:
    """A position in which the side to move mates in ``distance`` moves, and its line: only moves, longest defences, a mate."""

    material: str
    distance: int
    fen: str
    line: tuple[str, ...]  # UCI, 2 * distance - 1 plies
    keys: tuple[int, ...]  # canonical, of the positions in which the solver is to move, in the order of the line

    @property
    def bin(self) -> str:
        return bin_of(self.distance, len(self.material))


@dataclass(frozen=True, slots=True)
class PuzzlesTask:
    """How many puzzles of one material to look for, by distance."""

    engine: Path
    seed: int
    material: str
    quotas: dict[int, int]


class Rejected(Exception):
    """The reason why a position makes no puzzle."""


def solve(board: chess.Board, distance: int, search: MateSearch) -> tuple[str, ...]:
    """The line (UCI) of a position that mates in exactly ``distance``. Raises Rejected where two moves before the last keep the distance.

    The defence is the longest one, the first in UCI order among equals; so is the last move among several mates.
    """
    board = board.copy(stack=False)
    line: list[str] = []
    for remaining in range(distance, 1, -1):
        keeping = []
        for move in board.generate_legal_moves():
            board.push(move)
            if search.mated_within(board, remaining - 1):
                keeping.append(move)
            board.pop()
            if len(keeping) > 1:
                raise Rejected("several first moves keep the distance" if not line else "several later moves keep the distance")
        line.append(keeping[0].uci())
        board.push(keeping[0])
        line.append(longest_defence(board, remaining - 1, search).uci())
        board.push_uci(line[-1])
    line.append(min(move.uci() for move in board.generate_legal_moves() if _mates(board, move)))
    return tuple(line)


def decision_keys(board: chess.Board, line: Sequence[str]) -> tuple[int, ...]:
    """Canonical keys of the positions of ``line`` (UCI) in which the solver, to move in ``board``, is to move."""
    board = board.copy(stack=False)
    keys = []
    for ply, move in enumerate(line):
        if ply % 2 == 0:
            keys.append(canonical_key(board))
        board.push_uci(move)
    return tuple(keys)


def longest_defence(board: chess.Board, mated_in: int, search: MateSearch) -> chess.Move:
    """The reply after which the mate takes all of ``mated_in`` moves, the first in UCI order among several."""
    for move in sorted(board.generate_legal_moves(), key=chess.Move.uci):
        board.push(move)
        shorter = search.mates_within(board, mated_in - 1)
        board.pop()
        if not shorter:
            return move
    raise ValueError(f"{board.fen()} is mated in fewer than {mated_in} moves")


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def find_puzzles(task: PuzzlesTask) -> tuple[list[MatePuzzle], Counter[str]]:
    """Puzzles of the task's material up to its quotas, in the order found, and the positions looked at and left, counted by reason."""
    generator = np.random.default_rng([task.seed, PUZZLES_STREAM, MATERIALS.index(task.material)])
    if len(task.material) > endgame_tables.LARGEST:
        return _find_by_search(task, generator)
    return _find_in_tables(task, generator)


def _find_in_tables(task: PuzzlesTask, generator: np.random.Generator) -> tuple[list[MatePuzzle], Counter[str]]:
    found: dict[int, MatePuzzle] = {}
    reasons: Counter[str] = Counter()
    endgame_tables.table.cache_clear()  # one material's tables at a time: a four-men table takes 50 MB
    table = endgame_tables.table(*sides(task.material))
    for distance in DISTANCES:
        wanted = len(found) + task.quotas[distance]
        count = 100 + 10 * task.quotas[distance]
        boards = table.sample(chess.WHITE, distance, 4 * count, generator) + table.sample(chess.BLACK, distance, count, generator)
        for index in generator.permutation(len(boards)).tolist():
            if len(found) >= wanted:
                break
            board = boards[index] if generator.random() < 0.5 else boards[index].mirror()
            try:
                puzzle = _puzzle(task.material, board, distance, MateSearch(), found)
                found[puzzle.keys[0]] = puzzle
            except Rejected as reason:
                reasons[str(reason)] += 1
    return list(found.values()), reasons


def _find_by_search(task: PuzzlesTask, generator: np.random.Generator) -> tuple[list[MatePuzzle], Counter[str]]:
    """Random positions: mates in one by looking; longer ones where a short engine search claims a mate, then proven or rejected."""
    found: dict[int, MatePuzzle] = {}
    reasons: Counter[str] = Counter()
    missing = dict(task.quotas)
    endgame_tables.table.cache_clear()
    with PlainEngine(task.engine) as engine:
        for _ in range(TRIES_PER_PUZZLE * sum(task.quotas.values())):
            if not any(missing.values()):
                break
            board = random_position(task.material, generator)
            search = MateSearch()
            distance = 1 if search.mates_within(board, 1) else 0
            if not distance and any(missing[longer] for longer in DISTANCES[1:]):
                engine.new_game()
                distance = engine.claimed_mate(board.fen(), CLAIM_NODES)
            try:
                if not missing.get(distance):
                    raise Rejected("no mate of a distance still sought")
                if search.mate_in(board, distance) != distance:
                    raise Rejected("the engine's distance is wrong")
                puzzle = _puzzle(task.material, board, distance, search, found)
                found[puzzle.keys[0]] = puzzle
                missing[distance] -= 1
            except Rejected as reason:
                reasons[str(reason)] += 1
    return list(found.values()), reasons


def _puzzle(material: str, board: chess.Board, distance: int, search: MateSearch, found: dict[int, MatePuzzle]) -> MatePuzzle:
    if not board.is_valid():
        raise Rejected("check that no move could have given")
    if canonical_key(board) in found:
        raise Rejected("mirror image of a puzzle")
    line = solve(board, distance, search)
    return MatePuzzle(material, distance, board.fen(), line, decision_keys(board, line))


# ---- how many, and for which split ----------------------------------------------------------------------------------------------------


def split_counts(puzzles: int) -> dict[str, dict[str, int]]:
    """Puzzles by split and bin; adds up to ``puzzles``."""
    splits = _apportion(puzzles, SPLIT_SHARES)
    return {split: _apportion(count, RL_BIN_SHARES if split == "rl" else BIN_SHARES) for split, count in splits.items()}


def _apportion(total: int, shares: dict[str, float]) -> dict[str, int]:
    """``total`` in whole parts as near to the shares as can be: largest remainders, the earlier name first among equals."""
    exact = {name: total * share / sum(shares.values()) for name, share in shares.items()}
    counts = {name: math.floor(value) for name, value in exact.items()}
    for name in sorted(shares, key=lambda name: counts[name] - exact[name])[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def cell_quotas(puzzles: int, materials: Sequence[str]) -> dict[str, dict[int, int]]:
    """Puzzles to look for by material and distance: each bin's need spread evenly over its cells, with a surplus."""
    need: Counter[str] = Counter()
    for bins in split_counts(puzzles).values():
        need.update(bins)
    weights = {(material, d): FIVE_MEN_WEIGHT[d] if len(material) == 5 else 1.0 for material in materials for d in DISTANCES}
    in_bin: Counter[str] = Counter()
    for (material, distance), weight in weights.items():
        in_bin[bin_of(distance, len(material))] += weight
    quotas: dict[str, dict[int, int]] = {material: {} for material in materials}
    for (material, distance), weight in weights.items():
        name = bin_of(distance, len(material))
        surplus = SURPLUS[distance if len(material) <= endgame_tables.LARGEST else 1]
        quotas[material][distance] = math.ceil(surplus * need[name] * weight / in_bin[name])
    return quotas


def apart_from_games(found: list[MatePuzzle], visited: np.ndarray) -> tuple[list[MatePuzzle], Counter[str]]:
    """The puzzles of whose decisions none is in ``visited`` (canonical keys, int64), and the others counted by reason."""
    seen = set(visited[np.isin(visited, [key for puzzle in found for key in puzzle.keys])].tolist())
    apart: list[MatePuzzle] = []
    reasons: Counter[str] = Counter()
    for puzzle in found:
        if puzzle.keys[0] in seen:
            reasons["a game passes through it"] += 1
        elif not seen.isdisjoint(puzzle.keys):
            reasons["a game passes through a later decision"] += 1
        else:
            apart.append(puzzle)
    return apart, reasons


def puzzle_table(found: list[MatePuzzle], puzzles: int, seed: int) -> tuple[pd.DataFrame, Counter[str]]:
    """Chooses ``puzzles`` of those found, cells of a bin in turn, and deals them to the splits at random; the others counted by reason.

    No two chosen puzzles share a position in which the solver is to move. Long lines, which share most and are fewest, choose first.
    Raises UserError naming the bin that runs short.
    """
    generator = np.random.default_rng([seed, SPLITS_STREAM])
    counts = split_counts(puzzles)
    rows = []
    taken: set[int] = set()
    reasons: Counter[str] = Counter()
    for name in reversed(BIN_SHARES):
        wanted = sum(bins[name] for bins in counts.values())
        chosen: list[MatePuzzle] = []
        for puzzle in _in_turn([puzzle for puzzle in found if puzzle.bin == name]):
            if not taken.isdisjoint(puzzle.keys):
                reasons["shares a decision with a chosen puzzle"] += 1
            elif len(chosen) == wanted:
                reasons["surplus"] += 1
            else:
                chosen.append(puzzle)
                taken.update(puzzle.keys)
        if len(chosen) < wanted:
            shortage = f"bin {name} needs {wanted} puzzles, {len(chosen)} were found that share no decision with a game or one another"
            raise UserError(f"puzzles={puzzles}: {shortage}; ask for fewer puzzles or add materials")
        splits = [split for split, bins in counts.items() for _ in range(bins[name])]
        rows += [_row(puzzle, split) for puzzle, split in zip(chosen, generator.permutation(splits).tolist())]
    order = {split: place for place, split in enumerate(SPLIT_SHARES)}
    return pd.DataFrame(sorted(rows, key=lambda row: (order[row["split"]], row["id"]))), reasons


def _in_turn(puzzles: list[MatePuzzle]) -> list[MatePuzzle]:
    """The first of every (material, distance), then the second of every one, and so on."""
    rank: Counter[tuple[str, int]] = Counter()
    ranked = []
    for puzzle in puzzles:
        cell = (puzzle.material, puzzle.distance)
        ranked.append((rank[cell], *cell, puzzle))
        rank[cell] += 1
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])]


def _row(puzzle: MatePuzzle, split: str) -> dict[str, str | int]:
    return {
        "id": "eg-" + hashlib.sha256(str(puzzle.keys[0]).encode()).hexdigest()[:12],
        "fen": puzzle.fen,
        "moves": " ".join(puzzle.line),
        "lead": 0,
        "difficulty": puzzle.distance,
        "bin": puzzle.bin,
        "themes": f"mateIn{puzzle.distance} {puzzle.material}",
        "split": split,
        "history": "",
    }
