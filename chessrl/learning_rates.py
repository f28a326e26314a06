"""The learning-rate rule from pretraining runs of several sizes and rates.

Made for the runs of ``experiment=learning_rates``, and for any below the folder that differ in size and rate alone. For each size the best rate
is the vertex of a parabola in log lr through the lowest loss and its two neighbours; the rule lr = lr_0 (N_0 / N)^exponent is the line through
the sizes' best rates on logarithmic axes.

Examples:
    python -m chessrl.learning_rates outputs=outputs
    python -m chessrl -m experiment=learning_rates                  (makes the runs)
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError
from chessrl.run import digest, finished

Losses = dict[int, dict[float, float]]  # N without embeddings -> rate -> validation loss


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys of the command."""

    outputs: str = "outputs"  # the folder that run directories are in


@dataclass(frozen=True, slots=True)
class Rule:
    """lr(N) = ``lr`` x (``reference`` / N)^``exponent``. ``best``: the best rate of each N; ``edges``: the Ns whose best was an end of the range."""

    lr: float
    reference: float
    exponent: float
    best: dict[int, float]
    edges: tuple[int, ...]


def read_losses(outputs: Path) -> Losses:
    """Validation losses of the largest set of finished pretraining runs that differ in size and rate alone."""
    groups: dict[str, Losses] = defaultdict(lambda: defaultdict(dict))
    for directory in sorted(outputs.glob("pretrain-*")):
        if not finished(directory):
            continue
        summary = json.loads((directory / "summary.json").read_text())
        settings = OmegaConf.to_container(OmegaConf.load(directory / "config.yaml"))["pretrain"]
        rate = settings["optimizer"].pop("lr")
        groups[digest([summary["data"], settings])][summary["parameters"]["without_embeddings"]][rate] = summary["validation/loss"]
    if not groups:
        raise UserError(f"outputs={outputs}: no finished pretraining run there; python -m chessrl -m experiment=learning_rates makes them")
    return max(groups.values(), key=lambda losses: sum(map(len, losses.values())))


def best_rate(losses: dict[float, float]) -> tuple[float, bool]:
    """The rate of lowest loss, between the tried ones, and whether it lies at an end of the range and so is only a bound."""
    rates = sorted(losses)
    values = [losses[rate] for rate in rates]
    lowest = int(np.argmin(values))
    if lowest in (0, len(rates) - 1):
        return rates[lowest], True
    around = slice(lowest - 1, lowest + 2)
    curvature, slope, _ = np.polyfit(np.log(rates[around]), values[around], 2)
    return float(np.exp(-slope / (2 * curvature))), False


def fit_rule(losses: Losses) -> Rule:
    """Raises UserError with fewer than two sizes or three rates of one."""
    if len(losses) < 2 or any(len(of_size) < 3 for of_size in losses.values()):
        found = ", ".join(f"N={size:,}: {len(of_size)} rates" for size, of_size in sorted(losses.items()))
        raise UserError(f"a rule needs at least two sizes with three rates each, found {found}; train more of them")
    found = {size: best_rate(of_size) for size, of_size in sorted(losses.items())}
    sizes, rates = np.array(list(found), float), np.array([rate for rate, _ in found.values()])
    reference = float(np.exp(np.log(sizes).mean()))
    slope, level = np.polyfit(np.log(sizes / reference), np.log(rates), 1)
    best = {size: rate for size, (rate, _) in found.items()}
    return Rule(float(np.exp(level)), reference, float(-slope), best, tuple(size for size, (_, edge) in found.items() if edge))


def main(arguments: list[str]) -> None:
    losses = read_losses(Path(parse_settings(Settings, arguments).outputs))
    rule = fit_rule(losses)
    for size, of_size in sorted(losses.items()):
        tried = ", ".join(f"{rate:g}: {of_size[rate]:.4f}" for rate in sorted(of_size))
        bound = " (an end of the range: try rates beyond it)" if size in rule.edges else ""
        print(f"N={size:,}: best {rule.best[size]:.3g}{bound}; loss by rate: {tried}")
    print(
        f"the rule: pretrain.optimizer.lr_rule=size pretrain.optimizer.lr={rule.lr:.3g} pretrain.optimizer.lr_reference={rule.reference:.3g} "
        f"pretrain.optimizer.lr_exponent={rule.exponent:.3g}"
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
