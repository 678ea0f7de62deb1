"""What tests of the rollout service share: configurations, processes to kill, and what must hold of the records."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from dart_gym.utils.processes import die_with_parent
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.settings.rollout_config import EngineConfig, RolloutConfig

CLICK = "Action: click(start_box='(42,56)')"
TASKS = ("fake/click-button", "fake/two-steps")


def config_of(*engine_urls: str, **settings) -> RolloutConfig:
    engine = EngineConfig(urls=engine_urls, replicas=2, health_interval_s=0.1, max_backoff_s=0.3)
    values = {"tasks": TASKS, "workers": 4, "group_size": 4, "admission_interval_s": 0.05, **settings}
    return RolloutConfig(engine=engine, **values)


def groups_of(data: DataManager) -> dict[str, list]:
    groups = defaultdict(list)
    for trajectory in data.trajectories(source="rollout"):
        groups[trajectory.group_key].append(trajectory)
    return groups


def assert_whole(data: DataManager, service: RolloutService, rollouts: int) -> None:
    """All that was finished is recorded, once, in complete groups."""
    scored = {key: [t for t in group if t.terminal.trainable] for key, group in groups_of(data).items()}
    assert service.scheduler.completed == rollouts and service.scheduler.given_up == 0
    assert sorted(map(len, scored.values())) == [4] * (rollouts // 4)
    assert all(len({t.trajectory_id.split(".")[2] for t in group}) == 4 for group in scored.values())  # members 0 to 3
    assert service.unrecorded == 0


class Killable:
    """A server as a process, which can be killed and started again."""

    def __init__(self, *argv: str) -> None:
        self.argv = (sys.executable, *argv)
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.argv, preexec_fn=die_with_parent(), stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def killable(*argv: str) -> Iterator[Killable]:
    server = Killable(*argv)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def cluster(url: str) -> contextlib.AbstractContextManager[Killable]:
    serve = ("-m", "dart_gym.commands.gym_cli", "serve", "--listen", url)
    return killable(*serve, "--desktops", "4", "--isolation", "none")


def echo_engine(url: str, weights: Path) -> contextlib.AbstractContextManager[Killable]:
    script = Path(__file__).with_name("echo_engine.py")
    return killable(str(script), "--listen", url, "--model", str(weights), "--name", "echo", "--say", CLICK)


def seen(texts: Callable[[], str], *parts: str) -> bool:
    """Each part is in the log exactly once."""
    return all(texts().count(part) == 1 for part in parts)
