"""A trained policy as a chess player: one legal move for any position, drawn from what the policy thinks of all legal moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import torch

from chessrl import notation
from chessrl.checkpoint import load_model
from chessrl.environment import build_environment
from chessrl.errors import UserError
from chessrl.evaluate import known_protocols, protocol_of
from chessrl.model import Transformer
from chessrl.policy import move_tree, sampled_traces, score_moves
from chessrl.puzzles import STATES, Puzzle, prompt_tokens
from chessrl.randomness import combine, stream_key, string_key, uniform
from chessrl.sampler import PROTOCOLS, SamplingSettings

ENDGAME_MEN = 5  # most men of the positions that the endgame world trains on


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a policy was trained for: its state, the protocols it plays by (its own first), and the most men it has seen (32: all)."""

    name: str
    state: str
    protocols: tuple[str, ...]
    men: int = 32


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """``temperature`` 0 plays the likeliest move. ``thinking_budget``: most tokens of a trace, closed there if the policy does not."""

    protocol: str
    temperature: float = 1.0
    seed: int = 0
    thinking_budget: int = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """A move and how it came about. ``moves`` and ``probabilities``: all legal ones, likeliest first, over the legal moves alone.

    ``legal_mass``: probability that an unmasked sample is a canonical legal move; NaN where the policy was not asked, ``reason`` saying why.
    ``trace``: token ids before ``</T>``, for the think protocol.
    """

    move: chess.Move
    moves: tuple[chess.Move, ...]
    probabilities: np.ndarray
    legal_mass: float
    trace: tuple[int, ...] = ()
    reason: str = ""


def open_policy(path: Path, state: str = "", protocol: str = "auto") -> tuple[Transformer, Knowledge]:
    """The model of a run directory, or of a model folder (``RUN/model``, ``RUN/models/step-N`` or one from elsewhere).

    ``state`` and ``protocol`` are read from the run's summary; a folder without a run needs them. Raises UserError.
    """
    if not path.is_dir():
        raise UserError(f"model={path}: no such folder; give a run directory, or a model folder with config.json and model.safetensors")
    is_model = (path / "model.safetensors").is_file()
    folder = path if is_model else path / "model"
    summary = _summary_of(path)
    if summary is None:
        knowledge = _stated(path, state, protocol)
    else:
        known = Knowledge(summary["run_id"], summary["world"]["state"], known_protocols(summary), _men(summary))
        if state not in ("", known.state):
            raise UserError(f"state={state}: {known.name} was trained with {known.state}; leave state= out")
        own = protocol_of(protocol, summary)
        knowledge = replace(known, protocols=(own, *(name for name in known.protocols if name != own)))
    return load_model(folder), knowledge


def _summary_of(path: Path) -> dict[str, Any] | None:
    """summary.json of the run that ``path`` is or lies in; None for a model folder of no run."""
    for place in (path, *path.resolve().parents[:2]):
        if (place / "summary.json").is_file():
            try:
                return json.loads((place / "summary.json").read_text())
            except json.JSONDecodeError as error:
                raise UserError(f"{place / 'summary.json'}: not valid JSON ({error.msg}); run the stage again") from None
    return None


def _men(summary: dict[str, Any]) -> int:
    return ENDGAME_MEN if summary["world"]["name"] == "endgame" else 32


def _stated(path: Path, state: str, protocol: str) -> Knowledge:
    if state not in STATES:
        raise UserError(f"model={path} belongs to no run: say how it knows positions, state={' or state='.join(STATES)}")
    if protocol not in PROTOCOLS:
        raise UserError(f"model={path} belongs to no run: say how it plays, protocol={' or protocol='.join(PROTOCOLS)}")
    return Knowledge(path.name, state, (protocol,))


# ---- playing ----------------------------------------------------------------------------------------------------------------------------


def choose_move(
    model: Transformer, knowledge: Knowledge, board: chess.Board, settings: PlaySettings, among: Sequence[chess.Move] = ()
) -> Choice:
    """The policy's move on ``board``, which has a legal one: drawn from the exact scores of all legal moves, so never an illegal one.

    ``among``: only these, where given. A policy of state history needs a board played from the start position: any other one, and one with
    more men than the policy knows of, is answered all the same, the first by a move drawn uniformly. What is drawn depends on the seed, the
    position and its ply alone.
    """
    legal = sorted(among or board.legal_moves, key=lambda move: move.uci())
    puzzle = _as_puzzle(board, legal[0])
    foreign = board.root().fen() != chess.STARTING_FEN if knowledge.state == "history" else board.occupied.bit_count() > knowledge.men
    if knowledge.state == "history" and foreign:
        reason = "the policy knows games from the start position only: a move was drawn uniformly"
        return _drawn(board, legal, np.zeros(len(legal)), settings, float("nan"), (), reason)
    trace = _trace(model, puzzle, knowledge.state, settings) if settings.protocol == "think" else ()
    context = [*prompt_tokens(puzzle, knowledge.state, think=settings.protocol == "think"), *trace]
    plies = [notation.move_tokens(board, move) for move in legal]
    [scores] = score_moves(model, [context], [move_tree(plies)], settings.temperature or 1.0)
    reason = f"the policy was trained on positions of at most {knowledge.men} men" if foreign else ""
    return _drawn(board, legal, scores, settings, float(np.exp(scores).sum()), trace[:-1], reason)


def _as_puzzle(board: chess.Board, move: chess.Move) -> Puzzle:
    """The position as a puzzle whose line is any legal move: what prompts and traces are made from."""
    played = tuple(earlier.uci() for earlier in board.move_stack)
    return Puzzle(id=f"{board.fen()} {board.ply()}", fen=board.fen(), moves=(move.uci(),), lead=0, difficulty=1, bin="B1", history=played)


def _trace(model: Transformer, puzzle: Puzzle, state: str, settings: PlaySettings) -> tuple[int, ...]:
    """One sampled trace, ``</T>`` included."""
    sampling = SamplingSettings(
        "think", settings.temperature, settings.thinking_budget, seed=settings.seed, stage="play", thinking="forced"
    )
    environment = build_environment([puzzle]).to(model.device)
    closed, _ = sampled_traces(model, environment, [prompt_tokens(puzzle, state, think=True)], 1, sampling, batch=1)
    return tuple(closed[0][0])


def _drawn(
    board: chess.Board, legal: list[chess.Move], scores: np.ndarray, settings: PlaySettings, legal_mass: float, trace: tuple[int, ...], reason: str
) -> Choice:
    weights = np.exp(scores - scores.max())
    probabilities = weights / weights.sum()
    order = np.argsort(-probabilities, kind="stable")
    place = order[0] if settings.temperature == 0 and not np.isnan(legal_mass) else _draw(probabilities, board, settings.seed)
    ranked = tuple(legal[index] for index in order)
    return Choice(legal[place], ranked, probabilities[order], legal_mass, trace, reason)


def _draw(probabilities: np.ndarray, board: chess.Board, seed: int) -> int:
    """Inverse transform by a counter: the seed, the position and its ply."""
    key = combine(stream_key(seed, "play-move", board.ply(), torch.device("cpu")), string_key(board.fen()))
    cumulative = probabilities.cumsum()
    return min(int((cumulative <= float(uniform(key)) * cumulative[-1]).sum()), len(probabilities) - 1)
