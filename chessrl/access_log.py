"""The log of accesses to the private hold-out, a chain of hashes, and the hash that fixes its puzzles.

Each entry holds the hash of the one before it, so that an entry changed, taken out or put in between breaks the chain; a log cut at its end is
seen by whoever kept its last hash.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chessrl.errors import UserError
from chessrl.lock import Lock
from chessrl.puzzles import Puzzle

LOG = "private_access.jsonl"
FIRST = "0" * 64  # in place of an earlier entry's hash
ENTRY_KEYS = ("number", "time", "who", "run", "command", "puzzles", "commitment", "previous", "hash")


def commitment(puzzles: Sequence[Puzzle]) -> str:
    """SHA-256 of the puzzles (id, position, moves) in the order of their ids: publish it before training, and nobody can exchange them later."""
    lines = sorted(f"{puzzle.id} {puzzle.fen} {' '.join(puzzle.moves)}\n" for puzzle in puzzles)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def append_access(path: Path, run: str, puzzles: Sequence[Puzzle]) -> dict[str, Any]:
    """Add an entry to the log and return it. Raises UserError where the log is broken, or speaks of other puzzles than these."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.with_name(f".{path.name}.lock"), str(path)):
        entries = read_log(path)
        if fault := log_fault(entries):
            raise UserError(f"{path}: {fault}; keep the file as it is and start a new outputs folder, whose log begins anew")
        entry = {
            "number": len(entries) + 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "who": f"{getpass.getuser()}@{platform.node()}",
            "run": run,
            "command": " ".join(sys.argv),
            "puzzles": len(puzzles),
            "commitment": commitment(puzzles),
            "previous": entries[-1]["hash"] if entries else FIRST,
        }
        entry["hash"] = entry_hash(entry)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
    return entry


def entry_hash(entry: dict[str, Any]) -> str:
    """SHA-256 of an entry without its own hash."""
    return hashlib.sha256(json.dumps({key: entry[key] for key in ENTRY_KEYS if key != "hash"}).encode()).hexdigest()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries, oldest first; none where there is no log. Raises UserError on a line that is no entry."""
    if not path.is_file():
        return []
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = None
        if not isinstance(entry, dict) or set(entry) != set(ENTRY_KEYS):
            raise UserError(
                f"{path} line {number}: expected an entry with {', '.join(ENTRY_KEYS)}; "
                "it was written to by hand: keep the file and start a new outputs folder"
            )
        entries.append(entry)
    return entries


def log_fault(entries: Sequence[dict[str, Any]]) -> str:
    """What is wrong with the chain, in words; empty where it holds."""
    previous = FIRST
    for number, entry in enumerate(entries, start=1):
        if entry["number"] != number or entry["previous"] != previous:
            return f"entry {number} does not follow the one before it: an entry was taken out, put in or moved"
        if entry["hash"] != entry_hash(entry):
            return f"entry {number} is not what its hash says: it was changed"
        previous = entry["hash"]
    if len({entry["commitment"] for entry in entries}) > 1:
        return "its entries speak of different puzzles: the hold-out was exchanged"
    return ""
