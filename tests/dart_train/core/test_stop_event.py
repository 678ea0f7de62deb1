"""A handler may set the event in whatever its thread is at that moment; who waits is woken, and told for good."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from dart_train.core.stop_event import StopEvent

# A timer's signal comes while the main thread asks for the event, at another instant each time. With an event that
# takes a lock, one trial in fifty hangs.
TRIALS = """
import importlib, random, signal, sys
module, name = sys.argv[1].split(":")
Event = getattr(importlib.import_module(module), name)
for _ in range(2000):
    stop = Event()
    signal.signal(signal.SIGALRM, lambda signum, frame: stop.set())
    signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 200e-6))
    while not stop.wait(1e-5):
        pass
"""


@pytest.mark.process
def test_no_handler_waits_for_what_it_interrupted():
    command = [sys.executable, "-c", TRIALS, f"{StopEvent.__module__}:{StopEvent.__name__}"]
    subprocess.run(command, check=True, timeout=60)


def test_a_wait_ends_with_its_time():
    stop = StopEvent()
    started = time.monotonic()
    assert not stop.wait(0.05)
    assert time.monotonic() - started >= 0.05
    assert not stop.wait(0)
    assert not stop.is_set()


def test_every_thread_that_waits_is_woken_and_one_that_asks_later_is_told():
    stop, told = StopEvent(), []
    threads = [threading.Thread(target=lambda: told.append(stop.wait(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        stop.set()
    for thread in threads:
        thread.join()
    assert told == [True] * 4
    assert stop.wait() and stop.is_set()


def test_who_was_told_to_stop_stays_told():
    with pytest.raises(RuntimeError, match="set once"):
        StopEvent().clear()


def test_its_pipe_is_closed_with_it():
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = held()
    for _ in range(20):
        StopEvent().set()
    assert held() == before
