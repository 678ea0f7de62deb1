"""Programs on a real Ray cluster of this machine alone: what waits for a node says so, and what is lost is told of."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from dart_agent.engines.base.engine_kind import Launch
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_gym.utils.processes import start_time
from dart_train.nodes import ray_cluster, remote_program
from dart_train.nodes.program_host import HOST, RunOnNodes
from dart_train.nodes.run_keys import RunKeys
from tests.helpers.local_ray import local_ray
from tests.helpers.parameters import slow_but
from tests.helpers.waiting import wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[RunOnNodes]:
    """A run whose directory is on no node of the cluster."""
    place = tmp_path_factory.mktemp("run")
    (place / "runs" / "r").mkdir(parents=True)
    keys = RunKeys.of_run(place / "keys")
    told = RunOnNodes("r", str(place / "runs" / "r"), "no node", "name: r\n", keys, str(place), "")
    with local_ray(told, place / "node", cores=1) as made:
        yield made


def started(run: RunOnNodes, name: str, program: str, asks: dict[str, float], tmp_path) -> remote_program.RemoteProgram:
    return ray_cluster.start(run, name, [sys.executable, "-c", program], {}, asks, tmp_path / f"{name}.log")


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_what_no_node_has_room_for_says_what_it_waits_for_and_since_when(run, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_program, "PATIENCE_S", 0.5)
    program = started(run, "learn", "print(1)", {"num_cpus": 1, "num_gpus": 8}, tmp_path)
    assert program.node == ""
    said = wait_until(lambda: program.poll() or program.waiting, 120)
    assert said.startswith("learn waits for a node with {CPU: 1, GPU: 8} free since ") and said[-3] == ":"
    program.terminate()  # given up at once
    assert program.poll() == -signal.SIGKILL and program.waiting == ""


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_program_says_where_it_is_and_a_lost_one_how_it_was_lost(run, tmp_path):
    words = "import os, time; print(os.getppid(), flush=True); time.sleep(600)"
    program, log = started(run, "data", words, {"num_cpus": 0}, tmp_path), tmp_path / "data.log"
    wait_until(lambda: program.poll() is None and log.exists() and log.read_text().endswith("\n"), 120)
    assert program.node == program.started[HOST] != "" and program.waiting == ""
    os.kill(int(log.read_text()), signal.SIGKILL)  # its actor, as if its node were lost
    assert program.wait(60) == -signal.SIGKILL
    assert "data: its node or its actor is lost" in log.read_text()


SERVER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), child.kill(), sys.exit(0)))
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", slow_but(["killed"], ["actor lost", "told to end", "killed"]))
async def test_a_server_ends_with_what_it_started(run, tmp_path, how):
    """As vLLM, it takes a moment to end its workers when told to; an actor that ends kills its children at once."""
    kind, log = VLLMServer(program=(sys.executable, "-c", SERVER)), tmp_path / "engine.log"
    launch = Launch("r0", 0, "", 0, tmp_path, gpus=())
    program, url = await ray_cluster.EnginesOnNodes(run).start(kind, launch, str(tmp_path), log)
    assert url.startswith("https://")
    wait_until(lambda: program.poll() is None and log.exists() and log.read_text().endswith("\n"), 120)
    pids = [int(word) for word in log.read_text().split()]
    if how == "actor lost":
        import ray

        ray.kill(program.actor)
    elif how == "told to end":
        program.terminate()
        assert program.wait(60) == 0
    else:
        program.kill_all()
    wait_until(lambda: not any(start_time(pid) for pid in pids), 60, explain=lambda: f"left: {pids}")


def test_another_ray_or_python_on_the_cluster_is_named(monkeypatch):
    import ray
    from ray._private.utils import check_version_info

    theirs = {"ray_version": "2.40.0", "python_version": "3.12.1"}
    monkeypatch.setattr(ray, "init", lambda **options: check_version_info(theirs, "10.0.0.2"))
    with pytest.raises(ray_cluster.ClusterUnreachable, match=r"another Ray or Python.*Ray: 2\.40\.0 Python: 3\.12"):
        ray_cluster.connect("auto")


def test_an_engine_takes_a_part_of_a_gpu_only_where_the_run_shares_it(tmp_path):
    launch = Launch("r0", 0, "", 0, tmp_path, gpus=(0,), gpu_memory=0.4)
    assert ray_cluster.asks_of(VLLMServer(), launch, shared=True) == {"num_cpus": 1, "num_gpus": 0.4}
    assert ray_cluster.asks_of(VLLMServer(), launch, shared=False) == {"num_cpus": 1, "num_gpus": 1}
    on_cpu = Launch("r0", 0, "", 0, tmp_path, gpus=())
    assert ray_cluster.asks_of(TransformersServer(threads=3), on_cpu, shared=False) == {"num_cpus": 3}
