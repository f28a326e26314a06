"""Does a model know the rules and predict the move? Exact legal mass and top-1 accuracy by ply on held-out games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chess
import numpy as np
import pandas as pd
from tqdm import tqdm

from chessrl import notation
from chessrl.corpus import Corpus
from chessrl.model import Transformer
from chessrl.policy import move_tree, score_moves
from chessrl.statistics import MINIMUM_PUZZLES, bootstrap_means

MEASURES = {"legal mass": "mass", "likeliest legal move was played": "top"}
COLUMNS = ("measure", "ply", "value", "ci_low", "ci_high", "games")


@dataclass(frozen=True, slots=True)
class Games:
    """COLUMNS: plies count from 1, the first move of the document; plies that fewer than ten games reach are left out."""

    table: pd.DataFrame

    def write(self, folder: Path) -> None:
        self.table.to_csv(folder / "games.csv", index=False)


def game_plies(document: Sequence[int]) -> list[tuple[int, list[tuple[int, ...]], int]]:
    """Each move of a corpus document: where it begins, the canonical tokens of all legal moves by UCI text, and which of them was played.

    A last move that the context cut off is not one.
    """
    tokens = list(document)
    place = tokens.index(notation.END_POSITION) + 1 if notation.POSITION in tokens[:2] else 1
    board = notation.parse_snapshot(tokens[1:place]) if place > 1 else chess.Board()
    plies = []
    while place < len(tokens) and tokens[place] != notation.EOS:
        legal = sorted(board.legal_moves, key=lambda move: move.uci())
        written = [tuple(notation.move_tokens(board, move)) for move in legal]
        played = [at for at, ply in enumerate(written) if tuple(tokens[place : place + len(ply)]) == ply]
        if not played:
            break
        longest = max(played, key=lambda at: len(written[at]))
        plies.append((place, written, longest))
        board.push(legal[longest])
        place += len(written[longest])
    return plies


def measure_games(model: Transformer, corpus: Corpus, games: int) -> pd.DataFrame:
    """One row per game and ply: game, ply (from 1), mass (probability of all legal moves together), top (1 where the likeliest was played)."""
    rows = []
    for game in tqdm(range(min(games, len(corpus))), desc="held-out games", unit="game"):
        document = corpus.document(game).tolist()
        plies = game_plies(document)
        scores = score_moves(model, [document[:place] for place, _, _ in plies], [move_tree(written) for _, written, _ in plies])
        for ply, ((_, _, played), row) in enumerate(zip(plies, scores), start=1):
            rows.append((game, ply, float(np.exp(row).sum()), float(row.argmax() == played)))
    return pd.DataFrame(rows, columns=["game", "ply", "mass", "top"])


def games_table(rows: pd.DataFrame, seed: int) -> Games:
    """Means by ply over the games that reach it, with 95 % bootstrap intervals over games."""
    made = []
    for ply, of_ply in rows.groupby("ply"):
        if len(of_ply) < MINIMUM_PUZZLES:
            continue
        values = of_ply[list(MEASURES.values())].to_numpy().clip(0, 1)
        for name, interval in zip(MEASURES, bootstrap_means(values, np.random.default_rng(seed))):
            made.append((name, ply, *interval, len(of_ply)))
    return Games(pd.DataFrame(made, columns=list(COLUMNS)))
