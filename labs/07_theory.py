# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 7: theory against measurement
#
# GRPO has a theory of its own (Mroueh, arXiv 2503.06639): if every iteration maximised its objective exactly, the success probability of a puzzle would follow a recursion in
# one number. You write it, find where it ends, and hold it against gradient ascent. 40 minutes, some 2 of computing.

# %%
import numpy as np
import pandas as pd
from lab import OUTPUTS, check, check_function, run, save, size
from matplotlib.figure import Figure

# %% [markdown]
# ## The recursion
#
# With success p at the last iteration, p_ref at the start, and a penalty of beta times KL(policy || start), the maximiser's success h(p) satisfies
#
# logit h = logit p_ref + 1 / (beta sqrt(p (1 - p) + smoothing))
#
# because the advantages of a right and of a wrong answer differ by 1 / sqrt(p (1 - p)).
#
# **Exercise 7.1.** Write h.

# %% name="recursion"
def h(p: float, p_ref: float, beta: float, smoothing: float = 1e-5) -> float:
    raise NotImplementedError


# %%
check_function("7.1 the recursion", h)

# %% [markdown]
# **Exercise 7.2.** Iterate it `steps` times from p_ref; return all values, the start included.

# %% name="path"
def path(p_ref: float, beta: float, steps: int, smoothing: float = 1e-5) -> list[float]:
    raise NotImplementedError


# %%
check_function("7.2 the path", path)

# %% [markdown]
# **Question 7.3.** Where does p_ref = .1 end at beta = 5 (three digits)?
#
# **Question 7.4.** And p_ref = .5 at beta = 1 (one digit)?
#
# **Question 7.5.** p_ref = .001, beta = 5: does it settle (`"settles"`), or does it jump between two values for ever (`"jumps"`)?

# %% name="answers"
end_a = ...
end_b = ...
behaviour = ...

# %%
check("7.3 an interior end", end_a)
check("7.4 a small beta", end_b)
check("7.5 a rare success", behaviour)

# %% [markdown]
# ## The measurement
#
# `rl.tabular` holds one table of move probabilities per puzzle, and does what the theory supposes: gradient ascent on GRPO's objective, close to its maximum in every
# iteration. Its file has, for groups of puzzles with like success at the start, what it measured.

# %%
directory = run(
    "rl.tabular", "experiment=success_recursion", "tabular.variants=[std]", "tabular.betas=[1.0,5.0]", f"tabular.puzzles={size(300, 60)}",
    f"tabular.inner_steps={size(1000, 300)}", "tabular.steps=4",
)  # fmt: skip
(file,) = [path for path in directory.glob("*.csv") if "measured" in path.read_text().splitlines()[0]]
table = pd.read_csv(file)
print(table[["beta", "group", "puzzles", "step", "start", "measured"]].round(3).to_string(index=False))

# %% [markdown]
# **The figure.** Draw, for beta = 5, your path from each group's mean start as a line and the measured means as points. (The mean of a path is not the path of the mean: small
# differences within a group are no failure of the theory.) `lines` gets an entry for each group: (your path, the measured means).

# %% name="lines"
lines = {}

# %%
if lines:
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    for number, (group, (predicted, measured)) in enumerate(lines.items()):
        axes.plot(predicted, color=f"C{number}", label=f"p {group}")
        axes.plot(measured, "o", color=f"C{number}")
    axes.set(xlabel="outer iteration", ylabel="success (lines: theory, points: measured)", ylim=(0, 1))
    axes.legend(title="at the start", fontsize=8)
    save(figure, "07_theory")
