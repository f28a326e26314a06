"""How fast the hot paths are, beside what users would run instead and what the machine allows.

Run only when named, since they need data or minutes of their own: ``part=pgn games=FILE.pgn.zst [copies=4]``, ``part=mining known=FILE.csv.zst
[first=200]``, ``part=traces parent=RUN [branching=preset|paper] [proposal=model|uniform|engine] [puzzles=512]``, ``part=analysis``,
``part=growth`` (how costs grow, with a figure).

Prints one table and writes it, with the machine and every figure, to ``out`` as ``benchmarks.json`` and ``benchmarks.md``.

Examples:
    python -m benchmarks
    python -m benchmarks part=ceilings,pretrain rounds=3 peer_python=.venv-peers/bin/python
    python -m benchmarks part=pgn games=games.pgn.zst copies=2
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks import analysis, mining, pgn, stages, tools, traces
from benchmarks.ceilings import ceilings
from benchmarks.growth import growth
from benchmarks.measure import Row, table
from benchmarks.stages import Setting
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder

PARTS: dict[str, Callable[[Setting], list[Row]]] = {
    "ceilings": lambda setting: ceilings(torch.device("cpu"), setting.rounds),
    "pretrain": stages.pretraining,
    "sample": stages.sampling,
    "grpo": stages.grpo,
    "score": tools.scoring,
    "engine": tools.labelling,
    "cache": tools.cache,
    "startup": tools.startup,
}


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """Keys of the command. ``part`` is by default all of ``PARTS``."""

    part: tuple[str, ...] = tuple(PARTS)  # which to measure
    rounds: int = 5  # repetitions, ours and theirs in turn
    new: int = 128  # tokens sampled after a prompt of 128
    peer_python: str = sys.executable  # an interpreter that has transformers and trl
    out: str = "outputs/benchmarks"  # folder for benchmarks.json and benchmarks.md
    games: str = ""  # part pgn: .pgn or .pgn.zst
    copies: int = 4  # part pgn: of the file, 1 to 17
    known: str = ""  # part mining: a Lichess table with a PGN column
    first: int = 200  # part mining: puzzles of the table
    parent: str = ""  # part traces: a finished pretraining run
    branching: str = "preset"  # part traces: or paper
    proposal: str = "model"  # part traces: or uniform, engine
    puzzles: int = 512  # part traces: of the sft split, the first of them


# These need files or many minutes of their own, so they run only when named.
NAMED_PARTS: dict[str, Callable[[BenchmarkSettings], list[Row]]] = {
    "pgn": lambda keys: pgn.ingestion(keys.games, keys.copies, keys.rounds),
    "mining": lambda keys: mining.found_again(keys.known, keys.first, Path(keys.out) / "mining"),
    "traces": lambda keys: traces.building(keys.parent, keys.branching, keys.proposal, keys.puzzles, keys.rounds),
    "analysis": lambda keys: analysis.report(Path(keys.out) / "analysis", analysis.Size()),
    "growth": lambda keys: growth(Path(keys.out)),
}
NEEDED = {"pgn": "games", "mining": "known", "traces": "parent"}


def main(arguments: list[str]) -> None:
    """Measure the parts and print their table."""
    settings = parse_settings(BenchmarkSettings, arguments)
    if unknown := [part for part in settings.part if part not in PARTS and part not in NAMED_PARTS]:
        raise UserError(f"part={unknown[0]}: expected some of {', '.join((*PARTS, *NAMED_PARTS))}")
    if lacking := [part for part in settings.part if part in NEEDED and not getattr(settings, NEEDED[part])]:
        raise UserError(f"part={lacking[0]} needs a file or folder: give {NEEDED[lacking[0]]}=PATH")
    folder = make_folder(settings.out, "out")
    setting = Setting(settings.rounds, settings.new, settings.peer_python)
    described = machine()
    rows: list[Row] = []
    for part in tqdm(settings.part, unit="part"):
        rows += PARTS[part](setting) if part in PARTS else NAMED_PARTS[part](settings)
        write(folder, "benchmarks", described | {"load_after": load()}, rows)
    print((folder / "benchmarks.md").read_text())


def machine() -> dict[str, object]:
    """What the figures hold for."""
    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_before": load(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def load() -> float:
    """Mean number of processes that wanted a core in the last minute: above ``cores`` wall times are of little use."""
    return round(os.getloadavg()[0], 1)


def write(folder: Path, name: str, described: dict[str, object], rows: list[Row]) -> None:
    """All that is known so far, as ``name.json`` and ``name.md``: a part that fails takes none of the others with it."""
    (folder / f"{name}.json").write_text(json.dumps({"machine": described, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in described.items())
    (folder / f"{name}.md").write_text(f"{facts}\n\n{table(rows)}\n")


if __name__ == "__main__":
    sys.exit(run_command(main))
