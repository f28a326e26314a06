"""What ``--help`` prints of a key=value command: its module's docstring, and its keys from the settings dataclass and the comments there."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

HELP_FLAGS = {"-h", "--help"}
TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", tuple[str, ...]: "list, with commas"}
WIDTH = 120
INDENT = 6


class HelpAsked(Exception):
    """``-h`` or ``--help`` is among the arguments of a command with these settings: nothing is to be done but to print help."""

    def __init__(self, settings: type) -> None:
        super().__init__(f"help on {settings.__name__}")
        self.settings = settings


def help_text(documentation: str, settings: type) -> str:
    """First paragraph of the command's docstring, usage, the rest with its ``Examples:``, and every key with type, default and meaning."""
    what, *paragraphs = inspect.cleandoc(documentation).replace("``", "").split("\n\n")
    types, comments = get_type_hints(settings), comments_of(settings)
    keys = sorted(fields(settings), key=lambda field: field.default is not MISSING)  # those that must be given come first
    needed = " ".join(f"{field.name}=..." for field in keys if field.default is MISSING)
    program = re.search(r"Examples:\n +(python -m \S+)", "\n".join(paragraphs))
    usage = f"Usage: {program[1] if program else 'python -m ...'} {needed} [key=value ...]".replace("  ", " ")
    text = [paragraph if "\n " in paragraph else textwrap.fill(paragraph, WIDTH) for paragraph in (what, usage, *paragraphs)]
    table = ["Keys:", *(_key_lines(field, types[field.name], comments[field.name]) for field in keys)]
    return "\n\n".join([*text, "\n".join(table)])


def _key_lines(field: Field[Any], kind: Any, meaning: str) -> str:
    head = f"  {field.name}=  ({TYPES[kind]}, needed)" if field.default is MISSING else f"  {field.name}={written(field.default)}  ({TYPES[kind]})"
    return "\n".join([head, *textwrap.wrap(meaning, WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)])


def written(value: Any) -> str:
    """A default as a command line gives it; an empty text as nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def comments_of(settings: type) -> dict[str, str]:
    """The comment of every field of a dataclass, inherited ones included: the lines right above it and the one behind it. "" where there is none."""
    found: dict[str, str] = {}
    for kind in reversed(settings.__mro__):
        if "__dataclass_fields__" in vars(kind):
            found |= _own_comments(kind)
    return found


def _own_comments(of: type) -> dict[str, str]:
    source = inspect.getsource(of)
    lines = source.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for statement in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        above = []
        line = statement.lineno - 1
        while line in comments and lines[line - 1].lstrip().startswith("#"):
            above.insert(0, comments[line])
            line -= 1
        behind = [comments[line] for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1) if line in comments]
        found[statement.target.id] = " ".join([*above, *behind])
    return found
