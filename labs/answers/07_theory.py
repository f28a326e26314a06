# Answers to lab 7.

# %% name="recursion"
def h(p: float, p_ref: float, beta: float, smoothing: float = 1e-5) -> float:
    x = np.log(p_ref / (1 - p_ref)) + 1 / (beta * np.sqrt(p * (1 - p) + smoothing))
    return 1 / (1 + np.exp(-x))


# %% name="path"
def path(p_ref: float, beta: float, steps: int, smoothing: float = 1e-5) -> list[float]:
    values = [p_ref]
    for _ in range(steps):
        values.append(h(values[-1], p_ref, beta, smoothing))
    return values


# %% name="answers"
end_a = round(path(0.1, 5, 100)[-1], 3)
end_b = round(path(0.5, 1, 100)[-1], 1)
behaviour = "jumps"

# %% name="lines"
lines = {}
for group, rows in table[table["beta"] == 5.0].groupby("group", sort=False):
    rows = rows.sort_values("step")
    lines[group] = (path(rows["start"].iloc[0], 5.0, int(rows["step"].max())), rows["measured"].tolist())
