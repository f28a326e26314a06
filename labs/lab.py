"""What every lab uses: its size, running the laboratory's commands, and checking an answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chessrl.pipeline import run_stage_command

sys.path.insert(0, str(Path(__file__).parent))  # a notebook may be opened from anywhere
from checks import CHECKS

TOY = os.environ.get("LAB_SCALE", "full") == "toy"  # seconds instead of minutes: for trying that a lab works, not for its numbers
OUTPUTS = Path(os.environ.get("LAB_OUTPUTS", "outputs/labs"))
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


def check(name: str, answer: Any) -> None:
    """Say whether an answer is right. Ellipsis is no answer yet. Raises AssertionError, with a hint, for a wrong one."""
    test, hint = CHECKS[name]
    if answer is ...:
        print(f"{name}: not answered yet")
        return
    assert test(answer), f"{name}: {answer!r} is not it. {hint}"
    print(f"{name}: right")


def check_function(name: str, function: Callable[..., Any]) -> None:
    """The same for a function: one that raises NotImplementedError is not answered yet."""
    test, hint = CHECKS[name]
    try:
        right = test(function)
    except NotImplementedError:
        print(f"{name}: not answered yet")
        return
    assert right, f"{name}: not it yet. {hint}"
    print(f"{name}: right")


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
