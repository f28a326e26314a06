"""What Shen et al. (arXiv 2607.16097) print about scaling, to stand beside what is measured here. Theirs: 5M to 1B parameters, human games."""

from __future__ import annotations

import pandas as pd

LOSS_SURFACE = {"E": "0.412 ± 0.009", "alpha": "0.401 ± 0.040", "beta": "0.679 ± 0.029", "a": "0.63", "RMSE of log L": "0.0097"}  # n = 64, L < 1.0
FORM = "exponential"  # f(L) = alpha exp(-beta L) + gamma, on bins B3 and B4, at C_ref = 1e20
SPEARMAN = "-0.93 (C_ref 1e16) to -0.99 (1e20)"
SLOPE_TOKENS = "+0.84"  # Pearson of B with log10 T
SLOPE_LAW = {"b (per decade of T)": "about 0.017", "c (per decade of N)": "0.004 to 0.014"}
PREDICTION_RMSE = {
    ("run", "measured"): "0.0102",
    ("run", "surface"): "0.0194",
    ("parameters", "measured"): "0.0242",
}
FLOOR = "14.62 * 10^(-4.30 L), R2 0.70"
CEILINGS = "0.12 to 0.47 (ten 20M runs), linear in L with R2 0.90"
RL_SHARE = "about 20 % (at 50M) to 28 % (680M); 20M measured: 5 % to 32 % as compute grows"
# pass@k (in percent) of fine-tuned policies = scale 10^(slope L)
START_LAW = pd.DataFrame(
    [(1, 1838.0, -3.80, 0.77), (4, 1421.0, -2.98, 0.84), (8, 1060.0, -2.54, 0.87), (16, 789.0, -2.15, 0.89)],
    columns=["k", "scale_percent", "slope", "r_squared"],
)
LEVEL_LAW = {"alpha": "129.85", "beta": "12.85", "gamma": "0.0314", "R2": "0.980"}
