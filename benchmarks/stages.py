"""The hot paths of the stages beside what users would run instead: a pretraining step, sampling, a whole GRPO step. The 5M preset on random ids.

All completions have the same number of tokens on both sides. Ours run through the stages' own functions, so what is measured is what a run does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.measure import CPU, Contender, Peer, Row, compare, timed
from benchmarks.peers import BATCH, LENGTH, PROMPT
from chessrl.config import Config
from chessrl.environment import Environment, build_environment
from chessrl.launch import compose
from chessrl.model import Transformer, build_model
from chessrl.puzzles import Puzzle
from chessrl.run import default_micro_batch_tokens
from chessrl.sampler import Rollout, SamplingSettings, rollout
from chessrl.training import GIVEN, Example, accumulate_gradient, build_optimizer, optimizer_step
from rl.credit import assign
from rl.update import build_batch, score, update
from rl.value import Learner

ARITHMETICS = ("fp32", "bf16", "bf16 compile")
PRECISIONS = ("fp32", "bf16")  # of peers


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is measured. ``new`` tokens are sampled; ``peer_python`` is the interpreter of the peers."""

    rounds: int
    new: int
    peer_python: str


@dataclass(frozen=True, slots=True)
class Place:
    """What is run, and where: the preset's name, the precision with or without compile, and the device."""

    model: str = "5m"
    arithmetic: str = "fp32"
    device: torch.device = CPU

    @property
    def precision(self) -> str:
        return self.arithmetic.split()[0]

    def build(self) -> Transformer:
        compiled = self.arithmetic.endswith("compile")
        return build_model(self.config().model, seed=0, precision=self.precision, compiled=compiled, device=self.device)

    def config(self) -> Config:
        """The configuration that ``python -m rl model=...`` would have."""
        return compose("rl", [f"model={self.model}", "algorithm=grpo", f"run.precision={self.precision}"])

    @property
    def micro_batch_tokens(self) -> int:
        return default_micro_batch_tokens(self.device, self.precision)


@contextmanager
def peers(setting: Setting, work: float, words: dict[str, Sequence[str]]) -> Iterator[list[Contender]]:
    """The peers that are installed, by name; a line for each that is not."""
    started = {name: Peer(setting.peer_python, own) for name, own in words.items()}
    try:
        for name, peer in started.items():
            if peer.missing:
                print(f"{name} is left out: {peer.missing}", flush=True)
        yield [Contender(name, work, peer.lap, ours=False) for name, peer in started.items() if peer.missing is None]
    finally:
        for peer in started.values():
            peer.close()


def pretraining(setting: Setting) -> list[Row]:
    """A training step on 8 x 256 tokens."""
    ours = [training_step(Place(arithmetic=name), BATCH, LENGTH) for name in ARITHMETICS]
    words = {f"transformers, {name}": ["train", *name.split()] for name in ("fp32", "bf16", "bf16 compile")}
    with peers(setting, BATCH * LENGTH, words) as others:
        return compare(f"pretraining {BATCH} x {LENGTH}", "tokens/s", "1.25 (1.5)", ours + others, setting.rounds)


def training_step(place: Place, rows: int, length: int) -> Contender:
    """A pretraining step on ``rows`` games of ``length`` tokens."""
    model = place.build()
    optimizer = build_optimizer(model, place.config().pretrain.optimizer)
    draw = np.random.Generator(np.random.Philox(0))
    parts = np.r_[GIVEN, np.ones(length - 1, int)]
    examples = [Example(draw.integers(0, 81, length), parts) for _ in range(rows)]

    def step() -> None:
        accumulate_gradient(model, examples, place.micro_batch_tokens)
        optimizer_step(model, optimizer, 1e-3, 1.0)

    return _warmed(place, rows * length, step)


def sampling(setting: Setting) -> list[Row]:
    """64 prompts, and 16 prompts x 16 samples that share them."""
    rows = []
    for prompts, group, wanted in ((64, 1, "3.5 (6)"), (16, 16, "6 (10)")):
        ours = [sampling_step(Place(arithmetic=name), prompts, group, setting.new) for name in ARITHMETICS]
        words = {f"transformers, {name}": ["generate", name, str(prompts * group), str(group), str(setting.new)] for name in PRECISIONS}
        with peers(setting, prompts * group * setting.new, words) as others:
            rows += compare(f"sampling {prompts} x {group}", "tokens/s", wanted, ours + others, setting.rounds)
    return rows


def sampling_step(place: Place, prompts: int, group: int, new: int) -> Contender:
    """``new`` tokens for each of ``group`` samples of each prompt."""
    model, environment, ids = place.build(), mates(prompts).to(place.device), random_prompts(prompts)
    return _warmed(place, prompts * group * new, lambda: sampled(model, environment, ids, group, new))


def mates(count: int) -> Environment:
    """So many puzzles, all alike but for their names."""
    return build_environment([Puzzle(str(number), "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", ("a1a8",), 0, 1, "B1") for number in range(count)])


def random_prompts(count: int) -> list[list[int]]:
    """Prompts of PROMPT ids."""
    return np.random.Generator(np.random.Philox(1)).integers(0, 81, (count, PROMPT)).tolist()


def sampled(model: Transformer, environment: Environment, prompts: Sequence[Sequence[int]], group: int, new: int) -> Rollout:
    """Episodes whose traces the environment keeps open until ``new - 1`` tokens, and closes there: all are of nearly equal length."""
    settings = SamplingSettings("think", 1.0, thinking_budget=new - 1, thinking="minimum", thinking_minimum=new - 1)
    return rollout(model, environment, range(len(prompts)), prompts, group, settings)


def grpo(setting: Setting) -> list[Row]:
    """A whole step of 16 prompts x 8: sampling, reference, update."""
    prompts, group = 16, 8
    ours = [grpo_step(Place(arithmetic=name), prompts, group, setting.new) for name in ARITHMETICS]
    with peers(setting, 1, {"TRL": ["grpo", str(prompts), str(setting.new)]}) as others:
        return compare(f"GRPO step {prompts} x {group}", "steps/s", "5 (8)", ours + others, setting.rounds)


def grpo_step(place: Place, prompts: int, group: int, new: int) -> Contender:
    """An RL step on random rewards, ``new`` tokens for each episode."""
    config = place.config()
    config.rl.prompts, config.algorithm.group = prompts, group
    model, reference = place.build(), place.build().requires_grad_(False)
    learner = Learner(model, None)
    optimizer, settings = build_optimizer(learner, config.rl.optimizer), config.rl
    environment, ids = mates(prompts).to(place.device), random_prompts(prompts)
    rewards = torch.from_numpy(np.random.Generator(np.random.Philox(2)).random((prompts, group))).to(place.device)

    def step() -> None:  # as rl.train.learn does, of a policy without value head
        batch = build_batch(sampled(model, environment, ids, group, new))
        of_reference = score(reference, batch, settings.temperature, place.micro_batch_tokens)
        credit = assign(rewards, batch.policy, batch.sampled, of_reference, config.algorithm, None)
        update(
            learner, optimizer, batch, credit, of_reference, config.algorithm, settings.optimizer,
            rate=1e-5, temperature=settings.temperature, budget=place.micro_batch_tokens, seed=0, step=1,
        )  # fmt: skip

    return _warmed(place, 1, step)


def _warmed(place: Place, work: float, function: Callable[[], object]) -> Contender:
    function()
    return Contender(f"ours, {place.model}, {place.arithmetic}", work, lambda: timed(function, place.device))
