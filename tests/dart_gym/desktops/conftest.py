"""Fixtures of the desktop tests: the processes below one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dart_gym.desktops.keeper.fork_client import fork_client


@pytest.fixture
def descendants():
    """All processes below one, by the kernel's tables; the fork server is of this process and there from the start."""
    fork_client().prepare()

    def collect(pid: int) -> set[int]:
        found: set[int] = set()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()):
                    found |= {child} | collect(child)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended in between
        return found

    return collect
