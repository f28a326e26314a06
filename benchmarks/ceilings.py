"""What the machine allows: rates of a matrix product and of a memory copy, by the clocks that the contenders are measured with."""

from __future__ import annotations

import torch

from benchmarks.measure import Contender, Row, compare, timed

SIZE = 1024  # of the square matrices: larger than the models' and no slower
COPIED = 64 * 2**20  # bytes, several times a processor's cache


def ceilings(device: torch.device, rounds: int) -> list[Row]:
    """Products of square matrices in operations per second, and bytes copied per second (each is read once and written once)."""
    rows = []
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        rows += compare("ceiling", "FLOP/s", "", [product(name, dtype, device)], rounds)
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = Contender("memory copy", COPIED, lambda: timed(lambda: target.copy_(source), device))
    return rows + compare("ceiling", "byte/s", "", [copying], rounds)


def product(name: str, dtype: torch.dtype, device: torch.device, repeats: int = 10) -> Contender:
    """``repeats`` products of SIZE x SIZE matrices."""
    left, right = (torch.ones(SIZE, SIZE, dtype=dtype, device=device) for _ in range(2))

    def work() -> None:
        for _ in range(repeats):
            left @ right

    work()
    return Contender(f"matrix product, {name}", repeats * 2 * SIZE**3, lambda: timed(work, device))
