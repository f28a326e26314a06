"""What an RL run works with: policies, puzzles with their prompts and tables, the scorer, and the state that moves."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chessrl import distributed, notation, world
from chessrl.checkpoint import load_model
from chessrl.environment import Environment
from chessrl.model import Cost, Transformer
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.run import Run
from chessrl.training import build_optimizer
from chessrl.verifier import environment_of
from rl.curriculum import Curriculum, curriculum_of
from rl.health import Watch
from rl.judges import judges_of
from rl.move_trees import MoveTrees
from rl.roots import Roots
from rl.scoring import Scorer
from rl.state import RlState
from rl.value import Learner, ValueHead


@dataclass(frozen=True, slots=True)
class Setup:
    """Made anew in every process of a run; ``state`` alone is saved and resumed."""

    learner: Learner
    reference: Transformer
    cost: Cost
    curriculum: Curriculum
    scorer: Scorer
    roots: Roots | None  # measured where the policy has no trace
    moves: MoveTrees | None  # for algorithm.kl=exact
    validation: list[Puzzle]  # this process's share
    validation_environment: Environment
    verifier: dict[str, Any]  # how episodes are verified, for the summary
    state: RlState


def prepare(run: Run) -> Setup:
    """Everything that the loop needs, from the parent's policy; prints what a curriculum leaves out."""
    config, settings, algorithm = run.config, run.config.rl, run.config.algorithm
    folder, arithmetic = Path(config.parent) / "model", config.run
    model, start = (load_model(folder, precision=arithmetic.precision, compiled=arithmetic.compile, device=run.device) for _ in range(2))
    start.requires_grad_(False)
    reference = copy.deepcopy(start) if algorithm.reference_period else start
    learner = Learner(model, ValueHead(model.config, config.run.precision, run.device) if algorithm.advantage == "gae" else None)
    puzzles = world.puzzles_of_split(config, "rl", settings.bins)
    curriculum = curriculum_of(settings.curriculum, [puzzle.id for puzzle in puzzles], settings.prompts)
    if curriculum.left_out:
        tqdm.write("rl.curriculum left out: " + ", ".join(f"{reason} {count:,}" for reason, count in curriculum.left_out.items()))
    with distributed.first_process_first():  # which fills the cache of engine labels
        environment, verifier = environment_of(config, puzzles, config.reward.accept)
        judges = judges_of(config, puzzles, environment.to(run.device))
    prompts = [prompt_tokens(puzzle, config.world.state, think=settings.protocol == "think") for puzzle in puzzles]
    scorer = Scorer(config, model, start, environment.to(run.device), prompts, judges)
    validation = distributed.portion(world.puzzles_of_split(config, "validation", settings.bins)[: settings.validation_puzzles])
    state = RlState(
        model,
        build_optimizer(learner, settings.optimizer),
        value_head=learner.value_head,
        reference=reference if algorithm.reference_period else None,
        labels=scorer.labels,
        watch=Watch(config.health),
    )
    return Setup(
        learner=learner,
        reference=reference,
        cost=Cost.of(model.config),
        curriculum=curriculum,
        scorer=scorer,
        roots=Roots(puzzles, prompts, settings.temperature) if settings.protocol == "answer" else None,
        moves=MoveTrees(puzzles, (notation.CALL_ENV,)) if algorithm.kl == "exact" and algorithm.beta else None,
        validation=validation,
        validation_environment=environment_of(config, validation, "line")[0].to(run.device),
        verifier=verifier,
        state=state,
    )
