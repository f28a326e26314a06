"""Lab 8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from checks.compare import near


def loss(sizes: np.ndarray, flops: float) -> np.ndarray:
    """The lab's surface at C = 6 N T."""
    return 0.412 + 60.0 * sizes**-0.401 + 9000.0 * (flops / (6 * sizes)) ** -0.679


def best_size(written: Callable[[float], float]) -> bool:
    """Against a fine grid of log10 N, for the constants of the lab."""
    for flops in (1e14, 1e17):
        sizes = np.geomspace(1e3, 1e11, 200_001)
        expected = sizes[loss(sizes, flops).argmin()]
        if not np.isclose(written(flops), expected, rtol=0.01):
            print(f"  best_size({flops:.0e}) gives {written(flops):.3g}, expected {expected:.3g}")
            return False
    return True


def curves(drawn: dict[float, tuple[np.ndarray, np.ndarray]]) -> bool:
    """Losses of the surface at each budget, over sizes on both sides of the best."""
    for flops, (sizes, losses) in drawn.items():
        place = int(np.argmin(losses))
        if not np.allclose(losses, loss(np.asarray(sizes), flops)) or not 0 < place < len(sizes) - 1:
            print(f"  C = {flops:.0e}: not the losses at T = C / (6 N), or their least is at an end of the sizes")
            return False
    return sorted(drawn) == [1e14, 1e15, 1e16]


CHECKS = {
    "8.1 the best size": (best_size, "Put T = C / (6 N) into the loss; look at log10 N from 3 to 11."),
    "8.2 the power of N": (near(0.63, 0.005), "beta / (alpha + beta); or best_size at two budgets."),
    "8.3 the power of T": (near(0.37, 0.005), "N T = C / 6, so the two powers sum to 1."),
    "8.4 a step of RL": (near(7.68e10, 1e8), "10 N for each of 32 x 8 x 30 tokens."),
    "8.5 the curves": (curves, "Keys 1e14, 1e15 and 1e16; for each a pair: an array of sizes, and loss(sizes, C / (6 sizes))."),
}
