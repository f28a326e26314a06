"""Rollouts: KV-cached sampling of whole episodes, with the puzzle environment in the loop.

One batch runs from prompt to last move. Prompts of unequal length are prefilled once each and their cache is expanded to the group; every
step samples one token per sequence, feeds it to the move grammar, and where a move is complete looks it up in the environment's tables:
solved, forced reply and next decision, or the end. Nothing leaves the device inside the loop but a count of unfinished sequences now and then.
What is sampled depends on (seed, stage, step, puzzle, sample, position) alone, never on the other sequences of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl import notation
from chessrl.cache import KVCache, SharedCache
from chessrl.environment import SOLVED, Environment
from chessrl.errors import UserError
from chessrl.grammar import AFTER_SUFFIX, DEAD, START, MoveGrammar
from chessrl.model import Transformer, scaled_logits
from chessrl.randomness import combine, draw, stream_key

PROTOCOLS = ("think", "answer", "game")
THINKING = ("natural", "forced", "minimum")
OUTCOMES = ("solved", "wrong", "illegal", "malformed", "unclosed", "no_end_think")  # codes in Rollout.outcome
SOLVED_CODE, WRONG, ILLEGAL, MALFORMED, UNCLOSED, NO_END_THINK = range(len(OUTCOMES))
_RUNNING = -1
_THINKING, _MOVING, _REPLYING = range(3)
COMPACT_SHARE = 0.25  # finished sequences leave the batch once they are this share of it
KEYS = 32  # places whose random keys are made at once
SYNC_STEPS = {"cpu": 1, "cuda": 64}  # how often the host looks at the count of finished sequences


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a policy plays. ``temperature`` 0 is greedy; ``spelling`` strict asks for canonical tokens.

    ``thinking`` decides who ends a trace: ``natural``, the policy, or it fails at the budget; ``forced``, the environment writes ``</T>`` where the
    budget is used up; ``minimum``, besides, a ``</T>`` before ``thinking_minimum`` tokens becomes ``<sep>``. What the environment writes is no
    token of the policy.
    """

    protocol: str
    temperature: float
    thinking_budget: int  # most tokens of a trace before </T>
    spelling: str = "lenient"
    seed: int = 0
    stage: str = "evaluate"
    step: int = 0
    first_sample: int = 0  # number of the group's first sample
    thinking: str = "natural"
    thinking_minimum: int = 0  # tokens, for thinking=minimum

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UserError(f"protocol={self.protocol!r}: expected one of {', '.join(PROTOCOLS)}")
        if self.spelling not in ("lenient", "strict"):
            raise UserError(f"spelling={self.spelling!r}: expected lenient or strict")
        if self.thinking not in THINKING:
            raise UserError(f"thinking={self.thinking!r}: expected one of {', '.join(THINKING)}")
        if self.thinking_minimum > self.thinking_budget:
            raise UserError(f"thinking_minimum={self.thinking_minimum}: expected at most thinking_budget={self.thinking_budget}")
        if self.temperature < 0:
            raise UserError(f"temperature={self.temperature}: expected 0 (greedy) or more")


@dataclass(frozen=True, slots=True)
class Rollout:
    """B = prompts x group episodes, puzzle-major. Sequences are right-padded to S new tokens.

    Example (answer protocol, two-move puzzle; P = sampled by the policy, E = given by the environment)::

        tokens   R a1 a8 + <call_env> K h8 h7 R a8 h8 # <call_env>
        policy   P  P  P P     P      E E  E  P  P  P P     P
    """

    prompts: Tensor  # (B, T) right-padded prompt ids
    prompt_lengths: Tensor  # (B,)
    tokens: Tensor  # (B, S) tokens after the prompt, <pad> padded
    lengths: Tensor  # (B,)
    policy: Tensor  # (B, S) bool: sampled by the policy, hence in the loss
    logprobs: Tensor  # (B, S) fp32 log-probability at the sampling temperature, 0 where not sampled
    entropies: Tensor  # (B, S) fp32 entropy of the distribution sampled from, 0 where not sampled
    outcome: Tensor  # (B,) index into OUTCOMES
    strict: Tensor  # (B,) bool: every accepted move was spelt canonically
    by_line: Tensor  # (B,) bool: solved by the line's moves or a mate, without moves that only the engine accepts
    trace_lengths: Tensor  # (B,) tokens before </T>
    moves: Tensor  # (B,) accepted solver moves
    puzzles: Tensor  # (B,) index into the environment's puzzles

    @property
    def solved(self) -> Tensor:
        return self.outcome == SOLVED_CODE

    @property
    def legal(self) -> Tensor:
        """(B,) bool: every solver move was read and legal (the last one may be wrong)."""
        return (self.outcome == SOLVED_CODE) | (self.outcome == WRONG)

    @property
    def well_formed(self) -> Tensor:
        """(B,) bool: the trace was closed and every move parsed and closed."""
        return self.legal | (self.outcome == ILLEGAL)


@dataclass(slots=True)
class _Walk:
    """State of the unfinished sequences, (A,) each; ``row`` is the sequence's place in the batch."""

    row: Tensor
    key: Tensor  # random key of the sample
    keys: Tensor  # (A, KEYS) random keys of its tokens at this block of places
    puzzle: Tensor
    node: Tensor
    phase: Tensor
    grammar: Tensor
    move_key: Tensor
    move: Tensor  # (A, 7) tokens of the move being written
    move_length: Tensor
    reply: Tensor  # (A, 7)
    reply_place: Tensor
    thought: Tensor  # trace tokens so far
    outcome: Tensor
    strict: Tensor
    by_line: Tensor
    moves: Tensor

    def select(self, rows: Tensor) -> _Walk:
        return _Walk(*(getattr(self, name)[rows] for name in self.__slots__))


def pad_prompts(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (P, T) and lengths (P,). Masks come from lengths, never from ids."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    padded = torch.full((len(prompts), int(lengths.max())), notation.PAD)
    for place, prompt in enumerate(prompts):
        padded[place, : len(prompt)] = torch.tensor(prompt)
    return padded.to(device), lengths.to(device)


@torch.no_grad()
def rollout(
    model: Transformer,
    environment: Environment,
    puzzles: Sequence[int],
    prompts: Sequence[Sequence[int]],
    group: int,
    settings: SamplingSettings,
) -> Rollout:
    """Sample ``group`` episodes of each puzzle. ``prompts`` are the puzzles' prompt ids, ``<T>`` included where the protocol thinks."""
    device = model.device
    prompt_ids, prompt_lengths = pad_prompts(prompts, device)
    logits, cache = model.prefill(prompt_ids, prompt_lengths)
    rows = torch.arange(len(prompts), device=device).repeat_interleave(group)
    walk = _start(environment, torch.tensor(puzzles, device=device)[rows], group, settings)
    record = _Record(len(rows), _longest_episode(environment, puzzles, settings), settings.thinking_budget, device)
    sampler = _Sampler(model, environment, settings, record)
    sampler.run(walk, logits[rows], cache.select(rows))
    return record.finish(prompt_ids[rows], prompt_lengths[rows], torch.tensor(puzzles, device=device)[rows])


def _longest_episode(environment: Environment, puzzles: Sequence[int], settings: SamplingSettings) -> int:
    decisions = int(environment.decisions[list(puzzles)].max())
    thinking = settings.thinking_budget + 1 if settings.protocol == "think" else 0
    return thinking + decisions * (2 * notation.LONGEST_MOVE + 2)


def _start(environment: Environment, puzzles: Tensor, group: int, settings: SamplingSettings) -> _Walk:
    count, device = len(puzzles), puzzles.device
    samples = torch.arange(count, device=device) % group + settings.first_sample
    key = combine(combine(stream_key(settings.seed, settings.stage, settings.step, device), environment.puzzle_key[puzzles]), samples)
    zeros = torch.zeros(count, dtype=torch.int64, device=device)
    empty = torch.full((count, notation.LONGEST_MOVE), notation.PAD, device=device)
    phase = zeros + (_THINKING if settings.protocol == "think" else _MOVING)
    return _Walk(
        row=torch.arange(count, device=device),
        key=key,
        keys=key[:, None],
        puzzle=puzzles,
        node=environment.root[puzzles],
        phase=phase,
        grammar=zeros + START,
        move_key=zeros.clone(),
        move=empty,
        move_length=zeros.clone(),
        reply=empty.clone(),
        reply_place=zeros.clone(),
        thought=zeros.clone(),
        outcome=zeros + _RUNNING,
        strict=torch.ones(count, dtype=torch.bool, device=device),
        by_line=torch.ones(count, dtype=torch.bool, device=device),
        moves=zeros.clone(),
    )


class _Record:
    """What the walk leaves behind, for all sequences of the batch."""

    def __init__(self, count: int, longest: int, budget: int, device: torch.device):
        self.budget = budget
        self.tokens = torch.full((count, longest), notation.PAD, device=device)
        self.policy = torch.zeros((count, longest), dtype=torch.bool, device=device)
        self.logprobs = torch.zeros((count, longest), device=device)
        self.entropies = torch.zeros((count, longest), device=device)
        self.lengths = torch.zeros(count, dtype=torch.int64, device=device)
        self.outcome = torch.full((count,), _RUNNING, device=device)
        self.strict = torch.zeros(count, dtype=torch.bool, device=device)
        self.by_line = torch.zeros(count, dtype=torch.bool, device=device)
        self.trace_lengths = torch.zeros(count, dtype=torch.int64, device=device)
        self.moves = torch.zeros(count, dtype=torch.int64, device=device)

    def write(self, walk: _Walk, place: int, token: Tensor, kept: Tensor, sampled: Tensor, logprob: Tensor, entropy: Tensor) -> None:
        """Column ``place``: the tokens of the sequences that ``kept`` them."""
        rows = walk.row
        self.tokens[rows, place] = torch.where(kept, token, notation.PAD)
        self.policy[rows, place] = kept & sampled
        self.logprobs[rows, place] = torch.where(kept & sampled, logprob, 0.0)
        self.entropies[rows, place] = torch.where(kept & sampled, entropy, 0.0)
        self.lengths[rows] += kept

    def close(self, walk: _Walk) -> None:
        self.outcome[walk.row] = walk.outcome
        self.strict[walk.row] = walk.strict & (walk.outcome == SOLVED_CODE)
        self.by_line[walk.row] = walk.by_line & (walk.outcome == SOLVED_CODE)
        self.trace_lengths[walk.row] = walk.thought.clamp(max=self.budget)
        self.moves[walk.row] = walk.moves

    def finish(self, prompts: Tensor, prompt_lengths: Tensor, puzzles: Tensor) -> Rollout:
        if bool(self.logprobs.isnan().any()):
            raise UserError(
                "the policy's probabilities are not numbers: its training diverged, or its weights are damaged; take an earlier checkpoint"
            )
        used = int(self.lengths.max())
        columns = (self.tokens, self.policy, self.logprobs, self.entropies)
        tokens, policy, logprobs, entropies = (column[:, :used] for column in columns)
        return Rollout(
            prompts, prompt_lengths, tokens, self.lengths, policy, logprobs, entropies,
            self.outcome, self.strict, self.by_line, self.trace_lengths, self.moves, puzzles,
        )  # fmt: skip


class _Sampler:
    def __init__(self, model: Transformer, environment: Environment, settings: SamplingSettings, record: _Record):
        self.model, self.environment, self.settings, self.record = model, environment, settings, record
        self.decode = model.decoder()
        self.grammar = MoveGrammar.on(model.device)
        self.sync_steps = SYNC_STEPS[model.device.type]

    def run(self, walk: _Walk, logits: Tensor, cache: KVCache | SharedCache) -> None:
        cache.reserve(self.record.tokens.shape[1])
        for place in range(self.record.tokens.shape[1]):
            token = self._step(walk, logits, place)
            if (place + 1) % self.sync_steps == 0:
                running = (walk.outcome == _RUNNING).nonzero().squeeze(1)
                finished = len(walk.row) - len(running)
                if finished == len(walk.row):
                    break
                if finished > COMPACT_SHARE * len(walk.row):
                    self.record.close(walk)
                    walk, cache, token = walk.select(running), cache.select(running), token[running]
            logits = self.decode(token, cache)
        self.record.close(walk)

    def _step(self, walk: _Walk, logits: Tensor, place: int) -> Tensor:
        """Choose, judge and record one token per sequence; returns the tokens (A,) that the model reads next."""
        running = walk.outcome == _RUNNING
        sampled_token, logprob, entropy = self._sample(walk, logits, place)
        replying = walk.phase == _REPLYING
        forced = walk.reply.gather(1, walk.reply_place[:, None].clamp(max=notation.LONGEST_MOVE - 1)).squeeze(1)
        token = torch.where(replying, forced, sampled_token)
        # In the game protocol a move ends where its grammar does: the token sampled beyond the end is discarded for the reply's first.
        ended = self._move_ends_before(walk, token, running)
        if ended is not None:
            self._judge(walk, ended)
            forced = walk.reply.gather(1, walk.reply_place[:, None].clamp(max=notation.LONGEST_MOVE - 1)).squeeze(1)
            replying = walk.phase == _REPLYING
            token = torch.where(replying, forced, token)
        token, put = self._control_thinking(walk, token)
        given = replying | put
        kept = running & (walk.outcome == _RUNNING)
        thinking, moving = kept & (walk.phase == _THINKING), kept & (walk.phase == _MOVING)
        self._think(walk, token, thinking)
        self._move(walk, token, moving)
        self._reply(walk, kept & replying)
        self.record.write(walk, place, token, kept, ~given, logprob, entropy)
        return token

    def _sample(self, walk: _Walk, logits: Tensor, place: int) -> tuple[Tensor, Tensor, Tensor]:
        temperature = self.settings.temperature
        if place % KEYS == 0:
            walk.keys = combine(walk.key[:, None], torch.arange(place, place + KEYS, device=walk.key.device))
        logprobs = scaled_logits(logits, temperature or 1.0).log_softmax(-1)
        token = logprobs.argmax(-1) if temperature == 0 else draw(logprobs, walk.keys[:, place % KEYS])
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return token, logprobs.gather(1, token[:, None]).squeeze(1).float(), entropy.float()

    def _move_ends_before(self, walk: _Walk, token: Tensor, running: Tensor) -> Tensor | None:
        if self.settings.protocol != "game":
            return None
        dead = self.grammar.transition[walk.grammar, token] == DEAD
        return running & (walk.phase == _MOVING) & self.grammar.complete[walk.grammar] & dead

    def _control_thinking(self, walk: _Walk, token: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with those that the environment puts in place of a thinking policy's, and where (A,) it put them."""
        thinking = walk.phase == _THINKING
        closes = token == notation.END_THINK
        if self.settings.thinking == "natural":
            return token, torch.zeros_like(thinking)
        over = thinking & ~closes & (walk.thought >= self.settings.thinking_budget)
        token = torch.where(over, notation.END_THINK, token)
        if self.settings.thinking == "forced":
            return token, over
        early = thinking & closes & (walk.thought < self.settings.thinking_minimum)
        return torch.where(early, notation.SEP, token), over | early

    def _think(self, walk: _Walk, token: Tensor, thinking: Tensor) -> None:
        closes = thinking & (token == notation.END_THINK)
        walk.phase = torch.where(closes, _MOVING, walk.phase)
        walk.thought = walk.thought + (thinking & ~closes)
        over = thinking & (walk.thought > self.settings.thinking_budget)
        walk.outcome = torch.where(over, NO_END_THINK, walk.outcome)

    def _nowhere(self, mask: Tensor) -> bool:
        """True where there is nothing to do. On a GPU it is never asked: the host would have to wait for the answer."""
        return mask.device.type == "cpu" and not bool(mask.any())

    def _move(self, walk: _Walk, token: Tensor, moving: Tensor) -> None:
        if self._nowhere(moving):
            return
        complete = self.grammar.complete[walk.grammar]
        if self.settings.protocol == "game":
            called = torch.zeros_like(moving)
        else:
            called = moving & complete & (token == notation.CALL_ENV)
            self._judge(walk, called)
        state = self.grammar.transition[walk.grammar, token]
        writing = moving & ~called
        failed = writing & (state == DEAD)
        walk.outcome = torch.where(failed, torch.where(complete, UNCLOSED, MALFORMED), walk.outcome)
        going = writing & ~failed
        change = self.grammar.key_change(walk.grammar, token)
        walk.move_key = torch.where(going, walk.move_key + change, walk.move_key)
        place = walk.move_length[:, None].clamp(max=notation.LONGEST_MOVE - 1)
        walk.move = torch.where(going[:, None], walk.move.scatter(1, place, token[:, None]), walk.move)
        walk.move_length = walk.move_length + going
        walk.grammar = torch.where(going, state, walk.grammar)
        if self.settings.protocol == "game":
            self._judge(walk, going & (state == AFTER_SUFFIX))

    def _judge(self, walk: _Walk, ended: Tensor) -> None:
        """Look the finished moves up: solved, forced reply and next node, or unsolved."""
        if self._nowhere(ended):
            return
        environment = self.environment
        node = walk.node
        matches = environment.edge_key[node] == walk.move_key[:, None]  # (A, E)
        spelt = (environment.edge_tokens[node] == walk.move[:, None]).all(-1)
        edge = matches.int().argmax(1)[:, None]
        spelt_right = spelt.gather(1, edge).squeeze(1)
        accepted = matches.any(1)
        if self.settings.spelling == "strict":
            accepted = accepted & spelt_right
        legal = (environment.legal_key[node] == walk.move_key[:, None]).any(1)
        following = environment.edge_next[node].gather(1, edge).squeeze(1)
        reply = environment.edge_reply[node].gather(1, edge[:, :, None].expand(-1, -1, notation.LONGEST_MOVE)).squeeze(1)

        verdict = torch.where(accepted, torch.where(following == SOLVED, SOLVED_CODE, _RUNNING), torch.where(legal, WRONG, ILLEGAL))
        walk.outcome = torch.where(ended, verdict, walk.outcome)
        walk.strict = walk.strict & (spelt_right | ~(ended & accepted))
        walk.by_line = walk.by_line & (environment.edge_line[node].gather(1, edge).squeeze(1) | ~(ended & accepted))
        walk.moves = walk.moves + (ended & accepted)
        goes_on = ended & (verdict == _RUNNING)
        walk.node = torch.where(goes_on, following, node)
        walk.reply = torch.where(goes_on[:, None], reply, walk.reply)
        walk.reply_place = torch.where(goes_on, 0, walk.reply_place)
        walk.phase = torch.where(goes_on, _REPLYING, walk.phase)
        walk.grammar = torch.where(ended, START, walk.grammar)
        walk.move_key = torch.where(ended, 0, walk.move_key)
        walk.move_length = torch.where(ended, 0, walk.move_length)
        walk.move = torch.where(ended[:, None], notation.PAD, walk.move)

    def _reply(self, walk: _Walk, replying: Tensor) -> None:
        if self._nowhere(replying):
            return
        walk.reply_place = walk.reply_place + replying
        last = walk.reply_place >= notation.LONGEST_MOVE
        following = walk.reply.gather(1, walk.reply_place[:, None].clamp(max=notation.LONGEST_MOVE - 1)).squeeze(1)
        over = replying & (last | (following == notation.PAD))
        walk.phase = torch.where(over, _MOVING, walk.phase)
