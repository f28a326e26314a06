"""What a GPU reaches: model FLOP utilisation of pretraining, tokens sampled per second, the paper's RL step.

Utilisation is 6NT over time, N without embeddings, as a share of the matrix rate measured beside it. The RL step is Shen et al.'s (arXiv
2607.16097): 50M, 256 prompts x 8, sequences of up to 2,560 tokens, which takes their implementation 30 s on eight H200.

Examples:
    python -m benchmarks.gpu
    python -m benchmarks.gpu trained=50m sampled=5m,50m rounds=3 out=outputs/benchmarks
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from tqdm import tqdm

from benchmarks.__main__ import machine, write
from benchmarks.ceilings import ceilings
from benchmarks.measure import Row, compare
from benchmarks.stages import Place, grpo_step, sampling_step, training_step
from chessrl.command import parse_settings, run_command
from chessrl.errors import make_folder
from chessrl.model import Cost
from chessrl.run import resolve_device


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Keys of the command. The defaults are the paper's sizes; smaller ones are for trying it out."""

    device: str = "cuda"  # cuda or cpu
    trained: tuple[str, ...] = ("50m", "200m")  # model presets whose training is measured
    games: int = 256  # per training step
    length: int = 512  # tokens of a game
    sampled: tuple[str, ...] = ("5m", "20m", "50m", "100m", "200m")  # model presets whose sampling is measured
    rl: str = "50m"  # model preset of the RL step
    prompts: int = 256  # of 128 tokens
    group: int = 8  # samples of every prompt
    new: int = 2432  # tokens after the prompt
    rounds: int = 5  # repetitions
    arithmetic: str = "bf16 compile"  # or bf16
    out: str = "outputs/benchmarks"  # folder for the figures


def main(arguments: list[str]) -> None:
    """Measure all, print the table and write ``gpu.md`` and ``gpu.json``."""
    settings = parse_settings(GpuSettings, arguments)
    device = resolve_device(settings.device)
    folder = make_folder(settings.out, "out")
    described = machine() | {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    rows = ceilings(device, settings.rounds)
    matrix_rate = next(row.rate for row in rows if row.contender == "matrix product, bf16")
    write(folder, "gpu", described, rows)
    for name in tqdm(settings.trained, desc="training", unit="model"):
        rows += utilisation(Place(name, settings.arithmetic, device), settings, matrix_rate)
        write(folder, "gpu", described, rows)
    for name in tqdm(settings.sampled, desc="sampling", unit="model"):
        contender = sampling_step(Place(name, settings.arithmetic, device), settings.prompts, settings.group, settings.new)
        rows += compare(f"sampling {settings.prompts} x {settings.group}", "tokens/s", "", [contender], settings.rounds)
        write(folder, "gpu", described, rows)
    contender = grpo_step(Place(settings.rl, settings.arithmetic, device), settings.prompts, settings.group, settings.new)
    rows += compare(f"RL step {settings.prompts} x {settings.group}", "steps/s", ">= 1/30 s", [contender], settings.rounds)
    write(folder, "gpu", described, rows)
    print((folder / "gpu.md").read_text())


def utilisation(place: Place, settings: GpuSettings, matrix_rate: float) -> list[Row]:
    """Tokens per second of a training step, and the share of ``matrix_rate`` (FLOP/s) that they use."""
    [row] = compare(
        f"pretraining {settings.games} x {settings.length}", "tokens/s", "", [training_step(place, settings.games, settings.length)], settings.rounds
    )
    per_token = Cost.of(place.config().model).training_flops(1)
    shares = [rate * per_token / matrix_rate for rate in (row.rate, row.low, row.high, row.processor_rate)]
    goal = {"50m": ">= 0.45", "200m": ">= 0.55"}.get(place.model, "")
    return [row, Row(row.part, f"{row.contender}: 6NT as a share of the bf16 matrix rate", "", *shares, wanted=goal)]


if __name__ == "__main__":
    sys.exit(run_command(main))
