"""Keys and values of what a batch of sequences has read so far: what decoding attends to instead of reading it again.

Two layouts. ``KVCache`` holds a whole sequence in one row: fp32, where published results fix every bit. ``SharedCache`` holds a prompt once, however
many sequences follow it, and reads it once for all of them: bf16, where speed is wanted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32  # slots that a shared cache grows by
FRESH = 8  # tokens whose values wait for each other where values are held across slots: a divisor of BLOCK


class KVCache:
    """Keys and values of B sequences in shared slots: sequence b occupies slots ``start[b]`` to ``end - 1`` (left-padded), so that every
    sequence writes its next token to slot ``end``.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], start: Tensor, end: int):
        self.keys = keys  # per layer (B, kv_heads, slots, head_dim)
        self.values = values
        self.start = start  # (B,)
        self.end = end

    @staticmethod
    def of(kept: list[tuple[Tensor, Tensor]], lengths: Tensor) -> KVCache:
        """The cache of right-padded prompts: ``kept`` has each layer's keys and values (B, kv_heads, T, head_dim)."""
        length = kept[0][0].shape[2]
        start = length - lengths
        slots = (torch.arange(length, device=lengths.device)[None] - start[:, None]).clamp(min=0)  # slot -> position, any where padded
        index = slots[:, None, :, None]
        keys = [k.gather(2, index.expand_as(k)) for k, _ in kept]
        values = [v.gather(2, index.expand_as(v)) for _, v in kept]
        return KVCache(keys, values, start, length)

    def select(self, rows: Tensor) -> KVCache:
        """The cache of the given sequences, in that order; rows may repeat (a group shares its prompt's prefill)."""
        return KVCache([k[rows] for k in self.keys], [v[rows] for v in self.values], self.start[rows], self.end)

    def reserve(self, tokens: int) -> None:
        """Make room for so many more."""
        extra = self.end + tokens - self.keys[0].shape[2]
        if extra > 0:
            self.keys = [F.pad(k, (0, 0, 0, extra)) for k in self.keys]
            self.values = [F.pad(v, (0, 0, 0, extra)) for v in self.values]

    def begin(self) -> Tensor:
        """Take one more token of each sequence in: its position (B,)."""
        if self.end >= self.keys[0].shape[2]:
            self.reserve(self.end + 2)
        self.mask = (torch.arange(self.end + 1, device=self.start.device)[None] >= self.start[:, None])[:, None, None]
        self.end += 1
        return self.end - 1 - self.start

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What the new token's queries (B, heads, 1, head_dim) gather, (B, kv_heads, heads / kv_heads, head_dim); its k and v are taken in."""
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.end - 1 : self.end] = k
        values[:, :, self.end - 1 : self.end] = v
        # Query heads that share a key head are this key head's queries: no expanded copy of the cache is made.
        q = q.view(q.shape[0], keys.shape[1], -1, q.shape[-1])
        return F.scaled_dot_product_attention(q, keys[:, :, : self.end], values[:, :, : self.end], attn_mask=self.mask)


class Places(NamedTuple):
    """Where sequences stand, the same for all layers, while one more token of each is taken in."""

    hidden: Tensor  # (P, 1, 1, T): -inf at a prompt's padding, 0 elsewhere
    place: Tensor | None  # (B,) each sequence's place in a table (P, most); None where they fill it in its order
    most: int
    slot: Tensor  # (1,) where the new token goes
    unwritten: Tensor  # (slots,) -inf after the new token, 0 up to it
    fresh: Tensor  # (FRESH,) slots of the tokens whose values wait


class SharedCache:
    """Prompts, each held once, and B sequences that follow them; ``owner`` (B,) is the prompt of each.

    A prompt's keys meet the queries of all its sequences in one matrix product; each sequence's own keys meet its own (``chessrl.decoding``).
    Keys are (.., slots, head_dim); values likewise, or ``across``: (.., head_dim, slots), so that loops which sum over slots go along them. A new
    token's values would then lie in as many cache lines as a row has numbers, so they wait in a third table (.., FRESH, head_dim), and their
    places hold zeros, until there are FRESH of them.
    """

    def __init__(
        self,
        prompts: list[tuple[Tensor, Tensor]],  # per layer keys and values of P prompts of T slots, right-padded
        lengths: Tensor,  # (P,) of the prompts
        owner: Tensor,
        own: list[tuple[Tensor, Tensor]],  # per layer keys and values of B sequences, none of which waits
        end: int,  # slots in use
        across: bool,
        most: int = 1,  # places of a prompt in the table below, at least
    ):
        self.prompts, self.lengths, self.owner, self.end, self.across = prompts, lengths, owner, end, across
        self.slots, self.put = own[0][0].shape[2], end  # in all, and those whose values do not wait
        self.own: list[tuple[Tensor, ...]] = [(k, v, k.new_zeros(*k.shape[:2], FRESH, k.shape[3])) if across else (k, v) for k, v in own]
        # Sequences have places in a table (P, most sequences of a prompt); empty places hold zeros and are not looked at. Its width stays as it is
        # while sequences leave: compiled code is of one width.
        order = owner.argsort(stable=True)
        by_prompt = owner[order]
        first = torch.searchsorted(by_prompt, torch.arange(len(lengths), device=owner.device))
        rank = torch.empty_like(owner)
        rank[order] = torch.arange(len(owner), device=owner.device) - first[by_prompt]
        self.most = max(most, int(rank.max()) + 1)
        place = owner * self.most + rank
        # None where they stand in the table's order and leave no place empty, as whole groups do: then nothing is to be moved about.
        whole = len(place) == len(lengths) * self.most and bool((place == torch.arange(len(place), device=place.device)).all())
        self.place = None if whole else place
        padding = torch.arange(prompts[0][0].shape[2], device=lengths.device)[None] >= lengths[:, None]
        self.hidden = torch.zeros(padding.shape, dtype=prompts[0][0].dtype, device=lengths.device).masked_fill(padding, -torch.inf)[:, None, None]

    @staticmethod
    def of(kept: list[tuple[Tensor, Tensor]], lengths: Tensor, across: bool = False) -> SharedCache:
        """The cache of right-padded prompts: ``kept`` has each layer's keys and values (P, kv_heads, T, head_dim)."""
        prompts = [(k.contiguous(), (v.transpose(2, 3) if across else v).contiguous()) for k, v in kept]
        own = [(k[:, :, :0], v[..., :0] if across else v[:, :, :0]) for k, v in prompts]
        return SharedCache(prompts, lengths, torch.arange(len(lengths), device=lengths.device), own, 0, across)

    def select(self, rows: Tensor) -> SharedCache:
        """The cache of the given sequences, in that order; rows may repeat. Prompts without a sequence are dropped."""
        needed, owner = self.owner[rows].unique(return_inverse=True)
        prompts = self.prompts if len(needed) == len(self.lengths) else [(k[needed], v[needed]) for k, v in self.prompts]
        self._put_fresh()
        own = [(k[rows], v[rows]) for k, v, *_ in self.own]
        return SharedCache(prompts, self.lengths[needed], owner, own, self.end, self.across, self.most)

    def reserve(self, tokens: int) -> None:
        """Nothing: the cache grows as it is needed, since all that it holds is read at every step."""

    def begin(self) -> tuple[Tensor, Places]:
        """Take one more token of each sequence in: its position (B,), and where it goes."""
        if self.end % FRESH == 0:
            self._put_fresh()
        if self.end == self.slots:
            self._grow()
        slots = torch.arange(self.slots, device=self.owner.device)
        unwritten = torch.zeros(self.slots, dtype=self.hidden.dtype, device=slots.device).masked_fill(slots > self.end, -torch.inf)
        first = self.end - self.end % FRESH
        places = Places(self.hidden, self.place, self.most, slots[self.end : self.end + 1], unwritten, slots[first : first + FRESH])
        self.end += 1
        return self.lengths[self.owner] + self.end - 1, places

    def _put_fresh(self) -> None:
        """Values that waited go where they belong."""
        if self.across and self.put < self.end:
            first = self.put % FRESH
            for _, values, fresh in self.own:
                values[..., self.put : self.end] = fresh[:, :, first : first + self.end - self.put].transpose(2, 3)
                fresh.zero_()
        self.put = self.end

    def _grow(self) -> None:
        """One block more, in new tables: products and loops want them without gaps. It holds zeros: what is not written yet is multiplied by 0,
        which no infinity must meet.
        """
        self.slots += BLOCK
        rows, columns = (0, 0, 0, BLOCK), (0, BLOCK)
        self.own = [(F.pad(k, rows), F.pad(v, columns if self.across else rows), *waiting) for k, v, *waiting in self.own]
