"""``python -m chessrl``: the pipeline; see ``--help``."""

from chessrl.config import Config
from chessrl.launch import launch


def work(config: Config) -> int:
    from chessrl.pipeline import run_pipeline
    from chessrl.sweep import stage_overrides

    return run_pipeline(config, stage_overrides(config))


if __name__ == "__main__":
    launch("chessrl", work)
