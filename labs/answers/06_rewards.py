# Answers to lab 6.

# %% name="gap"
def advantage_gap(p: float, tpr: float, fpr: float) -> float:
    j = tpr - fpr
    q = fpr + j * p
    return j / np.sqrt(q * (1 - q))


# %% name="ceiling"
def ceiling(p: float, tpr: float, fpr: float) -> float:
    return p * tpr / (p * tpr + (1 - p) * fpr)


# %% name="answers"
youden = 0.81
moves = False
truth = 0.2  # among the accepted as among all

# %% name="active"
active_truth = 1 - 0.95**8 - 0.05**8
active_coin = 1 - 2 * 0.5**8

# %% name="changes"
rng = np.random.default_rng(0)
drawn = rng.integers(0, len(successes["start"]), (2000, len(successes["start"])))
changes = {}
for name in REWARDS:
    difference = successes[name] - successes["start"]
    means = difference[drawn].mean(1)
    changes[name] = (difference.mean(), *np.quantile(means, [0.025, 0.975]))
