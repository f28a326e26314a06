# Answers to lab 5.

# %% name="passk"
def pass_at_k(n: int, c: int, k: int) -> float:
    from math import comb

    return 1 - comb(n - c, k) / comb(n, k)


def exact_pass_at_k(p: np.ndarray, k: int) -> np.ndarray:
    return -np.expm1(k * np.log1p(-p))


# %% name="sharpen"
def sharpen(p: np.ndarray, alpha: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        scaled = alpha * np.log(p)
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


# %% name="answers"
limit_at_1 = 0.0
limit_at_1000 = 0.0
estimate = pass_at_k(16, 3, 4)

# %% name="curves"
from scipy.optimize import minimize_scalar


def divergence(alpha: float) -> float:
    """Mean KL from the trained policy to the sharpened start."""
    terms = []
    for (p, _), (q, _) in zip(p_moves, q_moves):
        fitted = np.maximum(sharpen(p, alpha), 1e-12)
        terms.append(np.sum(q * (np.log(np.maximum(q, 1e-12)) - np.log(fitted))))
    return float(np.mean(terms))


alpha = minimize_scalar(divergence, bounds=(0.1, 10), method="bounded").x


def solved(policies, power: float = 1.0) -> np.ndarray:
    return np.array([min(sharpen(p, power)[solving].sum(), 1.0) for p, solving in policies])


curves = {
    "start": [exact_pass_at_k(solved(p_moves), k).mean() for k in KS],
    "after RL": [exact_pass_at_k(solved(q_moves), k).mean() for k in KS],
    f"start, to the power {alpha:.2f}": [exact_pass_at_k(solved(p_moves, alpha), k).mean() for k in KS],
}
