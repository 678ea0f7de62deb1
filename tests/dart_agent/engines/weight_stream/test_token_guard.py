"""The guard of a vLLM server that other nodes reach: its steering routes, too, ask for the token."""

import asyncio

import pytest

from dart_agent.engines.base.engine_kind import Launch, Public
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_agent.engines.weight_stream.dart_token_guard import Guard


@pytest.mark.parametrize(
    ("headers", "passes"),
    [([], False), ([(b"authorization", b"Bearer wrong")], False), ([(b"authorization", b"Bearer secret")], True)],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_no_route_answers_without_the_token(monkeypatch, headers, passes, kind):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    reached, sent = [], []

    async def server(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(server)({"type": kind, "path": "/collective_rpc", "headers": headers}, None, send))
    assert reached == (["/collective_rpc"] if passes else [])
    if not passes:
        assert sent[0].get("status", sent[0].get("code")) in (401, 1008)


def test_a_server_for_other_nodes_has_tls_and_the_guard_and_one_for_this_machine_neither(tmp_path):
    here = VLLMServer().command(Launch("r0", 0, "m", 0, tmp_path))
    assert here.url.startswith("http://127.0.0.1:") and "--middleware" not in here.argv
    public = Public("10.0.0.3", 8443, "/node.pem", "/node.key")
    there = VLLMServer().command(Launch("r0", 0, "m", 0, tmp_path, public=public))
    assert there.url == "https://10.0.0.3:8443"
    words = dict(zip(there.argv, there.argv[1:], strict=False))
    assert (words["--host"], words["--ssl-certfile"], words["--ssl-keyfile"]) == ("10.0.0.3", "/node.pem", "/node.key")
    assert words["--middleware"] == "dart_token_guard.Guard"
    assert there.environment["PYTHONPATH"].endswith("weight_stream")
