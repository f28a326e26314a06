"""Whether an answer of a lab is right: computed, not looked up, where it can be. One module per lab; the answers are in ``answers/``."""

from __future__ import annotations

from collections.abc import Callable

from checks import grpo, passk, plan, pretraining, rewards, theory, tokens, traces

Check = tuple[Callable[..., bool], str]  # the test of an answer (and of what else of the notebook it is given), and a hint for who failed it
CHECKS: dict[str, Check] = {
    name: check
    for lab in (tokens, pretraining, traces, grpo, passk, rewards, theory, plan)
    for name, check in lab.CHECKS.items()
}
