"""pass@k against thinking tokens follows from a run's evaluations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.thinking import main
from chessrl.errors import UserError
from chessrl.evaluate import evaluate, evaluation_folder
from tests import tiny


def test_the_curve_holds_every_budget_with_the_tokens_that_were_written(tiny_runs, tmp_path):
    run = Path(shutil.copytree(tiny_runs["sft"], tmp_path / tiny_runs["sft"].name))
    with pytest.raises(UserError, match="no evaluation with traces of split=test"):
        main([f"run={run}", f"out={tmp_path / 'none'}"])
    folders = {}
    for budget in (0, 4, 12):
        overrides = ["evaluate.thinking=forced", f"evaluate.thinking_budget={budget}", "evaluate.max_puzzles=12"]
        config = tiny.config("evaluate", tmp_path, f"parent={run}", *overrides)
        assert evaluate(config) == 0
        folders[budget] = evaluation_folder(config)
    assert evaluate(tiny.config("evaluate", tmp_path, f"parent={run}", "evaluate.protocol=answer", "evaluate.max_puzzles=12")) == 0
    main([f"run={run}", f"out={tmp_path / 'made'}"])
    table = pd.read_csv(tmp_path / "made" / "thinking.csv")
    assert len(table) == 3 * 3 and set(table["protocol"]) == {"think-forced"}  # budgets x ks, without the protocol that does not think
    for row in table.itertuples():
        samples = pd.read_parquet(folders[row.thinking_budget] / "samples.parquet")
        assert row.thinking_tokens == pytest.approx(samples["trace_length"].mean()) and row.thinking_tokens <= row.thinking_budget
        if row.k == 1:
            assert row.pass_at_k == pytest.approx(samples["solved"].mean())
    assert (tmp_path / "made" / "thinking.png").stat().st_size > 5000
