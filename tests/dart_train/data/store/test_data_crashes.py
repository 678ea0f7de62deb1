"""kill -9 at every write boundary: each change of disk, each statement of a write transaction, each commit.

A process does one thing and kills itself before its n-th boundary, for n = 1, 2, ... until it comes to its end. After
each death the next process must find everything as before or as after, go on, and end as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from data_builders import CONTEXT, make_step, make_trajectory, open_manager, picture, publish, record_group

from dart_gym.core.outcomes import TerminalState
from dart_train.data import DataManager, RolloutState, image_hash
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.insight import serving, statistics
from dart_train.data.store import prepared_statements
from dart_train.data.store.schema import checkpoint, rollout_group, rollout_meta, rollout_run, rollout_step

pytestmark = [pytest.mark.usefixtures("database", "forkserver"), pytest.mark.process, pytest.mark.timeout(600)]
MOST_BOUNDARIES = 200


class Boundaries:
    """Counts what this process is about to write, and kills it before the n-th time."""

    def __init__(self, folder: Path, last: int) -> None:
        self._folder, self._last, self._count = str(folder), last, 0

    def watch(self, data: DataManager) -> None:
        sys.addaudithook(self._on_event)
        writer = data.store.writer
        sa.event.listen(writer, "before_cursor_execute", lambda *_: self._reach())
        sa.event.listen(writer, "commit", lambda *_: self._reach())
        execute = prepared_statements.execute

        def watched(connection: sa.Connection, text: str, parameters: Any) -> Any:
            self._reach()
            return execute(connection, text, parameters)

        prepared_statements.execute = watched  # what goes past SQLAlchemy's events; this process ends with it

    def _on_event(self, name: str, arguments: tuple) -> None:
        writes = name in ("os.rename", "os.mkdir", "os.remove") or (name == "open" and arguments[1] in ("wb", "w"))
        if writes and str(arguments[0]).startswith(self._folder):
            self._reach()

    def _reach(self) -> None:
        self._count += 1
        if self._count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def _record(data: DataManager, name: str) -> None:
    data.record(_second_of(name), {image_hash(picture()): picture()})


def _second_of(name: str):
    return make_trajectory(f"{name}-1", name, 1.0, steps=(make_step(0, (image_hash(picture()),)), make_step()))


def _train(data: DataManager, name: str) -> None:
    """A trainer: what it has learned is in `weights.json`, replaced whole, with the serial of its last lease."""
    path = data.files.root.parent / "weights.json"
    weights = json.loads(path.read_text()) if path.exists() else {"serial": 0, "groups": []}
    data.resume(name, weights["serial"])
    while (leased := data.lease(2, name, at_least=1)) is not None:
        weights = {"serial": leased.serial, "groups": [*weights["groups"], *(group.key for group in leased)]}
        partial = path.with_suffix(".partial")
        with open(partial, "w") as file:
            json.dump(weights, file)
        os.rename(partial, path)
        leased.commit(1)


def _continuation(name: str, number: int, **fields: Any) -> Any:
    place = {"source": "fork", "forked_from": "parent", "fork_step": 2}
    return make_trajectory(f"{name}-{number}", name, **place, **fields)


def _lost_continuation(name: str) -> Any:
    gone = {"terminal": TerminalState.INTERRUPTED, "lost_by": "fork", "steps": (), "reward": None}
    return _continuation(name, 1, **gone)


def _give_up(data: DataManager, name: str) -> None:
    data.record(_lost_continuation(name), expected=3)


def _publish(data: DataManager, name: str) -> None:
    version = data.read(checkpoint_rows.next_version)
    path = data.files.root.parent / "checkpoints" / f"v{version}"
    path.mkdir(parents=True)
    data.write(checkpoint_rows.announce, version, path)
    data.publish(version, path)
    data.serving("r0", version)


def _expire(data: DataManager, name: str) -> None:
    data.sweep()


ACTIONS: dict[str, Callable[[DataManager, str], None]] = {
    "record": _record, "train": _train, "publish": _publish, "expire": _expire, "give_up": _give_up,
}  # fmt: skip


def _run(folder: Path, action: str, argument: str, last: int) -> None:
    boundaries = Boundaries(folder, last)
    with open_manager(folder) as data:
        boundaries.watch(data)
        ACTIONS[action](data, argument)


def _killed(folder: Path, action: str, argument: str, boundary: int) -> bool:
    """Run an action in a process that dies at a boundary; False if it came to its end before."""
    process = CONTEXT.Process(target=_run, args=(folder, action, argument, boundary), daemon=True)
    process.start()
    process.join(240)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def _count(data: DataManager, table: sa.Table) -> int:
    return data.store.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(table)).scalar())


def test_recording(tmp_path):
    with open_manager(tmp_path) as data:
        for boundary in range(1, MOST_BOUNDARIES):
            name = f"g{boundary}"
            data.record(make_trajectory(f"{name}-0", name, 0.0))
            killed = _killed(tmp_path, "record", name, boundary)
            groups, members = data.ready()
            assert members == 2 * groups
            assert groups in (boundary - 1, boundary)
            assert _count(data, rollout_run) == _count(data, rollout_meta) == boundary + groups
            assert data.record(_second_of(name), {image_hash(picture()): picture()}) is RolloutState.RECORDED
            assert data.ready() == (boundary, 2 * boundary)
            assert _count(data, rollout_step) == 3 * boundary
            assert data.load_trajectory(f"{name}-1") == _second_of(name)
            if not killed:
                break
        assert boundary > 6  # files, statements, the commit
        assert np.array_equal(data.load_image(image_hash(picture())), picture())
        data.files.remove_leftovers(older_than_s=-1)
        assert {path.name for path in (data.files.root / "trajectories").iterdir()} == {
            trajectory.trajectory_id for trajectory in data.trajectories()
        }


def test_giving_up_a_fork(tmp_path):
    """Its group is open with the member that was recorded, or it is rejected with it: never one of both."""
    with open_manager(tmp_path) as data:
        for boundary in range(1, MOST_BOUNDARIES):
            name = f"g{boundary}+0"
            assert data.record(_continuation(name, 0, reward=0.0), expected=3) is RolloutState.RECORDED
            killed = _killed(tmp_path, "give_up", name, boundary)
            dropped = data.census().dropped.get("fork_differs", 0)
            assert dropped in (2 * boundary - 2, 2 * boundary) and (killed or dropped == 2 * boundary)
            assert data.closed_groups([name]) == ([name] if dropped == 2 * boundary else [])
            assert data.record(_lost_continuation(name), expected=3) is RolloutState.REJECTED
            assert data.census().dropped == {"fork_differs": 2 * boundary} and data.ready() == (0, 0)
            assert data.read(statistics.forks).given_up == {"fake/button": boundary}
            if not killed:
                break
        assert boundary > 5


@pytest.mark.thorough
def test_training(tmp_path):
    """Whenever the trainer dies, its weights hold each group once in the end, and the rows say the same."""
    with open_manager(tmp_path) as data:
        for boundary in range(1, MOST_BOUNDARIES):
            record_group(data, f"g{boundary}")
            killed = _killed(tmp_path, "train", "trainer", boundary)
            if not killed:
                break
        assert boundary > 20  # resume, lease, weights, commit
        weights = json.loads((tmp_path / "weights.json").read_text())
        assert Counter(weights["groups"]) == Counter(f"g{index}" for index in range(1, boundary + 1))
        assert data.counts()["trained"] == 2 * boundary
        assert data.read(lease_rows.count_surplus) == 0
        used = data.store.read(lambda c: list(c.execute(sa.select(rollout_run.c.used)).scalars()))
        assert used == [1] * (2 * boundary)


def test_publishing(tmp_path):
    with open_manager(tmp_path) as data:
        for boundary in range(1, MOST_BOUNDARIES):
            killed = _killed(tmp_path, "publish", "", boundary)
            rows = data.checkpoints()
            assert len(rows) == _count(data, checkpoint) == len({row.version for row in rows})
            newest = data.newest_checkpoint()
            assert newest is None or Path(newest.path).is_dir()
            for orphan in (tmp_path / "checkpoints").glob(
                "*"
            ):  # as a trainer does: what was not announced is rewritten
                if orphan.name not in {f"v{row.version}" for row in rows}:
                    orphan.rmdir()
            if not killed:
                break
        assert boundary > 5
        assert data.read(serving.serving_now) == {"r0": data.newest_checkpoint().version}


def test_expiring(tmp_path):
    with open_manager(tmp_path) as data:
        for boundary in range(1, MOST_BOUNDARIES):
            record_group(data, f"g{boundary}", version=0)
            publish(data, boundary + 10)
            killed = _killed(tmp_path, "expire", "", boundary)
            pairs = data.store.read(
                lambda c: list(
                    c.execute(
                        sa.select(rollout_group.c.state, rollout_meta.c.state).join_from(
                            rollout_group, rollout_meta, rollout_meta.c.group_id == rollout_group.c.id
                        )
                    )
                )
            )
            assert set(map(tuple, pairs)) <= {("ready", "recorded"), ("expired", "expired")}
            if not killed:
                break
        assert boundary > 4
        assert data.counts()["expired"] == 2 * boundary
