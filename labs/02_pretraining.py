# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 2: pretraining and its scaling
#
# The same model on more and more games: how does the loss fall, what does it cost, and can you say beforehand what a longer run will reach? 40 minutes, of which
# some 3 are computing.
#
# *N* is the number of a model's parameters without its embeddings, *T* the number of tokens that it is trained on, *L* its loss on games that it was not trained on: the mean of
# -ln p over the tokens of the moves, in nats. *FLOPs* are floating-point operations, multiplications and additions alike.

# %%
import numpy as np
from lab import OUTPUTS, check, check_function, policy_keys, run, save, size
from matplotlib.figure import Figure

from chessrl.run import read_summary

# %% [markdown]
# ## What it costs
#
# Training a model of N parameters on T tokens takes about 6 N T FLOPs: 2 forward and 4 backward for each parameter and token.
#
# **Exercise 2.1.** Write that function, and its inverse: how many tokens a budget of FLOPs buys a model of so many parameters.

# %% name="flops"
def training_flops(parameters: int, tokens: int) -> float:
    raise NotImplementedError


def affordable_tokens(flops: float, parameters: int) -> float:
    raise NotImplementedError


# %%
check_function("2.1 flops", training_flops)
check_function("2.1 tokens", affordable_tokens)

# %% [markdown]
# ## Three runs
#
# The smallest model, on three numbers of tokens; the fourth, longer run stays for the end. Each command could be typed; what is finished is found again.

# %%
BUDGETS = size([125_000, 250_000, 500_000], [20_000, 30_000, 45_000])
LONGER = size(1_000_000, 60_000)


def pretrained(tokens: int) -> dict:
    """The summary of the run on so many tokens."""
    return read_summary(run("pretrain", *policy_keys(f"pretrain.tokens={tokens}")))


runs = [pretrained(tokens) for tokens in BUDGETS]
tokens = np.array([summary["tokens"] for summary in runs], float)
losses = np.array([summary["validation/loss"] for summary in runs])
for summary in runs:
    parameters = summary["parameters"]["without_embeddings"]
    print(f"N = {parameters:,}, T = {summary['tokens']:,}: {summary['validation/loss']:.3f} nats per move token, {summary['flops']:.2e} FLOPs")

# %% [markdown]
# ## A law
#
# **Exercise 2.2.** Fit log10 L = a + b log10 T by least squares and return (a, b). `tokens` and `losses` are arrays of one length, a value for each run. (A law with a floor, L = E + B
# T^-beta, needs more runs than three.)

# %% name="power_law"
def power_law(tokens: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    raise NotImplementedError


# %%
check_function("2.2 power law", power_law)

# %% [markdown]
# **Question 2.3.** A batch holds 4,096 tokens. How many steps does a run of 1,000,000 tokens take?
#
# **Question 2.4.** At a fixed budget of FLOPs, you double N. By which factor does T change?
#
# **Question 2.5.** The loss of a model that knows the rules and nothing else: with 12 legal moves everywhere, all equally likely, and 3 tokens a move, how many nats
# per token (two decimals are enough)? Compare with the runs above.

# %% name="answers"
steps = ...
factor = ...
nats = ...

# %%
check("2.3 steps", steps)
check("2.4 tokens at twice the size", factor)
check("2.5 rules alone", nats)

# %% [markdown]
# ## The prediction
#
# **The figure.** Put the loss at `LONGER` tokens that your law says into `predicted`; only then is the longer run trained (some two minutes), and both are drawn. Beside them stand longer runs of
# the same model, from `docs/results/endgame`, which had another learning rate.

# %% name="prediction"
predicted = ...

# %%
check("2.6 the prediction", predicted, tokens, losses, LONGER)
PUBLISHED_TOKENS, PUBLISHED_LOSSES = np.array([4e5, 8e5, 1.6e6, 3.2e6]), np.array([2.473, 1.777, 1.141, 1.006])
if predicted is not ...:
    longer = pretrained(LONGER)
    print(f"predicted {predicted:.3f}, measured {longer['validation/loss']:.3f} nats per move token")
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    axes.loglog(tokens, losses, "o", label="the three runs")
    axes.loglog([longer["tokens"]], [longer["validation/loss"]], "s", label="the longer run")
    axes.loglog(PUBLISHED_TOKENS, PUBLISHED_LOSSES, "x:", color="0.4", label="docs/results/endgame")
    a, b = power_law(tokens, losses)
    line = np.geomspace(tokens[0], PUBLISHED_TOKENS[-1], 50)
    axes.loglog(line, 10 ** (a + b * np.log10(line)), color="0.6", label="the law of the three")
    axes.set(xlabel="T (tokens)", ylabel="L (nats per move token)")
    axes.set_xticks([1e5, 3e5, 1e6, 3e6], ["100k", "300k", "1M", "3M"])
    axes.set_yticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
    axes.minorticks_off()
    axes.legend()
    save(figure, "02_pretraining")

# %% [markdown]
# ## Where a law ends
#
# When this lab was written, the law of the three said 1.82 nats and the longer run reached 1.37: between half a million tokens and two million L falls faster than before. A power law holds
# within a regime, and three points do not say where theirs ends.
#
# **Question 2.7.** And afterwards? What does `power_law` of the first three runs of `docs/results/endgame` say for the fourth, 3.2 million tokens (two decimals)? Compare with what it reached.

# %% name="beyond"
beyond = ...

# %%
check("2.7 beyond the regime", beyond)
