"""What an actor does on its node, without Ray: it runs one program, and tells what becomes of it."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from dart_agent.engines.base.engine import EngineError
from dart_agent.engines.base.engine_kind import Launch
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_agent.engines.remote.remote_engine import RemoteEngine
from dart_gym.utils.processes import start_time
from dart_train.data.files.object_storage import open_storage
from dart_train.data.files.shared_directories import place, share
from dart_train.nodes.program_host import CERTIFICATE, HOST, PORT, ProgramHost, RunOnNodes
from dart_train.nodes.run_keys import RunKeys
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.process
HOME = "the launcher's node"


@pytest.fixture
def run(tmp_path) -> RunOnNodes:
    keys = RunKeys.of_run(tmp_path / "keys")
    (tmp_path / "runs" / "r").mkdir(parents=True)
    return RunOnNodes("r", str(tmp_path / "runs" / "r"), HOME, "name: r\n", keys, str(tmp_path), "", {"GIVEN": "yes"})


@pytest.fixture
def hosts(run, tmp_path, monkeypatch):
    """Makes hosts on the launcher's node and on another one; kills their programs at the end."""
    monkeypatch.setenv("DART_NODE_DIR", str(tmp_path / "node"))
    made = []

    def make(name: str = "program", node: str = "another node") -> ProgramHost:
        made.append(ProgramHost(run, name, (node, "127.0.0.1")))
        return made[-1]

    yield make
    for host in made:
        host.kill_all()


def started(host: ProgramHost, program: str, *words: str) -> dict[str, str]:
    return host.start([sys.executable, "-c", program, *words], {"OWN": "too"}, sys.executable)


def ended(host: ProgramHost) -> tuple[int | None, bytes]:
    """Status and log of a program that ends."""
    seen, log = {}, b""

    def over() -> bool:
        nonlocal log, status
        status, parts = host.poll(seen)
        for name, part in parts.items():
            seen[name] = seen.get(name, 0) + len(part)
            log += part if name == "log" else b""
        return status is not None

    status = None
    wait_until(over, 30)
    return status, log


def test_a_program_gets_its_node_s_paths_and_the_run_s_secrets(run, hosts, tmp_path):
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)])); sys.exit(3)"
    given = started(hosts(), program, f"{run.root}/config.yaml", f"wss://{HOST}:{PORT}", CERTIFICATE)
    host = hosts()
    own = started(host, program, f"{run.root}/config.yaml", f"wss://{HOST}:{PORT}", CERTIFICATE)
    status, log = ended(host)
    words, environment = json.loads(log.splitlines()[-1])
    assert status == 3 and own != given
    assert words == [f"{tmp_path}/node/runs/r/config.yaml", f"wss://127.0.0.1:{own[PORT]}", own[CERTIFICATE]]
    assert Path(words[0]).read_text() == "name: r\n"
    assert (environment["GIVEN"], environment["OWN"]) == ("yes", "too")
    assert environment["DART_RUN_TOKEN"] == environment["DART_ENGINE_TOKEN"] == run.keys.token
    assert Path(environment["SSL_CERT_FILE"]).read_bytes() == run.keys.authority


def test_what_it_measures_is_handed_on_once_from_where_it_began(hosts, tmp_path):
    metrics = tmp_path / "node" / "runs" / "r" / "metrics"
    metrics.mkdir(parents=True)
    (metrics / "trainer.jsonl").write_text("of a life before\n")
    host = hosts()
    started(host, f"open({str(metrics / 'trainer.jsonl')!r}, 'a').write('one\\n')")
    wait_until(lambda: "trainer.jsonl" in host.poll({})[1], 30)
    assert host.poll({})[1]["trainer.jsonl"] == b"one\n"
    assert host.poll({"trainer.jsonl": 4})[1].get("trainer.jsonl") is None


def test_at_home_files_are_those_of_the_run(run, hosts):
    host = hosts("program", HOME)
    started(host, "import os; print(os.getcwd())")
    assert ended(host) == (0, b"")
    assert (Path(run.root) / "logs" / "program.log").read_text().strip() == run.directory


def test_a_killed_host_leaves_nothing(hosts):
    host = hosts()
    started(host, "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)")
    wait_until(lambda: host.poll({})[1].get("log", b"").count(b"\n") == 2, 30)
    pids = [int(word) for word in host.poll({})[1]["log"].split()]
    host.kill_all()
    wait_until(lambda: not any(start_time(pid) for pid in pids), 30)


@pytest.mark.thorough
@pytest.mark.train
@pytest.mark.timeout(240)
def test_an_engine_is_reached_with_the_run_s_token_alone(run, hosts, bucket, tmp_path, monkeypatch):
    from dart_agent.models.tiny_model import build_tiny_model

    model, store = tmp_path / "v000000", open_storage(f"{bucket}/{tmp_path.name}")
    build_tiny_model(model, seed=0)
    share(store, "versions", model)
    host = hosts("engine-0")
    launch = Launch("r0", 0, "", 0, tmp_path, gpus=())
    url = host.start_server(TransformersServer(), launch, place(store, "versions", model))
    assert url.startswith("wss://127.0.0.1:")
    wait_until(lambda: b"engine ready" in host.poll({})[1].get("log", b""), 200)
    (tmp_path / "authority.pem").write_bytes(run.keys.authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))

    async def ask(token: str) -> int:
        engine = RemoteEngine(url, token=token)
        try:
            return (await engine.info()).version
        finally:
            await engine.close()

    assert asyncio.run(ask(run.keys.token)) == 0
    with pytest.raises(EngineError, match="refused the connection"):
        asyncio.run(ask("another"))
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(EngineError, match="certificate"):
        asyncio.run(ask(run.keys.token))
