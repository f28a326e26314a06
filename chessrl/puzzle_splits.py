"""Splits of a puzzle set that share neither a position nor a source game."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from chessrl.errors import UserError
from chessrl.puzzles import SPLITS, Puzzle, solver_position_keys
from chessrl.sources import ReadReport

EASY_BINS = ("B1", "B2")


def split_puzzles(
    puzzles: Iterable[Puzzle],
    sizes: Mapping[str, int],
    seed: int,
    report: ReadReport,
    *,
    easy_share: Mapping[str, float] | None = None,
) -> list[Puzzle]:
    """Draw disjoint splits of the given sizes (puzzles), each puzzle with its ``split`` set; in the order of ``sizes``.

    Puzzles that share a position in which a solver is asked (placement and side to move), or their source game, go to the same split.
    A puzzle's place in the draw is a hash of (seed, id), so other puzzles coming or going move few of them. ``easy_share`` gives for some
    splits the share of puzzles in B1 and B2, for instance ``{"rl": 0.7}``; those are drawn last, so that they leave the others unskewed.
    Of puzzles that ask the same position one is kept; ``report`` counts ``duplicate_position`` and ``not_drawn``.
    Raises UserError for an unknown split or where too few puzzles are left.
    """
    unknown = [name for name in sizes if name not in SPLITS]
    if unknown:
        raise UserError(f"split {unknown[0]}: expected one of {', '.join(SPLITS)}")
    shares = easy_share or {}
    puzzles = list(puzzles)
    report.read += len(puzzles)
    remaining = _linked_groups(sorted(puzzles, key=lambda puzzle: _place(seed, puzzle.id)), report)
    drawn: dict[str, list[Puzzle]] = {}
    for name in sorted(sizes, key=lambda name: name in shares):
        chosen, remaining = _draw(remaining, _quotas(sizes[name], shares.get(name)))
        if len(chosen) < sizes[name]:
            easy = f" ({shares[name]:.0%} of them in {' and '.join(EASY_BINS)})" if name in shares else ""
            raise UserError(
                f"split {name}: {sizes[name]:,} puzzles{easy} asked for, but of {len(puzzles):,} only {len(chosen):,} are left for it; "
                "ask for fewer or give more puzzles"
            )
        drawn[name] = [replace(puzzle, split=name) for puzzle in chosen]
        report.kept += len(chosen)
    if left := sum(map(len, remaining)):
        report.dropped["not_drawn"] += left
    return [puzzle for name in sizes for puzzle in drawn[name]]


def _place(seed: int, identifier: str) -> bytes:
    return hashlib.blake2b(f"{seed} {identifier}".encode(), digest_size=8).digest()


def _linked_groups(puzzles: list[Puzzle], report: ReadReport) -> list[list[Puzzle]]:
    """Groups linked by a position or a game, in order of their first puzzle; later puzzles asking an earlier one's position are dropped."""
    parent: list[int] = []

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    kept: list[Puzzle] = []
    asked: set[int] = set()
    owner: dict[int | str, int] = {}
    for puzzle in puzzles:
        keys = solver_position_keys(puzzle)
        if keys[0] in asked:
            report.drop("duplicate_position")
            continue
        asked.add(keys[0])
        index = len(kept)
        kept.append(puzzle)
        parent.append(index)
        links: list[int | str] = [*keys, puzzle.game] if puzzle.game else list(keys)
        for link in links:
            earlier, later = sorted((root(owner.setdefault(link, index)), root(index)))
            parent[later] = earlier
    groups: dict[int, list[Puzzle]] = defaultdict(list)
    for index, puzzle in enumerate(kept):
        groups[root(index)].append(puzzle)
    return list(groups.values())


def _quotas(size: int, easy_share: float | None) -> dict[str, int]:
    """Puzzles wanted by class: all alike, or easy and hard apart."""
    if easy_share is None:
        return {"any": size}
    easy = round(size * easy_share)
    return {"easy": easy, "hard": size - easy}


def _draw(groups: list[list[Puzzle]], quotas: dict[str, int]) -> tuple[list[Puzzle], list[list[Puzzle]]]:
    """Take whole groups, in order, while they fit the quotas; returns the puzzles taken and the groups left."""
    left = dict(quotas)
    chosen: list[Puzzle] = []
    others: list[list[Puzzle]] = []
    for group in groups:
        classes = ["any" if "any" in left else "easy" if puzzle.bin in EASY_BINS else "hard" for puzzle in group]
        if all(classes.count(name) <= left[name] for name in set(classes)):
            chosen += group
            for name in classes:
                left[name] -= 1
        else:
            others.append(group)
    return chosen, others
