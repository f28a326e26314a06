# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 8: plan a budget
#
# You have C floating-point operations (FLOPs). How large a model, on how many tokens, and what is left for RL? 40 minutes, some seconds of computing.
#
# N is the number of parameters without embeddings, T the number of tokens of pretraining, L the loss in nats per move token (lab 2).

# %%
import numpy as np
from lab import check, check_function, policy_keys, run, save
from matplotlib.figure import Figure

# %% [markdown]
# ## The surface
#
# Pretraining losses are described by L(N, T) = E + A N^-alpha + B T^-beta. For chess the reference study prints E = .412, alpha = .401, beta = .679 (its A and B are
# not printed: those below are made up so that the numbers look like a small model's).

# %%
E, A, ALPHA, B, BETA = 0.412, 60.0, 0.401, 9000.0, 0.679


def loss(parameters, tokens):
    """Nats per move token."""
    return E + A * parameters**-ALPHA + B * tokens**-BETA


# %% [markdown]
# **Exercise 8.1.** At a fixed C = 6 N T the loss is a function of N alone. Return the N that makes it least, to 1 %, by any method: a derivative by hand, a grid of log10 N, or
# scipy.optimize.minimize_scalar over log10 N.

# %% name="optimum"
def best_size(flops: float) -> float:
    raise NotImplementedError


# %%
check_function("8.1 the best size", best_size)

# %% [markdown]
# **Question 8.2.** The best N grows like C to a power. Which (two decimals)?
#
# **Question 8.3.** And the best T?
#
# **Question 8.4.** RL on one token of a rollout costs 2N for sampling, 2N for the reference's log-probabilities and 6N for one update: 10N. A rollout of G = 8 answers of 30 tokens each (prompt
# included) to 32 prompts: how many FLOPs is a step at N = 1,000,000?

# %% name="answers"
power_of_n = ...
power_of_t = ...
step_flops = ...

# %%
check("8.2 the power of N", power_of_n)
check("8.3 the power of T", power_of_t)
check("8.4 a step of RL", step_flops)

# %% [markdown]
# ## What the laboratory says
#
# Of `budget.flops` a share `budget.alpha` goes to pretraining, at 6 N a token, the rest to RL, at your 10 N a token of a rollout; fine-tuning is paid on top. The laboratory turns it into
# tokens and steps; `dry_run=true` starts nothing. (GPU-hours are for a GPU of assumed speed: keys of the last line.) Check a line by hand: N is printed first. Then try other shares, and other
# sizes: `model=micro`.

# %%
for share in (0.25, 0.5, 0.75):
    run("chessrl", *policy_keys("budget.flops=4e12", f"budget.alpha={share}", "budget.rollout_tokens=30", "dry_run=true"))

# %% [markdown]
# **The figure.** IsoFLOP curves: for C of 1e14, 1e15 and 1e16, the loss against N, with the optimum marked. `curves` gets an entry for each C, with C as its key: (sizes, losses), two
# arrays, from sizes well below the optimum to well above it.

# %% name="curves"
curves = {}

# %%
check("8.5 the curves", curves)
if curves:
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    for number, (flops, (sizes, losses)) in enumerate(curves.items()):
        axes.semilogx(sizes, losses, color=f"C{number}", label=f"C = {flops:.0e} FLOPs")
        best = best_size(flops)
        axes.plot([best], [loss(best, flops / (6 * best))], "o", color=f"C{number}")
    axes.set(xlabel="N (parameters)", ylabel="L (nats per move token)", ylim=(0.4, 1.4))
    axes.legend()
    save(figure, "08_plan")
