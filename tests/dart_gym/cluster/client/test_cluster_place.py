"""Draws, wildcards and named tasks go by what the servers of a cluster have, and not by what this machine has."""

from __future__ import annotations

import json
import logging
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dart_gym.cluster.client.cluster_place import place_of
from dart_gym.core.errors import ClusterError, UnrunnableTaskError
from dart_gym.envs.desktop_env import DesktopEnv
from dart_gym.envs.vector_env import OSWorldVectorEnv
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.requirements.runnable import check_runnable, select
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_train.config.run_config import RUN_TOKEN_ENV, RunConfig
from dart_train.config.task_names import expand_tasks
from dart_train.preflight.task_check import task_problems
from tests.dart_gym.cluster.serving import Place, ServeProcess

pytestmark = pytest.mark.process
URL = "https://huggingface.co/datasets/x/resolve/main/{}.txt"
TOKEN = "a-token-of-the-run"


def needing(name: str, step: dict) -> dict:
    return {"id": name, "instruction": "", "config": [step], "evaluator": {"func": "infeasible"}}


def launching(name: str, program: str) -> dict:
    return needing(name, {"type": "launch", "parameters": {"command": [program]}})


def downloading(name: str) -> dict:
    files = [{"url": URL.format(name), "path": f"/home/user/{name}.txt"}]
    return needing(name, {"type": "download", "parameters": {"files": files}})


TASKS = [launching("ours", "of-ours"), launching("theirs", "of-theirs"), downloading("first"), downloading("both")]


def fill(cache: Path, *names: str) -> str:
    for name in names:
        file = cache.with_suffix(".txt")
        file.write_text(name)
        DownloadCache(cache).add(URL.format(name), file)
    return str(cache)


def programs(folder: Path, name: str) -> str:
    folder.mkdir()
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Four tasks; this machine has what "ours" needs and no file."""
    (tmp_path / "tasks").mkdir()
    for task in TASKS:
        (tmp_path / "tasks" / f"{task['id']}.json").write_text(json.dumps(task))
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path / "tasks"))
    monkeypatch.setenv("DART_GYM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", "of-ours"), prepend=":")
    monkeypatch.setenv(RUN_TOKEN_ENV, TOKEN)
    registry.forget_suites()
    yield tmp_path
    registry.forget_suites()


@pytest.fixture
async def nodes(tasks):
    """Two servers, as a run starts one on each node, and the file that lists them."""
    path = "/usr/bin:/bin:" + programs(tasks / "their-bin", "of-theirs")
    caches = [fill(tasks / "one", "first", "both"), fill(tasks / "two", "both")]
    async with AsyncExitStack() as stack:
        servers = []
        for cache in caches:
            place = Place()
            stack.callback(place.remove)
            env = {"PATH": path, "DART_GYM_CACHE": cache}
            options = ("--desktops", "1", "--token-env", RUN_TOKEN_ENV)
            servers.append(await stack.enter_async_context(ServeProcess(place, *options, env=env)))
        listed = tasks / "desktops.txt"
        listed.write_text("".join(f"{server.url}\n" for server in servers))
        yield [server.url for server in servers], f"file://{listed}"


def names(url: str | None, token: str | None = TOKEN) -> list[str]:
    return [name.partition("/")[2] for name in select("osworld", place_of(url, token)).runnable]


async def test_what_the_servers_have_decides(nodes, tasks, caplog):
    (first, second), listed = nodes
    assert names(None) == ["ours"]
    assert names(first) == ["both", "first", "theirs"]
    assert names(second) == names(listed) == names(f"{first},{second}") == ["both", "theirs"], "what all of them have"
    with pytest.raises(
        UnrunnableTaskError, match=f"osworld/ours cannot run on the cluster at {re.escape(first)}: .*of-ours"
    ):
        check_runnable([registry.get_task("osworld/ours")], place_of(first, TOKEN))
    assert f"2 of 4 tasks cannot run on the cluster at {listed}" in caplog.text
    with pytest.raises(ClusterError, match="token"):
        names(first, "another")
    environments_and_runs_go_by_it(first, listed)


def environments_and_runs_go_by_it(first: str, listed: str) -> None:
    for env in (
        DesktopEnv(suite="osworld", url=first, token_env=RUN_TOKEN_ENV),
        OSWorldVectorEnv(2, url=first, token_env=RUN_TOKEN_ENV),
    ):
        choice = env.choice if isinstance(env, DesktopEnv) else env.choices[0]
        assert list(choice.task_ids) == ["osworld/both", "osworld/first", "osworld/theirs"]
    values = {"name": "r", "rollout": {"tasks": ["osworld/*"]}, "demonstrations": {"tasks": ["osworld/*"]}}
    module = expand_tasks(RunConfig.parse({**values, "cluster": {"url": listed}}))
    assert module.train_tasks == module.demonstrations.tasks == ("osworld/both", "osworld/theirs")
    named = {"name": "r", "rollout": {"tasks": ["osworld/ours"]}, "cluster": {"url": listed}}
    assert f"cannot run on the cluster at {listed}" in task_problems(RunConfig.parse(named))[0]


async def test_modules_that_need_no_desktops_do_not_go_by_their_own_node(tasks):
    """Of a run on several nodes: one without programs and files would find nothing to train."""
    expanded = expand_tasks(RunConfig.parse({"name": "r", "rollout": {"tasks": ["osworld/*"]}}))
    assert len(expanded.train_tasks) == len(TASKS)


@pytest.mark.thorough
def test_a_cluster_that_does_not_answer_is_said_once(tasks, caplog, monkeypatch):
    monkeypatch.setattr("dart_gym.cluster.client.cluster_place.PATIENCE_S", 0.1)
    place = place_of(f"ws+unix://{tasks}/none.sock")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(select("osworld", place).runnable) == len(TASKS)
    assert caplog.text.count("is not known") == 1
