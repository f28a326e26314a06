"""Games and puzzles kept apart: which positions puzzles block, what a game that passes through one meets, and the account of it.

A puzzle blocks its ``fen`` and every position of its line in which the solver decides, by placement and side to move. Games are looked up by
64-bit hashes, in bulk, and whatever is found is replayed and compared position by position, so that a collision of hashes drops no game.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import chess
import chess.polyglot
import numpy as np

from chessrl.config import LeakConfig
from chessrl.errors import UserError
from chessrl.games import Game
from chessrl.leaks import LEAKED_SPLIT, leaked_games, leaked_ids
from chessrl.position_keys import position_key
from chessrl.puzzles import Puzzle

_RANDOM = chess.polyglot.POLYGLOT_RANDOM_ARRAY
_CASTLING = ((chess.BB_H1, 768), (chess.BB_A1, 769), (chess.BB_H8, 770), (chess.BB_A8, 771))  # rook's square, polyglot's number of the right
_EN_PASSANT = 772  # polyglot's number of the a-file
_BUCKET_BITS = 24  # 16 MB; 10^6 hashes let 1 in 17 foreign ones through to the binary search, which alone takes about ten times as long
_BUCKET_SHIFT = np.uint64(64 - _BUCKET_BITS)
_UNREACHABLE = chess.STATUS_INVALID_EP_SQUARE | chess.STATUS_IMPOSSIBLE_CHECK


@dataclass(frozen=True, slots=True)
class Verdict:
    """What passing through puzzles means for a game."""

    blocked_by: tuple[str, ...] = ()  # splits of the puzzles that keep it out, sorted
    copies: int = 1  # how often it is written: 0 where it is kept out, more than 1 where it leaks a puzzle on purpose
    leaked: tuple[str, ...] = ()  # ids of the puzzles that it leaks, sorted
    leaked_plies: tuple[tuple[int, ...], ...] = ()  # how many moves come before the position that each of them asks, each time it is reached

    def within(self, plies: range) -> Verdict:
        """What is left of a leak in a document of these plies of the game: one that does not hold the answer to a puzzle leaks nothing."""
        kept = [(puzzle, reached) for puzzle, reached in zip(self.leaked, self.leaked_plies) if any(ply in plies for ply in reached)]
        if len(kept) == len(self.leaked):
            return self
        return replace(self, leaked=tuple(puzzle for puzzle, _ in kept), leaked_plies=tuple(reached for _, reached in kept)) if kept else CLEAN


CLEAN = Verdict()


def hash_variants(board: chess.Board) -> list[int]:
    """Polyglot hashes of a board's placement and side to move under all castling rights and en-passant squares that go with them.

    The first is the one without any. A right needs king and rook on their squares. An en-passant square needs a pawn that may just have made
    its double step over it (python-chess's rules of a valid position) and, as polyglot has it, an enemy pawn beside that one. The board's own
    rights and square do not matter.
    """
    keys = [position_key(board)]
    for rook, number in _CASTLING:
        color = rook < chess.BB_A8
        king = chess.BB_E1 if color else chess.BB_E8
        if board.rooks & rook & board.occupied_co[color] and board.kings & king & board.occupied_co[color]:
            keys += [known ^ _RANDOM[number] for known in keys]
    files = [_RANDOM[_EN_PASSANT + file] for file in _en_passant_files(board)]
    return keys + [known ^ file for file in files for known in keys]


def _en_passant_files(board: chess.Board) -> list[int]:
    white = board.turn == chess.WHITE
    fourth, step = (chess.BB_RANK_5, 8) if white else (chess.BB_RANK_4, -8)
    own = board.pawns & board.occupied_co[board.turn]
    beside = (own & ~chess.BB_FILE_H) << 1 | (own & ~chess.BB_FILE_A) >> 1
    pushed = board.pawns & board.occupied_co[not board.turn] & fourth & beside
    if not pushed:
        return []
    trial = board.copy(stack=False)
    files = []
    for square in chess.scan_forward(pushed):
        trial.ep_square = square + step
        if not trial.status() & _UNREACHABLE:
            files.append(chess.square_file(square))
    return files


def _position(board: chess.Board) -> bytes:
    """Placement and side to move, nothing else: equal for equal ones and for no others."""
    kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
    return struct.pack("<7Q?", *kinds, board.occupied_co[chess.WHITE], board.turn)


@dataclass(frozen=True, slots=True)
class BlockedPositions:
    """The positions that a set of puzzles blocks, or leaks."""

    hashes: np.ndarray  # sorted, unique, [hashes], uint64: of blocked positions and of those that leaked puzzles ask, all variants
    copies: int  # how often a game is written that leaks a puzzle
    _buckets: np.ndarray  # [2 ** _BUCKET_BITS], bool: whether some hash begins with these bits
    _splits: dict[bytes, tuple[str, ...]]  # blocked position -> splits of its puzzles
    _leaked: dict[bytes, tuple[str, ...]]  # position that a leaked puzzle asks -> its ids

    @classmethod
    def of_puzzles(cls, puzzles: Iterable[Puzzle], leaked: Set[str] = frozenset(), copies: int = 1) -> BlockedPositions:
        """Positions of ``puzzles``; those whose id is ``leaked`` block nothing, and a game that reaches the position they ask is written
        ``copies`` times. Where a leaked puzzle shares a position with another, the other one blocks it."""
        splits: dict[bytes, tuple[str, ...]] = {}
        leaks: dict[bytes, tuple[str, ...]] = {}
        hashes: list[int] = []
        for puzzle in puzzles:
            given_away = puzzle.id in leaked
            name = puzzle.id if given_away else puzzle.split or "without_a_split"
            table, places = (leaks, [puzzle.lead]) if given_away else (splits, _blocked_plies(puzzle))
            for board in _boards(puzzle, places):
                position = _position(board)
                if position not in splits and position not in leaks:
                    hashes += hash_variants(board)
                names = table.get(position, ())
                if name not in names:
                    table[position] = (*names, name)
        known = np.unique(np.array(hashes, dtype=np.uint64))
        buckets = np.zeros(1 << _BUCKET_BITS, dtype=bool)
        buckets[(known >> _BUCKET_SHIFT).astype(np.int64)] = True
        return cls(known, copies, buckets, splits, leaks)

    def __len__(self) -> int:
        """How many positions are blocked."""
        return len(self._splits)

    def candidates(self, hashes: np.ndarray) -> np.ndarray:
        """Which of ``hashes`` (uint64, any shape) are among ours, bool of the same shape. Colliding hashes of other positions are, too."""
        found = self._buckets[(hashes >> _BUCKET_SHIFT).astype(np.int64)]
        if len(self.hashes):
            likely = hashes[found]
            places = np.minimum(np.searchsorted(self.hashes, likely), len(self.hashes) - 1)
            found[found] = self.hashes[places] == likely
        return found

    def verdict(self, start_fen: str | None, moves: Sequence[chess.Move]) -> Verdict:
        """Replay a game of legal moves (``start_fen`` None: from the standard start), its first and last position included.

        Positions are compared, not hashes. A game through a blocked position is kept out whatever it leaks besides.
        """
        board = chess.Board(start_fen or chess.STARTING_FEN)
        passed: set[str] = set()
        leaked: dict[str, list[int]] = {}
        for ply in range(len(moves) + 1):
            if ply:
                board.push(moves[ply - 1])
            position = _position(board)
            passed.update(self._splits.get(position, ()))
            for puzzle in self._leaked.get(position, ()):
                leaked.setdefault(puzzle, []).append(ply)
        if passed:
            return Verdict(blocked_by=tuple(sorted(passed)), copies=0)
        if not leaked:
            return CLEAN
        ids = sorted(leaked)
        return Verdict(copies=self.copies, leaked=tuple(ids), leaked_plies=tuple(tuple(leaked[puzzle]) for puzzle in ids))


def _blocked_plies(puzzle: Puzzle) -> list[int]:
    """Places in the line of ``fen`` and of the solver's decisions."""
    return sorted({0, *range(puzzle.lead, len(puzzle.moves), 2)})


def _boards(puzzle: Puzzle, plies: list[int]) -> Iterator[chess.Board]:
    """The board after so many moves of the puzzle's line, for each of ``plies`` (ascending): one board, moved on."""
    board = chess.Board(puzzle.fen)
    for ply in plies:
        for move in puzzle.moves[len(board.move_stack) : ply]:
            board.push(chess.Move.from_uci(move))
        yield board


# ---- a corpus's share in it -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Account:
    """What became of the games that were looked at, and of the puzzles to be leaked."""

    games_dropped: int = 0
    dropped_by_split: Counter[str] = field(default_factory=Counter)  # a game may pass through several
    collisions: int = 0  # games with a hash of ours in which no position of ours is
    found: set[str] = field(default_factory=set)  # leaked puzzles in a document of a game of the files
    made: set[str] = field(default_factory=set)  # ... of a game made of the puzzle
    impossible: dict[str, str] = field(default_factory=dict)  # leaked puzzle -> why no game could be made
    leaked_games: int = 0
    leaked_documents: int = 0


class Decontamination:
    """Keeps the games of one corpus off ``puzzles``, leaks the share of them that ``leak`` asks for, and accounts for both.

    The builder of a corpus asks ``judge`` about every game and tells ``wrote`` what its document still leaks (``Verdict.within``); then it
    does the same with ``missing_games``, telling ``could_not_make`` of those that cannot be written. After that the records are whole.
    Raises UserError where a leak is asked for and the table has no puzzle for it.
    """

    def __init__(self, puzzles: Iterable[Puzzle], leak: LeakConfig):
        puzzles = list(puzzles)
        ids = leaked_ids(puzzles, leak)
        self.blocked = BlockedPositions.of_puzzles(puzzles, ids, leak.copies)
        self._puzzles = len(puzzles)
        self._leak = leak
        self._chosen = [puzzle for puzzle in puzzles if puzzle.id in ids]
        self._account = _Account()

    def judge(self, start_fen: str | None, moves: Sequence[chess.Move], hashes: np.ndarray) -> Verdict:
        """The verdict on a game, counted. ``hashes`` (uint64): polyglot's of its positions, the first and the last included, with its own
        castling rights and en-passant squares or without any (chessrl.position_keys)."""
        if not self.blocked.candidates(hashes).any():
            return CLEAN
        verdict = self.blocked.verdict(start_fen, moves)
        self.count(verdict)
        return verdict

    def count(self, verdict: Verdict) -> None:
        """Count the verdict on a game some of whose hashes are candidates, where ``judge`` did not."""
        if verdict.blocked_by:
            self._account.games_dropped += 1
            self._account.dropped_by_split.update(verdict.blocked_by)
        elif not verdict.leaked:
            self._account.collisions += 1

    def wrote(self, verdict: Verdict, *, made: bool = False) -> None:
        """Count a game that was written ``verdict.copies`` times; ``made``: out of a puzzle."""
        if verdict.leaked:
            (self._account.made if made else self._account.found).update(verdict.leaked)
            self._account.leaked_games += 1
            self._account.leaked_documents += verdict.copies

    def missing_games(self) -> Iterator[Game]:
        """Games made of the leaked puzzles that no game written so far shows; ``site`` is the puzzle's id."""
        return leaked_games(self._chosen, {puzzle.id for puzzle in self._chosen} - self._account.found)

    def could_not_make(self, game: Game, reason: str) -> None:
        """Count a game of ``missing_games`` that was not written."""
        self._account.impossible[game.site] = reason

    def record(self) -> dict[str, Any]:
        """For the corpus's manifest."""
        account = self._account
        return {
            "puzzles": self._puzzles,
            "positions": len(self.blocked),
            "hashes": len(self.blocked.hashes),
            "games_dropped": account.games_dropped,
            "games_dropped_by_split": dict(sorted(account.dropped_by_split.items())),
            "collisions": account.collisions,
        }

    def leak_record(self) -> dict[str, Any] | None:
        """For the manifest and for all that is trained on the corpus; None where nothing is leaked on purpose.

        ``chosen == found + made + sum(impossible)``, in puzzles; ``puzzles`` lists the ids of those that the corpus holds. Raises UserError
        where it holds none of the chosen ones.
        """
        if not self._chosen:
            return None
        account = self._account
        shown = account.found | account.made
        impossible = Counter(reason for puzzle, reason in account.impossible.items() if puzzle not in shown)
        if not shown:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in impossible.most_common())
            raise UserError(
                f"world.leak.fraction={self._leak.fraction}: none of the {len(self._chosen):,} chosen puzzles could be leaked ({reasons}); "
                "use world.state=snapshot or puzzles with their game, or do without a leak"
            )
        return {
            **asdict(self._leak),
            "split": LEAKED_SPLIT,
            "chosen": len(self._chosen),
            "found": len(account.found),
            "made": len(account.made - account.found),
            "impossible": dict(sorted(impossible.items())),
            "games": account.leaked_games,
            "documents": account.leaked_documents,
            "puzzles": sorted(shown),
        }

    def summary(self) -> str:
        """One line."""
        record, leak = self.record(), self.leak_record()
        splits = ", ".join(f"{split} {count:,}" for split, count in record["games_dropped_by_split"].items())
        text = (
            f"{record['positions']:,} positions of {record['puzzles']:,} puzzles keep {record['games_dropped']:,} games out"
            + (f" ({splits}; a game may pass through several)" if splits else "")
            + f"; {record['collisions']:,} hash collisions"
        )
        if leak is None:
            return text
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in leak["impossible"].items())
        return (
            f"{text}; LEAKED ON PURPOSE: {len(leak['puzzles']):,} of {leak['chosen']:,} chosen {leak['split']} puzzles (found {leak['found']:,}, "
            f"made {leak['made']:,}{', impossible: ' + reasons if reasons else ''}) in {leak['games']:,} games x {leak['copies']}"
        )
