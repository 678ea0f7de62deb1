"""Several real processes on one run: nothing is leased twice, and the dead give back what they had."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from data_builders import CONTEXT, make_step, make_trajectory, open_manager, publish, record_group

GROUPS = 40

pytestmark = [
    pytest.mark.usefixtures("database", "forkserver"),
    pytest.mark.process,
]  # everything here on each database


def _train(folder: Path, name: str, results) -> None:
    with open_manager(folder) as data:
        while (leased := data.lease(2, name, at_least=1)) is not None:
            leased.heartbeat()
            leased.commit(1)
            results.put((name, [group.key for group in leased.groups]))
    results.put((name, None))


def _record(folder: Path, worker: int) -> None:
    """Each worker records one member of every group."""
    with open_manager(folder) as data:
        for group in range(GROUPS):
            data.record(make_trajectory(f"t{group}-{worker}", f"g{group}", float(worker), steps=(make_step(1),)))


def _hold(folder: Path, ready) -> None:
    with open_manager(folder) as data:
        leased = data.lease(1, "victim", ttl_s=1.0)
        ready.put(leased.lease_id)
        signal.pause()


def _record_forever(folder: Path, ready) -> None:
    with open_manager(folder) as data:
        for index in range(10**6):
            record_group(data, f"k{index}")
            if index == 5:
                ready.put(True)


def _start(target, *arguments) -> multiprocessing.Process:
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_trainers_never_share_a_group(tmp_path):
    with open_manager(tmp_path) as data:
        for index in range(GROUPS):
            record_group(data, f"g{index}")
        results = CONTEXT.Queue()
        trainers = [_start(_train, tmp_path, f"trainer-{index}", results) for index in range(4)]
        taken: list[str] = []
        finished = 0
        while finished < len(trainers):
            _, keys = results.get(timeout=60)
            finished += keys is None
            taken += keys or []
        for trainer in trainers:
            trainer.join(30)
            assert trainer.exitcode == 0
        assert sorted(taken) == sorted(f"g{index}" for index in range(GROUPS))
        assert data.counts()["trained"] == 2 * GROUPS


def test_recorders_complete_each_group_once(tmp_path):
    with open_manager(tmp_path) as data:
        publish(data, 1)
        recorders = [_start(_record, tmp_path, worker) for worker in range(2)]
        for recorder in recorders:
            recorder.join(60)
            assert recorder.exitcode == 0
        assert data.ready() == (GROUPS, 2 * GROUPS)


def test_a_killed_holder_gives_its_lease_back(tmp_path):
    with open_manager(tmp_path) as data:
        record_group(data, "g")
        ready = CONTEXT.Queue()
        victim = _start(_hold, tmp_path, ready)
        lease_id = ready.get(timeout=60)
        assert data.lease(1, "heir") is None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(30)
        inherited = data.lease(1, "heir", timeout_s=20)
        assert inherited is not None
        assert inherited.lease_id != lease_id
        assert [group.key for group in inherited.groups] == ["g"]


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.037])
def test_a_killed_recorder_leaves_only_complete_trajectories(tmp_path, delay_s):
    ready = CONTEXT.Queue()
    recorder = _start(_record_forever, tmp_path, ready)
    ready.get(timeout=60)
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        pass
    os.kill(recorder.pid, signal.SIGKILL)
    recorder.join(30)
    with open_manager(tmp_path) as data:
        stored = list(data.trajectories())
        assert len(stored) == data.census().total >= 10
        groups, members = data.ready()
        assert members == 2 * groups
        assert len(stored) - members in (0, 1)
        record_group(data, "after")
        assert data.lease(groups + 1, "me") is not None
