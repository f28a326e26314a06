"""Signals that ask a command to stop: SIGTERM, SIGINT (Ctrl-C), SIGUSR1 and SIGUSR2 (sent by Slurm and submitit ahead of the time limit)."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

# Loaded here and not in a child between fork and exec, where loading is not safe.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# A stop signal so soon after another is the same wish by a second way, and no demand to stop at once: Slurm signals every process of a job, so
# that a stage has a signal from it and from its pipeline, and sends SIGTERM ahead of the SIGUSR2 that submitit requeues on.
SAME_WISH_S = 2.0


class Interrupted(BaseException):
    """A signal asked to stop; ``number`` is the signal's. Like KeyboardInterrupt no Exception: nothing on the way may take it for an error."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclass(slots=True)
class StopHandler:
    """Our handler of one signal, in front of an ``earlier`` one. ``wishes``: when a stop was asked for, in this context or one around it."""

    note: Callable[[int], None]
    earlier: Any
    received: list[int]
    wishes: list[float]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        handler: Any = self
        while isinstance(handler, StopHandler):
            handler.received.append(number)
            handler = handler.earlier
        now = time.monotonic()
        if not self.wishes or now - self.wishes[-1] >= SAME_WISH_S:
            self.wishes.append(now)
            self.note(number)


def stop_at_once(number: int) -> None:
    raise Interrupted(number)


@contextmanager
def stop_signals(note: Callable[[int], None] = stop_at_once) -> Iterator[list[int]]:
    """Within it a stop signal calls ``note(number)``; afterwards the handlers are as before. Contexts nest: the innermost one decides.
    Signals within ``SAME_WISH_S`` count as one. A signal that is ignored meanwhile stays so: the process is about to end by itself.

    Yields the list of the signals received while it or one within it stood.
    """
    received: list[int] = []
    earlier = [signal.getsignal(number) for number in STOP_SIGNALS]
    wishes = next((handler.wishes for handler in earlier if isinstance(handler, StopHandler)), [])
    handlers = [StopHandler(note, handler, received, wishes) for handler in earlier]
    for number, handler in zip(STOP_SIGNALS, handlers):
        signal.signal(number, handler)
    try:
        yield received
    finally:
        for number, handler in zip(STOP_SIGNALS, handlers):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler.earlier)


def call_earlier(received: Iterable[int]) -> None:
    """Call what someone else had installed before ours for each of the signals ``received`` (submitit requeues the job on one of them)."""
    for number in dict.fromkeys(received):
        handler = signal.getsignal(number)
        while isinstance(handler, StopHandler):
            handler = handler.earlier
        if callable(handler) and handler is not signal.default_int_handler:
            handler(number, None)


def die_with_parent(number: int) -> None:
    """Ask Linux to send this process signal ``number`` when its parent goes, even by SIGKILL. Elsewhere nothing is asked."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
