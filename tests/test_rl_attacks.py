"""What the policy may write to be paid without solving, and what it is paid: attacks on the reward, and honest answers beside them."""

from __future__ import annotations

import pytest
import torch

from chessrl import notation
from chessrl.environment import build_environment
from chessrl.model import build_model
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import OUTCOMES, Rollout, SamplingSettings, _Sampler, rollout
from rl.rewards import reward_parts
from tests.test_rl_rewards import evidence_of
from tests.test_sampler import PUZZLES, TINY, play_reference

THINK_CLOSE, CALL, SEP = "</T>", "<call_env>", "<sep>"
MATE = "R a1 a8 #"
# (what the policy writes after the prompt of PUZZLES[0], whose solution is R a1 a8 #; what format, legal and line may pay)
ATTACKS = {
    "an honest answer": (f"{MATE} {THINK_CLOSE} {MATE} {CALL}", (1, 1, 1)),
    "an empty trace": (f"{THINK_CLOSE} {MATE} {CALL}", (1, 1, 1)),
    "a wrong move": (f"{THINK_CLOSE} K g1 f1 {CALL}", (1, 1, 0)),
    "an illegal move": (f"{THINK_CLOSE} K g1 g3 {CALL}", (1, 0, 0)),
    "an illegal move with the mate's sign": (f"{THINK_CLOSE} R a1 h8 # {CALL}", (1, 0, 0)),
    "two answers, the second right": (f"{THINK_CLOSE} K g1 f1 {MATE} {CALL}", (0, 0, 0)),
    "two called answers, the second right": (f"{THINK_CLOSE} K g1 f1 {CALL} {MATE} {CALL}", (1, 1, 0)),
    "the answer in the trace alone": (f"{MATE} {CALL} {THINK_CLOSE} K g1 f1 {CALL}", (1, 1, 0)),
    "no end of the trace": (f"{MATE} {CALL} {MATE}", (0, 0, 0)),
    "an over-long trace before the right answer": (f"{MATE} {SEP} R a1 a8 {THINK_CLOSE} {MATE} {CALL}", (0, 0, 0)),
    "a trace of the longest length": (f"{MATE} {SEP} {SEP} {THINK_CLOSE} {MATE} {CALL}", (1, 1, 1)),
    "repeated moves in the trace": (f"K g1 f1 K g1 f1 {THINK_CLOSE} K g1 f1 {CALL}", (1, 1, 0)),
    "a repeated move as the answer": (f"{THINK_CLOSE} K g1 f1 K g1 f1 {CALL}", (0, 0, 0)),
    "the right answer called again": (f"{THINK_CLOSE} {MATE} {CALL} {MATE} {CALL}", (1, 1, 1)),
    "the trace closed twice": (f"{THINK_CLOSE} {THINK_CLOSE} {MATE} {CALL}", (0, 0, 0)),
    "an empty answer": (f"{THINK_CLOSE} {CALL}", (0, 0, 0)),
    "the answer not closed": (f"{THINK_CLOSE} {MATE} {SEP}", (0, 0, 0)),
    "check-spam": (f"{THINK_CLOSE} R a1 a8 + + + {CALL}", (0, 0, 0)),
    "checks where there are none": (f"{THINK_CLOSE} K g1 f1 # {CALL}", (1, 1, 0)),
    "promotion-flag noise": (f"{THINK_CLOSE} R a1 a8 = Q # {CALL}", (1, 0, 0)),
    "a promotion flag without a piece": (f"{THINK_CLOSE} R a1 a8 = # {CALL}", (0, 0, 0)),
    "the opponent's move copied": (f"{THINK_CLOSE} K g8 f8 {CALL}", (1, 0, 0)),
    "all squares at once": (f"{THINK_CLOSE} R a1 a2 a3 a4 a5 a6 a7 a8 {CALL}", (0, 0, 0)),
    "end of game": (f"{THINK_CLOSE} <eos>", (0, 0, 0)),
    "the answer misspelt but meant": (f"{THINK_CLOSE} R a1 x a8 {CALL}", (1, 1, 1)),
}


def scripted(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> Rollout:
    """A rollout of PUZZLES[0] in which the policy writes ``ids``, then <unk>."""

    def write(self, walk, logits, place):
        count = len(walk.row)
        token = torch.full((count,), ids[place] if place < len(ids) else notation.VOCABULARY.index("<unk>"))
        return token, torch.zeros(count), torch.zeros(count)

    monkeypatch.setattr(_Sampler, "_sample", write)
    prompt = prompt_tokens(PUZZLES[0], "snapshot", think=True)
    return rollout(build_model(TINY, seed=0), build_environment(PUZZLES), [0], [prompt], 1, SamplingSettings("think", 1.0, 6))


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_paid_what_they_are_worth(attack, monkeypatch):
    text, expected = ATTACKS[attack]
    ids = notation.from_text(text)
    result = scripted(monkeypatch, ids)
    parts = reward_parts(evidence_of(result), {"format": 1.0, "legal": 1.0, "line": 1.0})
    assert tuple(int(parts[name][0]) for name in ("format", "legal", "line")) == expected
    outcome, _, _ = play_reference(PUZZLES[0], ids + [notation.VOCABULARY.index("<unk>")] * 9, "think", 6, "lenient")
    assert outcome == OUTCOMES[int(result.outcome[0])]
