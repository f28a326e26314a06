"""One engine process spoken to through ``chess.engine``: started, searched with under a deadline of our own, and never left behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chess
import chess.engine

from chessrl.errors import UserError
from chessrl.signals import die_with_parent


class _Search(chess.engine.BaseCommand[list[str]]):
    """Commands up to a search; the result is its ``info`` lines as printed, since the last whole iteration may not be the last printed."""

    def __init__(self, protocol: chess.engine.UciProtocol, commands: Sequence[str]) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self._commands = commands
        self._lines: list[str] = []

    def start(self) -> None:
        self._protocol.send_line("\n".join(self._commands))  # one write wakes the engine once

    def line_received(self, line: str) -> None:
        if line.startswith("info "):
            self._lines.append(line)
        elif line.startswith("bestmove"):
            if not self.result.done():
                self.result.set_result(self._lines)
            self.set_finished()


class _Protocol(chess.engine.UciProtocol):
    """What a search prints is cut into lines once per read: python-chess copies all that is left for every line, and logs each."""

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        search = self.command
        if fd != 1 or not isinstance(search, _Search):
            super().pipe_data_received(fd, data)
            return
        self.buffer[fd].extend(data)
        printed, _, self.buffer[fd] = self.buffer[fd].rpartition(b"\n")
        for line in printed.decode(errors="replace").splitlines():
            if self.command is search:
                search.line_received(line)
            else:
                self._line_received(line)


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine with one thread. Its methods belong to one event loop."""

    transport: asyncio.SubprocessTransport
    protocol: chess.engine.UciProtocol
    deadline_s: float  # seconds that one search may take

    @classmethod
    async def start(cls, program: Path, hash_mb: int, deadline_s: float, start_timeout_s: float) -> EngineProcess:
        """Raises UserError if the program is no UCI engine or does not answer within the start timeout."""
        remedy = "set engine.path to Stockfish or another UCI engine"
        die = _die_with_parent if sys.platform == "linux" else None
        try:
            # Its own process group: Ctrl-C reaches this process alone, which then ends the engines in order.
            transport, protocol = await _Protocol.popen(str(program), setpgrp=True, preexec_fn=die)
        except OSError as error:
            raise UserError(f"engine {program} cannot be started ({error}): {remedy}") from error
        process = cls(transport, protocol, deadline_s)
        try:
            await asyncio.wait_for(protocol.initialize(), start_timeout_s)
            options = {"Threads": 1, "Hash": hash_mb}
            await protocol.configure({name: value for name, value in options.items() if name in protocol.options})
        except TimeoutError as error:
            await process.end()
            raise UserError(f"engine {program} did not answer `uci` within {start_timeout_s:g} s: {remedy}") from error
        except chess.engine.EngineError as error:
            await process.end()
            raise UserError(f"engine {program} cannot be started ({error}): {remedy}") from error
        except asyncio.CancelledError:
            await process.end()
            raise
        return process

    def name(self) -> str:
        """Engine and evaluation nets."""
        nets = [f"{name}={option.default}" for name, option in self.protocol.options.items() if name.lower().startswith("evalfile")]
        return " ".join((self.protocol.id.get("name", "unnamed engine"), *nets))

    async def search(self, board: chess.Board, go: str, lines: int) -> list[str]:
        """``info`` lines of one search with ``lines`` variations. Raises TimeoutError past the deadline, EngineError on a crash."""
        commands = ["ucinewgame", "isready", f"position fen {board.fen(en_passant='legal')}", go]
        if "MultiPV" in self.protocol.options:
            most = self.protocol.options["MultiPV"].max or 1
            commands.insert(0, f"setoption name MultiPV value {min(lines, most)}")
        return await asyncio.wait_for(self.protocol.communicate(lambda protocol: _Search(protocol, commands)), self.deadline_s)

    async def end(self) -> None:
        self.transport.close()  # kills the process, busy or not
        await asyncio.shield(self.protocol.returncode)  # set once the process is reaped


def _die_with_parent() -> None:
    """Runs in the child: Linux kills the engine when this process goes, even by SIGKILL. Elsewhere an engine ends when its input closes."""
    die_with_parent(signal.SIGKILL)
