"""The prefix-completion test for contamination (arXiv 2507.10532): does a pretrained model write the rest of what it was given the beginning of?

``python -m chessrl.prefixes parent=PRETRAIN_RUN``: a folder below ``RUN/prefixes`` with ``prefixes.parquet`` and ``prefixes.json``. The model gets
the first 40, 60 and 80 % of the plies and has to write all others greedily. What it was trained on it completes more often than what it never saw.
Sources: games of the corpus that were trained on and held out; test puzzles, as the game that leads to them (where it is known) or as position and
line; and their colour-mirrored twins, which no corpus holds: the control for every test puzzle.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from chessrl import notation, world
from chessrl.checkpoint import load_model, replace_folder, write_json
from chessrl.config import Config
from chessrl.corpus import Corpus
from chessrl.launch import launch
from chessrl.lock import Lock
from chessrl.model import Transformer
from chessrl.puzzle_splits import mirrored
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.run import adopt_parent, digest, identity_of, leak_of, resolve_device
from chessrl.training import micro_batches

SHARES = (40, 60, 80)  # percent of the plies
COLUMNS = ("source", "item", "share", "plies_given", "plies_asked", "exact", "tokens_right")
PASS_TOKENS = 16_384
MOVE_BEGINNINGS = frozenset({*range(notation.FIRST_PIECE, notation.FIRST_PIECE + 6), notation.CASTLE_SHORT, notation.CASTLE_LONG})


@dataclass(frozen=True, slots=True)
class Text:
    """A document: tokens, and the places at which its plies begin, its end as the last."""

    source: str
    item: str
    tokens: np.ndarray
    plies: np.ndarray


def ply_places(tokens: np.ndarray) -> np.ndarray:
    """Places at which moves begin, and the end: behind a snapshot or ``<bos>``, at every piece that is no promotion, and at castling."""
    start = int(np.flatnonzero(tokens == notation.END_POSITION)[0]) + 1 if (tokens == notation.END_POSITION).any() else 1
    end = len(tokens) - int(tokens[-1] == notation.EOS)
    begins = [place for place in range(start, end) if tokens[place] in MOVE_BEGINNINGS and tokens[place - 1] != notation.PROMOTION]
    return np.array([*begins, end])


def corpus_texts(corpus: Corpus, source: str, count: int) -> list[Text]:
    """``count`` documents, evenly spaced over the corpus; those without a move are passed over."""
    places = np.unique(np.linspace(0, len(corpus) - 1, min(count, len(corpus))).astype(int))
    texts = [(str(place), np.array(corpus.document(int(place)), dtype=np.int64)) for place in places]
    return [Text(source, item, tokens, ply_places(tokens)) for item, tokens in texts if len(ply_places(tokens)) > 1]


def puzzle_text(puzzle: Puzzle, state: str, source: str, item: str) -> Text:
    """The game up to the puzzle's position where it is given by its moves; else the position and the line, which a leaked game would hold."""
    tokens = prompt_tokens(puzzle, state, think=False)
    if state == "snapshot":
        board = puzzle.board()
        for move in puzzle.moves[puzzle.lead :]:
            tokens += notation.move_tokens(board, board.parse_uci(move))
            board.push_uci(move)
    array = np.array(tokens, dtype=np.int64)
    return Text(source, item, array, ply_places(array))


def puzzle_texts(puzzles: Sequence[Puzzle], state: str) -> list[Text]:
    """Test puzzles, and in a world of snapshots their mirrored twins under the same item. Those without a ply are left out."""
    texts = [puzzle_text(puzzle, state, "test", puzzle.id) for puzzle in puzzles]
    if state == "snapshot":
        texts += [puzzle_text(mirrored(puzzle), state, "test_mirrored", puzzle.id) for puzzle in puzzles]
    return [text for text in texts if len(text.plies) > 1]


@torch.no_grad()
def completed(model: Transformer, texts: Sequence[Text], pass_tokens: int = PASS_TOKENS) -> pd.DataFrame:
    """COLUMNS, one row per text and share: whether the greedy continuation of the first plies writes all others token by token.

    Greedy writing equals the text exactly when each next token is the likeliest after the true ones before it: one forward pass tells, for every
    share at once. ``tokens_right``: the share of the tokens asked for that are so.
    """
    right: list[np.ndarray] = [np.empty(0)] * len(texts)
    batches = list(micro_batches([len(text.tokens) for text in texts], pass_tokens))
    for places in tqdm(batches, desc="prefixes", unit="batch"):
        width = max(len(texts[place].tokens) for place in places)
        tokens = np.full((len(places), width), notation.PAD)
        for row, place in enumerate(places):
            tokens[row, : len(texts[place].tokens)] = texts[place].tokens
        ids = torch.from_numpy(tokens).to(model.device)
        hits = (model(ids)[:, :-1].argmax(-1) == ids[:, 1:]).cpu().numpy()
        for row, place in enumerate(places):
            right[place] = np.append(False, hits[row, : len(texts[place].tokens) - 1])
    return pd.DataFrame(_rows(texts, right), columns=list(COLUMNS))


def _rows(texts: Sequence[Text], right: Sequence[np.ndarray]) -> Iterable[tuple]:
    for text, hits in zip(texts, right):
        plies = len(text.plies) - 1
        for share in SHARES:
            given = min(plies * share // 100, plies - 1)
            asked = hits[text.plies[given] : text.plies[-1]]
            yield (text.source, text.item, share, given, plies - given, bool(asked.all()), float(asked.mean()))


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def prefixes(config: Config) -> int:
    """Test the pretrained run ``parent``, unless it is done."""
    parent = adopt_parent(config, ("pretrain",))  # later stages write answers, not games
    identity = {
        "documents": config.audit.documents, "world": identity_of(config.world), "puzzles": world.puzzle_hash(config),
        "precision": config.run.precision, "device": resolve_device(config.run.device).type,
    }  # fmt: skip
    folder = Path(config.parent) / "prefixes" / digest(identity)
    folder.parent.mkdir(exist_ok=True)
    with Lock(folder.with_name(f".{folder.name}.lock"), str(folder)):
        if (folder / "prefixes.json").exists():
            print(f"prefixes: {folder} is finished, skipped", flush=True)
            return 0
        train, validation = world.open_corpus(config)
        count, state = config.audit.documents, config.world.state
        puzzles = sorted(world.puzzles_of_split(config, "test"), key=lambda puzzle: hashlib.sha256(puzzle.id.encode()).digest())[:count]
        texts = [*corpus_texts(train, "train", count), *corpus_texts(validation, "validation", count), *puzzle_texts(puzzles, state)]
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        model = load_model(Path(config.parent) / "model", precision=config.run.precision, device=resolve_device(config.run.device))
        table = completed(model, texts)
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        table.to_parquet(temporary / "prefixes.parquet", compression="zstd", index=False)
        account = {key: train.manifest[key] for key in ("hash", "decontamination", "games") if key in train.manifest}
        record = {"run": parent["run_id"], "state": state, "trained_on": parent["data"], "corpus": account}
        write_json(temporary / "prefixes.json", record | leak_of(parent))
        replace_folder(temporary, folder)
    print(f"prefixes: {folder}", flush=True)
    return 0


if __name__ == "__main__":
    launch("prefixes", prefixes)
