"""How the cost of a step grows: time and peak memory against model size, context, batch, group and trace length, and the fitted exponents.

``python -m benchmarks part=growth`` writes ``growth.csv`` (every point, with the memory that ``chessrl.memory`` counts), ``growth.png`` and
``memory.md`` (what fits on 80 and 141 GB, by that count). An exponent is the slope of a least-squares line through the logarithms: of costs with a
fixed part it says how they grow over the measured range, not beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from scipy import stats
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from benchmarks.measure import Row
from benchmarks.peers import PROMPT
from benchmarks.stages import Place, grpo_step, sampling_step, training_step
from chessrl.config import ModelConfig
from chessrl.launch import compose
from chessrl.memory import Memory, rl_memory, sampling_memory, training_memory
from chessrl.model import Cost

STEPS = ("training", "sampling", "rl")
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step works on. Training reads ``rows`` games of ``context`` tokens; sampling and RL ``prompts`` x ``group`` episodes of ``new``."""

    model: str = "micro"
    rows: int = 4
    context: int = 128
    prompts: int = 4
    group: int = 4
    new: int = 24


@dataclass(frozen=True, slots=True)
class Point:
    """One measured step. ``x`` is what is varied: N without embeddings, or a field of Shape."""

    step: str
    against: str
    x: float
    wall_s: float
    processor_s: float
    peak_bytes: int  # of tensors, weights and optimiser included
    counted_bytes: int


def axes(step: str) -> dict[str, list[Shape]]:
    """What the cost of a step is measured against."""
    names = [Shape(model=name) for name in ("nano", "micro", "mini", "5m")]
    if step == "training":
        return {
            "N": names,
            "context": [Shape(context=context) for context in (64, 128, 256, 512)],
            "rows": [Shape(rows=rows) for rows in (2, 4, 8, 16)],
        }
    return {
        "N": names,
        "prompts": [Shape(prompts=prompts) for prompts in (2, 4, 8, 16)],
        "group": [Shape(group=group) for group in (2, 4, 8, 16)],
        "new": [Shape(new=new) for new in (8, 16, 32, 64)],
    }


def growth(folder: Path) -> list[Row]:
    """Measure every point, write the files, and give the exponents as rows: ``rate`` by the wall clock, ``low`` and ``high`` a standard error off."""
    points = [
        measured(step, against, shape)
        for step in tqdm(STEPS, desc="growth", unit="step")
        for against, shapes in axes(step).items()
        for shape in shapes
    ]
    table = pd.DataFrame([asdict(point) for point in points])
    table.to_csv(folder / "growth.csv", index=False)
    draw(table, folder / "growth.png")
    (folder / "memory.md").write_text(capacity_table() + "\n")
    return exponents(table)


def measured(step: str, against: str, shape: Shape) -> Point:
    """The cost of one step in fp32: the shorter of some laps, and the peak of another."""
    place = Place(shape.model)
    if step == "training":
        contender = training_step(place, shape.rows, shape.context)
    else:
        build = sampling_step if step == "sampling" else grpo_step
        contender = build(place, shape.prompts, shape.group, shape.new)
    laps = [contender.lap() for _ in range(REPEATS)]
    model = place.config().model
    counted = counted_memory(step, model, shape, place.micro_batch_tokens)
    held = counted.weights + counted.optimizer
    peak = held + peak_of(contender.lap)
    x = Cost.of(model).parameters_without_embeddings if against == "N" else getattr(shape, against)
    return Point(step, against, x, min(lap.wall_s for lap in laps), min(lap.processor_s for lap in laps), peak, counted.total)


def counted_memory(step: str, model: ModelConfig, shape: Shape, budget: int) -> Memory:
    """What ``chessrl.memory`` says of the step."""
    if step == "training":
        rows = min(shape.rows, max(1, budget // shape.context))
        return training_memory(model, "fp32", rows * (shape.context - 1))
    if step == "sampling":
        return sampling_memory(model, "fp32", shape.prompts, shape.group, PROMPT, shape.new)
    length = PROMPT + shape.new
    rows = min(shape.prompts * shape.group, max(1, budget // length))
    return rl_memory(model, "fp32", shape.prompts, shape.group, PROMPT, shape.new, rows * length)


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes of tensors on the CPU that ``work`` held at a time beyond those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


# ---- exponents ------------------------------------------------------------------------------------------------------------------------------


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Exponent of y in x and its standard error, by least squares on logarithms."""
    fit = stats.linregress(torch.tensor(x).double().log().numpy(), torch.tensor(y).double().log().numpy())
    return float(fit.slope), float(fit.stderr)


def exponents(table: pd.DataFrame) -> list[Row]:
    """Two rows for each step and quantity: exponents of time and of peak memory."""
    rows = []
    for (step, against), points in table.groupby(["step", "against"], sort=False):
        x = points["x"].tolist()
        wall, error = slope(x, points["wall_s"].tolist())
        processor, _ = slope(x, points["processor_s"].tolist())
        memory, memory_error = slope(x, points["peak_bytes"].tolist())
        span = f"{against} {x[0]:,.0f} to {x[-1]:,.0f}"
        rows += [
            Row(f"{step} step", f"exponent of time in {span}", "", wall, wall - error, wall + error, processor),
            Row(f"{step} step", f"exponent of peak memory in {span}", "", memory, memory - memory_error, memory + memory_error, memory),
        ]
    return rows


def draw(table: pd.DataFrame, path: Path) -> None:
    """Time above, memory below, one column for each step; memory as it was counted is dashed."""
    steps = list(dict.fromkeys(table["step"]))
    figure, places = plt.subplots(2, len(steps), figsize=(4 * len(steps), 6.5), squeeze=False, layout="constrained")
    for column, step in enumerate(steps):
        for against, points in table[table["step"] == step].groupby("against", sort=False):
            x = points["x"] / points["x"].iloc[0]
            [line] = places[0, column].loglog(x, points["processor_s"], "o-", label=against)
            places[1, column].loglog(x, points["peak_bytes"] / 1e6, "o-", color=line.get_color(), label=against)
            places[1, column].loglog(x, points["counted_bytes"] / 1e6, "--", color=line.get_color())
        places[0, column].set_title(f"{step} step")
        places[0, column].legend(fontsize="small")
        places[1, column].set_xlabel("multiple of the smallest value")
    places[0, 0].set_ylabel("processor time, s")
    places[1, 0].set_ylabel("peak memory, MB (dashed: counted)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


# ---- what fits ------------------------------------------------------------------------------------------------------------------------------

DEVICES = {"80 GB": 80 * 10**9, "141 GB": 141 * 10**9}
ROOM = 0.9  # of a device is for tensors; the rest is for libraries and what the allocator leaves unused
PRESETS = ("50m", "100m", "200m", "410m", "680m", "1b")
PAPER = Shape(prompts=256, group=8, new=2432)  # Shen et al.'s RL step: 2,048 sequences of up to 2,560 tokens
MICRO_BATCH = 65536  # tokens, the default on a GPU


def capacity_table() -> str:
    """Markdown: for each preset in bf16 the memory of a training and of an RL step, and the largest micro-batch, batch and trace that fit."""
    head = ["preset", f"training, {MICRO_BATCH:,} tokens, GB", "RL 256 x 8, 128 + 2,432, GB"]
    for device in DEVICES:
        head += [f"{device}: micro-batch tokens", f"{device}: sequences of 2,560", f"{device}: trace of 2,048 sequences"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name in PRESETS:
        model = compose("rl", [f"model={name}"]).model
        training = training_memory(model, "bf16", MICRO_BATCH).total
        cells = [name, f"{training / 1e9:.0f}", f"{_rl(model, PAPER).total / 1e9:.0f}"]
        for size in DEVICES.values():
            cells += [f"{largest(limit):,}" for limit in _limits(model, ROOM * size)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _limits(model: ModelConfig, room: float) -> list[Callable[[int], bool]]:
    """What must hold of micro-batch tokens, prompts of 8 sequences, new tokens."""
    return [
        lambda tokens: training_memory(model, "bf16", tokens).total <= room,
        lambda sequences: _rl(model, replace(PAPER, prompts=sequences, group=1)).total <= room,
        lambda new: _rl(model, replace(PAPER, new=new)).total <= room,
    ]


def _rl(model: ModelConfig, shape: Shape) -> Memory:
    """An RL step whose micro-batches hold one row at least and 16,384 tokens at most, so that its rollout decides."""
    return rl_memory(model, "bf16", shape.prompts, shape.group, PROMPT, shape.new, max(16384, PROMPT + shape.new))


def largest(fits: Callable[[int], bool], most: int = 2**26) -> int:
    """The largest whole number up to ``most`` that ``fits``, to two digits and rounded down; 0 where not even 1 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    digits = 10 ** max(0, len(str(low)) - 2)
    return low // digits * digits
