# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 7: theory against measurement
#
# GRPO has a theory of its own (Mroueh, arXiv 2503.06639): if every iteration maximised its objective exactly, the success probability of a puzzle would follow a recursion in
# one number. You write it, find where it ends, and hold it against gradient ascent. 40 minutes, under one of computing.

# %%
import numpy as np
import pandas as pd
from lab import OUTPUTS, check, check_function, run, save, size
from matplotlib.figure import Figure

# %% [markdown]
# ## The recursion
#
# An *iteration* samples from the present policy and then maximises GRPO's objective on these samples to the end. With success p before it, p_ref at the start of training, and a penalty of
# beta times KL(policy || start), the maximiser's success h(p) satisfies
#
# logit h = logit p_ref + 1 / (beta sqrt(p (1 - p) + smoothing)), where logit x = ln(x / (1 - x)),
#
# because the advantages of a right and of a wrong answer differ by 1 / sqrt(p (1 - p)) (the mean is p and the standard deviation sqrt(p (1 - p))). `smoothing` is a small number that keeps it
# finite at 0 and 1.
#
# **Exercise 7.1.** Write h, from probabilities to a probability.

# %% name="recursion"
def h(p: float, p_ref: float, beta: float, smoothing: float = 1e-5) -> float:
    raise NotImplementedError


# %%
check_function("7.1 the recursion", h)

# %% [markdown]
# **Exercise 7.2.** Iterate it `steps` times from p_ref; return the list of all steps + 1 values, the start included.

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
# `rl.tabular` has no network: a made-up puzzle is one table of move probabilities. It does what the theory supposes: gradient ascent on GRPO's objective, close to its maximum in every
# iteration. Its file has, for groups of puzzles with like success at the start, the mean success of the group: `start`, and `measured` after each iteration (`step`).

# %%
directory = run(
    "rl.tabular", "experiment=success_recursion", "tabular.variants=[std]", "tabular.betas=[1.0,5.0]", f"tabular.puzzles={size(300, 60)}",
    f"tabular.inner_steps={size(1000, 300)}", "tabular.steps=4",
)  # fmt: skip
(file,) = [path for path in directory.glob("*.csv") if "measured" in path.read_text().splitlines()[0]]
table = pd.read_csv(file)
print(table[["beta", "group", "puzzles", "step", "start", "measured"]].round(3).to_string(index=False))

# %% [markdown]
# **The figure.** For beta = 5, your path from each group's mean start as a line and the measured means as points. `lines` gets an entry for each group, by its name in the table: (your
# path, the list of measured means), both from step 0 on. The mean of many paths is not the path of the mean: small differences are no failure of the theory. The axis is logarithmic, so
# that the rare successes are seen: which groups settle at once, which swing? At beta = 1, further up in the table, the difference is not small: of the group 0.01-0.03, p = .01 ends solved and
# p = .02 at .2 (try your path).

# %% name="lines"
lines = {}

# %%
check("7.6 the lines", lines, table)
if lines:
    figure = Figure(figsize=(7, 3.6))
    axes = figure.subplots()
    for number, (group, (predicted, measured)) in enumerate(lines.items()):
        axes.plot(predicted, color=f"C{number}", label=f"p {group}")
        axes.plot(measured, "o", color=f"C{number}")
    axes.set(xlabel="iteration", ylabel="success\n(lines: theory, points: measured)", yscale="log", ylim=(None, 1))
    axes.set_xticks(range(len(measured)))
    axes.legend(title="at the start", fontsize=8, bbox_to_anchor=(1, 1))
    save(figure, "07_theory")
