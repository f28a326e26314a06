"""``python -m analysis "runs=[...]"``: see ``--help``."""

from pathlib import Path

from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.launch import launch


def work(config: Config) -> int:
    from analysis.report import run_analysis  # pandas and seaborn are imported only when there is work: --help stays quick

    if not config.runs:
        raise UserError('runs is empty: give run directories, such as "runs=[outputs/pretrain-0123456789ab,outputs/sft-0123456789ab]"')
    from chessrl.run import digest

    out = Path(config.outputs) / f"analysis-{digest(sorted(Path(run).name for run in config.runs))}"
    analysis = run_analysis([Path(run) for run in config.runs], out)
    print(f"{analysis.terminal}\n\nreport: {analysis.report}", flush=True)
    return 0


if __name__ == "__main__":
    launch("analysis", work)
