"""The private hold-out: puzzles that no training or tuning reads. Whoever evaluates on them is entered in the log below the outputs folder."""

from __future__ import annotations

from pathlib import Path

from chessrl import world
from chessrl.access_log import LOG, append_access
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.puzzles import Puzzle


def open_private(config: Config, run: str) -> list[Puzzle]:
    """The private puzzles for an evaluation of ``run``, once the access is on disk. Raises UserError unless ``evaluate.open_private`` allows it."""
    if not config.evaluate.open_private:
        raise UserError("evaluate.split=private: add evaluate.open_private=true; the access is then entered in the hold-out's log for good")
    puzzles = world.private_puzzles(config)
    append_access(Path(config.outputs) / LOG, run, puzzles)
    return puzzles
