"""A run's secrets: made once, private, and enough for two nodes to trust each other and nobody else."""

import asyncio
import ssl
import stat

import pytest
import websockets

from dart_gym.cluster.server.listener import tls_context
from dart_train.nodes.run_keys import RunKeys


def test_they_are_made_once_and_for_this_user_alone(tmp_path):
    keys = RunKeys.of_run(tmp_path / "keys")
    assert RunKeys.of_run(tmp_path / "keys") == keys
    assert len(keys.token) > 30 and RunKeys.of_run(tmp_path / "other").token != keys.token
    for path in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.process
@pytest.mark.parametrize("whose", ["own", "another"])
def test_a_node_is_trusted_by_its_own_run_alone(tmp_path, monkeypatch, whose):
    keys, other = (RunKeys.of_run(tmp_path / name) for name in ("own", "another"))
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"
    for path, data in zip((certificate, key), keys.certificate("127.0.0.1"), strict=True):
        path.write_bytes(data)
    authority = tmp_path / "authority.pem"
    authority.write_bytes((keys if whose == "own" else other).authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))

    async def meet() -> str:
        async def greet(connection):
            await connection.send("hello")

        async with websockets.serve(greet, "127.0.0.1", 0, ssl=tls_context(certificate, key)) as server:
            port = server.sockets[0].getsockname()[1]
            async with websockets.connect(f"wss://127.0.0.1:{port}", proxy=None) as client:
                return str(await client.recv())

    if whose == "own":
        assert asyncio.run(meet()) == "hello"
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            asyncio.run(meet())
