"""The data of fine-tuning: puzzles -> trees of lines -> traces and answers -> examples."""

from __future__ import annotations

from collections.abc import Sequence

from chessrl import distributed, world
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.model import Transformer
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.traces import Tree
from chessrl.training import Example
from sft.arms import answer_tokens, best_lines, engine_labels, line_answer, trace_texts
from sft.examples import build_example
from sft.trace_cache import cached_trees
from sft.traces import TraceReport


def training_puzzles(config: Config) -> list[Puzzle]:
    """What is trained on: the sft split, or the puzzles that ``sft.puzzles`` names out of it and of the rl split; at most ``sft.max_puzzles``.

    Raises UserError for an id that is in neither or is given twice.
    """
    settings = config.sft
    if not settings.puzzles:
        return world.puzzles_of_split(config, "sft")[: settings.max_puzzles]
    known = {puzzle.id: puzzle for split in ("sft", "rl") for puzzle in world.puzzles_of_split(config, split)}
    if unknown := [name for name in settings.puzzles if name not in known]:
        raise UserError(f"sft.puzzles: {unknown[0]} is in neither the sft nor the rl split, and others are not for training; give ids of these")
    if len(set(settings.puzzles)) < len(settings.puzzles):
        raise UserError("sft.puzzles names a puzzle twice: give each id once, and raise sft.epochs to see it more often")
    return [known[name] for name in settings.puzzles][: settings.max_puzzles]


def build(model: Transformer, puzzles: Sequence[Puzzle], config: Config, report: TraceReport) -> list[Example]:
    """Examples of ``puzzles``, with traces where they are asked for; what does not fit into sft.context is left out and counted.

    ``model`` is the one that proposes the lines (see ``proposing_model``).
    """
    trees = cached_trees(model, puzzles, config, report) if config.sft.trace.enabled else None
    if trees is not None and "engine" in (config.sft.trace.order, config.sft.trace.answer):
        with distributed.first_process_first():  # which fills the cache of engine labels
            return examples_of(puzzles, trees, config, report)
    return examples_of(puzzles, trees, config, report)


def examples_of(puzzles: Sequence[Puzzle], trees: Sequence[Tree] | None, config: Config, report: TraceReport) -> list[Example]:
    """Prompt, trace and answer of every puzzle within sft.context; without ``trees`` there are no traces."""
    settings, counts = config.sft, report.counts
    label = engine_labels(config, counts)
    answers = [line_answer(puzzle) for puzzle in puzzles]
    if trees is not None and settings.trace.answer == "engine":
        answers = best_lines(puzzles, trees, label, counts)
    fitting, room = list(range(len(puzzles))), [0] * len(puzzles)
    if settings.context is not None:
        for place, puzzle in enumerate(puzzles):
            prompt = len(prompt_tokens(puzzle, config.world.state, think=trees is not None))
            room[place] = settings.context - prompt - sum(map(len, answer_tokens(puzzle.board(), answers[place])))
        fitting = [place for place in fitting if room[place] >= (trees is not None)]  # </T> needs a place
        counts["puzzles over the context"] += len(puzzles) - len(fitting)
    kept = [puzzles[place] for place in fitting]
    traces: Sequence[list[int] | None] = [None] * len(kept)
    if trees is not None:
        limits = [room[place] for place in fitting] if settings.context is not None else None
        traces = trace_texts(kept, [trees[place] for place in fitting], settings.trace, settings.seed, label, limits, counts)
    return [build_example(puzzle, trace, config.world.state, answers[place]) for puzzle, trace, place in zip(kept, traces, fitting)]
