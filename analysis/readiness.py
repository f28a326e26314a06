"""The readiness check of a claim about RL: seven points, each shown, failed or not measured, with the number and the table behind it.

The points are those of the evidence package (science 6.1 to 6.7). A point is made of checks; it is shown where all of them are, failed where one
failed, and else not measured. Nothing is shown by default: a check without its file is not measured and says which command makes the file, and one
whose interval reaches beyond its bound is not measured well enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

SHOWN, FAILED, NOT_MEASURED = "shown", "failed", "not measured"
POINTS = (
    "Better at equal compute, with one sample and with several",
    "The verifier is right, and is not fooled",
    "The right reward beats rewards that know nothing",
    "The test was not seen",
    "A private hold-out confirms, and every look at it is logged",
    "The policy did not drift away",
    "A person agrees",
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What each check asks for, and why that much: ``docs/evidence.md`` gives the reasons beside the defaults."""

    margin: float = 0.02  # pass@1, pass@k: smaller losses are within what another seed does at 1,500 puzzles
    precision: float = 0.98  # a verifier that pays 2 % wrong answers or more has a ceiling below 98 % (PPV, science 2)
    j: float = 0.8  # TPR - FPR: learning slows down in proportion to it (arXiv 2601.04411)
    attack: float = 0.02  # success of the best attack: the best verifiers of arXiv 2505.22203 have .004; none of 200 has an interval up to .019
    gap: float = 0.02  # rise of (training verifier's verdict - oracle's) over a run
    prefix: float = 0.05  # exact matches beyond the control's
    slice_drop: float = 0.05  # pass@1 on the test set beyond a slice's
    private_drop: float = 0.05  # pass@1 on the test set beyond the private one's
    private_looks: int = 1  # most looks of a run at the private split
    kl: float = 1.0  # largest, in nats a token, either way: health.kl
    entropy: float = 0.02  # smallest, in nats a token: health.entropy
    zero_variance: float = 0.9  # largest share of groups that teach nothing, at a run's end
    seeds: int = 3  # fewest of each reward (science 7.4: at least 3)
    judged: int = 100  # fewest items of the human audit
    agreement: float = 0.9  # least of the person with the verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceSettings(Thresholds):
    """Keys of the command; the thresholds beside them."""

    runs: tuple[str, ...]  # run directories: the RL runs, the policies they started from, the pretrained ones
    out: str  # folder for readiness.md, readiness.html, tables and figures
    split: str = "test"  # whose evaluations are compared
    accuracy: str = "line"  # the reward of the claim
    log: str = ""  # the hold-out's access log; empty: beside the runs
    seed: int = 0  # of the bootstraps


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a point (1 to 7): what was found, what was asked, the verdict, the table behind it or the command that makes it."""

    point: int
    about: str
    name: str
    found: str
    asked: str
    verdict: str
    source: str


def missing(point: int, about: str, name: str, command: str) -> Check:
    """A check that nothing was found for, and what makes it possible."""
    return Check(point, about, name, "–", "–", NOT_MEASURED, command)


def at_least(point: int, about: str, name: str, value: float, low: float, high: float, bound: float, source: str) -> Check:
    """Shown where the whole interval lies at or above the bound, failed where the value lies below it."""
    return _bounded(point, about, name, (value, low, high), f"at least {bound:g}", value >= bound, low >= bound, source)


def at_most(point: int, about: str, name: str, value: float, low: float, high: float, bound: float, source: str) -> Check:
    """Shown where the whole interval lies at or below the bound, failed where the value lies above it."""
    return _bounded(point, about, name, (value, low, high), f"at most {bound:g}", value <= bound, high <= bound, source)


def _bounded(
    point: int, about: str, name: str, interval: tuple[float, float, float], asked: str, value_holds: bool, all_holds: bool, source: str
) -> Check:
    """Between the two lies what was not measured well enough: the value holds and its interval reaches beyond the bound."""
    if any(np.isnan(number) for number in interval):
        return Check(point, about, name, "not defined on these data", asked, NOT_MEASURED, source)
    found = "{:.3f} [{:.3f}, {:.3f}]".format(*interval)
    if value_holds and not all_holds:
        return Check(point, about, name, f"{found}, too wide to tell: measure more", asked, NOT_MEASURED, source)
    return Check(point, about, name, found, f"{asked}, with its interval", SHOWN if value_holds else FAILED, source)


def enough(point: int, about: str, name: str, count: int, bound: int, source: str) -> Check:
    """Too few are not a failure, but not measured well enough."""
    return Check(point, about, name, str(count), f"at least {bound}", SHOWN if count >= bound else NOT_MEASURED, source)


def stated(point: int, about: str, name: str, found: str, asked: str, holds: bool, source: str) -> Check:
    """A check without an interval: a count, or a fact."""
    return Check(point, about, name, found, asked, SHOWN if holds else FAILED, source)


def verdict_of(checks: Sequence[Check]) -> str:
    """failed if any failed, shown if all are shown, else not measured; a point without a check is not measured."""
    verdicts = {check.verdict for check in checks}
    return FAILED if FAILED in verdicts else SHOWN if verdicts == {SHOWN} else NOT_MEASURED


def points_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per point: its verdict, and how many of its checks are shown, failed and not measured."""
    rows = []
    for number, text in enumerate(POINTS, start=1):
        of_point = [check for check in checks if check.point == number]
        counts = {verdict.replace(" ", "_"): sum(check.verdict == verdict for check in of_point) for verdict in (SHOWN, FAILED, NOT_MEASURED)}
        rows.append({"point": number, "claim": text, "verdict": verdict_of(of_point)} | counts)
    return pd.DataFrame(rows)


def checks_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check, in the order of the points."""
    columns = ("point", "about", "name", "found", "asked", "verdict", "source")
    ordered = sorted(checks, key=lambda check: check.point)
    return pd.DataFrame([{name: getattr(check, name) for name in columns} for check in ordered], columns=columns)


def readiness_markdown(checks: Sequence[Check], command: str) -> str:
    """readiness.md: the seven points, then the checks of each."""
    table = points_table(checks)
    lines = ["# Readiness", "", f"Made by `{command}`.", "", "| point | claim | verdict |", "| --- | --- | --- |"]
    lines += [f"| {row.point} | {row.claim} | **{row.verdict}** |" for row in table.itertuples()]
    for row in table.itertuples():
        lines += ["", f"## {row.point}. {row.claim}: {row.verdict}", ""]
        lines += ["| about | check | found | asked | verdict | table, or the command that makes it |", "| --- | --- | --- | --- | --- | --- |"]
        for check in (check for check in checks if check.point == row.point):
            words = (check.about, check.name, check.found, check.asked, check.verdict, f"`{check.source}`")
            lines.append("| " + " | ".join(word.replace("|", "/") for word in words) + " |")
    return "\n".join(lines) + "\n"
