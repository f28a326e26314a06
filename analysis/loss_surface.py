"""Pretraining loss as a function of parameters and tokens: the Chinchilla surface, what its design can identify, and isoFLOP curves.

L(N, T) = E + A / N^alpha + B / T^beta (Hoffmann et al. 2022, arXiv 2203.15556, eq. 2), N without embeddings, T in tokens, L in nats per move token.
Fitted as there by the SUM of Huber losses of log residuals. Averaging it, with an optimiser's default tolerance, ends the search early and makes
the intervals far too narrow (Besiroglu et al. 2024, arXiv 2404.10102).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from chessrl.errors import UserError
from chessrl.statistics import LEVEL

HUBER_DELTA = 1e-3
MINIMUM_CELLS = 6  # one more than there are constants
POLISHED_STARTS = 40  # of the grid: the ones with the lowest sums
BOOTSTRAP_STARTS = 4
_STARTS = np.array(
    list(product(np.arange(0.0, 26.0, 5.0), np.arange(0.0, 26.0, 5.0), np.arange(-1.0, 1.1, 0.5), np.arange(0.0, 2.1, 0.5), np.arange(0.0, 2.1, 0.5)))
)  # (4500, 5): log A, log B, log E, alpha, beta, the grid of the paper
_BOUNDS = ((-10.0, 60.0), (-10.0, 60.0), (-20.0, 5.0), (0.0, 4.0), (0.0, 4.0))
NAMES = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True, slots=True)
class LossSurface:
    """The five constants; ``log_a`` and ``log_b`` are kept as logarithms, since A and B span many decades."""

    log_e: float
    log_a: float
    log_b: float
    alpha: float
    beta: float

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """L at (N, T), nats per move token; arguments broadcast."""
        return np.exp(self.log_e) + np.exp(self.log_a - self.alpha * np.log(parameters)) + np.exp(self.log_b - self.beta * np.log(tokens))

    def constants(self) -> dict[str, float]:
        """E, A, B, alpha, beta."""
        return {
            "E": float(np.exp(self.log_e)), "A": float(np.exp(self.log_a)), "B": float(np.exp(self.log_b)), "alpha": self.alpha, "beta": self.beta,
        }  # fmt: skip

    def optimal_exponent(self) -> float:
        """a in N_opt ~ C^a: beta / (alpha + beta)."""
        return self.beta / (self.alpha + self.beta)

    def optimal_parameters(self, flops: float) -> float:
        """N of the lowest loss at C = 6NT (arXiv 2203.15556, eq. 4)."""
        log_g = (np.log(self.alpha) + self.log_a - np.log(self.beta) - self.log_b) / (self.alpha + self.beta)
        return float(np.exp(log_g + self.optimal_exponent() * np.log(flops / 6)))


@dataclass(frozen=True, slots=True)
class SurfaceFit:
    """A fitted surface with what is known about it. ``intervals``: (low, high) of NAMES and of the exponent a, by bootstrap over cells."""

    surface: LossSurface
    rmse: float  # of log L
    cells: int
    samples: tuple[LossSurface, ...]  # of the bootstrap
    warnings: tuple[str, ...]

    def intervals(self) -> dict[str, tuple[float, float]]:
        rows = [sample.constants() | {"a": sample.optimal_exponent()} for sample in self.samples]
        ends = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
        return {name: tuple(float(end) for end in np.quantile([row[name] for row in rows], ends)) for name in (*NAMES, "a")}


def _log_loss(constants: np.ndarray, log_n: np.ndarray, log_t: np.ndarray) -> np.ndarray:
    """log L (starts, cells) of constants (starts, 5) in the order log A, log B, log E, alpha, beta."""
    a, b, e, alpha, beta = (column[:, None] for column in constants.T)
    terms = np.broadcast_arrays(a - alpha * log_n, b - beta * log_t, e)
    return logsumexp(np.stack(terms), axis=0)


def _huber(residuals: np.ndarray) -> np.ndarray:
    size = np.abs(residuals)
    return np.where(size <= HUBER_DELTA, 0.5 * residuals**2, HUBER_DELTA * (size - 0.5 * HUBER_DELTA))


def _objective(constants: np.ndarray, log_n: np.ndarray, log_t: np.ndarray, log_loss: np.ndarray) -> tuple[float, np.ndarray]:
    """Sum of Huber losses and its gradient. Divided by delta, so that the optimiser sees numbers near 1."""
    a, b, e, alpha, beta = constants
    terms = np.stack([a - alpha * log_n, b - beta * log_t, np.full_like(log_n, e)])
    predicted = logsumexp(terms, axis=0)
    residuals = predicted - log_loss
    slope = np.clip(residuals / HUBER_DELTA, -1.0, 1.0)
    shares = np.exp(terms - predicted) * slope  # (3, cells)
    gradient = np.array([shares[0].sum(), shares[1].sum(), shares[2].sum(), -(shares[0] * log_n).sum(), -(shares[1] * log_t).sum()])
    return float(_huber(residuals).sum() / HUBER_DELTA), gradient


def _best(starts: np.ndarray, log_n: np.ndarray, log_t: np.ndarray, log_loss: np.ndarray) -> tuple[np.ndarray, float]:
    found = [
        minimize(
            _objective, start, args=(log_n, log_t, log_loss), jac=True, method="L-BFGS-B", bounds=_BOUNDS,
            options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 20},
        )
        for start in starts
    ]  # fmt: skip
    best = min(found, key=lambda result: result.fun)
    return best.x, float(best.fun)


def fit_loss_surface(
    parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray, *, rng: np.random.Generator, resamples: int = 200
) -> SurfaceFit:
    """Fit the surface to cells (N, T, L), (cells,) each; ``resamples`` refits over cells drawn with replacement give the intervals.

    All 4,500 starts of the paper's grid are looked at, the best are followed to their minimum. What the design cannot tell apart is
    said in ``warnings``. Raises UserError with fewer than MINIMUM_CELLS cells, one size or one token count, or values that are not positive.
    """
    n, t, losses = (np.asarray(values, np.float64) for values in (parameters, tokens, losses))
    if len(n) < MINIMUM_CELLS or len(np.unique(n)) < 2 or len(np.unique(t)) < 2:
        raise UserError(
            f"the loss surface has 5 constants: expected at least {MINIMUM_CELLS} runs with 2 sizes and 2 token counts, "
            f"found {len(n)} runs, {len(np.unique(n))} sizes, {len(np.unique(t))} token counts; train more of them"
        )
    if not (np.isfinite([n, t, losses]).all() and (np.array([n, t, losses]) > 0).all()):
        raise UserError("the loss surface needs positive, finite sizes, tokens and losses; leave unfinished runs out")
    data = (np.log(n), np.log(t), np.log(losses))
    sums = _huber(_log_loss(_STARTS, data[0], data[1]) - data[2]).sum(1)
    best, _ = _best(_STARTS[np.argsort(sums, kind="stable")[:POLISHED_STARTS]], *data)
    samples = []
    for _ in range(resamples):
        drawn = _drawn_cells(n, t, rng)
        part = tuple(values[drawn] for values in data)
        near = best + rng.normal(0.0, [0.5, 0.5, 0.3, 0.05, 0.05], size=(BOOTSTRAP_STARTS - 1, 5))
        samples.append(_surface(_best(np.clip([best, *near], *np.array(_BOUNDS).T), *part)[0]))
    surface = _surface(best)
    rmse = float(np.sqrt(np.mean((np.log(surface.loss(n, t)) - data[2]) ** 2)))
    return SurfaceFit(surface, rmse, len(n), tuple(samples), tuple(design_warnings(n, t, surface, samples)))


def _drawn_cells(n: np.ndarray, t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cells with replacement; a draw with one size or one token count, which has no fit, is drawn again."""
    while True:
        drawn = rng.integers(0, len(n), len(n))
        if len(np.unique(n[drawn])) > 1 and len(np.unique(t[drawn])) > 1:
            return drawn


def _surface(constants: np.ndarray) -> LossSurface:
    a, b, e, alpha, beta = map(float, constants)
    return LossSurface(e, a, b, alpha, beta)


def design_warnings(n: np.ndarray, t: np.ndarray, surface: LossSurface, samples: list[LossSurface]) -> list[str]:
    """What the runs cannot identify: too few sizes or token counts, T tied to N, or constants that the bootstrap leaves open."""
    warnings = []
    for name, values in (("sizes", n), ("token counts", t)):
        distinct = len(np.unique(values))
        if distinct < 3:
            warnings.append(f"{distinct} {name}: three are needed to tell an exponent from an offset")
        elif values.max() / values.min() < 4:
            warnings.append(f"{name} span a factor of {values.max() / values.min():.2g}: an exponent needs a wider range")
    tied = np.corrcoef(np.log(n), np.log(t))[0, 1]
    if abs(tied) > 0.95:
        warnings.append(f"log N and log T are correlated {tied:.2f}: alpha and beta cannot be told apart; vary T at a fixed N")
    for name in ("alpha", "beta"):
        values = np.array([getattr(sample, name) for sample in samples])
        if len(values) and np.quantile(values, 0.975) - np.quantile(values, 0.025) > max(getattr(surface, name), 0.2):
            warnings.append(f"{name} is not identified: its interval is as wide as its value")
        if getattr(surface, name) < 1e-3:
            warnings.append(f"{name} is zero at the best fit: the loss does not depend on that variable, or too few runs show it")
    if np.exp(surface.log_e) < 1e-3:
        warnings.append("E is zero at the best fit: the runs are too far from the floor to show it")
    return warnings


# ---- isoFLOP curves ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsoFlop:
    """Parabola of L in log N at one compute C = 6NT, and its vertex; ``inside``: the vertex lies between the smallest and largest N tried."""

    flops: float
    parameters: float  # N of the lowest loss
    loss: float
    curvature: float  # of L per (log N)^2
    inside: bool


def fit_isoflop(parameters: np.ndarray, losses: np.ndarray, flops: float) -> IsoFlop:
    """arXiv 2203.15556, approach 2. Raises UserError with fewer than three sizes, or where the curve is not convex and so has no optimum."""
    if len(np.unique(parameters)) < 3:
        raise UserError(f"an isoFLOP curve at C={flops:.3g} needs three sizes, found {len(np.unique(parameters))}; train more of them")
    x = np.log(np.asarray(parameters, np.float64))
    centre = x.mean()
    curvature, slope, level = np.polyfit(x - centre, losses, 2)
    if curvature <= 0:
        raise UserError(f"the isoFLOP curve at C={flops:.3g} has no minimum: its sizes lie on one side of the optimum; train some on the other")
    vertex = -slope / (2 * curvature)
    inside = x.min() <= vertex + centre <= x.max()
    return IsoFlop(flops, float(np.exp(vertex + centre)), float(level + slope * vertex / 2), float(curvature), bool(inside))
