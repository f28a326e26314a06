# Answers to lab 2.

# %% name="flops"
def training_flops(parameters: int, tokens: int) -> float:
    return 6 * parameters * tokens


def affordable_tokens(flops: float, parameters: int) -> float:
    return flops / (6 * parameters)


# %% name="power_law"
def power_law(tokens: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    b, a = np.polyfit(np.log10(tokens), np.log10(losses), 1)
    return a, b


# %% name="answers"
steps = 245  # 1,000,000 / 4,096, the last one smaller
factor = 0.5
nats = np.log(12) / 3

# %% name="prediction"
a, b = power_law(tokens, losses)
predicted = 10 ** (a + b * np.log10(LONGER))

# %% name="beyond"
a, b = power_law(PUBLISHED_TOKENS[:3], PUBLISHED_LOSSES[:3])
beyond = 10 ** (a + b * np.log10(PUBLISHED_TOKENS[3]))  # 0.79, and it reached 1.006: the law errs to the other side
