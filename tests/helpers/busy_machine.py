"""A machine that other programs keep busy."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from dart_gym.utils.processes import processor_seconds


@contextlib.contextmanager
def busy_machine(programs: int) -> Iterator[None]:
    """Run this many endless loops, all of which are under way, until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) for _ in range(programs)]
    try:
        while any(not processor_seconds({loop.pid}) for loop in loops):
            time.sleep(0.01)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
