# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 6: rewards that say nothing, verifiers that err
#
# What of a gain is owed to the reward? Train from one start with the truth, with a verifier that errs now and then, with one whose verdict is worth nothing, and with coin flips.
# 45 minutes, of which some 5 are computing.
#
# GRPO samples a group of answers to each puzzle, pays each by a *verifier* 0 or 1, and pushes the policy towards an answer by its *advantage*, (payment - mean of the group) / standard
# deviation of the group (lab 4).

# %%
import numpy as np
import pandas as pd
from lab import check, check_function, policy_keys, run, save, start_policy
from matplotlib.figure import Figure

# %% [markdown]
# ## What flips do to an advantage
#
# A verifier accepts (pays 1 for) a right answer with probability TPR, the true positive rate, and a wrong one with FPR, the false positive rate, drawn anew for every answer; J = TPR - FPR
# is *Youden's J*. With success probability p it accepts a share q = FPR + J p. GRPO divides by the standard deviation of what was paid.
#
# **Exercise 6.1.** By how much is the expected advantage of a right answer above that of a wrong one, in large groups? All three arguments are probabilities.

# %% name="gap"
def advantage_gap(p: float, tpr: float, fpr: float) -> float:
    raise NotImplementedError


# %%
check_function("6.1 the gap", advantage_gap)

# %% [markdown]
# ## Errors that stay
#
# Now each *answer* has its verdict for good: a share TPR of the right ones is accepted, a share FPR of the wrong ones, always the same. RL can then learn to be accepted.
#
# **Exercise 6.2.** p is the share of right answers at the start. If in the end only accepted answers are given, and RL never changes the shares *among* the accepted ones: what share of
# the answers is right then?

# %% name="ceiling"
def ceiling(p: float, tpr: float, fpr: float) -> float:
    raise NotImplementedError


# %%
check_function("6.2 the ceiling", ceiling)

# %% [markdown]
# **Question 6.3.** J of a verifier that accepts 86 % of the right answers and 5 % of the wrong ones?
#
# **Question 6.4.** A verifier accepts everything with probability 1/2, right or wrong. Does GRPO's expected gradient, without clipping and in large groups, move the policy? `True` or
# `False`.
#
# **Question 6.5.** p = .2, and the errors stay, with TPR = FPR = .5. The training reward rises to 1. Where does the true success end (a probability)?

# %% name="answers"
youden = ...
moves = ...
truth = ...

# %%
check("6.3 Youden's J", youden)
check("6.4 coin flips", moves)
check("6.5 hacking that looks like progress", truth)

# %% [markdown]
# ## Four rewards, one start
#
# One update per rollout, so the policy is the one that sampled and no ratio is ever clipped. Errors are drawn anew, as in 6.1. "Worth nothing" and "random" both flip a coin for
# every answer, with other random numbers. By 6.4 they should leave the policy where it is: note what you expect before you look. Success is measured exactly, as a probability: no noise is
# left but that of the training itself.

# %%
REWARDS = {
    "truth": ["reward=line"],
    "errs (.86, .05)": ["reward=noisy_line", "reward.true_positive_rate=0.86", "reward.false_positive_rate=0.05"],
    "worth nothing (.5, .5)": ["reward=noisy_line", "reward.true_positive_rate=0.5", "reward.false_positive_rate=0.5"],
    "random": ["reward=random"],
}
start = start_policy()


def success(directory) -> np.ndarray:
    """Exact success of every validation puzzle."""
    run("chessrl.evaluate", *policy_keys(f"parent={directory}"))
    (path,) = directory.glob("evaluations/*/exact.parquet")
    return pd.read_parquet(path).sort_values("puzzle")["p"].to_numpy()


successes = {"start": success(start)}
for name, keys in REWARDS.items():
    successes[name] = success(run("rl", *policy_keys(f"parent={start}", *keys)))
print({name: round(float(values.mean()), 4) for name, values in successes.items()})

# %% [markdown]
# **The figure.** `successes` has an array for "start" and for each reward: the success probability of every puzzle, in one order. For each reward, the mean change of a puzzle's success
# against the start, with a 95 % interval by bootstrap over puzzles: draw as many puzzles as there are, with replacement, some 2,000 times; take the mean change of each draw; the interval
# goes from the 2.5 % to the 97.5 % quantile of these means. `changes` gets (mean, low, high) for each name of `REWARDS`.
#
# The interval says what other *puzzles* would have shown of these very runs. It does not say what other *seeds* would have: `docs/results/spurious_rewards` has five seeds of each reward,
# `docs/results/noisy_verifier` three.

# %% name="changes"
changes = {}

# %%
check("6.6 the changes", changes, successes)
if changes:
    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    middle, low, high = np.array(list(changes.values())).T
    axes.errorbar(np.arange(len(changes)), middle, [middle - low, high - middle], fmt="o", capsize=3)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xticks(np.arange(len(changes)), list(changes))
    axes.set(xlabel="reward that RL was given", ylabel=f"change of mean success\n(start: {successes['start'].mean():.3f})")
    save(figure, "06_rewards")

# %% [markdown]
# ## Theory and figure
#
# When this lab was written, the truth raised the start's .055 to .081; the verifier that errs, with J = .81, lowered it to .032; both coin flips ended at .000. So an *expected* gradient of zero does not
# leave a policy alone. Each single step has a gradient, in some direction, and the optimizer (Adam) makes steps whose length hardly depends on whether it means anything: sixty of them are
# a random walk, and most directions lead away from the little that a weak policy can do. With the truth most groups have equal payments, and no gradient at all. And the verifier
# that errs: at p = .05 more than half of the answers that it accepts are wrong (your `ceiling(.05, .86, .05)`).
#
# **Question 6.7.** A policy solves with p = .05. What share of groups of eight answers has payments that differ, with the truth, and with coin flips (two decimals each)?

# %% name="active"
active_truth = ...
active_coin = ...

# %%
check("6.7 groups with the truth", active_truth)
check("6.7 groups with coin flips", active_coin)

# %% [markdown]
# What would smaller steps do? Add `"rl.optimizer.lr=7e-5"` (the lab's is 3e-4) to a reward's keys and run the last cells again. In `docs/results/spurious_rewards`, at that rate, 20 steps and one update per rollout,
# coin flips changed pass@1 by -0.4 points [-1.3, +0.5].
