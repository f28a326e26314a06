"""PGN to token shards: how fast, against pgn-extract alone on the same core, and how much memory.

pgn-extract alone (``-Wxolalg --hashcomments``) and ours (one worker, history state, every position looked up among the packaged puzzles' hashes)
take turns on one core. Then snapshots, one worker and two on all cores, and memory on one copy of the file against all. Further copies
begin with four moves of knights there and back, other ones in each, so that no game is a duplicate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import islice, product
from pathlib import Path

from benchmarks.measure import Contender, Lap, Row, compare, figure, timed_children
from chessrl.errors import UserError
from chessrl.pgn_extract import find_pgn_extract
from chessrl.sources import zstd

_THERE_AND_BACK = ("Nf3 Ng1", "Nc3 Nb1", "Na3 Nb1", "Nh3 Ng1"), ("Nf6 Ng8", "Nc6 Nb8", "Na6 Nb8", "Nh6 Ng8")
_OURS = """
import json, resource, sys, time
from chessrl import endgame
from chessrl.config import LeakConfig
from chessrl.decontamination import Decontamination
from chessrl.ingest import IngestSettings, ingest
from chessrl.pgn_blocks import GameFilters
from chessrl.puzzles import load_puzzles
if __name__ == "__main__":
    file, out, state, workers = sys.argv[1:]
    filters = GameFilters(exclude_time_classes=(), rated_only=False)
    settings = IngestSettings(state, 1024, 0, 0.02, 1 << 26, filters)
    decontamination = Decontamination(load_puzzles(endgame.PACK / endgame.PUZZLES_FILE), LeakConfig())
    cpu, wall = time.process_time(), time.perf_counter()
    ingest([file], out, settings, decontamination=decontamination, workers=int(workers))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"wall_s": wall, "cpu_s": cpu + children.ru_utime + children.ru_stime, "own_mb": own.ru_maxrss / 1024}))
"""


def ingestion(file: str, copies: int, rounds: int) -> list[Row]:
    """Games per second of ``file`` (.pgn or .pgn.zst) in ``copies`` (1 to 17), and peak memory. Raises UserError without pgn-extract."""
    program = find_pgn_extract()
    if program is None:
        raise UserError("pgn-extract is not installed (Debian and Ubuntu: apt install pgn-extract): there is nothing to compare with")
    part, everywhere = f"PGN to shards, {copies} copies", os.sched_getaffinity(0)
    pinned = {min(everywhere)}
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder, "one.pgn"), Path(folder, "many.pgn")
        texts = _copies(Path(file), copies)
        one.write_bytes(texts[0])
        many.write_bytes(b"".join(texts))
        games = sum(text.count(b"[Event ") for text in texts)
        peaks: list[float] = []

        def ours(state: str, workers: int, cores: set[int]) -> Lap:
            lap, peak = _ours(many, state, workers, cores)
            peaks.append(peak)
            return lap

        against = [
            Contender("ours, 1 worker, history", games, lambda: ours("history", 1, pinned)),
            Contender("pgn-extract alone", games, lambda: _alone(program, many, pinned), ours=False),
        ]
        alone = [
            Contender("ours, 1 worker, snapshot", games, lambda: ours("snapshot", 1, pinned)),
            *(Contender(f"ours, {count} workers, all cores", games, lambda count=count: ours("history", count, everywhere)) for count in (1, 2)),
        ]
        rows = compare(part, "games/s", "0.6", against, rounds)
        memory = {"1 copy": _ours(one, "history", 1, pinned)[1], f"{copies} copies": peaks[0]}
        rows += compare(part, "games/s", "", alone, rounds)
    return [*rows, *(figure(part, f"peak memory, {name}", "MB", peak) for name, peak in memory.items())]


def _copies(path: Path, count: int) -> list[bytes]:
    data = path.read_bytes()
    text = zstd.decompress(data) if path.suffix == ".zst" else data
    pairs = list(islice(product(*_THERE_AND_BACK), count - 1))
    if len(pairs) != count - 1:
        raise UserError(f"copies={count}: expected 1 to {1 + 16}")
    copies = [text]
    for white, black in pairs:
        (there, back), (answer, home) = white.split(), black.split()
        copies.append(text.replace(b"\n1. ", f"\n1. {there} {answer} 2. {back} {home} 3. ".encode()))
    return copies


def _alone(program: str, file: Path, cores: set[int]) -> Lap:
    command = [program, "-s", "-Wxolalg", "--hashcomments", str(file)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return timed_children(lambda: subprocess.run(command, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores), **quiet))


def _ours(file: Path, state: str, workers: int, cores: set[int]) -> tuple[Lap, float]:
    """What ingestion alone took, without the imports, and the peak memory of the process in MB (pgn-extract apart)."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        script = Path(folder, "ours.py")  # a file: worker processes import it again
        script.write_text(_OURS)
        done = subprocess.run(
            [sys.executable, str(script), str(file), f"{folder}/out", state, str(workers)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    measured = json.loads(done.stdout)
    return Lap(measured["wall_s"], measured["cpu_s"]), measured["own_mb"]
