"""Shared test set-up: repeatable property tests, and `gpu` tests only where a CUDA device is found."""

from __future__ import annotations

import pytest
from hypothesis import settings

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
