"""Parameters of tests of which a few run always, and the others where minutes are to be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], values: Iterable[Any], *, name: Callable[[Any], str] | None = None) -> list[Any]:
    """The values, of which all but the quick ones are marked `slow`.

    Args:
        quick: values that run in `make test-all`.
        name: a value's id; pytest's own where it is None.

    Raises:
        ValueError: if a quick one is not among the values: it would be tested nowhere.
    """
    wanted, values = list(quick), list(values)
    if strange := [one for one in wanted if one not in values]:
        raise ValueError(f"no parameter of the test: {strange}")
    return [
        pytest.param(value, marks=[] if value in wanted else [pytest.mark.slow], id=name(value) if name else None)
        for value in values
    ]
