"""Suites of one's own reach the process that plays them, which is another one than the environment's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import gymnasium
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.utils.plugins import child_environment
from tests.helpers.packages import install

SOURCE = """
import dataclasses
from dart_gym.tasks.suites.fake_suite import TASKS, FakeScenario

class Birds:
    make_scenario = FakeScenario

    def load_tasks(self):
        return [dataclasses.replace(TASKS[0], id="robin")]
"""
PLAY = """
import sys
sys.path.append({path!r})
import gymnasium, dart_gym
env = gymnasium.make("DartGym/Desktop-v0", task=sys.argv[1])
env.reset(seed=1)
print(env.unwrapped.step(env.unwrapped.oracle())[1], env.unwrapped.reset(seed=1)[1]["task_id"])
env.close()
"""


@pytest.fixture
def site(tmp_path):
    """A directory with a package that adds suites, on no path."""
    points = {"birds-of-tests": "birds_of_tests:Birds", "bad-of-tests": "birds_of_tests:Birdz", "fake": "x:Y"}
    install(tmp_path / "site", "test-birds", {"dart_gui.suites": points}, {"birds_of_tests": SOURCE})
    return tmp_path / "site"


def play(site, task: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PLAY.format(path=str(site)), task]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=child_environment(), cwd="/")


@pytest.mark.process
@pytest.mark.parametrize("suite", ["birds-of-tests", "birds_of_tests:Birds"])
def test_a_suite_on_the_path_of_a_script_is_played_in_its_private_cluster(site, suite):
    done = play(site, f"{suite}/robin")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", f"{suite}/robin"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("birds-of-tests/robim", "did you mean 'birds-of-tests/robin'"),
        ("bad-of-tests/robin", "package 'test-birds' (birds_of_tests:Birdz) cannot be imported: AttributeError"),
        ("fake/two-steps", "the package 'test-birds' adds the suite 'fake', which is built in"),
    ],
)
def test_a_bad_suite_is_refused_in_the_own_process(site, task, says):
    done = play(site, task)
    assert done.returncode == 1 and says in done.stderr.strip().splitlines()[-1]


async def test_a_cluster_imports_no_class_that_a_client_names_unless_told(tmp_path, site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    task = "birds_of_tests:Birds/robin"
    async with ClusterServer(ServerSettings(listen=f"ws+unix://{tmp_path}/a", desktops=1)) as server:
        async with ClusterClient(server.url).session() as session:
            with pytest.raises(ConfigurationError, match="start it with --suite birds_of_tests:Birds"):
                await session.reset(task, seed=1)
            assert "birds_of_tests" not in sys.modules
            assert (await session.reset("birds-of-tests/robin", seed=1)).terminal is None
    settings = ServerSettings(listen=f"ws+unix://{tmp_path}/b", desktops=1, suites=("birds_of_tests:Birds",))
    async with ClusterServer(settings) as server:
        async with ClusterClient(server.url).session() as session:
            assert (await session.reset(task, seed=1)).terminal is None


@pytest.mark.process
def test_a_server_without_the_package_says_so_in_one_line(tmp_path, site, monkeypatch):
    """The client has the package, the server has not; or another one of that name."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    listen = f"ws+unix://{tmp_path}/s"
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", listen, "--desktops", "1"]
    elsewhere = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path != str(site))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=elsewhere) as server:
        assert server.stdout.readline().startswith(b"listening on ")
        try:
            env = gymnasium.make("DartGym/Desktop-v0", task="birds-of-tests/robin", url=listen)
            with pytest.raises(UnknownTaskError, match="unknown task 'birds-of-tests/robin'") as caught:
                env.reset(seed=1)
            assert "\n" not in str(caught.value)
            env.close()
        finally:
            server.send_signal(signal.SIGINT)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--suite", "no_such_module:Birds"], "No module named 'no_such_module'"),
        (["--suite", "json:loads"], "lacks load_tasks and make_scenario"),
        (["--provider", "birds_of_tests:Birds"], "lacks options_type and open and desktop and close"),
        (["--provider", "dokcer"], "did you mean 'docker'?"),
    ],
)
def test_a_bad_plugin_ends_serve_with_one_line(tmp_path, site, options, says):
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", f"ws+unix://{tmp_path}/s"]
    environment = child_environment({**os.environ, "PYTHONPATH": str(site)})
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
