"""Plain continuations: some more moves after a text, sampled without an environment. Traces are proposed with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chessrl import notation
from chessrl.grammar import DEAD, START, MoveGrammar
from chessrl.model import Transformer, scaled_logits
from chessrl.randomness import combine, draw
from chessrl.sampler import COMPACT_SHARE, pad_prompts

SYNC_STEPS = 8  # tokens between two looks at who is finished: sequences are a few moves long


@torch.no_grad()
def continue_text(
    model: Transformer, prompts: Sequence[Sequence[int]], rows: Tensor, keys: Tensor, plies: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Plain sampling of moves without an environment: sample r continues prompt ``rows[r]`` with random key ``keys[r]``, all (R,).

    It ends with the token that shows that ``plies[r]`` moves are written, or that something is none.
    Returns (R, S) ids, ``<pad>`` padded, and how many were sampled of each (R,).
    """
    prompt_ids, lengths = pad_prompts(prompts, model.device)
    logits, cache = model.prefill(prompt_ids, lengths)
    logits, cache = logits[rows], cache.select(rows)
    decode = model.decoder()
    longest = notation.LONGEST_MOVE * int(plies.max())
    cache.reserve(longest)
    texts = torch.full((len(rows), longest), notation.PAD, device=model.device)
    grammar = MoveGrammar.on(model.device)
    row = torch.arange(len(rows), device=model.device)
    state, left = torch.full_like(row, START), plies.clone()
    going = torch.ones_like(row, dtype=torch.bool)
    written = torch.zeros_like(row)
    for place in range(longest):
        token = draw(scaled_logits(logits, temperature).log_softmax(-1), combine(keys, place))
        texts[row, place] = torch.where(going, token, notation.PAD)
        written[row] += going
        following = grammar.transition[state, token]
        ended = (following == DEAD) & grammar.complete[state]  # a move ends where the next token cannot belong to it
        left = left - ended.long()
        state = torch.where(ended, grammar.transition[START, token], following)
        going = going & (left > 0) & (state != DEAD)
        if (place + 1) % SYNC_STEPS == 0:
            kept = going.nonzero().squeeze(1)
            if len(kept) == 0:
                break
            if len(row) - len(kept) > COMPACT_SHARE * len(row):
                row, keys, state, left, going, token = (values[kept] for values in (row, keys, state, left, going, token))
                cache = cache.select(kept)
        if place + 1 < longest:
            logits = decode(token, cache)
    return texts, written
