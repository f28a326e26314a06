"""docs/reliability.md names a test, or the reason why there can be none, for every known failure: the tests must be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = [f"{letter}{number}" for letter, cases in {"A": 12, "B": 14, "C": 6, "D": 10, "E": 10}.items() for number in range(1, cases + 1)]


def rows() -> dict[str, str]:
    """Case -> what the page says of it here."""
    found = {}
    for line in (ROOT / "docs" / "reliability.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and re.fullmatch(r"[A-E]\d+(, [A-E]\d+)*", cells[0]):
            found |= dict.fromkeys(cells[0].split(", "), cells[2])
    return found


def defined_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_its_row():
    assert sorted(rows(), key=CASES.index) == CASES


@pytest.mark.parametrize("case", CASES)
def test_the_tests_that_a_case_names_exist(case):
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", rows()[case])
    assert named or "cannot happen" in rows()[case]
    for file, test in named:
        assert test in defined_in(file), f"{file} has no {test}"
