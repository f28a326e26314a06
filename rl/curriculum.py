"""Which puzzles a step of RL may draw from: filters by measured success, and an order from easy to hard.

The measure is of the policy that RL starts from (``chessrl.tiers``). A curriculum only narrows the pool of a step; how a step picks from its pool
stays with the loop, which maps the places that it picked by ``Phase.pick``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from chessrl.config import CurriculumConfig
from chessrl.errors import UserError
from chessrl.tiers import TIERS, read_measured

SAMPLES_FILE = "samples.parquet"


@dataclass(frozen=True, slots=True)
class Phase:
    """The pool of one step. ``step`` counts from 1 within the phase, for picking in whole passes over the pool."""

    name: str
    puzzles: tuple[int, ...]
    step: int

    def pick(self, places: Sequence[int]) -> list[int]:
        """The puzzles at places 0 .. len(puzzles) - 1 of the pool."""
        return [self.puzzles[place] for place in places]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Pools in the order of their phases, each for an equal share of the steps; and the puzzles left out, by reason."""

    names: tuple[str, ...]
    pools: tuple[tuple[int, ...], ...]
    left_out: dict[str, int]

    def phase(self, step: int, steps: int) -> Phase:
        """The phase of ``step`` (from 1) of ``steps``, a function of the two alone, so that a resumed run goes on in it."""
        number = (step - 1) * len(self.pools) // steps
        before = -(-number * steps // len(self.pools))  # steps of the phases before this one
        return Phase(self.names[number], self.pools[number], step - before)


def curriculum_of(settings: CurriculumConfig, puzzles: Sequence[str], prompts: int) -> Curriculum:
    """The curriculum over puzzle ids in the loop's order; without ``settings.measured`` one phase that holds them all.

    Puzzles outside the pass rates or tiers, or not measured, are left out. From easy to hard, a tier with fewer puzzles than ``prompts`` joins the
    next one (the last joins the one before). Raises UserError when fewer than ``prompts`` puzzles are left, or a key needs a measure.
    """
    asked = [key for key in ("pass_rate_min", "pass_rate_max", "tiers", "order") if getattr(settings, key) != getattr(CurriculumConfig(), key)]
    unknown = [tier for tier in settings.tiers if tier not in TIERS]
    if unknown:
        raise UserError(f"rl.curriculum.tiers={unknown[0]}: expected some of {', '.join(TIERS)}")
    if not settings.measured:
        if asked:
            raise UserError(f"rl.curriculum.{asked[0]} needs rl.curriculum.measured: an evaluation folder of the rl split, by the start policy")
        return Curriculum(("all",), (tuple(range(len(puzzles))),), {})
    measured = read_measured(Path(settings.measured), tiers=bool(settings.tiers) or settings.order == "easy_to_hard").set_index("puzzle")
    kept, left_out = _kept(settings, puzzles, measured)
    if len(kept) < prompts:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
        raise UserError(f"rl.curriculum leaves {len(kept)} of {len(puzzles)} puzzles, fewer than rl.prompts={prompts} ({reasons}): widen it")
    if settings.order == "shuffled":
        return Curriculum(("all",), (tuple(kept),), left_out)
    tiers = {place: measured.at[puzzles[place], "tier"] for place in kept}
    names, pools = _joined([(tier, [place for place in kept if tiers[place] == tier]) for tier in TIERS], prompts)
    return Curriculum(names, pools, left_out)


def _kept(settings: CurriculumConfig, puzzles: Sequence[str], measured: pd.DataFrame) -> tuple[list[int], dict[str, int]]:
    """Places of the puzzles that pass the filters, and how many each filter left out (each puzzle counted by the first that it fails)."""
    reasons = {"not measured": 0, "pass rate too low": 0, "pass rate too high": 0, "other tier": 0}
    kept = []
    rates, tiers = measured["pass_rate"].to_dict(), measured["tier"].to_dict() if settings.tiers else {}
    for place, puzzle in enumerate(puzzles):
        if puzzle not in rates:
            reasons["not measured"] += 1
        elif rates[puzzle] < settings.pass_rate_min:
            reasons["pass rate too low"] += 1
        elif rates[puzzle] > settings.pass_rate_max:
            reasons["pass rate too high"] += 1
        elif settings.tiers and tiers[puzzle] not in settings.tiers:
            reasons["other tier"] += 1
        else:
            kept.append(place)
    return kept, {reason: count for reason, count in reasons.items() if count}


def _joined(groups: list[tuple[str, list[int]]], prompts: int) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Groups with at least ``prompts`` puzzles each: a smaller one joins the next, the last one the one before."""
    phases: list[tuple[list[str], list[int]]] = [([], [])]
    for name, places in groups:
        if not places:
            continue
        if len(phases[-1][1]) >= prompts:
            phases.append(([], []))
        phases[-1][0].append(name)
        phases[-1][1].extend(places)
    if len(phases) > 1 and len(phases[-1][1]) < prompts:
        names, places = phases.pop()
        phases[-1][0].extend(names)
        phases[-1][1].extend(places)
    return tuple("+".join(names) for names, _ in phases), tuple(tuple(sorted(places)) for _, places in phases)


def identified(settings: CurriculumConfig) -> CurriculumConfig:
    """The settings as a run's identity takes them: the measure's content stands for its place. Raises UserError where there is none."""
    if not settings.measured:
        return settings
    path = Path(settings.measured)
    file = path / SAMPLES_FILE if path.is_dir() else path
    if not file.is_file():
        expected = f"expected an evaluation folder with {SAMPLES_FILE}, or a file of puzzle and p"
        raise UserError(f"rl.curriculum.measured={path}: {expected}; make one by chessrl.evaluate with evaluate.split=rl")
    return replace(settings, measured=hashlib.sha256(file.read_bytes()).hexdigest())
