"""Contenders for the same work in turn (A B A B), what each round took, and the table made of it.

Two clocks: wall time, and processor time of the contender's processes. Wall time decides on an idle machine. Where other work shares the cores it
says little, and the ratio of processor times is the better one as long as both sides use the same number of threads.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

CPU = torch.device("cpu")
PEERS = Path(__file__).parent / "peers.py"


@dataclass(frozen=True, slots=True)
class Lap:
    """Seconds that one round took."""

    wall_s: float
    processor_s: float


@dataclass(frozen=True, slots=True)
class Contender:
    """``work`` units are done by one call of ``lap``. ``ours`` or a peer's: the ratio is of ours to the best peer."""

    name: str
    work: float
    lap: Callable[[], Lap]
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's line of the table. Rates are units per second; the ratio columns are None for peers and where there is no peer."""

    part: str
    contender: str
    unit: str
    rate: float  # median by the wall clock
    low: float
    high: float
    processor_rate: float  # median, per second of processor time
    ratio: float | None = None  # to the best peer, by the wall clock
    processor_ratio: float | None = None
    wanted: str = ""  # required (stretch), of the ratio unless it says otherwise


def timed(function: Callable[[], object], device: torch.device = CPU) -> Lap:
    """One call of a function of this process, and on a GPU the wait for what it started."""
    wall, processor = time.perf_counter(), time.process_time()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Lap(time.perf_counter() - wall, time.process_time() - processor)


def timed_children(function: Callable[[], object]) -> Lap:
    """One call of a function that starts processes and waits for them; processor time is theirs alone."""
    wall, before = time.perf_counter(), children_processor_s()
    function()
    return Lap(time.perf_counter() - wall, children_processor_s() - before)


def children_processor_s() -> float:
    """Processor seconds of this process's children that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Peer:
    """A peer's work in a process of its own, which waits between its rounds. ``missing`` says why there is none."""

    def __init__(self, python: str, words: Sequence[str]):
        self.process = subprocess.Popen(
            [python, str(PEERS), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        answer = self._answer()
        self.missing = None if answer == "ready" else answer or "it ended without a word"

    def _answer(self) -> str:
        """The next line of the peer's own; libraries print others."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("peer: "):
                return line.removeprefix("peer: ").strip()
        return ""

    def lap(self) -> Lap:
        """One round. Raises RuntimeError when the peer has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self._answer()
        if not answer:
            raise RuntimeError(f"the peer {self.process.args} ended within a round")
        wall, processor = answer.split()
        return Lap(float(wall), float(processor))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def in_turn(contenders: Sequence[Contender], rounds: int) -> list[list[Lap]]:
    """The laps of each contender: a round of all of them, then the next."""
    laps: list[list[Lap]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, own in zip(contenders, laps):
            own.append(contender.lap())
    return laps


def compare(part: str, unit: str, wanted: str, contenders: Sequence[Contender], rounds: int) -> list[Row]:
    """Measure and put in rows; ``wanted`` is the ratio to reach."""
    laps = in_turn(contenders, rounds)
    walls = [[contender.work / lap.wall_s for lap in own] for contender, own in zip(contenders, laps)]
    processors = [[contender.work / lap.processor_s for lap in own] for contender, own in zip(contenders, laps)]
    # Ratios are taken within a round, where the machine is most alike, and their median counts.
    ratios = [_ratio(rates, walls, contenders) for rates in walls]
    processor_ratios = [_ratio(rates, processors, contenders) for rates in processors]
    return [
        Row(
            part, contender.name, unit, median(wall), min(wall), max(wall), median(processor),
            ratio if contender.ours else None, processor_ratio if contender.ours else None, wanted if contender.ours else "",
        )
        for contender, wall, processor, ratio, processor_ratio in zip(contenders, walls, processors, ratios, processor_ratios)
    ]  # fmt: skip


def _ratio(own: Sequence[float], rates: Sequence[Sequence[float]], contenders: Sequence[Contender]) -> float | None:
    """The smallest, over the peers, of the median ratio to them."""
    peers = [theirs for theirs, contender in zip(rates, contenders) if not contender.ours]
    return min((median(mine / other for mine, other in zip(own, theirs)) for theirs in peers), default=None)


def figure(part: str, name: str, unit: str, value: float) -> Row:
    """A row of one value that is no rate, measured once."""
    return Row(part, name, unit, value, value, value, value)


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| part | contender | rate, median (range) | by processor time | ratio to the best peer | by processor time | wanted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        rate = f"{_short(row.rate)} {row.unit} ({_short(row.low)} to {_short(row.high)})"
        ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (row.ratio, row.processor_ratio)]
        lines.append(f"| {row.part} | {row.contender} | {rate} | {_short(row.processor_rate)} | {ratios[0]} | {ratios[1]} | {row.wanted} |")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
