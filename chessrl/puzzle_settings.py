"""Keys of ``python -m chessrl.puzzles``, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from chessrl.config import SPLITS
from chessrl.errors import UserError
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_splits import POOL_OF_SLICE
from chessrl.puzzles import BINS

ENGINE_CHECKS = ("off", "flag", "drop")
LONGEST_LINE = 100  # moves; what Lichess's generator cannot exceed by far


@dataclass(frozen=True, slots=True)
class PuzzleSettings:
    """Keys of ``python -m chessrl.puzzles``: Lichess tables in, ``out``/puzzles.parquet and puzzles.json (the account) out."""

    sources: tuple[str, ...]  # Lichess puzzle tables (.csv, .csv.zst)
    out: str  # folder for the table and the account
    sft: int = 4000  # puzzles of the split that fine-tuning trains on
    rl: int = 6000  # of the one that RL trains on
    validation: int = 800  # of the one that evaluations during development look at
    test: int = 1500  # of the one that reported figures are of
    private: int = 400  # of the one that an evaluation opens only with an entry in the access log
    sft_mix: tuple[str, ...] = ("B1:1", "B2:1", "B3:1", "B4:1")  # weights of the bins; the default is even over ratings from 800 to 2400
    rl_mix: tuple[str, ...] = ("B0:7.5", "B1:35", "B2:35", "B3:7.5", "B4:7.5", "B5:7.5")  # weights of the bins; the default takes 70 % from B1 and B2
    test_mix: tuple[str, ...] = ("B0:1", "B1:1", "B2:1", "B3:1", "B4:1", "B5:1")  # weights of the bins in test, validation and private
    test_mirrored: bool = True  # split test_mirrored: the test puzzles with colours exchanged
    held_out_themes: tuple[str, ...] = ()  # puzzles with one of these are for split test_themes alone
    test_themes: int = 0  # puzzles of split test_themes
    test_long: int = 0  # puzzles of split test_long: lines of more than max_line_moves
    corpus_until: str = ""  # a day such as 2023-12-31: puzzles whose game is known to be later are for split test_recent alone
    test_recent: int = 0  # puzzles of split test_recent
    min_rating: int = 0  # puzzles below it are left out
    max_rating: int = 9999  # puzzles above it are left out
    max_deviation: int = 500  # puzzles whose rating is less certain than this are left out
    min_popularity: int = -100  # less popular ones are left out; -100 to 100
    min_plays: int = 0  # puzzles that were played less often are left out
    max_line_moves: int = 12  # longer lines are left out; the opponent's first move is counted
    themes: tuple[str, ...] = ()  # only puzzles with at least one of these; empty: all
    exclude_themes: tuple[str, ...] = ()  # no puzzles with one of these
    bad_ids: str = ""  # a file of puzzle ids to leave out, one a line
    missing: str = "drop"  # rows without the deviation, popularity or plays that a filter asks for: drop or keep
    games: tuple[str, ...] = ()  # PGN files to search for the source games: dates and histories
    lichess_api: bool = False  # ask the Lichess export for source games that are found nowhere else
    lichess_url: str = "https://lichess.org"  # where the export is
    require_history: bool = False  # only puzzles with the moves that lead to them, as state=history needs
    engine_check: str = "off"  # puzzles with another solution: off, flag (in several_solutions.txt) or drop
    engine_path: str = ""  # Stockfish's path; empty: PATH, then /usr/games
    engine_depth: int = 8  # plies that it searches
    engine_delta: float = 0.02  # a move within so much of the best expected score is a solution
    seed: int = 0  # of the draw

    def __post_init__(self) -> None:
        for key in (*SPLITS, *POOL_OF_SLICE, "min_plays", "max_line_moves", "seed"):
            if getattr(self, key) < 0:
                raise UserError(f"{key}={getattr(self, key)}: expected at least 0")
        if self.engine_check not in ENGINE_CHECKS:
            raise UserError(f"engine_check={self.engine_check}: expected one of {', '.join(ENGINE_CHECKS)}")
        if self.test_themes and not self.held_out_themes:
            raise UserError(f"test_themes={self.test_themes} needs held_out_themes, such as held_out_themes=smotheredMate,interference")
        if self.test_recent and not self.corpus_until:
            raise UserError(f"test_recent={self.test_recent} needs corpus_until, the corpus's last day, such as corpus_until=2023-12-31")
        if self.corpus_until and not _is_day(self.corpus_until):
            raise UserError(f"corpus_until={self.corpus_until}: expected a day such as 2023-12-31")
        if not re.match(r"https?://\w", self.lichess_url):
            raise UserError(f"lichess_url={self.lichess_url}: expected an address such as https://lichess.org")

    def mix(self, split: str) -> dict[str, float]:
        """Weights of the bins of a split. Raises UserError for a mix that is none."""
        key = f"{split}_mix" if split in ("sft", "rl") else "test_mix"
        weights: dict[str, float] = {}
        for entry in getattr(self, key):
            match = re.fullmatch(rf"({'|'.join(BINS)}):(\d+(?:\.\d+)?)", entry)
            if not match or match[1] in weights:
                raise UserError(f"{key}={','.join(getattr(self, key))}: expected bins with their weights, such as B1:35,B2:35,B3:10")
            weights[match[1]] = float(match[2])
        if not sum(weights.values()):
            raise UserError(f"{key}: all weights are 0; give one bin a weight")
        return weights

    def filters(self) -> PuzzleFilters:
        """Which rows are kept; lines too long for the other splits are, where test_long asks for them. Raises UserError for a bad list of ids."""
        same = ("min_rating", "max_rating", "max_deviation", "min_popularity", "min_plays", "themes", "exclude_themes", "missing")
        bad: frozenset[str] = frozenset()
        if self.bad_ids:
            try:
                bad = frozenset(Path(self.bad_ids).read_text(encoding="utf-8").split())
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"bad_ids={self.bad_ids}: not readable ({error}); expected a text file with one puzzle id a line") from None
        longest = LONGEST_LINE if self.test_long else self.max_line_moves
        return PuzzleFilters(max_line_moves=longest, bad_ids=bad, **{key: getattr(self, key) for key in same})


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text  # other ISO spellings are read too
    except ValueError:
        return False
