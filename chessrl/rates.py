"""How fast this machine carries a model: seconds of the stages' own steps, timed for a moment and kept below ``outputs/data``.

The steps timed are those of a run (``training.accumulate_gradient``, ``sampler.rollout``) on random ids of the expected lengths, so whatever makes
a run faster makes its estimate smaller.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from chessrl.checkpoint import write_json
from chessrl.config import ModelConfig, OptimizerConfig
from chessrl.environment import build_environment
from chessrl.errors import make_folder
from chessrl.model import Cost, Transformer, build_model
from chessrl.puzzles import Puzzle
from chessrl.run import code_version, default_micro_batch_tokens, digest
from chessrl.sampler import SamplingSettings, rollout
from chessrl.training import GIVEN, Example, accumulate_gradient, build_optimizer, evaluate_losses, optimizer_step

LARGEST = 30_000_000  # parameters: a step of a larger model takes a CPU too long to be timed in passing
BATCHES = (16, 128, 512)  # sequences that decode together: between them the time of a token is interpolated
SLOW_S = 0.1  # a batch whose token takes longer is the last that is timed: from there on time grows in proportion
FEW, MORE = 2, 8  # new tokens of two rollouts, whose difference is decoding alone
REPEATS = 3
BUSY = 0.5  # processes per core that want to run: rates measured beside so many are not kept
MATE = Puzzle("mate", "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", ("a1a8",), 0, 1, "B1")


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed. All of it is in the name under which the rates are kept."""

    model: ModelConfig
    precision: str
    compile: bool
    threads: int
    micro_batch_tokens: int  # 0: the device's default
    game_tokens: int  # of a game in pretraining
    sequence_tokens: int  # of a fine-tuning example or a rollout, prompt included
    prompt_tokens: int
    group: int  # samples of a prompt


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds on this machine by the wall clock. Training: forward and backward. Decoding: one more token for each of ``BATCHES`` sequences, as
    far as they were timed.
    """

    game_training_s: float  # per token of games
    game_scoring_s: float
    sequence_training_s: float  # per token of fine-tuning examples and rollouts
    sequence_scoring_s: float
    optimizer_s: float  # per step
    first_s: float  # of a run's first training step, beyond what it takes later (compilation)
    decoding_s: tuple[float, ...]
    load: float  # processes per core that wanted to run when it was measured

    def token_s(self, sequences: float) -> float:
        """Decoding one token for so many sequences; beyond the largest batch in proportion."""
        timed = BATCHES[: len(self.decoding_s)]
        return float(np.interp(sequences, timed, self.decoding_s)) * max(1.0, sequences / timed[-1])

    @property
    def busy(self) -> bool:
        """Whether other work shared the cores: then these are no rates of the machine."""
        return self.load > BUSY


def measurable(model: ModelConfig, device: torch.device) -> bool:
    """Whether a few steps take seconds here. Of a GPU nothing is measured: it is seldom the one that plans."""
    return device.type == "cpu" and Cost.of(model).parameters <= LARGEST


def rates(work: Work, outputs: str) -> Rates:
    """The rates of ``work``, measured in some seconds unless this machine and code have measured them before, undisturbed."""
    machine = [platform.node(), platform.machine(), torch.__version__, code_version()]
    name = digest([machine, astuple(replace(work, model=replace(work.model, name="")))])
    path = Path(outputs) / "data" / f"rates-{name}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        return Rates(**kept | {"decoding_s": tuple(kept["decoding_s"])})
    threads = torch.get_num_threads()
    torch.set_num_threads(work.threads)
    try:
        measured = measure(work)
    finally:
        torch.set_num_threads(threads)
    if not measured.busy:
        make_folder(path.parent, "outputs")
        write_json(path, asdict(measured))
    return measured


def measure(work: Work) -> Rates:
    """Time the steps of ``work`` on a CPU."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    model = build_model(work.model, seed=0, precision=work.precision, compiled=work.compile)
    budget = work.micro_batch_tokens or default_micro_batch_tokens(model.device, work.precision)
    optimizer = build_optimizer(model, OptimizerConfig())
    games, sequences = (_examples(length, budget) for length in (work.game_tokens, work.sequence_tokens))
    first_s = _seconds(lambda: accumulate_gradient(model, games, budget))
    game_s = _repeated(lambda: accumulate_gradient(model, games, budget))
    optimizer_s = min(_step(model, optimizer, games[:1], budget) for _ in range(REPEATS))
    return Rates(
        game_training_s=game_s / _tokens(games),
        game_scoring_s=_repeated(lambda: evaluate_losses(model, games, budget)) / _tokens(games),
        sequence_training_s=_repeated(lambda: accumulate_gradient(model, sequences, budget)) / _tokens(sequences),
        sequence_scoring_s=_repeated(lambda: evaluate_losses(model, sequences, budget)) / _tokens(sequences),
        optimizer_s=optimizer_s,
        first_s=max(0.0, first_s - game_s),
        decoding_s=_decoding(model, work),
        load=load,
    )


def _examples(length: int, budget: int) -> list[Example]:
    """A micro-batch of random ids."""
    draw = np.random.Generator(np.random.Philox(0))
    parts = np.r_[GIVEN, np.ones(length - 1, int)]
    return [Example(draw.integers(0, 81, length), parts) for _ in range(max(1, budget // length))]


def _tokens(examples: list[Example]) -> int:
    return sum(len(example.tokens) for example in examples)


def _step(model: Transformer, optimizer: torch.optim.AdamW, examples: list[Example], budget: int) -> float:
    accumulate_gradient(model, examples, budget)
    return _seconds(lambda: optimizer_step(model, optimizer, 0.0, 1.0))


def _decoding(model: Transformer, work: Work) -> tuple[float, ...]:
    """Seconds of a token for each of ``BATCHES``, up to the first that is slow."""
    measured: list[float] = []
    for sequences in BATCHES:
        if not measured or measured[-1] < SLOW_S:
            measured.append(_token_s(model, work, sequences))
    return tuple(measured)


def _token_s(model: Transformer, work: Work, sequences: int) -> float:
    """Seconds of one token for each of ``sequences``, in the middle of an episode."""
    group = min(work.group, sequences)
    prompts = sequences // group
    length = max(2, (work.prompt_tokens + work.sequence_tokens) // 2 - MORE)
    ids = np.random.Generator(np.random.Philox(1)).integers(0, 81, (prompts, length)).tolist()
    environment = build_environment([replace(MATE, id=str(number)) for number in range(prompts)])

    def sample(new: int) -> None:  # the environment keeps a trace open until it has so many tokens
        settings = SamplingSettings("think", 1.0, thinking_budget=new, thinking="minimum", thinking_minimum=new)
        rollout(model, environment, range(prompts), ids, group, settings)

    sample(FEW)
    few, more = (min(_seconds(lambda new=new: sample(new)) for _ in range(REPEATS)) for new in (FEW, MORE))
    return max(1e-6, (more - few) / (MORE - FEW)) * sequences / (prompts * group)


def _repeated(work: Callable[[], object]) -> float:
    """Seconds after a first time that does not count: the least of some, since nothing but other work makes one of them longer."""
    work()
    return min(_seconds(work) for _ in range(REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
