"""Moves of screened games by the program pgn-extract, about 30 times as fast as python-chess.

Each batch is one short-lived process. Games go in with their number as Event, and come out in the same order without those that hold an
illegal or ambiguous move.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from chessrl.notation import CAPTURE, CASTLE_LONG, CASTLE_SHORT, CHECK, MATE, PROMOTION, TOKEN_ID
from chessrl.pgn_blocks import ScreenedGame

Plies = list[tuple[int, ...]]  # canonical move tokens, ply by ply

_DEBIAN_PATH = Path("/usr/games/pgn-extract")  # not on root's PATH
_OPTIONS = ("-s", "-Wxolalg", "--nomovenumbers", "--noresults", "-w1000000")
_SUFFIX = {"+": CHECK, "#": MATE}


def find_pgn_extract() -> str | None:
    """Path of the program, on PATH or where Debian puts it; None where it is not installed."""
    return shutil.which("pgn-extract") or (str(_DEBIAN_PATH) if _DEBIAN_PATH.is_file() else None)


def extract_plies(program: str, games: list[ScreenedGame]) -> list[Plies | None]:
    """Tokens of each game's moves, or None for a game with an illegal or ambiguous move.

    Raises RuntimeError where the program fails or its output does not fit its input.
    """
    done = subprocess.run(
        [program, *_OPTIONS], input="".join(_as_pgn(number, game) for number, game in enumerate(games)), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{program} ended with status {done.returncode}: {done.stderr[-500:]}")
    plies: list[Plies | None] = [None] * len(games)
    number = -1
    for line in done.stdout.splitlines():
        if line.startswith('[Event "'):
            number = int(line[8:-2])
        elif line and line[0] != "[":
            moves = [_move_tokens(text) for text in line.split()]
            if len(moves) != len(games[number].san):
                raise RuntimeError(f"{program} wrote {len(moves)} moves for the {len(games[number].san)} of {' '.join(games[number].san)}")
            plies[number] = moves
    return plies


def _as_pgn(number: int, game: ScreenedGame) -> str:
    """A minimal game; the closing ``*`` is there because a game without one comes out empty."""
    start = "" if game.start_fen is None else f'[SetUp "1"]\n[FEN "{game.start_fen}"]\n'
    return f'[Event "{number}"]\n{start}\n{" ".join(game.san)} *\n\n'


@cache
def _move_tokens(text: str) -> tuple[int, ...]:
    """Tokens of a move as ``-Wxolalg`` writes it: ``Ng1-f3``, ``e4xd5``, ``e7xd8Q+``, ``O-O``."""
    suffix = (_SUFFIX[text[-1]],) if text[-1] in _SUFFIX else ()
    body = text.rstrip("+#")
    if body in ("O-O", "O-O-O"):
        return (CASTLE_SHORT if body == "O-O" else CASTLE_LONG, *suffix)
    piece = "P" if body[0].islower() else body[0]
    body = body.removeprefix(piece)
    capture = (CAPTURE,) if body[2] == "x" else ()
    promotion = (PROMOTION, TOKEN_ID[body[5:]]) if len(body) > 5 else ()
    return (TOKEN_ID[piece], TOKEN_ID[body[:2]], *capture, TOKEN_ID[body[3:5]], *promotion, *suffix)
