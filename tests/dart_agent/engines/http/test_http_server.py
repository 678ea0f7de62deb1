"""A client of HTTP keeps its connections only as long as servers do."""

import http.server
import inspect
import threading
import time

import pytest
import uvicorn

from dart_agent.engines.http import http_server
from dart_agent.engines.http.http_server import HTTPServer

CLOSES_AFTER_S = 0.4


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it is sent, and closes a connection that lies idle."""

    protocol_version = "HTTP/1.1"
    timeout = CLOSES_AFTER_S
    connections: list[tuple[str, int]] = []

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.client_address)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def echo():
    Echo.connections.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_a_connection_that_the_server_has_closed_is_not_used_again(echo, monkeypatch):
    """A busy event loop, as of a trainer that computes, has not seen yet that an idle connection was closed."""
    monkeypatch.setattr(http_server, "KEEPALIVE_S", CLOSES_AFTER_S / 2)
    server = HTTPServer(echo, key="", key_env="KEY")
    try:
        assert await server.ask("POST", "/", json=[1]) == [1]
        assert await server.ask("POST", "/", json=[2]) == [2]
        assert len(Echo.connections) == 1
        time.sleep(2 * CLOSES_AFTER_S)  # on purpose
        assert await server.ask("POST", "/", json=[3]) == [3]
        assert len(Echo.connections) == 2
    finally:
        await server.close()


def test_connections_are_kept_shorter_than_servers_keep_them():
    assert http_server.KEEPALIVE_S < inspect.signature(uvicorn.Config).parameters["timeout_keep_alive"].default
