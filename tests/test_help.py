"""``--help`` of every command names each of its keys with a meaning, and examples whose keys exist."""

from __future__ import annotations

import ast
import importlib
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml

from chessrl.command import run_command
from chessrl.command_help import HelpAsked, comments_of, help_text
from chessrl.launch import launch
from chessrl.reference import sections
from tests.test_docs import COMMANDS, ROOT, check_keys, commands_in

PACKAGES = ("chessrl", "pretrain", "sft", "rl", "analysis", "benchmarks")
OTHERS_INTERPRETER = {"benchmarks.peers"}  # started by python -m benchmarks under an interpreter that has the peers and nothing of ours


def runs(path: Path) -> bool:
    """Whether the file does something where it is the main one."""
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in ast.parse(path.read_text()).body)


def commands() -> list[str]:
    """Every module that can be run, as `python -m` names it."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if runs(path)]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in files}
    return sorted(names - OTHERS_INTERPRETER)


KEY_VALUE = [name for name in commands() if name not in COMMANDS]


def help_asked(name: str) -> tuple[str, type]:
    """The docstring and the settings that `python -m name --help` is made of."""
    module = importlib.import_module("chessrl.puzzle_build" if name == "chessrl.puzzles" else f"{name}.__main__" if name in PACKAGES else name)
    with pytest.raises(HelpAsked) as asked:
        module.main(["--help"])
    return module.__doc__, asked.value.settings


@pytest.mark.parametrize("name", KEY_VALUE)
def test_help_has_every_key_with_a_meaning_and_examples_that_work(name):
    documentation, settings = help_asked(name)
    text = help_text(documentation, settings)
    meanings = comments_of(settings)
    assert [field.name for field in fields(settings) if len(meanings[field.name]) < 3 or f"\n  {field.name}=" not in text] == []
    assert f"Usage: python -m {name} " in text
    examples = [words for module, *words in commands_in(documentation) if module == name]
    assert examples, f"{name}: its docstring ends without Examples:"
    needed = {field.name for field in fields(settings) if field.default is MISSING}
    for words in examples:
        keys = {word.partition("=")[0] for word in words}
        assert needed <= keys <= {field.name for field in fields(settings)}, f"{name} {' '.join(words)}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_hydra_command_has_examples_whose_keys_exist(name):
    assert name in commands()
    template = yaml.safe_load((ROOT / "conf" / f"{COMMANDS[name]}.yaml").read_text())["hydra"]["help"]["template"]
    examples = [words for words in commands_in(template) if words[0] != name or not any(word.startswith("[") for word in words)]
    assert len([words for words in examples if words[0] == name]) >= 2
    for module, *words in examples:
        check_keys(module, words)


def test_hydras_help_gives_each_key_its_meaning(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rl", "--help", "rl.steps=7"])
    with pytest.raises(SystemExit) as ended:
        launch("rl", lambda config: pytest.fail("help is no job"))
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert [line for line in lines if line.startswith("  steps: 7  # ")], "rl.steps with its value and meaning"
    starts = {(line.strip().partition(":")[0], line.partition("  # ")[2]) for line in lines}
    keys = [key for _, _, of_section in sections() for key in of_section]
    assert [key.path for key in keys if (key.path.split(".")[-1], f"{key.meaning} [{key.allowed}]") not in starts] == []


def test_a_wrong_key_beside_help_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rl", "--help", "rl.stps=7"])
    with pytest.raises(SystemExit) as ended:
        launch("rl", lambda config: None)
    assert ended.value.code == 2 and capsys.readouterr().err == "error: rl.stps: no such key; did you mean rl.steps?\n"


def test_help_is_printed_and_nothing_done(monkeypatch, capsys, tmp_path):
    from chessrl import reference

    monkeypatch.setattr(sys, "argv", ["reference", f"out={tmp_path / 'page.md'}", "-h"])
    assert run_command(reference.main) == 0 and list(Path(tmp_path).iterdir()) == []
    assert "the Markdown file to write" in capsys.readouterr().out
