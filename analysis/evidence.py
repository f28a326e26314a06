"""The evidence package of RL runs: verifier audit, contamination, reward sources, drift, hold-out, human audit, and whether they bear a claim.

Writes ``readiness.md``, ``readiness.html``, ``tables/`` and ``figures/``. It reads files only. ``docs/evidence.md`` says which commands make them.

Examples:
    python -m analysis.evidence runs=outputs/pretrain-0123456789ab,outputs/sft-0123456789ab,outputs/rl-0123456789ab out=outputs/evidence
    python -m analysis.evidence runs=outputs/pretrain-0123456789ab,outputs/sft-0123456789ab,outputs/rl-0123456789ab out=outputs/evidence seeds=1
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np

from analysis import evidence_points as points
from analysis.evidence_page import write_page
from analysis.read import read_runs
from analysis.readiness import Check, EvidenceSettings, checks_table, points_table, readiness_markdown
from analysis.sections import Section
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder


def gather(settings: EvidenceSettings) -> tuple[list[Section], list[Check]]:
    """All sections and checks, in the order of the points."""
    runs = read_runs([Path(run) for run in settings.runs])
    if not any(run.stage == "rl" for run in runs):
        raise UserError("runs: no RL run among them, so there is no claim to check; name RL runs, their starts and the pretrained ones")
    sections: list[Section] = []
    checks: list[Check] = []
    for number, point in enumerate(points.ALL):
        found = point(runs, settings, np.random.default_rng([settings.seed, number]))
        sections += found[0]
        checks += found[1]
    return sections, checks


def main(arguments: list[str]) -> None:
    settings = parse_settings(EvidenceSettings, arguments)
    out = Path(settings.out)
    sections, checks = gather(settings)
    command = shlex.join(["python", "-m", "analysis.evidence", *arguments])
    make_folder(out, "out")
    for folder in ("tables", "figures"):
        make_folder(out / folder, "out")
    (out / "readiness.md").write_text(readiness_markdown(checks, command), encoding="utf-8")
    write_page(out, sections, checks, command)
    for name, table in (("points", points_table(checks)), ("checks", checks_table(checks))):
        table.to_csv(out / "tables" / f"{name}.csv", index=False)
    print(points_table(checks).to_string(index=False))
    print(f"{out / 'readiness.html'}")


if __name__ == "__main__":
    sys.exit(run_command(main))
