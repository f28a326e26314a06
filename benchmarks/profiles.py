"""Where the time of the hot paths goes, by torch.profiler: one text for each of pretraining, sampling and the RL step.

Examples:
    python -m benchmarks.profiles out=docs/profiles
    python -m benchmarks.profiles out=profiles arithmetic=fp32
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Contender
from benchmarks.peers import BATCH, LENGTH
from benchmarks.stages import Place, grpo_step, sampling_step, training_step
from chessrl.command import parse_settings, run_command
from chessrl.errors import make_folder

ROWS = 25  # operations in a text, the dearest first


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Keys of the command."""

    out: str  # folder for pretrain.txt, sample.txt and grpo.txt
    model: str = "5m"  # preset
    arithmetic: str = "bf16 compile"  # fp32, bf16 or bf16 compile


def main(arguments: list[str]) -> None:
    """Write the texts."""
    settings = parse_settings(ProfileSettings, arguments)
    folder = make_folder(settings.out, "out")
    place = Place(settings.model, settings.arithmetic)
    contenders = {
        "pretrain": training_step(place, BATCH, LENGTH),
        "sample": sampling_step(place, prompts=64, group=1, new=32),
        "grpo": grpo_step(place, prompts=16, group=8, new=32),
    }
    for name, contender in contenders.items():
        header = f"{name}, {contender.name}, {torch.get_num_threads()} threads, torch {torch.__version__}\n"
        (folder / f"{name}.txt").write_text(header + table(contender))


def table(contender: Contender) -> str:
    """The dearest operations of one round, by their own time."""
    contender.lap()
    with profile(activities=[ProfilerActivity.CPU]) as measured:
        contender.lap()
    lines = measured.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS, max_name_column_width=70)
    return "\n".join(line.rstrip() for line in lines.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(run_command(main))
