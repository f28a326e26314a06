# Answers to lab 8.

# %% name="optimum"
def best_size(flops: float) -> float:
    # d/dN of A N^-alpha + B (6N / C)^beta = 0
    return ((ALPHA * A / (BETA * B)) * (flops / 6) ** BETA) ** (1 / (ALPHA + BETA))


# %% name="answers"
power_of_n = round(BETA / (ALPHA + BETA), 2)
power_of_t = round(ALPHA / (ALPHA + BETA), 2)
step_flops = 10 * 1_000_000 * 32 * 8 * 30

# %% name="curves"
curves = {}
for flops in (1e14, 1e15, 1e16):
    sizes = np.geomspace(best_size(flops) / 30, best_size(flops) * 30, 200)
    curves[flops] = (sizes, loss(sizes, flops / (6 * sizes)))
