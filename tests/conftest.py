"""Shared test set-up: repeatable property tests, `gpu` tests only where a CUDA device is found, and three tiny runs to look at."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# One thread, also in the processes that tests start: several threads for matrices this small cost far more than they save.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts what it runs in the background with Ctrl-C ignored, and every child inherits that: tests that interrupt a child would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, no clock, no example database: a failure repeats, and a slow machine fails nothing.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if "gpu" in item.keywords]
    if not gpu_items:
        return
    import torch  # here, because most test files do not need its seconds of import

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished run directories of pretrain, sft and rl at the size of tests/tiny.py. To be read only."""
    from tests import tiny  # here, because most test files do not need its seconds of import

    return tiny.run_all(tmp_path_factory.mktemp("tiny"))
