"""``python -m chessrl``: the pipeline; see ``--help``."""

import sys

from hydra.core.hydra_config import HydraConfig

from chessrl.config import Config
from chessrl.launch import launch


def work(config: Config) -> int:
    from chessrl.pipeline import StageFailed, run_pipeline

    try:
        return run_pipeline(config, HydraConfig.get().overrides.task)
    except StageFailed as failure:
        print(f"error: {failure}", file=sys.stderr, flush=True)
        return failure.status


if __name__ == "__main__":
    launch("chessrl", work)
