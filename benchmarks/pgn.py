"""PGN to token shards: how fast, against pgn-extract alone on the same core, and how much memory.

pgn-extract alone (``-Wxolalg --hashcomments``) and ours (one worker, history state, every position looked up among the packaged puzzles' hashes)
take turns on one core: A B A B. Then one worker against two on all cores, and memory on one copy of the file against all. Further copies
begin with four moves of knights there and back, other ones in each, so that no game is a duplicate.

Examples:
    python -m benchmarks.pgn file=games.pgn.zst
    python -m benchmarks.pgn file=games.pgn.zst copies=2 rounds=1 core=1
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import median

from chessrl.command import parse_settings, run_command
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
    manifest = ingest([file], out, settings, decontamination=decontamination, workers=int(workers))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"wall_s": wall, "cpu_s": cpu + children.ru_utime + children.ru_stime, "games": manifest["games"]["read"],
                      "kept": manifest["games"]["kept"], "own_mb": own.ru_maxrss / 1024}))
"""


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """Keys of the command."""

    file: str  # .pgn or .pgn.zst
    copies: int = 4  # 1 to 17: of the file, for an input long enough to measure
    rounds: int = 3  # repetitions
    core: int = 0  # number of the CPU core that both are pinned to


def main(arguments: list[str]) -> None:
    """Run all, and print one line for each figure."""
    settings = parse_settings(BenchmarkSettings, arguments)
    program = find_pgn_extract()
    if program is None:
        raise UserError("pgn-extract is not installed (Debian and Ubuntu: apt install pgn-extract): there is nothing to compare with")
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder, "one.pgn"), Path(folder, "many.pgn")
        copies = _copies(Path(settings.file), settings.copies)
        one.write_bytes(copies[0])
        many.write_bytes(b"".join(copies))
        print(f"{many.stat().st_size / 1e6:.1f} MB of text, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        pinned = {settings.core}
        alone, ours = [], []
        for _ in range(settings.rounds):
            alone.append(_alone(program, many, pinned))
            ours.append(_ours(many, "history", 1, pinned))
        games = ours[0]["games"]
        for name, runs in (("pgn-extract alone", alone), ("ours, 1 worker, history state", ours)):
            print(f"{name}: {games / median(run['cpu_s'] for run in runs):,.0f} games per CPU second; wall {_walls(runs)}")
        for key in ("cpu_s", "wall_s"):
            ratios = [theirs[key] / own[key] for theirs, own in zip(alone, ours)]
            print(f"ours / pgn-extract alone by {key}: {median(ratios):.2f} (of {games:,} games; rounds {', '.join(f'{r:.2f}' for r in ratios)})")
        snapshot = _ours(many, "snapshot", 1, pinned)
        print(f"ours, 1 worker, snapshot state: {games / snapshot['cpu_s']:,.0f} games per CPU second", flush=True)
        everywhere = os.sched_getaffinity(0)
        by_workers = {workers: [_ours(many, "history", workers, everywhere) for _ in range(settings.rounds)] for workers in (1, 2)}
        for workers, runs in by_workers.items():
            print(f"ours, {workers} workers on {len(everywhere)} cores: wall {_walls(runs)}")
        small = _ours(one, "history", 1, pinned)
        for name, run in (("1 copy", small), (f"{settings.copies} copies", ours[0])):
            print(f"peak memory on {name}: {run['own_mb']:.0f} MB (pgn-extract apart)")


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


def _alone(program: str, file: Path, cores: set[int]) -> dict[str, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [program, "-s", "-Wxolalg", "--hashcomments", str(file)]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall_s": wall, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def _ours(file: Path, state: str, workers: int, cores: set[int]) -> dict[str, float]:
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
    return json.loads(done.stdout)


def _walls(runs: list[dict[str, float]]) -> str:
    return ", ".join(f"{run['wall_s']:.1f}" for run in runs) + f" s, median {median(run['wall_s'] for run in runs):.1f} s"


if __name__ == "__main__":
    sys.exit(run_command(main))
