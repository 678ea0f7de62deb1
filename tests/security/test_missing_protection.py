"""A machine that lacks a part of the protection: a server says what is missing, and leaves nothing out in silence."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dart_gym.providers import embedded_provider
from dart_gym.providers.embedded_provider import EmbeddedOptions, EmbeddedProvider

pytestmark = [pytest.mark.security, pytest.mark.desktop]

# User namespaces that a namespace of its own may have are 0, which nothing in it can change back.
NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
RESETS = """
import asyncio, json, sys
from dart_gym.cluster.client.private_cluster import LocalCluster
task = {"id": "t", "instruction": "", "evaluator": {"func": "infeasible"}, "dart": {}}
async def main():
    said = {}
    for sandbox in ("bwrap", "none"):
        async with LocalCluster(1, sandbox=sandbox) as cluster, cluster.client().session() as session:
            try:
                result = await session.reset(task, seed=0, desktop={"width": 320, "height": 240})
                said[sandbox] = result.evaluation.detail if result.terminal else "it works"
            except Exception as error:
                said[sandbox] = str(error)
            said[sandbox] += open(cluster._log).read()
    print(json.dumps(said))
asyncio.run(main())
"""


def said_where(tmp_path: Path, *prefix: str, **environment: str) -> dict[str, str]:
    """What a server there says to a client and in its log, with the sandbox and with `--isolation none`."""
    (tmp_path / "home").mkdir(mode=0o700)
    with tempfile.TemporaryDirectory(dir="/tmp") as run:  # a short name, as sockets need it
        own = {"XDG_RUNTIME_DIR": run, "XDG_CACHE_HOME": f"{tmp_path}/home", "PYTHONPATH": os.getcwd()}
        env = {**os.environ, **own, **environment}
        command = [*prefix, sys.executable, "-c", RESETS]
        result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_without_user_namespaces_there_are_no_desktops_but_by_choice(tmp_path):
    unshare = [
        "unshare",
        "--user",
        "--map-user=1000",
        "--map-group=1000",
        "--keep-caps",
        "sh",
        "-c",
        NO_NAMESPACES,
        "sh",
    ]
    said = said_where(tmp_path, *unshare)
    assert "bwrap cannot make a sandbox: " in said["bwrap"]
    assert "next step: sudo sysctl -w user.max_user_namespaces=10000 (or choose --isolation none)" in said["bwrap"]
    assert said["none"].startswith("it works"), said["none"]
    assert "--isolation none: programs of desktops see this machine's files" in said["none"]


def test_an_old_bubblewrap_makes_no_desktops(tmp_path):
    old = tmp_path / "bin" / "bwrap"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\n[ $1 = --help ] && echo '--size --as-pid-1 --info-fd' || echo 'bubblewrap 0.4.1'\n")
    old.chmod(0o755)
    said = said_where(tmp_path, PATH=f"{old.parent}:{os.environ['PATH']}")
    assert "bubblewrap 0.4.1 is too old: it has no --disable-userns" in said["bwrap"]
    assert "install bubblewrap 0.8 or newer (or choose --isolation none)" in said["bwrap"]
    assert said["none"].startswith("it works")


@pytest.mark.parametrize("found", [False, True])
async def test_a_server_that_may_make_no_control_groups_says_what_that_means(monkeypatch, caplog, found):
    monkeypatch.setattr(embedded_provider, "group_places", lambda: [(Path("/"), ())] * found)
    with caplog.at_level(logging.WARNING):
        await EmbeddedProvider(EmbeddedOptions()).open()
    said = "each process is limited, a desktop as a whole only by a watch; next step: run the server by systemd-run"
    assert (said in caplog.text) is not found
