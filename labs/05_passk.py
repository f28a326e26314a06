# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 5: pass@k, sharpening and redistribution
#
# RL makes the first answer better. Does it make the policy able to solve more, or only surer of what it could do? 45 minutes, of which some 4 are computing.

# %%
import numpy as np
import pandas as pd
from lab import check, check_function, policy_keys, run, save, size, start_policy
from matplotlib.figure import Figure

# %% [markdown]
# ## pass@k
#
# The chance that at least one of k sampled answers solves a puzzle. From n >= k samples of which c solved it, the unbiased estimate is 1 - C(n - c, k) / C(n, k), with C(n, k) the number of
# ways to choose k of n; from the success probability p of one answer it is 1 - (1 - p)^k.
#
# **Exercise 5.1.** Write both. The second takes an array of p, one for each puzzle, and returns an array of that shape; it must keep its digits at p = 1e-12: `numpy.log1p` and
# `numpy.expm1`.

# %% name="passk"
def pass_at_k(n: int, c: int, k: int) -> float:
    raise NotImplementedError


def exact_pass_at_k(p: np.ndarray, k: int) -> np.ndarray:
    raise NotImplementedError


# %%
check_function("5.1 from samples", pass_at_k)
check_function("5.1 exact", exact_pass_at_k)

# %% [markdown]
# ## Sharpening
#
# A policy is *sharpened* by a power alpha > 1 when each probability becomes p^alpha, and all are divided by their sum: what was likely becomes likelier, and the order of the moves stays. (A power
# below 1 flattens.) RL that does anything else *redistributes*.
#
# **Exercise 5.2.** `p` is one distribution over moves, an array (moves,) that sums to 1 and may hold zeros; return the sharpened one.

# %% name="sharpen"
def sharpen(p: np.ndarray, alpha: float) -> np.ndarray:
    raise NotImplementedError


# %%
check_function("5.2 sharpening", sharpen)

# %% [markdown]
# **Question 5.3.** A puzzle's right move has probability .3, the likeliest wrong one .4. In the limit of strong sharpening, what becomes of its pass@1?
#
# **Question 5.4.** And what becomes of its pass@1000, which was 1 before?
#
# **Question 5.5.** n = 16 samples, 3 solve. pass@4 (two decimals)?

# %% name="answers"
limit_at_1 = ...
limit_at_1000 = ...
estimate = ...

# %%
check("5.3 pass@1 in the limit", limit_at_1)
check("5.4 pass@1000 in the limit", limit_at_1000)
check("5.5 three of sixteen", estimate)

# %% [markdown]
# ## Before and after
#
# The start policy (pretrained on endgames, fine-tuned to answer puzzles), and RL from it. Neither writes a *trace*, lines of moves before its answer, so each puzzle's success
# probability is known exactly: it is a product of the probabilities of the answer's tokens.

# %%
start = start_policy()
trained = run("rl", *policy_keys(f"parent={start}"))
for directory in (start, trained):
    run("chessrl.evaluate", *policy_keys(f"parent={directory}"))


def evaluation(directory, name: str) -> pd.DataFrame:
    """A table of the run's evaluation, puzzles in one order."""
    (path,) = directory.glob(f"evaluations/*/{name}.parquet")
    return pd.read_parquet(path).sort_values(["puzzle", *(["decision"] if name == "policy" else [])], ignore_index=True)


before, after = (evaluation(directory, "exact")["p"].to_numpy() for directory in (start, trained))
print(f"mean success: {before.mean():.3f} before RL, {after.mean():.3f} after")

# %% [markdown]
# **The figure.** Mean pass@k of both policies for k from 1 to a million, and a third curve: the start policy sharpened by the one power that fits the trained policy best. To see moves and
# not tokens, take puzzles that one move solves, and each policy's probabilities of the legal moves, made to sum to 1: that is what `p_moves` (start) and `q_moves` (after RL) hold below, a
# pair (probabilities, places of the solving moves) for each puzzle, in one order.
#
# The best power: the alpha whose sharpened start p_alpha has the least mean KL divergence sum q (ln q - ln p_alpha), over the moves of a puzzle, then averaged over puzzles; keep logarithms
# finite with `np.maximum(p, 1e-12)`; a grid of alpha from 0.1 to 10 or `scipy.optimize.minimize_scalar` will do. `curves` gets three entries, in this order: a name for the legend to
# mean pass@k at each k of `KS`. If RL did nothing but sharpen, the third curve would be the second one's.

# %%
KS = np.unique(np.geomspace(1, 1e6, 25).astype(int))


def first_decisions(directory) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities over the legal moves, places of the solving ones) of every puzzle with one decision."""
    table = evaluation(directory, "policy")
    single = table.groupby("puzzle")["decision"].transform("max") == 0
    rows = [(np.asarray(row.logprobs, np.float64), np.asarray(row.solving)) for row in table[single].itertuples()]
    return [(np.exp(logprobs - np.logaddexp.reduce(logprobs)), solving) for logprobs, solving in rows]


p_moves, q_moves = first_decisions(start), first_decisions(trained)
print(f"{len(p_moves)} puzzles with one decision")

# %% name="curves"
curves = {}

# %%
check("5.6 the curves", curves, [p_moves, q_moves], KS)
if curves:
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    for name, values in curves.items():
        axes.semilogx(KS, values, label=name)
    axes.set(xlabel="k", ylabel="pass@k (one-decision puzzles)", ylim=(0, 1))
    axes.legend()
    save(figure, "05_passk")

# %% [markdown]
# When this lab was written, pass@1 among the legal moves rose from .31 to .44, the curves crossed between k = 5 and k = 10, and the best power was .85: it flattens, and its curve lies at the start's,
# not at that of RL. So RL did not sharpen here: in 20 % of these puzzles a solving move became the likeliest that had not been, in 10 % it was the other way round, and in 24 % success fell to less
# than half, which is why the start finds more with many samples. How weak such a policy is shows in the exact success of all puzzles, printed above: 68 % of its mass before RL and 70 % after
# lay on no legal move (in canonical spelling), which these curves leave out.
