"""A trained policy as a UCI engine, for chess programs and ``cutechess-cli``.

Standard output carries UCI alone. The policy does not search: it answers at once, whatever time, depth or nodes it is given.

Examples:
    python -m chessrl.uci model=outputs/rl-0123456789ab
    python -m chessrl.uci model=outputs/sft-0123456789ab protocol=think temperature=0.5 thinking_budget=64
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import chess
import numpy as np

from chessrl import notation
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError
from chessrl.model import Transformer
from chessrl.player import ENDGAME_MEN, Choice, Knowledge, PlaySettings, choose_move, open_policy
from chessrl.traces import TraceReader

SHOWN_MOVES = 5  # likeliest ones in an info string
LARGEST_SEED = 2**31 - 1
LIMITS = ("movetime", "wtime", "btime", "winc", "binc", "movestogo", "nodes", "depth", "mate")


@dataclass(frozen=True, slots=True)
class UciSettings:
    """Keys of the command."""

    model: str  # a run directory or a model folder
    protocol: str = "auto"  # auto, think, answer or game
    temperature: float = 1.0  # 0 plays the likeliest move
    seed: int = 0  # of the samples
    thinking_budget: int = 256  # most tokens of a trace, closed there if the policy does not
    state: str = ""  # history or snapshot, for a folder of no run


class UciEngine:
    """The answers to UCI commands. ``send`` gets every line of output."""

    def __init__(self, model: Transformer, knowledge: Knowledge, settings: PlaySettings, send: Callable[[str], None]) -> None:
        self.model, self.knowledge, self.settings, self.send = model, knowledge, settings, send
        self.board = chess.Board()
        self.held: chess.Move | None = None  # the answer to ``go infinite``, kept until ``stop``
        self.told: set[str] = set()  # limits that were said to be ignored
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "uci": self._uci,
            "isready": lambda _: self.send("readyok"),
            "ucinewgame": self._new_game,
            "position": self._position,
            "go": self._go,
            "stop": self._stop,
            "setoption": self._set_option,
        }

    def run(self, lines: Iterable[str]) -> None:
        """Answer commands until ``quit`` or the end of the input. Unknown ones are ignored, as UCI asks."""
        for line in lines:
            words = line.split()
            if words and words[0] == "quit":
                return
            if words and words[0] in self.commands:
                self.commands[words[0]](words[1:])

    def _say(self, text: str) -> None:
        self.send(f"info string {text}")

    def _uci(self, _: list[str]) -> None:
        settings = self.settings
        self.send(f"id name chessrl {self.knowledge.name}")
        self.send("id author the chessrl authors")
        self.send(f"option name Temperature type string default {settings.temperature:g}")
        self.send(f"option name Seed type spin default {settings.seed} min 0 max {LARGEST_SEED}")
        choices = " ".join(f"var {name}" for name in self.knowledge.protocols)
        self.send(f"option name Protocol type combo default {settings.protocol} {choices}")
        if self.knowledge.men == ENDGAME_MEN:
            self._say(f"this policy was trained on endgames of 3 to {ENDGAME_MEN} men: play it from such positions")
        if self.knowledge.state == "history":
            self._say("this policy knows games from the start position: play it from there, not from a FEN")
        self.send("uciok")

    def _new_game(self, _: list[str]) -> None:
        self.board, self.held = chess.Board(), None

    def _set_option(self, words: list[str]) -> None:
        """``name NAME value VALUE``; a value that cannot be meant is said to be so and changes nothing."""
        text = " ".join(words).removeprefix("name ")
        name, _, value = text.partition(" value ")
        try:
            if name.lower() == "temperature":
                temperature = float(value)
                if not 0 <= temperature < float("inf"):
                    raise ValueError
                self.settings = replace(self.settings, temperature=temperature)
            elif name.lower() == "seed":
                seed = int(value)
                if not 0 <= seed <= LARGEST_SEED:
                    raise ValueError
                self.settings = replace(self.settings, seed=seed)
            elif name.lower() == "protocol":
                if value not in self.knowledge.protocols:
                    raise ValueError
                self.settings = replace(self.settings, protocol=value)
            else:
                self._say(f"no option {name}")
        except ValueError:
            self._say(f"option {name} cannot be {value!r}: it stays as it was")

    def _position(self, words: list[str]) -> None:
        """``startpos`` or ``fen FEN``, then ``moves ...``; the position before stays where this one cannot be."""
        cut = words.index("moves") if "moves" in words else len(words)
        try:
            if words[:1] == ["startpos"]:
                board = chess.Board()
            elif words[:1] == ["fen"]:
                board = chess.Board(" ".join(words[1:cut]))
            else:
                raise ValueError("expected startpos or fen")
            if not board.is_valid():
                raise ValueError(f"not a position of chess: {board.fen()}")
            for word in words[cut + 1 :]:
                board.push_uci(word)
        except ValueError as error:  # of python-chess too, for a FEN or a move
            self._say(f"position ignored: {error}")
            return
        self.board = board

    def _go(self, words: list[str]) -> None:
        for limit in LIMITS:
            if limit in words and limit not in self.told:
                self.told.add(limit)
                self._say(f"{limit} is ignored: the policy answers at once, without search")
        legal = list(self.board.legal_moves)
        if not legal:
            self.send("bestmove (none)")
            return
        asked = words[words.index("searchmoves") + 1 :] if "searchmoves" in words else []
        choice = choose_move(self.model, self.knowledge, self.board, self.settings, [move for move in legal if move.uci() in asked])
        self._explain(choice)
        if "infinite" in words or "ponder" in words:
            self.held = choice.move
        else:
            self.send(f"bestmove {choice.move.uci()}")

    def _stop(self, _: list[str]) -> None:
        if self.held is not None:
            self.send(f"bestmove {self.held.uci()}")
            self.held = None

    def _explain(self, choice: Choice) -> None:
        if choice.reason:
            self._say(choice.reason)
        if not np.isnan(choice.legal_mass):
            shown = zip(choice.moves[:SHOWN_MOVES], choice.probabilities)
            self._say("policy " + " ".join(f"{move.uci()} {share:.3f}" for move, share in shown))
            self._say(f"legal mass {choice.legal_mass:.3f}: an unmasked first try is illegal or misspelt {1 - choice.legal_mass:.3f} of the time")
        variation = (choice.move,)
        if choice.trace:
            self._say(f"trace {notation.to_text(choice.trace)}")
            lines = [line.moves for line in TraceReader(self.board).read([*choice.trace, notation.END_THINK]).lines]
            variation = next((line for line in lines if line[:1] == variation), variation)
        self.send(f"info depth 1 nodes {len(choice.moves)} pv {' '.join(move.uci() for move in variation)}")


def main(arguments: list[str]) -> None:
    settings = parse_settings(UciSettings, arguments)
    for key, fine in (("temperature", 0 <= settings.temperature < float("inf")), ("seed", 0 <= settings.seed <= LARGEST_SEED)):
        if not fine:
            raise UserError(f"{key}={getattr(settings, key)}: expected {'0 (greedy) or more' if key == 'temperature' else f'0 to {LARGEST_SEED}'}")
    model, knowledge = open_policy(Path(settings.model), settings.state, settings.protocol)
    play = PlaySettings(knowledge.protocols[0], settings.temperature, settings.seed, settings.thinking_budget)
    UciEngine(model, knowledge, play, lambda line: print(line, flush=True)).run(sys.stdin)


if __name__ == "__main__":
    sys.exit(run_command(main))
