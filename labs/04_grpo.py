# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 4: GRPO from scratch
#
# You write the two formulas that turn verified answers into a better policy, and train with them. 45 minutes, of which some 3 are computing.
#
# A *policy* is a model that answers a *prompt*, here the position of a puzzle, by sampling tokens; an *episode* is one such answer. A *verifier* pays it: *reward* 1 if it solves the
# puzzle, else 0.

# %%
import numpy as np
import torch
from lab import check, check_function, save, size, start_policy
from matplotlib.figure import Figure

from chessrl.checkpoint import load_model
from chessrl.endgame import load_puzzle_table
from chessrl.environment import build_environment
from chessrl.puzzles import prompt_tokens, puzzles_of_table
from chessrl.sampler import SamplingSettings, rollout
from chessrl.training import next_token_logprobs
from rl.update import build_batch

# %% [markdown]
# ## Advantages
#
# For each prompt G answers are sampled and paid 0 or 1. An answer's *advantage* says how much better it is than its group: GRPO takes
# (r - mean of the group) / (standard deviation of the group, population).
#
# **Exercise 4.1.** `rewards` is a float tensor of shape (prompts, G), a group in each row; return the advantages in the same shape. A group of equal rewards has advantage exactly 0: mind 0/0, and a standard deviation
# that is 1e-9 by rounding.

# %% name="advantages"
def advantages(rewards: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError


# %%
check_function("4.1 advantages", advantages)

# %% [markdown]
# ## The loss
#
# With ratio = pi_new / pi_old of each sampled token and the answer's advantage A, GRPO maximises
#
# min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) - beta (pi_ref / pi_new - log(pi_ref / pi_new) - 1)
#
# averaged over the tokens of each answer, then over answers. pi_old is the policy that sampled the answers, pi_ref the one that RL began with; the last term estimates how far from it
# the policy has gone (a KL divergence), and beta weighs it.
#
# **Exercise 4.2.** `new`, `old` and `reference` are log-probabilities of the tokens, tensors of shape (B, S) for B answers padded to S tokens; `advantages` is (B,); `mask` (B, S), bool,
# says which tokens the policy sampled: the others must not count. Return the scalar that is to be *minimised*.

# %% name="loss"
def grpo_loss(new, old, reference, advantages, mask, eps: float, beta: float) -> torch.Tensor:
    raise NotImplementedError


# %%
check_function("4.2 the loss", grpo_loss)

# %% [markdown]
# **Question 4.3.** A policy solves a puzzle once in ten tries. What share of groups of eight has any signal (two decimals)?
#
# **Question 4.4.** Before the first update after a rollout, with beta = 0 and equal lengths, what is the value of the loss?
#
# **Question 4.5.** And what moves the policy then: the loss's `"value"` or its `"gradient"`?

# %% name="answers"
share = ...
value = ...
moved_by = ...

# %%
check("4.3 groups that teach", share)
check("4.4 the loss before the first update", value)
check("4.5 what moves the policy then", moved_by)

# %% [markdown]
# ## Training
#
# The start: a small transformer that was pretrained on endgames and fine-tuned to answer puzzles. It is trained once, and kept.

# %%
directory = start_policy()
model, reference_model = load_model(directory / "model"), load_model(directory / "model")
puzzles = [puzzle for puzzle in puzzles_of_table(load_puzzle_table()) if puzzle.split == "rl" and puzzle.bin in ("B1", "B2")]
environment = build_environment(puzzles)
prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in puzzles]
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
GROUP, PROMPTS, STEPS = 8, size(16, 4), size(120, 3)


def episodes(step: int):
    """PROMPTS puzzles x GROUP sampled answers, puzzle-major; 1.0 for those that solve."""
    chosen = np.random.default_rng(step).choice(len(puzzles), PROMPTS, replace=False).tolist()
    settings = SamplingSettings("answer", 1.0, 0, seed=0, stage="lab", step=step)
    result = rollout(model, environment, chosen, [prompts[place] for place in chosen], GROUP, settings)
    return build_batch(result), result.solved.float()


# %% [markdown]
# **The figure.** Your loop over steps 1 to STEPS: sample, pay, compare within groups, make one step of the optimizer. `episodes(step)` gives (batch, solved), B = PROMPTS x GROUP:
#
# - `batch.tokens` (B, S + 1): the whole sequences, prompts and answers, padded;
# - `batch.policy` (B, S): which of the tokens *after the first* the policy sampled: your mask;
# - `batch.sampled` (B, S): their log-probabilities when they were sampled: your old;
# - `solved` (B,): the rewards, GROUP after GROUP.
#
# `next_token_logprobs(model, batch.tokens)` is (B, S): your new, and with `reference_model` under `torch.no_grad()` your reference. eps = 0.2 and beta = 0.001 do; clip the gradient's norm
# at 1 (`torch.nn.utils.clip_grad_norm_`). Put the mean reward of every step into `rewards_by_step`.

# %% name="training"
rewards_by_step = []

# %%
check("4.6 training", rewards_by_step, STEPS)
figure = Figure(figsize=(6, 3))
if rewards_by_step:
    axes = figure.subplots()
    axes.plot(np.arange(1, len(rewards_by_step) + 1), rewards_by_step, color="0.75", label="a step's mean reward")
    window = min(20, len(rewards_by_step))
    smooth = np.convolve(rewards_by_step, np.ones(window) / window, mode="valid")
    axes.plot(np.arange(window, len(rewards_by_step) + 1), smooth, label=f"mean of {window} steps")
    axes.set(xlabel="step", ylabel="share solved", ylim=(0, None))
    axes.legend()
    save(figure, "04_grpo")
