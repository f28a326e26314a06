"""The parts of all blocks -> one corpus: duplicates, a limit and Elo balance over all games, then shards and a table of games.

Of every game a few numbers are held in memory; tokens pass through one part at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chessrl.balance import Balance, choose
from chessrl.decontamination import Decontamination, Verdict
from chessrl.game_batch import bounds
from chessrl.ingest_block import CLASS_NAMES, FACTS, RESULT_NAMES, load_account
from chessrl.shards import SplitWriter

GAMES_TABLE = "games.parquet"
_EXAMPLES = 20  # sites of illegal games in the manifest

TABLE = pa.schema(
    {
        "hash": pa.uint64(),  # of start position and moves (corpus.game_digest, "moves")
        "white_elo": pa.int16(),
        "black_elo": pa.int16(),
        "time_class": pa.string(),
        "result": pa.string(),
        "plies": pa.int32(),  # of the whole game
        "date": pa.string(),  # YYYY-MM-DD
        "site": pa.string(),
        "split": pa.string(),
        "shard": pa.string(),
        "offset": pa.int64(),  # of its document, in tokens
        "length": pa.int32(),  # of its document, in tokens
    }
)


@dataclass(slots=True)
class Account:
    """Every game of all sources: ``read == kept + sum(dropped.values())``, where kept ones have a document."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    reread: int = 0  # games of which pgn-extract wrote another number of moves than were given, so that python-chess read them
    checked: int = 0  # games of token shards that python-chess replayed
    illegal_sites: list[str] = field(default_factory=list)
    balance: dict[str, Any] | None = None

    def add(self, part: dict[str, Any]) -> None:
        """Count one block's games (the account of its part)."""
        self.read += part["read"]
        self.dropped.update(part["dropped"])
        self.reread += part["reread"]
        self.checked += part["checked"]
        self.illegal_sites += part["examples"][: _EXAMPLES - len(self.illegal_sites)]

    def record(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason: count for reason, count in sorted(self.dropped.items()) if count},
            "read_again_by_python_chess": self.reread,
            "replayed_as_a_check": self.checked,
            "illegal_sites": self.illegal_sites,
        }

    def summary(self) -> str:
        """One line: how many were read and kept, then the reasons, most frequent first."""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.most_common() if count)
        return f"read {self.read:,}, kept {self.kept:,}" + (f"; dropped: {reasons}" if reasons else "")


def choose_games(parts: Sequence[Path], balance: Balance | None, most: int | None, seed: int, account: Account) -> list[np.ndarray]:
    """Which games of each part are written (bool [games of the part]): not a later copy of another, not beyond ``most``, and by ``balance``."""
    facts = [_load(path, ("digest", "white_elo", "black_elo")) for path in parts]
    digests, white, black = (np.concatenate([part[name] for part in facts]) for name in ("digest", "white_elo", "black_elo"))
    sizes = [len(part["digest"]) for part in facts]
    del facts
    keep = _first_ones(digests)
    account.dropped["duplicate"] += int((~keep).sum())
    if most is not None:
        beyond = np.flatnonzero(keep)[most:]
        keep[beyond] = False
        account.dropped["beyond_the_limit"] += len(beyond)
    if balance is not None:
        games = np.flatnonzero(keep)
        chosen, reasons, account.balance = choose(balance, white[games], black[games], digests[games], seed)
        keep[games[~chosen]] = False
        account.dropped.update(reasons)
    account.kept = int(keep.sum())
    return np.split(keep, np.cumsum(sizes)[:-1])


def _first_ones(digests: np.ndarray) -> np.ndarray:
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    first = np.ones(len(digests), dtype=bool)
    first[order[1:][ordered[1:] == ordered[:-1]]] = False
    return first


def write_documents(
    parts: Sequence[Path], keep: Sequence[np.ndarray], folder: Path, writers: dict[str, SplitWriter], decontamination: Decontamination | None
) -> None:
    """Shards, and the table of games in ``folder``: one row a document, in the order of the sources."""
    with pq.ParquetWriter(folder / GAMES_TABLE, TABLE) as table:
        for path, wanted in zip(parts, keep):
            facts = _load(path, (*FACTS, "tokens", "sites"))
            if decontamination is not None:
                _tell(decontamination, path, wanted)
            rows = np.repeat(np.flatnonzero(wanted), facts["copies"][wanted])
            if len(rows):
                table.write_table(_write_part(facts, rows, writers))


def _tell(decontamination: Decontamination, path: Path, wanted: np.ndarray) -> None:
    account = load_account(path)
    for row, (blocked_by, copies, leaked, leaked_plies), plies_held in account["verdicts"]:
        verdict = Verdict(tuple(blocked_by), copies, tuple(leaked), tuple(map(tuple, leaked_plies)))
        decontamination.count(verdict)
        if row >= 0 and wanted[row]:
            decontamination.wrote(verdict.within(range(*plies_held)))


def _write_part(facts: dict[str, np.ndarray], rows: np.ndarray, writers: dict[str, SplitWriter]) -> pa.Table:
    """Write the documents of some rows (in order, a row as often as it is to be written); their rows of the table."""
    held_out = facts["held_out"][rows]
    starts = bounds(facts["length"])
    shard = np.empty(len(rows), dtype=object)
    offset = np.empty(len(rows), dtype=np.int64)
    for split, chosen in (("train", ~held_out), ("validation", held_out)):
        of_split = rows[chosen]
        tokens = _documents(facts["tokens"], starts, of_split)
        number, offset[chosen] = writers[split].extend(
            tokens, facts["length"][of_split], facts["loss_tokens"][of_split], facts["truncated"][of_split]
        )
        shard[chosen] = [f"{split}-{place:05d}" for place in number.tolist()]
    site_ends = bounds(facts["site_bytes"])
    sites = facts["sites"].tobytes()
    dates = facts["date"][rows].tolist()
    columns = {
        "hash": facts["digest"][rows],
        "white_elo": _known(facts["white_elo"][rows]),
        "black_elo": _known(facts["black_elo"][rows]),
        "time_class": np.array(CLASS_NAMES, dtype=object)[facts["time_class"][rows]],
        "result": np.array(RESULT_NAMES, dtype=object)[facts["result"][rows]],
        "plies": facts["plies"][rows],
        "date": [f"{date // 10000:04d}-{date // 100 % 100:02d}-{date % 100:02d}" if date else None for date in dates],
        "site": [sites[start:end].decode() or None for start, end in zip(site_ends[rows].tolist(), site_ends[rows + 1].tolist())],
        "split": np.where(held_out, "validation", "train"),
        "shard": shard,
        "offset": offset,
        "length": facts["length"][rows],
    }
    return pa.table({name: pa.array(column, type=TABLE.field(name).type) for name, column in columns.items()}, schema=TABLE)


def _documents(tokens: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Tokens of the documents of some rows, end to end."""
    pieces = [tokens[start:end] for start, end in zip(starts[rows].tolist(), starts[rows + 1].tolist())]
    return np.concatenate(pieces) if pieces else tokens[:0]


def _known(ratings: np.ndarray) -> pa.Array:
    return pa.array(ratings, mask=ratings == 0)


def _load(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in names}
