"""readiness.html: the seven points, the checks behind them, then every table and figure of the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from analysis.readiness import FAILED, NOT_MEASURED, SHOWN, Check, points_table, verdict_of
from analysis.report import section_block
from analysis.sections import Section

COLOURS = {SHOWN: "#0b6e4f", FAILED: "#b00020", NOT_MEASURED: "#6b6b6b"}
SIGNS = {SHOWN: "✓", FAILED: "✗", NOT_MEASURED: "–"}  # beside the colour, for those who see none
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Readiness</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 64rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin: 2.2rem 0 .4rem; }}
.note, .source {{ color: #555; font-size: .85rem; }} .figure, .table {{ overflow-x: auto; }}
img {{ max-width: 100%; height: auto; display: block; margin: .6rem auto; }}
table {{ border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .5rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; vertical-align: top; }}
th.text, td.text, .checks th, .checks td {{ text-align: left; }} th {{ border-bottom: 2px solid #888; }}
.checks td {{ white-space: normal; }} code {{ font-size: .85em; overflow-wrap: anywhere; }} summary {{ cursor: pointer; }}
.verdict {{ font-weight: 600; white-space: nowrap; }}
@media print {{ body {{ max-width: none; font-size: 10pt; }} section {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<h1>Readiness</h1>
<p>Do these runs bear a claim about reinforcement learning? Seven points; each is shown only where all of its checks are, failed where one failed, and
else not measured. Made by <code>{command}</code>.</p>
<div class="table"><table class="checks"><thead><tr><th>point</th><th>claim</th><th>verdict</th></tr></thead><tbody>
{points}
</tbody></table></div>
{checks}
<h2>Tables and figures</h2>
{sections}
</body>
</html>
"""


def write_page(out: Path, sections: Sequence[Section], checks: Sequence[Check], command: str) -> None:
    """Write readiness.html and the sections' files below ``out``."""
    blocks = [section_block(section, out, command) for section in sections]
    summary = [
        f'<tr><td>{row.point}</td><td><a href="#point-{row.point}">{escape(row.claim)}</a></td><td>{_verdict(row.verdict)}</td></tr>'
        for row in points_table(checks).itertuples()
    ]
    details = [_point(row.point, row.claim, [check for check in checks if check.point == row.point]) for row in points_table(checks).itertuples()]
    page = PAGE.format(command=escape(command), points="\n".join(summary), checks="\n".join(details), sections="\n".join(blocks))
    (out / "readiness.html").write_text(page, encoding="utf-8")


def _verdict(word: str) -> str:
    return f'<span class="verdict" style="color: {COLOURS[word]}">{SIGNS[word]} {word}</span>'


def _point(number: int, claim: str, checks: Sequence[Check]) -> str:
    rows = [
        f"<tr><td>{escape(check.about)}</td><td>{escape(check.name)}</td><td>{escape(check.found)}</td><td>{escape(check.asked)}</td>"
        f"<td>{_verdict(check.verdict)}</td><td><code>{escape(check.source)}</code></td></tr>"
        for check in checks
    ]
    head = "<tr><th>about</th><th>check</th><th>found</th><th>asked</th><th>verdict</th><th>table, or the command that makes it</th></tr>"
    return (
        f'<section id="point-{number}"><h2>{number}. {escape(claim)}: {_verdict(verdict_of(checks))}</h2>'
        f'<div class="table"><table class="checks"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )
