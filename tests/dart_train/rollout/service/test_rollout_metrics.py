"""What the rollout service tells Prometheus and people over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from echo_engine import EchoEngine
from prometheus_client.parser import text_string_to_metric_families
from service_parts import CLICK, TASKS, config_of

from dart_agent.engines.remote.engine_server import EngineServer
from dart_gym.core.errors import AddressError, ConfigurationError
from dart_train.processes.rollout import listen_address
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.exposition import prometheus_text
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.service.service_http import parse_listen, serving
from dart_train.run.run_directory import RunDirectory


@pytest_asyncio.fixture
async def figures(cluster_url, sockets, data, make_policy):
    """Those of a service that has played."""
    engine = EngineServer(EchoEngine("echo", "", 0, 0.001, CLICK))
    async with engine.listening(f"ws+unix://{sockets / 'e.sock'}") as url:
        service = RolloutService(
            config_of(url, budget_rollouts=16), data, url=cluster_url, weights=Weights("", 0),
            make_policy=make_policy,
        )  # fmt: skip
        await service.run()
        return service.figures()


def values(text: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_prometheus_gets_every_figure(figures):
    figures["unavailable"] = {"database": {"what": "the database is away", "seconds": 3.5, "reason": "gone"}}
    figures["left_out"] = {TASKS[0]: 'it "crashes"\n'}
    figures["weights_skipped"] = {7: "cut off"}
    figures["engine_faults"] = {"died": 2}
    figures["recoveries"] = {"cluster": 1}
    text = prometheus_text(figures)
    known = values(text)
    assert known["dart_rollout_rollouts_total",] == 16 and known["dart_rollout_actions_total",] == figures["actions"]
    assert known["dart_rollout_replica_version", "r0"] == 0 and known["dart_rollout_replica_limit", "r0"] > 0
    assert known["dart_rollout_replica_requests_total", "r0"] >= 16
    assert known["dart_rollout_replica_state", "r0", "down", ""] == 1  # the service has ended
    assert known["dart_rollout_replica_faults_total", "died"] == 2
    assert known["dart_rollout_unavailable_seconds", "database"] == 3.5
    assert known["dart_rollout_recoveries_total", "cluster"] == 1
    assert known["dart_rollout_task_left_out", TASKS[0], 'it "crashes"\n'] == 1
    assert known["dart_rollout_weights_skipped", "7", "cut off"] == 1
    assert known["dart_rollout_staleness", "max"] == 0
    assert sum(value for (name, *_), value in known.items() if name == "dart_rollout_desktops") == 4
    assert sum(value for (name, *_), value in known.items() if name == "dart_rollout_episodes_ended_total") == 16
    phases = {key[1] for key in known if key[0] == "dart_rollout_phase_seconds_total"}
    assert phases == {"idle", "connect", "reset", "generate", "step"}
    assert known["dart_rollout_phase_seconds_total", "step"] > 0
    assert known["process_cpu_seconds_total",] > 0


async def get(socket: Path, route: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client:
        async with client.get(f"http://localhost{route}") as response:
            return response.status, await response.read()


async def test_health_says_what_is_away(figures, sockets):
    state: dict = {}
    socket = sockets / "m.sock"
    socket.write_bytes(b"")  # left by a service that was killed
    async with serving(f"unix:{socket}", lambda: state or None) as where:
        assert where == f"unix:{socket}" and (await get(socket, "/healthz"))[0] == 503  # it starts
        state.update(figures)
        assert await get(socket, "/healthz") == (200, b'{"ok": true, "unavailable": {}}')
        assert values((await get(socket, "/metrics"))[1])["dart_rollout_rollouts_total",] == 16
        assert json.loads((await get(socket, "/status"))[1])["rollouts"] == 16
        state["unavailable"] = {"disk": {"what": "the disk is full", "seconds": 1.0, "reason": "no space"}}
        status, body = await get(socket, "/healthz")
        assert status == 503 and "disk" in json.loads(body)["unavailable"]
    assert not socket.exists()


async def test_a_port_of_its_own_on_loopback(figures):
    async with serving("127.0.0.1:0", lambda: figures) as where:
        async with aiohttp.ClientSession() as client, client.get(f"http://{where}/metrics") as response:
            assert response.status == 200 and "version=" in response.headers["Content-Type"]
        with pytest.raises(AddressError, match="metrics_listen"):
            async with serving(where, lambda: figures):
                pass


def test_addresses(tmp_path):
    assert parse_listen("") is None and parse_listen(":9465") == ("127.0.0.1", 9465)
    assert parse_listen("[::1]:9465") == ("::1", 9465) and parse_listen("unix:/x/y.sock") == Path("/x/y.sock")
    for wrong in ("localhost", "127.0.0.1:port", "unix:relative.sock", "1.2.3.4:70000"):
        with pytest.raises(ConfigurationError, match='use "127.0.0.1:9465"'):
            parse_listen(wrong)
    run = RunDirectory(tmp_path / "r")
    assert listen_address("", run) == "" and listen_address("127.0.0.1:1", run) == "127.0.0.1:1"
    assert listen_address(None, run) == f"unix:{tmp_path}/r/rollout.sock"
    assert listen_address(None, RunDirectory(tmp_path / ("long" * 30))) == ""


async def test_grafanas_dashboard_shows_metrics_and_labels_that_are_there(figures, cluster_url):
    figures["unavailable"] = {"database": {"what": "the database is away", "seconds": 3.5, "reason": "gone"}}
    figures |= {"left_out": {TASKS[0]: "crashes"}, "engine_faults": {"died": 2}, "target_version": 1}
    _, served = await get(Path(cluster_url.removeprefix("ws+unix://")), "/metrics")
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families((prometheus_text(figures) + served).decode()):
        labels.setdefault(family.name, set())
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    unseen = {"dart_gym_errors_total": {"op", "code"}, "dart_rollout_replica_kv_use": {"replica"}}  # none so far
    board = json.loads((Path(__file__).parents[4] / "deploy" / "grafana" / "dart-gym.json").read_text())
    charts = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(charts) > 15 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for target in (target for panel in charts for target in panel["targets"]):
        names = re.findall(r"\bdart_\w+", target["expr"])
        used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        grouped = re.search(r"by \(([\w, ]+)\)", target["expr"])
        wanted = used | set(grouped[1].split(", ") if grouped else ())
        assert names, target["expr"]
        for name in names:
            assert name in labels or name in unseen, f"nobody exports {name}"
            assert wanted <= (labels.get(name) or unseen.get(name, set())), (name, wanted, labels.get(name))
