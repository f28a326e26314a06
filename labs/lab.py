"""What every lab uses: its size, running the laboratory's commands, and checking an answer."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checks import CHECKS

from chessrl.pipeline import run_stage_command

HERE = Path(__file__).resolve().parent
TOY = os.environ.get("LAB_SCALE", "full") == "toy"  # seconds instead of minutes: for trying that a lab works, not for its numbers
OUTPUTS = Path(os.environ.get("LAB_OUTPUTS", HERE.parent / "outputs/labs"))  # a notebook's own folder is labs/
FIGURES = OUTPUTS / "figures"


def size(full: Any, toy: Any) -> Any:
    """The one or the other, by LAB_SCALE."""
    return toy if TOY else full


def run(module: str, *overrides: str) -> Path | None:
    """Run ``python -m MODULE key=value ... outputs=OUTPUTS``, printed as it could be typed; the run directory, where the command makes one.

    The same command a second time finds its run finished. Raises UserError where it fails.
    """
    command = [sys.executable, "-m", module, *overrides, f"outputs={OUTPUTS}"]
    print("python", *command[1:], flush=True)
    directory, _ = run_stage_command(command)
    return directory


# What code of a student's may raise. It is told in a line, as any answer that is not right yet.
MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


def check(name: str, answer: Any, *given: Any) -> None:
    """Print whether an answer is right, with a hint where it is not. Ellipsis, an empty list and an empty dict are no answer yet.

    given: what else of the notebook the check needs.
    """
    if answer is ... or (isinstance(answer, list | dict) and not answer):
        print(f"{name}: not answered yet")
    else:
        _judge(name, answer, given, "not right yet" if isinstance(answer, list | dict) else f"{answer!r} is not it")


def check_function(name: str, function: Callable[..., Any]) -> None:
    """The same for a function: one that raises NotImplementedError is not answered yet."""
    _judge(name, function, (), "not right yet")


def _judge(name: str, answer: Any, given: tuple[Any, ...], wrong: str) -> None:
    test, hint = CHECKS[name]
    try:
        right = test(answer, *given)
    except NotImplementedError:
        print(f"{name}: not answered yet")
    except MISTAKES as error:
        print(f"{name}: {wrong}.{_place(error, answer)} {hint}")
    else:
        print(f"{name}: right" if right else f"{name}: {wrong}. {hint}")


def _place(error: Exception, answer: Any) -> str:
    """The error and the line of the student's function where it arose; or that a check could not read what the function returns."""
    if not hasattr(answer, "__code__"):
        return ""
    cell = answer.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == cell]
    if not frames:
        return " What it returns is not of the kind that was asked for (does it return anything?)."
    return f" {type(error).__name__} in {frames[-1].name}, line {frames[-1].lineno} of its cell, {frames[-1].line!r}: {error}."


def save(figure: Any, name: str) -> Path:
    """Write the figure that ends a lab; its path."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(path)
    return path


TOY_POLICY = ("world.max_games=1500", "pretrain.tokens=60000", "sft.tokens=20000", "rl.steps=4", "rl.prompts=4", "evaluate.max_puzzles=40")


def policy_keys(*overrides: str) -> list[str]:
    """The keys of ``experiment=lab`` at this size, then further ones."""
    return ["experiment=lab", *(TOY_POLICY if TOY else ()), *overrides]


def start_policy(*overrides: str) -> Path:
    """The run directory of the fine-tuned policy that labs begin with, trained when it is asked for first: some minutes on one core."""
    pretrained = run("pretrain", *policy_keys(*overrides))
    return run("sft", *policy_keys(*overrides), f"parent={pretrained}")
