"""Small commands with key=value arguments: parsing into a typed dataclass, and errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import TypeVar, get_type_hints

from chessrl.command_help import HELP_FLAGS, HelpAsked, help_text
from chessrl.errors import DISK_FULL, UserError
from chessrl.signals import Interrupted, stop_signals

Settings = TypeVar("Settings")

_BOOLEANS = {"true": True, "false": False}


def parse_settings(settings: type[Settings], arguments: list[str]) -> Settings:
    """An instance of the dataclass ``settings`` from ``key=value`` words; fields are str, int, float, bool or tuple[str, ...] (commas, with
    or without the brackets of a list).

    Raises UserError naming the word or key at fault and what was expected, and HelpAsked for ``-h`` and ``--help``.
    """
    if HELP_FLAGS.intersection(arguments):
        raise HelpAsked(settings)
    types = get_type_hints(settings)
    values = {}
    for argument in arguments:
        key, separator, text = argument.partition("=")
        if not separator or key not in types:
            raise UserError(f"{argument!r}: expected key=value with a key out of {', '.join(types)}")
        values[key] = _convert(key, text, types[key])
    missing = [field.name for field in fields(settings) if field.default is MISSING and not values.get(field.name)]
    if missing:
        raise UserError(f"{missing[0]}= is missing; give {', '.join(f'{name}=...' for name in missing)}")
    return settings(**values)


def _convert(key: str, text: str, expected: type) -> object:
    try:
        if expected is bool:
            return _BOOLEANS[text.lower()]
        if expected == tuple[str, ...]:
            return tuple(word.strip() for word in text.removeprefix("[").removesuffix("]").split(",") if word.strip())
        return expected(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if expected is bool else f"a value of type {expected.__name__}"
        raise UserError(f"{key}={text}: expected {wanted}") from error


def run_command(command: Callable[[list[str]], None]) -> int:
    """Run a command on this process's arguments, or print its help: its module's docstring and the keys that it parses. The exit status: 0, 2 after
    a UserError or a full disk printed as one line, or a stop signal's."""
    try:
        with stop_signals():
            command(sys.argv[1:])
    except HelpAsked as asked:
        print(help_text(sys.modules[command.__module__].__doc__ or "", asked.settings))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"error: {error.filename or 'output'}: {os.strerror(error.errno)}: free some space, then run the command again", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.number
    return 0
