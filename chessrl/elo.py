"""How strong a policy plays: games against Stockfish's limited levels, and the Elo difference that their score means.

Every position is played twice, the policy once with each colour, so
that equal players score one half whatever the positions are worth. The difference holds for these positions and against this opponent alone.

Examples:
    python -m chessrl.elo model=outputs/rl-0123456789ab out=outputs/elo
    python -m chessrl.elo model=outputs/rl-0123456789ab level=elo:1350 games=200 positions=openings.txt out=outputs/elo-1350
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import chess
import chess.engine
import numpy as np
from tqdm import tqdm

from chessrl.checkpoint import write_json
from chessrl.command import parse_settings, run_command
from chessrl.endgame_positions import GAME_WEIGHTS, random_position
from chessrl.engine import find_stockfish
from chessrl.engine_labels import position_key
from chessrl.errors import UserError, make_folder
from chessrl.lock import Lock
from chessrl.player import ENDGAME_MEN, Choice, PlaySettings, choose_move, open_policy
from chessrl.signals import die_with_parent
from chessrl.statistics import LEVEL, bootstrap_means

GAMES_FILE, SETTINGS_FILE, RESULT_FILE = "games.jsonl", "match.json", "elo.json"
LEVELS = "elo:N (UCI_Elo), skill:N (Skill Level 0 to 20) or random (a uniform legal move)"


@dataclass(frozen=True, slots=True)
class EloSettings:
    """Keys of the command."""

    model: str  # a run directory or a model folder
    out: str  # folder for the games (games.jsonl), match.json and elo.json
    level: str = "skill:0"  # the opponent: elo:N (UCI_Elo), skill:N (Skill Level 0 to 20) or random (a uniform legal move)
    games: int = 100  # an even number: every position is played with both colours
    nodes: int = 10_000  # most nodes of an opponent's search
    positions: str = ""  # a file with one start per line, a FEN or UCI moves from the start position; empty: endgames
    most_plies: int = 200  # a game that is longer is a draw
    protocol: str = "auto"  # auto, think, answer or game
    temperature: float = 1.0  # 0 plays the likeliest move
    thinking_budget: int = 256  # most tokens of a trace, closed there if the policy does not
    state: str = ""  # history or snapshot, for a folder of no run
    seed: int = 0  # of the policy's samples and of the positions drawn
    engine: str = ""  # Stockfish's path; empty: PATH

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise UserError(f"games={self.games}: expected an even number, each position is played with both colours")
        for key in ("nodes", "most_plies"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}={getattr(self, key)}: expected 1 or more")
        if self.temperature < 0 or self.seed < 0:
            raise UserError(f"temperature={self.temperature}, seed={self.seed}: expected 0 or more")


@dataclass(frozen=True, slots=True)
class Game:
    """One game as games.jsonl has it. ``score``: the policy's, 1, 0.5 or 0."""

    number: int
    start: str  # FEN, or UCI moves from the start position
    policy: str  # white or black
    score: float
    ending: str
    moves: str  # UCI, space-separated, from ``start``
    policy_moves: int
    legal_mass: float | None  # mean over the policy's moves; None where it was asked for none


class Opponent(Protocol):
    name: str

    def play(self, board: chess.Board, game: int) -> chess.Move: ...


# ---- the estimate -----------------------------------------------------------------------------------------------------------------------


def elo_of_score(score: float) -> float:
    """Elo difference d with 1 / (1 + 10^(-d / 400)) = score: infinite at 0 and 1."""
    if score <= 0 or score >= 1:
        return -math.inf if score <= 0 else math.inf
    return 400 * math.log10(score / (1 - score))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean score and its interval, and both as Elo differences from the opponent: infinite where only a bound is known."""

    score: float
    score_low: float
    score_high: float
    elo: float
    elo_low: float
    elo_high: float

    def text(self, opponent: str) -> str:
        if math.isinf(self.elo):
            side, bound = ("at most", self.elo_high) if self.elo < 0 else ("at least", self.elo_low)
            return f"every game went one way: {side} {bound:+.0f} Elo from {opponent} ({LEVEL:.0%} bound), no number"
        ends = [f"{end:+.0f}" if math.isfinite(end) else "unbounded" for end in (self.elo_low, self.elo_high)]
        return f"{self.elo:+.0f} Elo from {opponent} [{ends[0]}, {ends[1]}] ({LEVEL:.0%})"


def estimate(pairs: np.ndarray, seed: int = 0) -> Estimate:
    """Of ``pairs`` (pairs,): mean of the two games' scores from each position. Bootstrap over pairs, since their games are not independent.

    Where all pairs are equal or few, Wilson's interval with as many trials as pairs. Raises ValueError without a pair.
    """
    score, low, high = bootstrap_means(pairs[:, None], np.random.default_rng(seed))[0]
    return Estimate(score, low, high, elo_of_score(score), elo_of_score(low), elo_of_score(high))


# ---- players ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandomMover:
    """Uniform over the legal moves, by seed, game and ply."""

    seed: int
    name: str = "a uniform mover"

    def play(self, board: chess.Board, game: int) -> chess.Move:
        legal = sorted(board.legal_moves, key=lambda move: move.uci())
        return legal[int(np.random.default_rng((self.seed, game, board.ply())).integers(len(legal)))]


@dataclass(frozen=True, slots=True)
class LimitedStockfish:
    """Stockfish at a limited level. How it errs is drawn from a generator that it seeds by the clock: its games cannot be repeated."""

    process: chess.engine.SimpleEngine
    nodes: int
    name: str

    def play(self, board: chess.Board, game: int) -> chess.Move:
        """Raises UserError where the engine fails: what was played is kept."""
        try:
            move = self.process.play(board, chess.engine.Limit(nodes=self.nodes), game=game).move
        except chess.engine.EngineError as error:
            raise UserError(f"engine {self.name} failed ({error}): the same command goes on with game {game}; set engine= to another one") from None
        if move is None:
            raise UserError(f"engine {self.name} has no move in {board.fen()}: set engine= to another one")
        return move


@contextmanager
def open_opponent(settings: EloSettings) -> Iterator[Opponent]:
    """The opponent that ``level`` names; its process ends with the block. Raises UserError for a level that it does not have."""
    kind, _, number = settings.level.partition(":")
    if settings.level == "random":
        yield RandomMover(settings.seed)
        return
    option = {"elo": "UCI_Elo", "skill": "Skill Level"}.get(kind)
    if option is None or not number.isdecimal():
        raise UserError(f"level={settings.level}: expected {LEVELS}")
    program = find_stockfish(settings.engine)
    die = partial(die_with_parent, signal.SIGKILL) if sys.platform == "linux" else None
    with chess.engine.SimpleEngine.popen_uci(str(program), setpgrp=True, preexec_fn=die) as process:
        known = process.options.get(option)
        if known is None or not known.min <= int(number) <= known.max:
            has = f"{known.min} to {known.max}" if known else "no such option"
            raise UserError(f"level={settings.level}: {process.id['name']} has {option} {has}")
        limited = {"UCI_LimitStrength": True} if kind == "elo" else {}
        common = {name: 1 for name in ("Threads", "Hash") if name in process.options}
        process.configure({**common, option: int(number), **limited})
        yield LimitedStockfish(process, settings.nodes, f"{process.id['name']} {option} {number} at {settings.nodes:,} nodes")


# ---- the match --------------------------------------------------------------------------------------------------------------------------


def starts(settings: EloSettings, men: int) -> list[str]:
    """The start of each pair of games. Without a file: positions of the endgame world, materials by its weights, drawn by the seed."""
    pairs = settings.games // 2
    if settings.positions:
        path = Path(settings.positions)
        if not path.is_file():
            raise UserError(f"positions={path}: no such file; give one with a FEN or UCI moves from the start position per line")
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(lines) < pairs:
            raise UserError(f"positions={path}: {len(lines)} starts, expected {pairs} for games={settings.games}; add lines or lower games")
        for number, line in enumerate(lines[:pairs], start=1):
            _checked_start(path, number, line)
        return lines[:pairs]
    if men > ENDGAME_MEN:
        raise UserError("positions is empty: give a file with one start per line, UCI moves such as e2e4 e7e5, or a FEN")
    weights = np.array(list(GAME_WEIGHTS.values()))
    drawn = []
    for pair in range(pairs):
        generator = np.random.default_rng((settings.seed, pair))
        material = generator.choice(list(GAME_WEIGHTS), p=weights / weights.sum())
        drawn.append(random_position(str(material), generator).fen())
    return drawn


def _checked_start(path: Path, number: int, line: str) -> None:
    try:
        board = board_of(line)
    except ValueError as error:
        raise UserError(f"positions={path} line {number}: {error}; expected a FEN or UCI moves from the start position") from None
    if not board.is_valid() or board.is_game_over():
        raise UserError(f"positions={path} line {number}: {board.fen()} is no position to play from; replace the line")


def board_of(start: str) -> chess.Board:
    """The board of a start. Raises ValueError (of python-chess)."""
    if "/" in start:
        return chess.Board(start)
    board = chess.Board()
    for move in start.split():
        board.push_uci(move)
    return board


def play_match(settings: EloSettings, folder: Path) -> dict[str, Any]:
    """Play what is left of the match in ``folder`` and write its result, which is returned."""
    model, knowledge = open_policy(Path(settings.model), settings.state, settings.protocol)
    begun = starts(settings, knowledge.men)
    with open_opponent(settings) as opponent:
        games = _begin(settings, folder, knowledge.name, opponent.name, begun)
        with tqdm(total=settings.games, initial=len(games), desc="games", unit="game") as bar:
            for number in range(len(games), settings.games):
                play = PlaySettings(knowledge.protocols[0], settings.temperature, settings.seed * 1_000_003 + number, settings.thinking_budget)

                def policy(board: chess.Board, play: PlaySettings = play) -> Choice:
                    return choose_move(model, knowledge, board, play)

                games.append(play_game(number, begun[number // 2], policy, opponent, settings.most_plies))
                with (folder / GAMES_FILE).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(games[-1])) + "\n")
                bar.update()
    result = _result(settings, knowledge.name, opponent.name, games)
    write_json(folder / RESULT_FILE, result)
    return result


def play_game(number: int, start: str, policy: Callable[[chess.Board], Choice], opponent: Opponent, most_plies: int) -> Game:
    """One game; the policy has White in even numbers."""
    board = board_of(start)
    colour = chess.WHITE if number % 2 == 0 else chess.BLACK
    first = len(board.move_stack)
    seen = Counter([position_key(board)])
    masses: list[float] = []
    policy_moves = 0
    while not (ending := _ending(board, seen, len(board.move_stack) - first >= most_plies)):
        if board.turn == colour:
            choice = policy(board)
            policy_moves += 1
            masses += [] if math.isnan(choice.legal_mass) else [choice.legal_mass]
            board.push(choice.move)
        else:
            board.push(opponent.play(board, number))
        seen[position_key(board)] += 1
    score = 0.5 if ending != "checkmate" else float(board.turn != colour)
    moves = " ".join(move.uci() for move in board.move_stack[first:])
    return Game(number, start, chess.COLOR_NAMES[colour], score, ending, moves, policy_moves, float(np.mean(masses)) if masses else None)


def _ending(board: chess.Board, seen: Counter[str], too_long: bool) -> str:
    """Why the game is over, "" while it is not. Repetition is counted here: python-chess plays the whole game back at every ask."""
    outcome = board.outcome()
    if outcome is not None:
        return outcome.termination.name.lower()
    if seen[position_key(board)] >= 3:
        return "threefold_repetition"
    if board.halfmove_clock >= 100:
        return "fifty_moves"
    return "length" if too_long else ""


def _begin(settings: EloSettings, folder: Path, policy: str, opponent: str, begun: Sequence[str]) -> list[Game]:
    """The games that the folder holds already. Raises UserError where they are of another match."""
    identity = {key: value for key, value in asdict(settings).items() if key not in ("out", "engine", "games", "model", "positions")}
    identity |= {"policy": policy, "opponent": opponent, "model_files": _weights_hash(Path(settings.model))}
    record = folder / SETTINGS_FILE
    if record.is_file():
        earlier = json.loads(record.read_text())
        if changed := [key for key in identity if earlier.get(key) != identity[key]]:
            raise UserError(f"out={folder} holds a match with another {', '.join(changed)}: choose another folder, or use what it was begun with")
    write_json(record, identity)
    path = folder / GAMES_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # a kill cut the last line: that game is played again
        path.write_text(whole, encoding="utf-8")
    games = [Game(**json.loads(line)) for line in whole.splitlines()]
    if foreign := next((game for game in games[: settings.games] if game.start != begun[game.number // 2]), None):
        raise UserError(f"out={folder}: game {foreign.number} began elsewhere than positions says; choose another folder")
    return games[: settings.games]


def _weights_hash(path: Path) -> str:
    file = next(place for place in (path / "model.safetensors", path / "model" / "model.safetensors") if place.is_file())
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _result(settings: EloSettings, policy: str, opponent: str, games: Sequence[Game]) -> dict[str, Any]:
    scores = np.array([game.score for game in games])
    found = estimate(scores.reshape(-1, 2).mean(1), settings.seed)
    masses = [game.legal_mass for game in games if game.legal_mass is not None]
    return {
        "policy": policy,
        "opponent": opponent,
        "games": len(games),
        "wins": int((scores == 1).sum()),
        "draws": int((scores == 0.5).sum()),
        "losses": int((scores == 0).sum()),
        "endings": dict(sorted(Counter(game.ending for game in games).items())),
        "legal_mass": float(np.mean(masses)) if masses else None,
        **{key: value if math.isfinite(value) else None for key, value in asdict(found).items()},
        "text": found.text(opponent),
    }


def main(arguments: list[str]) -> None:
    settings = parse_settings(EloSettings, arguments)
    folder = make_folder(settings.out, "out")
    with Lock(folder / ".lock", str(folder)):
        result = play_match(settings, folder)
    print(f"{result['policy']} against {result['opponent']}: {result['wins']} won, {result['draws']} drawn, {result['losses']} lost")
    print(f"score {result['score']:.3f} [{result['score_low']:.3f}, {result['score_high']:.3f}] over {result['games'] // 2} pairs of games")
    print(result["text"])
    print(f"endings: {', '.join(f'{ending} {count}' for ending, count in result['endings'].items())}; games: {folder / GAMES_FILE}")


if __name__ == "__main__":
    sys.exit(run_command(main))
