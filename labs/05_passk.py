# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 5: pass@k, sharpening and redistribution
#
# RL makes the first answer better. Does it make the policy able to solve more, or only surer of what it could do? 45 minutes, of which some 8 are computing.

# %%
import numpy as np
import pandas as pd
from lab import check, check_function, policy_keys, run, save, size, start_policy
from matplotlib.figure import Figure

# %% [markdown]
# ## pass@k
#
# The chance that at least one of k samples solves a puzzle. From n >= k samples of which c solved it, the unbiased estimate is 1 - C(n - c, k) / C(n, k); from the
# success probability p itself it is 1 - (1 - p)^k.
#
# **Exercise 5.1.** Write both. The second must keep its digits at p = 1e-12: `numpy.log1p` and `numpy.expm1`.

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
# A policy is *sharpened* by a power alpha when each probability becomes p^alpha, and all are divided by their sum.
#
# **Exercise 5.2.** `p` is one distribution, (moves,).

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
# **Question 5.5.** n = 16 samples, 3 solve. pass@4?

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
# The start policy, and RL from it. Neither writes a trace, so each puzzle's success probability is known exactly.

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
# **The figure.** Draw mean pass@k of both policies for k from 1 to a million, and a third curve: the start policy sharpened by the one power that fits the trained policy
# best. `policy` has every legal move's log-probability at each decision; take decision 0 of puzzles with one decision, renormalised over the legal moves. If RL did nothing but
# sharpen, the third curve would be the second one's.

# %%
KS = np.unique(np.geomspace(1, 1e6, 25).astype(int))


def first_decisions(directory) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities over the legal moves, places of the solving ones) of every puzzle with one decision."""
    table = evaluation(directory, "policy")
    single = table.groupby("puzzle")["decision"].transform("max") == 0
    rows = table[single].itertuples()
    return [(np.exp(row.logprobs - np.logaddexp.reduce(row.logprobs)), np.asarray(row.solving)) for row in rows]


p_moves, q_moves = first_decisions(start), first_decisions(trained)
print(f"{len(p_moves)} puzzles with one decision")

# %% name="curves"
curves = {}

# %%
if curves:
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    for name, values in curves.items():
        axes.semilogx(KS, values, label=name)
    axes.set(xlabel="k", ylabel="pass@k (one-decision puzzles)", ylim=(0, 1))
    axes.legend()
    save(figure, "05_passk")
