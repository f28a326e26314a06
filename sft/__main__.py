"""``python -m sft``: see ``--help``."""

from chessrl.config import Config
from chessrl.launch import launch


def work(config: Config) -> int:
    from chessrl.training import start_stage  # torch is imported only when there is work: --help stays quick
    from sft.train import identity, train

    return start_stage("sft", config, identity, train)


if __name__ == "__main__":
    launch("sft", work)
