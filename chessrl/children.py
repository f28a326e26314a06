"""Commands that a command starts, the stages of a pipeline and the jobs of a sweep: stop signals are passed on, and no child outlives its parent."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from chessrl.signals import die_with_parent, stop_signals

RUN_DIRECTORY_FILE = "CHESSRL_RUN_DIRECTORY_FILE"  # environment: the file in which a command tells the pipeline what folder it makes


def tell_directory(directory: Path) -> None:
    """Tell the pipeline that started this command, if one did, the folder that it makes."""
    if RUN_DIRECTORY_FILE in os.environ:
        Path(os.environ[RUN_DIRECTORY_FILE]).write_text(str(directory))


def run_child(command: Sequence[str], environment: Mapping[str, str], output: BinaryIO | None = None) -> tuple[int, list[int]]:
    """Run one command to its end, passing our stop signals on: its status as a shell gives it, and the signals that came meanwhile.

    ``environment`` is added to ours; what it prints goes to ``output``, or where ours goes. The child has a process group of its own, so that
    a Ctrl-C reaches it through us alone.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals from before there was a child to have them

    def pass_on(number: int) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with stop_signals(pass_on) as received:
        child = subprocess.Popen(
            command, process_group=0, preexec_fn=functools.partial(_stop_with_parent, os.getpid()), env=os.environ | environment,
            stdout=output, stderr=output,
        )  # fmt: skip
        for number in early:
            child.send_signal(number)
        status = child.wait()
    return shell_status(status), received


def shell_status(status: int) -> int:
    """The status that a shell gives: 128 + the signal's number for a process that a signal ended."""
    return status if status >= 0 else 128 - status


def quoted(path: Path) -> str:
    """A path as a value of Hydra's override grammar, quoted where it must be."""
    if re.fullmatch(r"[\w./-]+", str(path), re.ASCII):
        return str(path)
    text = re.sub(r"(\\*)'", r"\1\1\\'", str(path))  # Hydra reads a backslash as an escape before a quote only
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"


def _stop_with_parent(parent: int) -> None:
    """In the child: SIGTERM when the parent dies, however it dies. Elsewhere than on Linux a killed parent leaves the child to finish."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # it died before the request: nobody would tell us any more
            os._exit(1)
