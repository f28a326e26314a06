"""KL to the reference as a term of the loss, exact over what can come of a decision: for policies without a trace (``algorithm.kl=exact``).

What comes of a decision is a legal move, played as it is written canonically with its ``<call_env>``, or anything else (illegal, unread, spelt
otherwise), which is one further outcome. So the KL is that of two whole distributions, and mass that leaves the legal moves is paid for as well;
it is a lower bound of the KL over all token sequences (data processing inequality).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from chessrl import distributed
from chessrl.model import Transformer, causal_pairs
from chessrl.policy import MoveTree, move_logprobs, score_moves
from chessrl.sampler import Rollout
from chessrl.training import own_micro_batches
from rl.move_trees import MoveTrees

REST_FLOOR = 1e-6  # of the further outcome's probability: fp32 log-probabilities cannot tell less from 0


def outcome_logprobs(moves: Tensor) -> Tensor:
    """(moves + 1,) log-probabilities of all outcomes, with gradient, of those of the legal moves (moves,): the last is anything else."""
    rest = (1.0 - moves.exp().sum()).clamp(min=REST_FLOOR)
    return torch.cat([moves, rest.log()[None]])


def outcome_kl(moves: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference), nats, over the outcomes of a decision: both (moves,) log-probabilities of its legal moves."""
    policy = outcome_logprobs(moves)
    return (policy.exp() * (policy - outcome_logprobs(reference))).sum()


@dataclass(frozen=True, slots=True)
class ExactKl:
    """The D distinct decisions that B episodes came to, and what the reference thinks of their legal moves."""

    contexts: list[tuple[int, ...]]  # prompt and everything played before the decision
    trees: list[MoveTree]
    reference: list[Tensor]  # (moves,) float64 log-probabilities each
    visits: Tensor  # (D, B) bool: the episodes that came to the decision

    def rows(self, index: Tensor) -> ExactKl:
        """Of some episodes (places among the B)."""
        visits = self.visits[:, index]
        kept = visits.any(1).nonzero()[:, 0].tolist()
        contexts, trees, reference = ([values[place] for place in kept] for values in (self.contexts, self.trees, self.reference))
        return ExactKl(contexts, trees, reference, visits[kept])

    def cost(self) -> tuple[int, int]:
        """Tokens, and pairs of a token and one that it sees, of one pass over all decisions."""
        lengths = torch.tensor([len(context) for context in self.contexts])
        nodes = torch.tensor([len(tree.tokens) for tree in self.trees])
        ancestors = sum(int((tree.depths + 1).sum()) for tree in self.trees)
        return int((lengths + nodes).sum()), causal_pairs(lengths) + int((lengths * nodes).sum()) + ancestors


def exact_kl(episodes: Rollout, moves: MoveTrees, reference: Transformer, temperature: float, budget: int) -> ExactKl:
    """The decisions of ``episodes`` (without traces), scored by the reference. Several processes score a share each.

    moves: of the puzzles, closed by ``<call_env>``.
    """
    starts = episodes.policy.clone()
    starts[:, 1:] &= ~episodes.policy[:, :-1]  # between two decisions stands the opponent's reply
    places: dict[tuple[int, ...], int] = {}
    trees: list[MoveTree] = []
    came: list[tuple[int, int]] = []
    prompts, lengths, tokens = episodes.prompts.tolist(), episodes.prompt_lengths.tolist(), episodes.tokens.tolist()
    for episode, (puzzle, begun) in enumerate(zip(episodes.puzzles.tolist(), starts.tolist())):
        for number, start in enumerate(place for place, first in enumerate(begun) if first):
            context = (*chain(prompts[episode][: lengths[episode]], tokens[episode][:start]),)
            if context not in places:
                places[context] = len(places)
                trees.append(moves.of(puzzle)[number])
            came.append((places[context], episode))
    contexts = list(places)
    visits = torch.zeros(len(contexts), len(tokens), dtype=torch.bool)
    visits[tuple(torch.tensor(came).T)] = True
    own = distributed.portion(range(len(contexts)))
    scores = score_moves(reference, [contexts[place] for place in own], [trees[place] for place in own], temperature, budget)
    device = reference.device
    return ExactKl(contexts, trees, [torch.from_numpy(row).to(device) for row in chain(*distributed.gather(scores))], visits.to(device))


def accumulate_kl(policy: Transformer, exact: ExactKl, weights: Tensor, temperature: float, budget: int) -> tuple[float, float]:
    """Add the gradient of sum over episodes and their decisions of ``weights`` (B,) KL(policy || reference), this process's share of it.

    Which states are come to is taken as given, as in the estimators from samples. Returns this process's shares of that sum and of the mean KL
    of a visit, nats.
    """
    of_decision = (exact.visits * weights).sum(1).double()
    count, share = exact.visits.sum(1).double(), 1.0 / max(1, int(exact.visits.sum()))
    total = mean = 0.0
    lengths = [len(context) + len(tree.tokens) for context, tree in zip(exact.contexts, exact.trees)]
    for places in own_micro_batches(lengths, budget):
        rows = move_logprobs(policy, [exact.contexts[place] for place in places], [exact.trees[place] for place in places], temperature)
        kl = torch.stack([outcome_kl(row, exact.reference[place]) for row, place in zip(rows, places)])
        loss = (of_decision[places] * kl).sum()
        loss.backward()
        total += loss.item()
        mean += (count[places] * kl.detach()).sum().item() * share
    return total, mean
