"""Where a puzzle's position comes from: the moves from the start position to it, out of its source game.

Games come as movetext (a table's PGN column, PGN files searched for the puzzles' game ids, or the Lichess export).
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from chessrl.pgn_blocks import split_blocks
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport, check_source, file_record, read_lines

_HEADER = re.compile(rb'\[\s*(Site|GameId|UTCDate|Date)\s+"((?:[^"\\]++|\\.)*+)"\s*\]')
_GAME_ID = re.compile(rb"(?:lichess\.org/|^)([A-Za-z0-9]{8})(?:[A-Za-z0-9]{4})?(?:[/#?].*)?$")
_DATE = re.compile(rb"(\d{4})[.-](\d{2})[.-](\d{2})")


@dataclass(frozen=True, slots=True)
class SourceGame:
    """A game that puzzles come from. ``movetext`` is PGN or bare SAN moves; ``date`` is 20230131, or 0 where unknown."""

    movetext: str
    date: int


def history_of(movetext: str, fen: str, first_move: str) -> tuple[str, ...] | None:
    """UCI moves from the start position to ``fen`` (placement and side to move), or None where the game does not lead there.

    The game ends at ``fen`` or goes on with ``first_move``, the puzzle's first one. Where it reaches the position several times, the ply that the
    FEN's counters name is taken, else the first.
    """
    game = chess.pgn.read_game(io.StringIO(movetext))
    if game is None or game.errors or "FEN" in game.headers or "Variant" in game.headers:
        return None
    moves = list(game.mainline_moves())
    if not all(moves):  # a null move
        return None
    placement, turn, *_ = fen.split()
    first = chess.Board(fen).parse_uci(first_move)  # castling as e1g1, however it is given
    board = chess.Board()
    found = []
    for ply in range(len(moves) + 1):
        if board.turn == (turn == "w") and board.board_fen() == placement and (ply == len(moves) or moves[ply] == first):
            found.append(ply)
        if ply < len(moves):
            board.push(moves[ply])
    if not found:
        return None
    named = _ply_of(fen)
    ply = named if named in found else found[0]
    return tuple(move.uci() for move in moves[:ply])


def _ply_of(fen: str) -> int:
    """Plies played before a position by its move counter; -1 where the FEN has none."""
    words = fen.split()
    return 2 * (int(words[5]) - 1) + (words[1] == "b") if len(words) > 5 else -1


# ---- PGN files --------------------------------------------------------------------------------------------------------------------------


class GameIds:
    """A set of Lichess game ids (8 letters and digits) in 8 bytes each: a set of 5 million strings takes more than a gigabyte."""

    def __init__(self, ids: pa.ChunkedArray):
        chunks = [chunk.filter(pc.equal(pc.binary_length(chunk), 8)).cast(pa.binary()).cast(pa.binary(8)) for chunk in ids.chunks]
        parts = [np.frombuffer(chunk.buffers()[1], ">u8", len(chunk), 8 * chunk.offset) for chunk in chunks if len(chunk)]
        self._sorted = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]).astype(np.uint64))

    def __contains__(self, identifier: str) -> bool:
        key = np.uint64(int.from_bytes(identifier.encode(), "big") if len(identifier) == 8 else 0)
        place = int(np.searchsorted(self._sorted, key))
        return place < len(self._sorted) and self._sorted[place] == key


def find_games(sources: Iterable[Path | str], wanted: Container[str], report: ReadReport) -> dict[str, SourceGame]:
    """The games of .pgn and .pgn.zst files whose Lichess id is in ``wanted``, streamed; the first of an id counts.

    The id stands in the Site header, as the dumps have it, or in GameId. ``report`` counts games: kept, ``not_wanted``, ``no_game_id`` and
    ``duplicate_game``. Raises UserError for a missing or damaged file.
    """
    found: dict[str, SourceGame] = {}
    with tqdm(desc="games searched", unit="game", unit_scale=True, disable=None) as progress:
        for source in sources:
            path = Path(source)
            check_source(path, ".pgn", "world.games")
            report.files.append(file_record(path))
            for identifier, game in _games_of_file(path, wanted, report):
                report.read += 1
                progress.update()
                if game is not None and identifier not in found:
                    found[identifier] = game
                    report.kept += 1
                elif not identifier:
                    report.drop("no_game_id")
                else:
                    report.drop("duplicate_game" if game is not None else "not_wanted")
    return found


def _games_of_file(path: Path, wanted: Container[str], report: ReadReport) -> Iterator[tuple[str, SourceGame | None]]:
    """(id, empty where it has none; the game where it is wanted) of every game of a file."""
    for block in split_blocks(read_lines(path, report)):
        identifier, date = "", 0
        for name, value in _HEADER.findall(b"\n".join(block.headers)):
            if name in (b"Site", b"GameId") and (match := _GAME_ID.search(value)):
                identifier = match[1].decode()
            elif (name == b"UTCDate" or (name == b"Date" and not date)) and (match := _DATE.fullmatch(value)):
                date = int(b"".join(match.groups()))
        yield identifier, SourceGame(_text(block.movetext), date) if identifier in wanted else None


def _text(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode("utf-8", "replace").strip()


# ---- puzzles ----------------------------------------------------------------------------------------------------------------------------


def with_histories(puzzles: Iterable[Puzzle], games: Mapping[str, SourceGame], origin: str, outcomes: dict[str, str]) -> list[Puzzle]:
    """The puzzles with the history and date of their game in ``games``, where it leads to them.

    ``outcomes`` gets, by puzzle id, ``history_from_ORIGIN`` or ``game_of_ORIGIN_does_not_lead_to_the_position``.
    """
    completed = []
    for puzzle in puzzles:
        game = games.get(puzzle.game)
        if game is not None and not puzzle.history:
            history = history_of(game.movetext, puzzle.fen, puzzle.moves[0])
            found = history is not None
            outcomes[puzzle.id] = f"history_from_{origin}" if found else f"game_of_{origin}_does_not_lead_to_the_position"
            puzzle = replace(puzzle, history=history or (), date=puzzle.date or game.date)
        completed.append(puzzle)
    return completed
