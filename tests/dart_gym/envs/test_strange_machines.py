"""The first reset on a machine that cannot make desktops: one message, as in docs/guides/environments.md."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dart_gym.cluster.conftest import desktops, start_server  # noqa: F401  fixtures

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "environments.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```text\n(.*?)\n```$", PAGE.partition("## What a machine must have")[2], re.MULTILINE | re.DOTALL)
RESET = """
import gymnasium
env = gymnasium.make("dart_gym:DartGym/Desktop-v0", task={task!r}, **{options!r})
env.reset(seed=0)
print(env.step(env.unwrapped.oracle())[1])
env.close()
"""
# What others bring and use is imported before the machine changes; of ours nothing is.
LIKE = """
import asyncio, fcntl, os, signal, socket, sys
import aiohttp, gymnasium, httpx, msgpack, numpy, PIL.Image, prometheus_client, pydantic, rich, typer
import websockets.asyncio.client, websockets.asyncio.server
"""
LIKE_MACOS = f"""{LIKE}
for module, names in (
    (os, "O_PATH memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open sched_getaffinity unshare setns splice eventfd"),
    (socket, "SO_PEERCRED SCM_CREDENTIALS"),
    (fcntl, " ".join(name for name in dir(fcntl) if "SEAL" in name)),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""
LIKE_WINDOWS = f"""{LIKE}
for name in ("fcntl", "grp", "pwd", "pty", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in "fork getuid getgid geteuid O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH memfd_create killpg".split():
    delattr(os, name)
del socket.AF_UNIX, signal.SIGKILL
sys.platform = "win32"
"""


def play(program: str, task: str = "miniwob/click-test", url: str = "", **variables: str) -> list[str]:
    """The lines that a process of its own printed, and the last one of its errors."""
    options = {"url": url, "token_env": "DART_GYM_TOKEN"} if url else {}
    command = [sys.executable, "-c", program + RESET.format(task=task, options=options)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": str(ROOT), **variables}
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()[-1:]]


@pytest.mark.process
@pytest.mark.parametrize(
    ("like", "begins"), [("", "a desktop needs"), (LIKE_MACOS, "desktops run on"), (LIKE_WINDOWS, "dart_gym runs on")]
)
def test_one_message_says_what_to_do_and_stands_in_the_docs(like, begins, tmp_path):
    """Nothing of Debian's is on the PATH, and no Docker answers."""
    no_docker = f"unix://{tmp_path}/no-docker"
    (said,) = play(like, PATH=str(tmp_path), DOCKER_HOST=no_docker, DART_GYM_CHROMIUM="")
    (shown,) = [block for block in SHOWN if block.startswith(begins)]
    assert said == f"dart_gym.core.errors.MissingDependencyError: {shown}"


def test_the_container_of_the_messages_is_that_of_the_docs():
    page = (ROOT / "docs" / "guides" / "docker.md").read_text(encoding="utf-8")
    lines = [" ".join(line.replace("\\\n", " ").split()) for line in re.findall(r"docker run (?:.*\\\n)*.*", page)]
    commands = {command for block in SHOWN for command in re.findall("`(docker run .*?)`", block)}
    assert len(commands) == 1 and commands <= set(lines)


@pytest.mark.process
def test_drawn_desktops_need_nothing(tmp_path):
    assert play("", "fake/click-button", PATH=str(tmp_path)) == ["1.0"]


@pytest.mark.process
async def test_a_mac_plays_on_a_server_elsewhere(start_server):  # noqa: F811
    server = await start_server(listen="ws://127.0.0.1:0", token="s3cret")
    said = await asyncio.to_thread(play, LIKE_MACOS, "fake/click-button", server.url, DART_GYM_TOKEN="s3cret")
    assert said == ["1.0"]
