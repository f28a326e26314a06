"""``python -m chessrl``: the pipeline; see ``--help``."""

from chessrl.config import Config
from chessrl.launch import launch


def work(config: Config) -> int:
    from chessrl.jobs import stage_overrides
    from chessrl.pipeline import run_pipeline

    return run_pipeline(config, stage_overrides())


if __name__ == "__main__":
    launch("chessrl", work)
