"""The documentation names files, pages, commands and keys that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import yaml

from chessrl.launch import compose

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
STAGES = {name: name for name in ("chessrl", "pretrain", "sft", "rl", "analysis")}
# Those with Hydra's keys, and their primary config
FURTHER = {f"chessrl.{name}": name for name in ("evaluate", "audit", "prefixes", "baselines")}
COMMANDS = STAGES | FURTHER | {"rl.tabular": "tabular"}
PLACEHOLDERS = re.compile(r"^(launcher|hydra\.|experiment=NAME|model=)|\.\.\.")


def commands_of(page: Path) -> list[list[str]]:
    """The words after `python -m` of every command line in the page's code blocks, comments left out and continued lines joined."""
    return commands_in("\n".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S)))


def commands_in(text: str) -> list[list[str]]:
    """The words after `python -m` of every line that has it, comments left out and continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|\s)(?:python -m|torchrun \S+ -m) (.*)", line.split("  #")[0]) for line in lines]
    return [shlex.split(match[1]) for match in found if match]


def check_keys(module: str, words: list[str]) -> None:
    """Compose the command's configuration, of a sweep its first values. Raises UserError for a key that does not exist."""
    overrides = [word for word in words if "=" in word and not PLACEHOLDERS.search(word)]
    swept = [re.sub(r"^([^\[]*?=[^\[,]*),.*", r"\1", word) for word in overrides]
    compose(COMMANDS[module], [word for word in swept if not word.startswith(("runs=", "parent="))])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_every_page_is_in_the_navigation():
    def leaves(tree: object) -> list[str]:
        return [tree] if isinstance(tree, str) else [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]

    named = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(named) == sorted(pages)


def test_commands_name_modules_and_keys_that_exist():
    checked = 0
    for page in PAGES:
        for module, *words in commands_of(page):
            assert importlib.util.find_spec(module) is not None, f"{page.name}: python -m {module}"
            if module in COMMANDS:
                check_keys(module, words)
                checked += 1
    assert checked > 20
