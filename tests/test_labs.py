"""The labs run from top to bottom: as they are handed out (nothing answered, nothing fails), and with the instructor's answers (all is right)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LABS = Path(__file__).parents[1] / "labs"
NOTEBOOKS = sorted(LABS.glob("[0-9]*.py"))
CELL = re.compile(r"^# %%(.*)$", re.M)
NAME = re.compile(r'name="([^"]+)"')


def cells(text: str) -> list[tuple[str | None, str]]:
    """(name or None, code) of every code cell of a py:percent text."""
    starts = list(CELL.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    found = []
    for start, end in zip(starts, ends):
        if "[markdown]" not in start[1]:
            name = NAME.search(start[1])
            found.append((name[1] if name else None, text[start.end() : end]))
    return found


def answered(notebook: Path) -> str:
    """The notebook's code with its named cells replaced by the answers'."""
    answers = dict(cells((LABS / "answers" / notebook.name).read_text()))
    own = cells(notebook.read_text())
    assert set(answers) == {name for name, _ in own if name}, "answers and exercises differ"
    return "\n".join(answers.get(name, code) if name else code for name, code in own)


def run(code: str, outputs: Path) -> str:
    environment = os.environ | {"LAB_SCALE": "toy", "LAB_OUTPUTS": str(outputs), "PYTHONPATH": os.pathsep.join([str(LABS), str(LABS.parent)])}
    result = subprocess.run([sys.executable, "-c", code], cwd=LABS.parent, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """One folder for all labs, as for a student: later ones find the runs of earlier ones."""
    return tmp_path_factory.mktemp("labs")


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_lab_with_the_instructors_answers_is_right_and_ends_in_its_figure(notebook, outputs):
    told = run(answered(notebook), outputs)
    checks = re.findall(r'check(?:_function)?\("([^"]+)"', notebook.read_text())
    assert len(checks) >= 3 and all(f"{name}: right" in told for name in checks)
    assert "not answered yet" not in told and (outputs / "figures" / f"{notebook.stem}.png").stat().st_size > 5000


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_lab_as_it_is_handed_out_runs_to_its_end(notebook, outputs):
    told = run("\n".join(code for _, code in cells(notebook.read_text())), outputs)
    assert "not answered yet" in told and ": right" not in told


def test_a_wrong_answer_is_told_in_lines_with_its_hint_and_stops_no_notebook(monkeypatch, capsys):
    monkeypatch.syspath_prepend(LABS)
    import lab

    def returns_nothing(*_):
        pass

    def divides(*_):
        return 1 / 0

    for name, (_, hint) in lab.CHECKS.items():
        for wrong in (None, "a word", 17.5, [(1, 2)], {"name": 1.0}):
            lab.check(name, wrong)
        lab.check_function(name, returns_nothing)
        lab.check_function(name, divides)
        told = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  ")]
        assert len(told) == 7 and all(line.startswith(f"{name}: ") and line.endswith(hint) for line in told)
    lab.check_function("2.1 flops", divides)
    assert "ZeroDivisionError in divides" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_lab_has_answers_and_its_cells_parse(notebook):
    compile(answered(notebook), notebook.name, "exec")
