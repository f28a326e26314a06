"""``python -m analysis "runs=[...]"``: see ``--help``."""

from pathlib import Path

from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.launch import launch


def work(config: Config) -> int:
    from analysis.report import run_analysis, run_tabular_analysis  # seaborn is imported only when there is work: --help stays quick
    from analysis.tabular import is_tabular

    if not config.runs:
        raise UserError('runs is empty: give run directories, such as "runs=[outputs/pretrain-0123456789ab,outputs/sft-0123456789ab]"')
    from chessrl.run import digest

    out = Path(config.outputs) / f"analysis-{digest(sorted(Path(run).name for run in config.runs))}"
    runs = [Path(run) for run in config.runs]
    tabular = [run for run in runs if is_tabular(run)]
    stages = [run for run in runs if run not in tabular]
    analysis = run_analysis(stages, out, config.analysis, tabular) if stages else run_tabular_analysis(runs, out)
    print(f"{analysis.terminal}\n\nreport: {analysis.report}", flush=True)
    return 0


if __name__ == "__main__":
    launch("analysis", work)
