"""Desktops in containers, for real: `tests/docker/run.sh` brings a daemon and the image, and runs this."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest

import dart_gym
from dart_gym.providers.containers import SERVER_LABEL, Owner
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
EPISODE_TASKS = ("dialogs/confirm-delete", "miniwob/click-test-2")


@pytest.fixture(scope="session")
def image() -> str:
    """The image under test."""
    name = os.environ.get("DART_DOCKER_IMAGE")
    assert name, "these tests need a Docker daemon and the image: run them by tests/docker/run.sh (or make test-docker)"
    return name


def docker(*arguments: str) -> str:
    """Output of Docker's command line."""
    program = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else str(shutil.which("docker"))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def containers() -> list[str]:
    """Ids of the containers of this package, also of those that do not run."""
    return docker("ps", "-aq", "--no-trunc", "--filter", f"label={SERVER_LABEL}").split()


class Server:
    """A `dart-gym serve --provider docker` process."""

    def __init__(self, image: str, directory: Path, *options: str) -> None:
        self.url = f"ws+unix://{directory}/s"
        self.log = directory / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dart_gym.commands.gym_cli",
                    "serve",
                    "--listen",
                    self.url,
                    "--desktops",
                    "2",
                    "--warm",
                    "0",
                ]
                + ["--provider", "docker", "--provider-option", f"image={image}", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("listening on"), self.log.read_text()

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """End it, and return its status."""
        self.process.send_signal(signum)
        return self.process.wait(60)


@pytest.fixture
def serve(image, tmp_path_factory) -> Iterator[Callable[..., Server]]:
    """Starts servers, and stops them; afterwards no container is left."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(image, tmp_path_factory.mktemp("s"), *options))
        return started[-1]

    yield start
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.stop()
        print(server.log.read_text())
    wait_until(lambda: not containers())


@contextlib.contextmanager
def environment(server: Server, task: str) -> Iterator[gymnasium.Env]:
    """An environment on a server."""
    env = gymnasium.make("DartGym/Desktop-v0", url=server.url, task=task)
    try:
        yield env
    finally:
        env.close()


def play(env: gymnasium.Env, *, oracle: bool) -> float:
    """An episode by the oracle, or one that ends at once; its score."""
    env.reset(seed=3)
    while True:
        action = env.unwrapped.oracle() if oracle else dart_gym.Done()
        _, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            assert info["evaluation_status"] == "ok", info["evaluation_detail"]
            return float(reward)


@pytest.mark.parametrize("task", EPISODE_TASKS)
def test_an_episode_in_a_container_scores_1_by_the_oracle_and_0_by_doing_nothing(serve, task):
    with environment(serve(), task) as env:
        started = time.monotonic()
        env.reset(seed=0)
        print(f"first reset of {task}: {time.monotonic() - started:.1f} s")
        assert play(env, oracle=True) == 1.0
        assert play(env, oracle=False) == 0.0


def test_a_container_has_limits_labels_no_port_and_no_network(serve):
    server = serve("--provider-option", "memory=1GiB", "--provider-option", "cpus=1.5", "--provider-option", "pids=900")
    with environment(server, EPISODE_TASKS[0]) as env:
        env.reset(seed=0)
        (container,) = json.loads(docker("inspect", *containers()))
        host = container["HostConfig"]
        assert (host["Memory"], host["NanoCpus"], host["PidsLimit"]) == (2**30, 15 * 10**8, 900)
        assert host["NetworkMode"] == "none" and not host["PortBindings"]
        assert not container["NetworkSettings"]["Ports"]
        assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"]
        owner = Owner.parse(container["Config"]["Labels"][SERVER_LABEL])
        assert owner is not None and owner.pid == server.process.pid
        status = Path(f"/proc/{container['State']['Pid']}/status").read_text()
        assert "Uid:\t1000\t1000" in status and "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
        (mount,) = [mount for mount in container["Mounts"] if mount["Type"] == "bind"]
        assert Path(mount["Source"]).stat().st_mode & 0o077 == 0
        limit = docker("exec", container["Id"], "sh", "-c", "cat /sys/fs/cgroup/memory.max 2>/dev/null || "
                       "cat /sys/fs/cgroup/memory/memory.limit_in_bytes")  # fmt: skip
        assert int(limit) == 2**30
    wait_until(lambda: not containers())  # the session is over, and the task's desktop cannot be used again


def test_without_a_sandbox_inside_the_container_is_the_sandbox(serve):
    with environment(serve("--isolation", "none"), EPISODE_TASKS[0]) as env:
        assert play(env, oracle=True) == 1.0
        (container,) = json.loads(docker("inspect", *containers()))
        assert container["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


def test_a_server_that_is_killed_takes_its_containers_along(serve):
    server = serve()
    with environment(server, EPISODE_TASKS[0]) as env:
        env.reset(seed=0)
        assert len(containers()) == 1
        server.stop(signal.SIGKILL)
        wait_until(lambda: not containers())


def test_a_container_that_dies_is_an_environment_error_and_the_next_reset_works(serve):
    with environment(serve(), EPISODE_TASKS[0]) as env:
        env.reset(seed=0)
        docker("kill", *containers())
        _, _, terminated, truncated, info = env.step(dart_gym.Click(10, 10))
        assert terminated or truncated
        assert info["evaluation_status"] == "environment_error"
        assert play(env, oracle=True) == 1.0


def test_the_next_server_removes_what_a_dead_one_left_and_nothing_else(serve, image):
    here = Owner.here()
    dead = Owner(here.host, here.boot, here.pid_namespace, 2**22 + 1, 1)
    orphan = docker("create", "--label", f"{SERVER_LABEL}={dead.label}", "--network", "none", image).strip()
    living = docker("create", "--label", f"{SERVER_LABEL}={here.label}", "--network", "none", image).strip()
    try:
        server = serve()
        assert containers() == [living]
        assert "left behind by a server that is dead" in server.log.read_text()
    finally:
        subprocess.run(["docker", "rm", "-f", orphan, living], capture_output=True, timeout=60)


def test_a_missing_image_and_a_missing_daemon_say_what_to_do(tmp_path):
    def refused(*options: str) -> str:
        command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--listen", f"ws+unix://{tmp_path}/s"]
        done = subprocess.run([*command, "--provider", "docker", *options], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        return done.stderr

    assert "build it" in refused("--provider-option", "image=no-such-image:ever")
    assert "start it, or set DOCKER_HOST" in refused("--provider-option", f"host=unix://{tmp_path}/none.sock")


def test_a_machine_without_xvfb_takes_containers_by_itself(image, tmp_path):
    docker("tag", image, "dart-gym:latest")
    program = """
import gymnasium
env = gymnasium.make("dart_gym:DartGym/Desktop-v0", task="dialogs/confirm-delete")
env.reset(seed=3)
ended = False
while not ended:
    *_, reward, ended, _, _ = env.step(env.unwrapped.oracle())
print(reward)
env.close()
"""
    variables = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, timeout=240)
    assert done.stdout == "1.0\n", done.stderr
    wait_until(lambda: not containers())


def test_the_image_has_no_root_user_no_secret_and_a_health_check(image):
    (described,) = json.loads(docker("image", "inspect", image))
    assert described["Config"]["User"] == "user"
    assert "/healthz" in described["Config"]["Healthcheck"]["Test"][-1]
    command = "ls /etc/apt/apt.conf.d/99build /etc/pip.conf /run/secrets; command -v pip gcc; dart-gym --help"
    found = docker("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", command + " 2>&1; id -un")
    assert "Desktops as environments" in found and found.rstrip().endswith("user")
    left = [line for line in found.splitlines() if line.startswith("/") and "No such file" not in line]
    assert all(Path(line).name == "99build" or line.startswith("/run/secrets") for line in left), left
    assert "/pip" not in found.replace("/etc/pip.conf", "") and "/gcc" not in found


def test_the_image_serves_by_itself_and_is_healthy(image):
    token = "for-this-test-only"
    options = ["--network", "none", "--cap-drop", "ALL", "--security-opt", "seccomp=unconfined"]
    options += ["--security-opt", "systempaths=unconfined", "--security-opt", "no-new-privileges"]
    options += ["--health-interval", "1s", "--env", f"DART_GYM_TOKEN={token}"]
    container = docker("run", "-d", "--rm", *options, image).strip()
    try:
        wait_until(lambda: docker("inspect", "-f", "{{.State.Health.Status}}", container).strip() == "healthy", 60)
        doctor = subprocess.run(
            ["docker", "exec", container, "dart-gym", "doctor"], capture_output=True, text=True, timeout=60
        )
        assert "bwrap" in doctor.stdout, doctor
    finally:
        docker("stop", "-t", "20", container)
