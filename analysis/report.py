"""The analysis from run directories to report.html, figures/ and tables/."""

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.arms import arm_sections
from analysis.explorer_sections import explorer_sections
from analysis.passk_sections import passk_sections
from analysis.policy_sections import policy_sections
from analysis.read import Run, read_runs
from analysis.sections import REACH, RULES, SHORT, TRAINING, Section, build_sections
from analysis.tabular import tabular_sections
from analysis.tabular_control import QUESTION
from chessrl.config import AnalysisConfig
from chessrl.figure_style import save_figure
from chessrl.leaks import leak_label

ORDER = (SHORT, REACH, QUESTION, RULES, TRAINING)  # of the questions; others follow as they come
SHOWN_ROWS = 120  # of a table in the page; the CSV file has them all
READABLE_PIXELS_PER_INCH = 80  # below it the text of a figure is too small to read: on a narrow screen the figure scrolls instead
INTRODUCTION = (
    "From pretraining to supervised fine-tuning to reinforcement learning on chess puzzles, after "
    '<a href="https://arxiv.org/abs/2607.16097">Shen et al., Understanding Reasoning from Pretraining to Post-Training</a>.'
)
TABULAR_INTRODUCTION = "Reinforcement learning of policies as tables, one softmax per puzzle over its moves: what the objective does by itself."
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 60rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.35rem; margin: 2.6rem 0 .4rem; border-bottom: 2px solid #0173b2; }}
h3 {{ font-size: 1.1rem; margin: 2rem 0 .4rem; }}
p {{ margin: .4rem 0; overflow-wrap: anywhere; }} nav ul {{ padding: 0; list-style: none; }} nav li {{ margin: .35rem 0; line-height: 1.7; }}
nav a {{ margin-right: .8rem; white-space: nowrap; }} nav b a {{ color: inherit; white-space: normal; }}
.note, .source {{ color: #555; font-size: .85rem; }}
.figure, .table {{ overflow-x: auto; }}
img {{ max-width: 100%; height: auto; display: block; margin: .6rem auto; }}
table {{ border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .45rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }}
th.text, td.text {{ text-align: left; }} th {{ border-bottom: 2px solid #888; vertical-align: bottom; white-space: normal; }}
code {{ font-size: .85em; overflow-wrap: anywhere; }} pre {{ overflow-x: auto; font-size: .75rem; background: #f6f6f6; padding: .6rem; }}
summary {{ cursor: pointer; font-size: .85rem; }}
@media print {{ nav {{ display: none; }} body {{ font-size: 10pt; max-width: none; }} .figure {{ break-inside: avoid; }}
h2, h3 {{ break-after: avoid; }} img {{ min-width: 0 !important; }}
pre {{ white-space: pre-wrap; }} table {{ font-size: 7pt; }} .figure, .table {{ overflow: visible; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{introduction} Made by <code>{command}</code>.</p>
{warning}<nav><ul>
{contents}
</ul></nav>
{sections}
<section id="configurations"><h2>Configurations</h2><p>The resolved configuration of every run.</p>
{configurations}
</section>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What an analysis left: the page, and the final table as text for the terminal."""

    report: Path
    terminal: str


def run_analysis(runs: Sequence[Path], out: Path, settings: AnalysisConfig | None = None, tabular: Sequence[Path] = ()) -> Analysis:
    """Read the run directories and write report.html, figures/*.png|pdf and tables/*.csv below `out`.

    tabular: runs of ``python -m rl.tabular`` to set beside them. The same runs, `out` and settings give the same bytes. Raises UserError on
    unreadable runs.
    """
    settings = settings or AnalysisConfig()
    read = read_runs(runs)
    selection = tables.select_evaluations(read)
    sections = [
        *build_sections(read, selection, settings.seed),
        *passk_sections(read, settings),
        *policy_sections(read, tabular, settings),
        *arm_sections(read, selection.split, settings.seed),
        *explorer_sections(read),
        *tabular_sections(tabular),
    ]
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for kind in ("passk", "rates"):
        _write_table(tables.all_evaluations(read, kind), out / "tables" / f"all_{kind}.csv")
    leaked = leak_lines(read)
    configurations = [_configuration(run.label, run.run_id, run.config) for run in read] + [_tabular_configuration(run) for run in tabular]
    report = write_page(sections, out, _command([*runs, *tabular], settings), INTRODUCTION, configurations, leaked)
    passk, rates = (tables.labelled(selection.policies, kind) for kind in ("passk", "rates"))
    return Analysis(report, "\n".join([*leaked, tables.terminal_table(passk, rates)]))


def run_tabular_analysis(runs: Sequence[Path], out: Path) -> Analysis:
    """The same of tabular runs, which have no model and no evaluations."""
    sections = tabular_sections(runs)
    report = write_page(sections, out, _command(runs, AnalysisConfig()), TABULAR_INTRODUCTION, [_tabular_configuration(run) for run in runs])
    return Analysis(report, "\n".join(f"{section.title}: {out / 'figures' / section.name}.png" for section in sections))


def _command(runs: Sequence[Path], settings: AnalysisConfig) -> str:
    """The command that makes the page, with the keys of ``analysis`` that differ from their defaults."""
    default = AnalysisConfig()
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    keys = [f"analysis.{name}={str(value).replace(' ', '')}" for name, value in values.items() if value != getattr(default, name)]
    return shlex.join(["python", "-m", "analysis", f"runs=[{','.join(str(run) for run in runs)}]", *keys])


def write_page(
    sections: Sequence[Section], out: Path, command: str, introduction: str, configurations: Sequence[str], warnings: Sequence[str] = ()
) -> Path:
    """Write the sections' files and the page that holds them all, grouped by their questions; its path."""
    for folder in ("figures", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    questions = dict.fromkeys((*ORDER, *(section.question for section in sections)))
    groups = {question: [section for section in sections if section.question == question] for question in questions}
    contents, blocks = [], []
    for number, (question, members) in enumerate((name, members) for name, members in groups.items() if members):
        links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a> ' for section in members)
        contents.append(f'<li><b><a href="#question-{number}">{escape(question)}</a></b> {links}</li>')
        blocks.append(f'<h2 id="question-{number}">{escape(question)}</h2>')
        blocks += [section_block(section, out, command) for section in members]
    page = PAGE.format(
        title="chessrl report",
        introduction=introduction,
        command=escape(command),
        warning="".join(f'<p style="border: 2px solid #b00; padding: .4rem .6rem">{escape(line)}</p>\n' for line in warnings),
        contents="\n".join(contents),
        sections="\n".join(blocks),
        configurations="\n".join(configurations),
    )
    report = out / "report.html"
    report.write_text(page, encoding="utf-8")
    return report


def leak_lines(runs: Sequence[Run]) -> list[str]:
    """A line for every leak that some of the runs descend from; none where test puzzles are as unseen as they should be."""
    by_leak: dict[str, list[str]] = {}
    for run in runs:
        if leak := run.summary.get("leak"):
            text = f"{len(leak['puzzles']):,} {leak['split']} puzzles ({leak_label(leak)})"
            by_leak.setdefault(text, []).append(run.label)
    return [f"Contaminated on purpose: the games of {text} were in the corpus of {', '.join(labels)}." for text, labels in by_leak.items()]


def _write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table, or remove an earlier analysis' one where there is nothing to write."""
    if table.empty:
        path.unlink(missing_ok=True)
    else:
        table.to_csv(path, index=False, lineterminator="\n")


def section_block(section: Section, out: Path, command: str) -> str:
    """Write the section's files and return its HTML. A figure or table left from an earlier analysis does not survive."""
    parts = [f'<section id="{section.name}"><h3>{escape(section.title)}</h3>', f"<p>{escape(section.text)}</p>"]
    parts += [f'<p class="note">{escape(note)}</p>' for note in section.notes]
    if section.figure is not None:
        image = base64.b64encode(save_figure(section.figure, out / "figures", section.name)).decode("ascii")
        style = f"min-width: {round(section.figure.get_figwidth() * READABLE_PIXELS_PER_INCH)}px"
        source = f"data:image/png;base64,{image}"
        parts.append(f'<div class="figure"><img alt="{escape(section.title)}" style="{style}" src="{source}"></div>')
    else:
        for suffix in ("png", "pdf"):
            (out / "figures" / f"{section.name}.{suffix}").unlink(missing_ok=True)
    if section.html:
        parts.append(section.html)
    _write_table(section.table, out / "tables" / f"{section.name}.csv")
    if len(section.table):
        parts.append(_table_block(section))
        made = f"Table <code>tables/{section.name}.csv</code>, read from {escape(section.source)}, by <code>{escape(command)}</code>."
        parts.append(f'<p class="source">{made}</p>')
    return "\n".join([*parts, "</section>"])


def _table_block(section: Section) -> str:
    """The table, folded away below a figure; long ones thinned, which is said."""
    shown = tables.thin(section.table, SHOWN_ROWS)
    rows = f"{len(section.table):,} rows"
    if len(shown) < len(section.table):
        rows = f"{len(shown)} of {rows}, evenly spaced"
    html = f'<div class="table">{_html_table(shown)}</div>'
    return html if section.figure is None else f"<details><summary>Table ({rows})</summary>{html}</details>"


def _html_table(table: pd.DataFrame) -> str:
    classes = {name: "" if pd.api.types.is_numeric_dtype(table[name]) else ' class="text"' for name in table.columns}
    head = "".join(f"<th{classes[name]}>{escape(str(name))}</th>" for name in table.columns)
    rows = []
    for record in table.to_dict("records"):
        rows.append("<tr>" + "".join(f"<td{classes[name]}>{escape(_cell(value))}</td>" for name, value in record.items()) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(value: object) -> str:
    """A value for reading: four significant digits, an en dash where nothing was measured."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _tabular_configuration(run: Path) -> str:
    return _configuration("tabular", run.name, (run / "config.yaml").read_text(encoding="utf-8"))


def _configuration(label: str, run_id: str, config: str) -> str:
    return f"<details><summary>{escape(label)}: {escape(run_id)}</summary><pre>{escape(config)}</pre></details>"
