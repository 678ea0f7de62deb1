"""The watchdog of an event loop."""

import asyncio
import subprocess
import sys
import threading

import pytest

from dart_gym.utils.loop_watchdog import STALLED_STATUS, LoopWatchdog

HANGS = """
import asyncio, threading
from dart_gym.utils.loop_watchdog import LoopWatchdog

def where_it_hangs():
    threading.Event().wait()

async def main():
    LoopWatchdog(asyncio.get_running_loop(), tick_s=0.05, told_ticks=4, last_ticks=10).start()
    where_it_hangs()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_process_whose_loop_hangs_says_where_and_ends():
    result = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert result.returncode == STALLED_STATUS
    assert "where_it_hangs" in result.stderr
    assert "error: EventLoopStalled: the event loop did not run for 0.5 s" in result.stderr


async def test_a_loop_that_runs_or_comes_back_is_left_alone(capfd):
    ended = []
    watchdog = LoopWatchdog(asyncio.get_running_loop(), tick_s=0.01, told_ticks=1000, last_ticks=1000, end=ended.append)
    watchdog.start()
    await asyncio.sleep(0.1)
    threading.Event().wait(0.2)  # holds the loop up
    await asyncio.sleep(0.1)
    watchdog.stop()
    assert not ended and "event loop" not in capfd.readouterr().err
