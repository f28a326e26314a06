"""Trees of lines on disk: what has been proposed once is not sampled or searched again, by a restart or by another run.

``outputs/data/traces-HASH/`` holds parts of a few thousand puzzles, each written whole. The hash is of all that decides the lines: who proposes
them, how many and how long, seed and puzzles. Arms that differ in what is done to finished trees share one folder.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import chess
from tqdm import tqdm

from chessrl import distributed
from chessrl.checkpoint import load_model, write_atomically
from chessrl.config import Config
from chessrl.engine import Engine
from chessrl.errors import UserError, make_folder
from chessrl.lock import Lock
from chessrl.model import Transformer
from chessrl.puzzles import Puzzle
from chessrl.run import digest, identity_of, read_summary, resolve_device
from chessrl.traces import Tree, leaf_lines, merge
from chessrl.verifier import engine_settings
from sft.proposals import EngineProposal, ModelProposal, UniformProposal
from sft.traces import PUZZLES_PER_BATCH, Proposal, TraceReport, build_trees

PUZZLES_PER_PART = 16 * PUZZLES_PER_BATCH
RULES_VERSION = 1  # raise it when the same settings would give other lines
DONE_TO_TREES = ("enabled", "order", "serialise", "content", "budget", "answer")  # keys of sft.trace that leave the lines as they are


def teacher_summary(config: Config) -> dict[str, Any]:
    """The summary of the run ``sft.trace.teacher``. Raises UserError unless it is a finished pretraining in the same kind of state."""
    path = config.sft.trace.teacher
    if not path:
        raise UserError("sft.trace.proposal=teacher needs sft.trace.teacher=RUN, the directory of a finished pretraining run")
    summary = read_summary(Path(path))
    if summary["stage"] != "pretrain" or summary["world"]["state"] != config.world.state:
        raise UserError(
            f"sft.trace.teacher={path} is a run of stage {summary['stage']} with world.state={summary['world']['state']}: "
            f"expected pretrain and {config.world.state}; give a teacher of that kind"
        )
    return summary


def proposing_folder(config: Config) -> Path:
    """The model folder of the parent, or of the teacher."""
    run = config.sft.trace.teacher if config.sft.trace.proposal == "teacher" else config.parent
    return Path(run) / "model"


def proposing_model(config: Config, parent: Transformer) -> Transformer:
    """The model that proposes the lines: ``parent``, or the teacher."""
    if not config.sft.trace.enabled or config.sft.trace.proposal != "teacher":
        return parent
    teacher = load_model(proposing_folder(config), precision=config.run.precision, compiled=config.run.compile, device=parent.device)
    return teacher


def cached_trees(model: Transformer, puzzles: Sequence[Puzzle], config: Config, report: TraceReport) -> list[Tree]:
    """A tree for every puzzle, from the cache where it is there; ``report`` tells what making them took, whenever that was."""
    trees: list[Tree] = []
    with _proposal(model, config) as (proposal, proposer):
        folder = Path(config.outputs) / "data" / f"traces-{_key(puzzles, config, proposer)}"
        with _held(folder), tqdm(total=len(puzzles), desc="traces", unit="puzzle", disable=not distributed.is_first()) as bar:
            for number, start in enumerate(range(0, len(puzzles), PUZZLES_PER_PART)):
                block = puzzles[start : start + PUZZLES_PER_PART]
                part = folder / f"{number:05d}.json"
                content = distributed.gather(_read(part) if distributed.is_first() else None)[0]
                if content is None:
                    content = _propose(proposal, block, config, bar)
                    if distributed.is_first():
                        write_atomically(part, json.dumps(content, separators=(",", ":")).encode())
                bar.update(min(start + len(block), len(puzzles)) - bar.n)
                trees += [merge(tuple(map(chess.Move.from_uci, line.split())) for line in lines) for lines in content["trees"]]
                report.add(TraceReport(**content["report"] | {"counts": Counter(content["report"]["counts"])}))
    return trees


@contextmanager
def _proposal(model: Transformer, config: Config) -> Iterator[tuple[Proposal, Any]]:
    """Who proposes, and what stands for it in the cache's key."""
    trace = config.sft.trace
    if trace.proposal == "uniform":
        yield UniformProposal(trace, config.sft.seed), "uniform"
    elif trace.proposal == "engine":
        with Engine(engine_settings(config.engine)) as engine:
            yield EngineProposal(engine, trace), engine.identity
    else:
        weights = hashlib.sha256((proposing_folder(config) / "model.safetensors").read_bytes()).hexdigest()
        proposer = [weights, config.run.arithmetic, resolve_device(config.run.device).type]
        yield ModelProposal(model, trace, config.world.state, config.sft.seed), proposer


def _key(puzzles: Sequence[Puzzle], config: Config, proposer: Any) -> str:
    keys = {key: value for key, value in identity_of(config.sft.trace).items() if key not in (*DONE_TO_TREES, "proposal")}
    content = [asdict(replace(puzzle, split="", bin="", themes=())) for puzzle in puzzles]
    return digest([RULES_VERSION, proposer, keys, config.sft.seed, config.world.state, digest(content)])


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, made by the first process and locked by it: another run that needs the same lines waits and then finds them."""
    lock = Lock(folder.with_name(f".{folder.name}.lock"), str(folder))
    with distributed.first_process_first():
        if distributed.is_first():
            make_folder(folder, "outputs")
            lock.acquire(wait=True)
    try:
        yield
    finally:
        if distributed.is_first():
            lock.release()


def _propose(proposal: Proposal, block: Sequence[Puzzle], config: Config, bar: tqdm) -> dict[str, Any]:
    """The content of a part: whole batches, shared out among the processes."""
    report = TraceReport()

    def sample(own: Sequence[Puzzle]) -> list[Tree]:
        processes = distributed.size()  # this one speaks for all
        return build_trees(
            proposal, own, config.sft.trace, seed=config.sft.seed, report=report, done=lambda count: bar.update(count * processes)
        )

    trees = distributed.spread(sample, block, PUZZLES_PER_BATCH)
    whole = TraceReport()
    for other in distributed.gather(report):
        whole.add(other)
    lines = [[" ".join(map(chess.Move.uci, line)) for line in leaf_lines(tree)] for tree in trees]
    counted = {"counts": dict(whole.counts), "sampled_tokens": whole.sampled_tokens, "prompt_tokens": whole.prompt_tokens}
    return {"report": counted, "trees": lines}


def _read(part: Path) -> dict[str, Any] | None:
    """None where the part is not there. Raises UserError for a damaged one."""
    try:
        return json.loads(part.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{part} is damaged ({error}): delete the file, its lines are then proposed again") from error
