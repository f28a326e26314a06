"""The configuration reference: every key with its default, what it may be and what it means, from the typed schema and its comments.

A test holds the committed page equal to the code.

Examples:
    python -m chessrl.reference out=docs/configuration.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from chessrl.command import parse_settings, run_command
from chessrl.command_help import comments_of, written
from chessrl.config import Config
from chessrl.config_check import CHOICES, LISTS, OPTIONAL_COUNTS, RANGES

IDENTITY = {"local": "no", "neutral": "if set"}
UNHASHED = ("pipeline", "budget", "health")  # a budget becomes tokens and steps before a run is named
INTRODUCTION = """# Configuration reference

Made by `python -m chessrl.reference out=docs/configuration.md` from `chessrl/config.py` and `chessrl/config_check.py`; a test holds it equal to them.

A key has the same path in every command (`python -m rl rl.steps=200`, `python -m chessrl rl.steps=200`); presets in `conf/` set several at once.
**Hash** says whether a run directory's name depends on the key: *yes*; *if set*: only where it differs from the default; *no*: it changes speed,
memory or places, never results. A stage's name holds the keys of its own sections, its data and its parent's run id, no others; that of an
evaluation's folder the `evaluate` keys.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One key: dotted path, default as it is written on a command line, allowed values, whether it is hashed, meaning."""

    path: str
    default: str
    allowed: str
    hashed: str
    meaning: str


def sections() -> list[tuple[str, str, list[Key]]]:
    """(path, docstring, keys) of every dataclass of the schema in its order; the root's own keys come first, under the path ""."""
    return list(_sections("", Config(), "no"))


def _sections(path: str, values: Any, hashed: str) -> Iterator[tuple[str, str, list[Key]]]:
    """Of the dataclass at ``path`` and those below it; ``hashed``: what its own keys are where they do not say otherwise."""
    kind = type(values)
    prefix = f"{path}." if path else ""
    types, comments = get_type_hints(kind), comments_of(kind)
    keys, below = [], []
    for field in fields(kind):
        value = getattr(values, field.name)
        of_field = IDENTITY.get(field.metadata.get("identity", ""), hashed)
        if is_dataclass(value):
            outer = of_field if path else "no" if field.name in UNHASHED else "yes"
            below += _sections(f"{prefix}{field.name}", value, outer)
        else:
            allowed = _allowed(f"{prefix}{field.name}", types[field.name])
            keys.append(Key(f"{prefix}{field.name}", _written(value), allowed, of_field, comments[field.name]))
    yield path, (inspect.getdoc(kind) or "") if path else "", keys
    yield from below


def _written(value: Any) -> str:
    """A default as a command line gives it, with a word for what is empty."""
    return "{}" if isinstance(value, dict) else "(empty)" if value == "" else written(value)


def _allowed(path: str, kind: type) -> str:
    """What config_check lets pass, else the type."""
    if path in CHOICES:
        return ", ".join(CHOICES[path])
    if path in LISTS and isinstance(LISTS[path][0], str):
        return f"list out of {', '.join(map(str, LISTS[path]))}"
    if path in RANGES or path in LISTS:
        low, high = RANGES.get(path) or LISTS[path]
        bound = f">= {low:g}" if high is None or high > 2**60 else f"{low:g} to {high:g}"
        return f"list, each {bound}" if path in LISTS else bound
    if path in OPTIONAL_COUNTS:
        return "null or >= 1"
    names = {bool: "true, false", int: "integer", float: "number", str: "text", Any: "text or list"}
    return names.get(kind) or str(kind).replace("str", "text").replace("int", "integer").replace("float", "number").replace("None", "null")


def with_meanings(help_text: str) -> str:
    """Hydra's help with the meaning of each key of the schema as a comment behind it; the configuration in it is YAML, two blanks a level."""
    meanings = {key.path: f"{key.meaning} [{key.allowed}]" for _, _, keys in sections() for key in keys}
    path: list[str] = []
    lines = []
    for line in help_text.splitlines():
        if match := re.match(r"((?:  )*)(\w+):(?: |$)", line):
            path[len(match[1]) // 2 :] = [match[2]]
            meaning = meanings.get(".".join(path))
            line = f"{line}  # {meaning}" if meaning else line
        lines.append(line)
    return "\n".join(lines)


def page() -> str:
    """The whole reference as Markdown."""
    blocks = [INTRODUCTION]
    for path, text, keys in sections():
        blocks.append(f"## `{path}`\n\n{text}\n" if path else "## Every command\n")
        if keys:
            rows = [f"| `{key.path}` | `{key.default}` | {_cell(key.allowed)} | {key.hashed} | {_cell(key.meaning)} |" for key in keys]
            blocks.append("\n".join(["| key | default | allowed | hash | meaning |", "| --- | --- | --- | --- | --- |", *rows, ""]))
    return "\n".join(blocks)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """``python -m chessrl.reference``."""

    out: str  # the Markdown file to write


def main(arguments: list[str]) -> None:
    settings = parse_settings(ReferenceSettings, arguments)
    Path(settings.out).write_text(page(), encoding="utf-8")
    print(settings.out)


if __name__ == "__main__":
    raise SystemExit(run_command(main))
