"""Sources of games -> a corpus on disk: blocks of whole games worked on by processes, then put together in order.

Each block's part lies in a file beside the corpus until all are there, so that a run that was killed goes on where it stopped. A part is found
by what is in the block and what shapes it, so neither the number of workers nor a second beginning changes a byte of the corpus.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import pickle
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import chess
import numpy as np
from tqdm import tqdm

from chessrl.balance import Balance
from chessrl.corpus import MANIFEST, add_made_games, check_settings, check_splits
from chessrl.decontamination import BlockedPositions, Decontamination
from chessrl.errors import UserError
from chessrl.game_sources import BLOCK_BYTES, Source, no_game, open_source
from chessrl.ingest_block import BlockSettings, begin_worker, load_account, make_and_save, work_in_worker
from chessrl.ingest_merge import Account, choose_games, write_documents
from chessrl.notation import VOCABULARY, vocabulary_hash
from chessrl.pgn_blocks import GameFilters
from chessrl.pgn_extract import choose_program, pgn_extract_version
from chessrl.shards import DTYPE, SPLITS, SplitWriter, manifest_hash
from chessrl.sources import SourceDamage

CORPUS_FORM = 3  # counts up when the same sources and settings give another corpus, or other parts
_BLOCKS_AHEAD = 2  # per worker: what is read while the others are worked on


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """What shapes a corpus of games, besides the sources and the puzzles it is kept off."""

    state: str
    context: int  # tokens
    seed: int
    validation_share: float
    shard_tokens: int
    filters: GameFilters = field(default_factory=GameFilters)
    method: str = "auto"
    balance: Balance | None = None
    most: int | None = None  # games, before balancing
    keep_partial: bool = False  # of a damaged source, what was read whole before the damage


def ingest(
    sources: Sequence[str],
    folder: Path | str,
    settings: IngestSettings,
    *,
    decontamination: Decontamination | None = None,
    workers: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> dict[str, Any]:
    """Write the corpus of all games of ``sources`` that pass the filters to a new ``folder``, and return its manifest.

    ``sources`` as ``game_sources.open_source`` takes them. Raises UserError for a bad source or value, a damaged source (unless
    ``keep_partial``), an existing folder, and where a split that was asked for stays empty.
    """
    folder = Path(folder)
    check_settings(folder, settings.state, settings.context, settings.validation_share, settings.shard_tokens)
    if workers < 1:
        raise UserError(f"workers={workers}: expected at least 1")
    program = choose_program(settings.method)
    shape = BlockSettings(settings.filters, program, settings.state, settings.context, settings.seed, settings.validation_share)
    blocked = decontamination.blocked if decontamination else None
    opened = [open_source(name) for name in sources]
    parts_folder = folder.with_name(f".{folder.name}.parts")
    reading = _Reading(_parts_of(parts_folder, shape, blocked), settings.most, settings.keep_partial, block_bytes)
    sizes = [source.size for source in opened]
    total = None if None in sizes else sum(sizes)
    with _runner(shape, blocked, workers) as run, tqdm(total=total, unit="B", unit_scale=True, desc="games to tokens", disable=None) as bar:
        for source in opened:
            reading.read(source, run, _BLOCKS_AHEAD * workers if workers > 1 else 0, bar)
    if reading.found:
        print(f"{reading.found:,} of {len(reading.parts):,} blocks had been done by an earlier run", flush=True)
    manifest = _put_together(folder, settings, reading, decontamination)
    shutil.rmtree(parts_folder)
    return manifest


# ---- parts ------------------------------------------------------------------------------------------------------------------------------

_Run = Callable[[str, bytes, Path], "Future[dict[str, Any]] | dict[str, Any]"]  # kind and content of a block, where its part goes -> its account


def _parts_of(folder: Path, shape: BlockSettings, blocked: BlockedPositions | None) -> Path:
    """The folder of parts made with these settings; parts made with others go."""
    identity = {
        "form": CORPUS_FORM,
        "chessrl": importlib.metadata.version("chessrl"),
        "vocabulary": vocabulary_hash(),
        "shape": asdict(shape) | {"program": pgn_extract_version(shape.program) if shape.program else None},
        "blocked": hashlib.sha256(pickle.dumps(blocked)).hexdigest() if blocked else None,
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    for other in folder.glob("*"):
        if other.name != name:
            shutil.rmtree(other)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for begun in (folder / name).glob("*.tmp"):  # by a run that was killed
        begun.unlink()
    return folder / name


@contextmanager
def _runner(shape: BlockSettings, blocked: BlockedPositions | None, workers: int) -> Iterator[_Run]:
    if workers == 1:
        yield lambda kind, data, path: make_and_save(kind, data, path, shape, blocked)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker, initargs=(shape, blocked)) as pool:
        try:
            yield lambda kind, data, path: pool.submit(work_in_worker, kind, data, path)
        except BrokenProcessPool as error:
            raise UserError(f"a worker process was killed (out of memory?): run again to go on, with fewer than workers={workers}") from error
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(slots=True)
class _Reading:
    """All sources' blocks, in order: where their parts are, and what became of their games."""

    folder: Path  # of the parts
    most: int | None
    keep_partial: bool
    block_bytes: int
    parts: list[Path] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    records: list[dict[str, Any]] = field(default_factory=list)  # of the sources
    found: int = 0  # blocks that were done before
    _position: int = 0  # bytes of the source at hand up to the last block counted
    _kept: set[int] = field(default_factory=set)  # digests of the games so far, where their number is limited

    def read(self, source: Source, run: _Run, ahead: int, bar: tqdm) -> None:
        """Work on the blocks of one source, ``ahead`` of them while the next is read."""
        before, any_block, damage = self.account.read, False, None
        pending: deque[tuple[Path, Any, int]] = deque()
        self._position = 0
        try:
            for data in () if self._is_full() else source.blocks(self.block_bytes):
                any_block = True
                path = self.folder / f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.npz"
                account = load_account(path)
                self.found += account is not None
                pending.append((path, run(source.kind, data, path) if account is None else account, source.bytes_read))
                while len(pending) > ahead:
                    self._finish(*pending.popleft(), bar)
                if self._is_full():
                    break
        except SourceDamage as error:
            damage = error
        while pending:
            self._finish(*pending.popleft(), bar)
        if self._is_full():
            self.records.append({"name": Path(source.name).name, "bytes": source.size, "read_bytes": self._position})
            return
        self.account.read += source.cut_off
        self.account.dropped["cut_off"] += source.cut_off
        if damage and not self.keep_partial:
            raise damage.error(self.account.read - before, "fetch the file again, or go on without the rest of it: keep_partial=true")
        if not any_block and not damage:
            raise no_game(source)
        self.records.append(source.record)

    def _finish(self, path: Path, work: Any, position: int, bar: tqdm) -> None:
        account = work.result() if isinstance(work, Future) else work
        if self._is_full():  # read ahead of the limit: not counted, so that counts do not depend on workers
            return
        self.parts.append(path)
        self.account.add(account)
        if self.most is not None:
            with np.load(path) as file:
                self._kept.update(file["digest"].tolist())
        bar.update(position - self._position)
        bar.set_postfix(games=f"{self.account.read:,}", refresh=False)
        self._position = position

    def _is_full(self) -> bool:
        return self.most is not None and len(self._kept) >= self.most


# ---- the corpus -------------------------------------------------------------------------------------------------------------------------


def _put_together(folder: Path, settings: IngestSettings, reading: _Reading, decontamination: Decontamination | None) -> dict[str, Any]:
    account = reading.account
    if not reading.parts:
        raise UserError("no whole game could be read from the sources; fetch them again")
    keep = choose_games(reading.parts, settings.balance, settings.most, settings.seed, account)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    temporary.mkdir()
    try:
        writers = {split: SplitWriter(temporary, split, settings.shard_tokens) for split in SPLITS}
        write_documents(reading.parts, keep, temporary, writers, decontamination)
        if decontamination is not None:
            add_made_games(decontamination, writers["train"], state=settings.state, context=settings.context, seed=settings.seed)
        check_splits(writers, settings.validation_share, account)
        manifest = _manifest(settings, reading, writers, decontamination)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _manifest(
    settings: IngestSettings, reading: _Reading, writers: dict[str, SplitWriter], decontamination: Decontamination | None
) -> dict[str, Any]:
    program = choose_program(settings.method)
    manifest: dict[str, Any] = {
        "state": settings.state,
        "context": settings.context,
        "seed": settings.seed,
        "validation_share": settings.validation_share,
        "settings": asdict(settings),
        "tools": {
            "chessrl": importlib.metadata.version("chessrl"),
            "pgn-extract": pgn_extract_version(program) if program else None,
            "python-chess": chess.__version__,
        },
        "vocabulary_hash": vocabulary_hash(),
        "vocabulary_size": len(VOCABULARY),
        "dtype": DTYPE.name,
        "sources": reading.records,
        "games": reading.account.record(),
        "balance": reading.account.balance,
        "decontamination": decontamination.record() if decontamination else None,
        "splits": {split: writer.finish() for split, writer in writers.items()},
    }
    if decontamination is not None and (leak := decontamination.leak_record()) is not None:
        manifest["leak"] = leak
    manifest["hash"] = manifest_hash(manifest)
    return manifest
