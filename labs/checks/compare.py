"""What the checks of several labs share: numbers to a tolerance, functions on cases, with the first difference shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def near(expected: float, tolerance: float) -> Callable[[Any], bool]:
    """The test of a number that may be rounded."""
    return lambda answer: bool(abs(answer - expected) <= tolerance)


def agree(written: Callable[..., Any], expected: Callable[..., Any], *cases: tuple[Any, ...], relative: float = 1e-6) -> bool:
    """Whether two functions give the same numbers, up to ``relative``, for every case (a tuple of arguments); the first difference is printed."""
    for arguments in cases:
        got, wanted = written(*arguments), expected(*arguments)
        numeric = got is not None and np.asarray(got).dtype.kind in "biuf" and np.shape(got) == np.shape(wanted)
        if not numeric or not np.allclose(got, wanted, rtol=relative, atol=1e-12):
            print(f"  {written.__name__}({', '.join(map(str, arguments))}) gives {got}, expected {wanted}")
            return False
    return True
