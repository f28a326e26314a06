"""What a token corpus holds: tokens by class and by document, and the games in it, read back from the shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import chess
import numpy as np
import pandas as pd
from tqdm import tqdm

from chessrl.corpus import Corpus
from chessrl.describe_figures import Section, ranked_figure
from chessrl.describe_games import Meetings, PhaseCount, account_table, duplicate_table, game_sections
from chessrl.notation import (
    BOS,
    CAPTURE,
    CASTLE_LONG,
    CASTLE_SHORT,
    CHECK,
    END_POSITION,
    EOS,
    FIRST_PIECE,
    FIRST_SQUARE,
    MATE,
    PIECE_LETTERS,
    POSITION,
    PROMOTION,
    VOCABULARY,
    parse_snapshot,
)
from chessrl.position_keys import line_keys, moves_of_plies
from chessrl.puzzles import Puzzle

GAMES_TABLE = "games.parquet"
_DOCUMENTS_AT_ONCE = 20_000
_CLASSES = ("piece", "square", "capture", "promotion", "check or mate", "castling", "snapshot", "<bos>, <eos>", "other")
_SNAPSHOT, _PROMOTION_CLASS = _CLASSES.index("snapshot"), _CLASSES.index("promotion")


def _class_of_token() -> np.ndarray:
    """Class of every id outside a snapshot, [vocabulary]."""
    classes = np.full(len(VOCABULARY), _CLASSES.index("other"))
    classes[FIRST_PIECE : FIRST_PIECE + len(PIECE_LETTERS)] = _CLASSES.index("piece")
    classes[FIRST_SQUARE : FIRST_SQUARE + 64] = _CLASSES.index("square")
    for name, ids in (("capture", [CAPTURE]), ("promotion", [PROMOTION]), ("check or mate", [CHECK, MATE]), ("<bos>, <eos>", [BOS, EOS])):
        classes[ids] = _CLASSES.index(name)
    classes[[CASTLE_SHORT, CASTLE_LONG]] = _CLASSES.index("castling")
    return classes


_CLASS_OF_TOKEN = _class_of_token()
_STARTS_A_MOVE = np.isin(_CLASS_OF_TOKEN, [_CLASSES.index("piece"), _CLASSES.index("castling")])


class Parts(NamedTuple):
    """Documents end to end: class of every token [tokens] (index into the classes), where moves start [tokens], first token of each document."""

    classes: np.ndarray
    move_starts: np.ndarray
    starts: np.ndarray


def parts_of(tokens: np.ndarray, lengths: np.ndarray) -> Parts:
    """Sort the tokens of whole documents into classes. ``tokens`` [tokens] lie end to end, ``lengths`` [documents] are theirs."""
    opened = tokens == POSITION
    closed = tokens == END_POSITION
    inside = (np.cumsum(opened, dtype=np.int32) - np.cumsum(closed, dtype=np.int32) > 0) | closed
    after_equals = np.zeros(len(tokens), dtype=bool)
    after_equals[1:] = tokens[:-1] == PROMOTION
    classes = np.where(inside, _SNAPSHOT, np.where(after_equals, _PROMOTION_CLASS, _CLASS_OF_TOKEN[tokens]))
    return Parts(classes, _STARTS_A_MOVE[tokens] & ~inside & ~after_equals, np.concatenate([[0], np.cumsum(lengths)[:-1]]))


def corpus_sections(folder: Path, sample: int, puzzles: Sequence[Puzzle]) -> list[Section]:
    """The description of a corpus folder; ``games.parquet`` in it, where there is one, adds what the tokens do not say."""
    corpora = {split: Corpus.open(folder, split) for split in ("train", "validation")}
    manifest = corpora["train"].manifest
    corpora = {split: corpus for split, corpus in corpora.items() if len(corpus)}
    frames, counts = {}, {}
    for split, corpus in corpora.items():
        frames[split], counts[split] = _scan(corpus, split)
    documents = pd.concat(frames.values(), ignore_index=True)
    phases, meetings = PhaseCount(sample), Meetings(puzzles)
    for split, corpus in corpora.items():
        sampled = set(np.linspace(0, len(corpus) - 1, min(sample, len(corpus))).astype(int).tolist())
        for index in tqdm(range(len(corpus)) if puzzles else sorted(sampled), desc=f"{split} games", unit="game", disable=None):
            fen, moves = game_of_document(corpus.document(index))
            if index in sampled:
                phases.add(split, fen, moves)
            meetings.add(split, line_keys(fen, moves) if puzzles else [])
    facts = _facts(folder)
    games = documents if facts is None else facts
    fill = f"documents and tokens; no padding is stored. fill: mean length over the context of {manifest['context']} tokens"
    by_class = partial(ranked_figure, category="class", x_label="share of the split's tokens")
    return [
        Section("account", "games read, kept and left out by reason", account_table(manifest)),
        Section("tokens", fill, _totals(manifest, documents)),
        Section("tokens_by_class", "tokens by class; shares of a split's tokens", _class_table(counts), by_class),
        *game_sections(games),
        phases.section("documents spread over the split"),
        Section("duplicates", "documents with the tokens of another, within a split and in both", duplicate_table(documents, "digest")),
        *([] if facts is None else [Section("duplicate_games", "games with the start and moves of another", duplicate_table(facts, "digest"))]),
        *meetings.sections(),
    ]


def _scan(corpus: Corpus, split: str) -> tuple[pd.DataFrame, np.ndarray]:
    """One row per document (split, tokens, plies, loss tokens, digest), and tokens by class [classes]."""
    counts = np.zeros(len(_CLASSES), dtype=np.int64)
    columns: dict[str, list[np.ndarray]] = {"tokens": [], "plies": [], "digest": []}
    with tqdm(total=len(corpus), desc=f"{split} tokens", unit="document", disable=None) as bar:
        for batch in _batches(corpus):
            lengths = np.array([len(document) for document in batch])
            parts = parts_of(np.concatenate(batch), lengths)
            counts += np.bincount(parts.classes, minlength=len(_CLASSES))
            columns["tokens"].append(lengths)
            columns["plies"].append(np.add.reduceat(parts.move_starts, parts.starts, dtype=np.int64))
            columns["digest"].append(np.array([hashlib.blake2b(document.tobytes(), digest_size=8).hexdigest() for document in batch]))
            bar.update(len(batch))
    return pd.DataFrame({"split": split, **{name: np.concatenate(arrays) for name, arrays in columns.items()}}), counts


def _batches(corpus: Corpus) -> Iterator[list[np.ndarray]]:
    for start in range(0, len(corpus), _DOCUMENTS_AT_ONCE):
        yield [corpus.document(index) for index in range(start, min(start + _DOCUMENTS_AT_ONCE, len(corpus)))]


def game_of_document(document: np.ndarray) -> tuple[str, list[chess.Move]]:
    """Position (FEN) that a document starts from, and its moves."""
    tokens = document.tolist()
    first = 1  # after <bos>
    fen = chess.STARTING_FEN
    if tokens[1] == POSITION:
        first = tokens.index(END_POSITION) + 1
        fen = parse_snapshot(tokens[1:first]).fen()
    starts = np.flatnonzero(parts_of(document, np.array([len(tokens)])).move_starts).tolist()
    end = len(tokens) - (tokens[-1] == EOS)
    plies = [tuple(tokens[start:stop]) for start, stop in zip(starts, [*starts[1:], end])]
    assert not starts or starts[0] == first  # nothing stands between the state and the moves
    return fen, moves_of_plies(plies, white_first=fen.split()[1] == "w")


def _totals(manifest: dict, documents: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for split, entry in manifest["splits"].items():
        lengths = documents.loc[documents["split"] == split, "tokens"]
        if len(lengths):
            quantiles = [int(lengths.quantile(share)) for share in (0.5, 0.95, 1.0)]
            fill = round(lengths.mean() / manifest["context"], 3)
            rows.append((split, len(lengths), entry["tokens"], entry["loss_tokens"], entry["truncated_documents"], *quantiles, fill))
    return pd.DataFrame(rows, columns=["split", "documents", "tokens", "loss tokens", "truncated", "median length", "95 %", "longest", "fill"])


def _class_table(counts: dict[str, np.ndarray]) -> pd.DataFrame:
    rows = [(split, name, number, number / of_split.sum()) for split, of_split in counts.items() for name, number in zip(_CLASSES, of_split.tolist())]
    table = pd.DataFrame(rows, columns=["split", "class", "count", "share"])
    return table[table.groupby("class")["count"].transform("sum") > 0].reset_index(drop=True)


def _facts(folder: Path) -> pd.DataFrame | None:
    """The table of games beside the shards, where there is one, under the names of describe_games."""
    path = folder / GAMES_TABLE
    if not path.is_file():
        return None
    columns = ["split", "plies", "result", "time_class", "white_elo", "black_elo", "hash"]
    return pd.read_parquet(path, columns=columns).rename(columns={"hash": "digest"})
