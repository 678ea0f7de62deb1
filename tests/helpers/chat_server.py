"""A server of chat completions for programs beside the test: it sees the screen and clicks on what is asked for."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.hubs.seeing_oracle import images, reply, target


def make_certificates(folder: Path, names: str) -> tuple[Path, Path, Path]:
    """A CA's certificate, and a certificate with its key that the CA signed for names such as "DNS:localhost"."""
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    (folder / "names").write_text(f"subjectAltName={names}\n")
    ca = [
        "-x509",
        "-keyout",
        "ca.key",
        "-out",
        "ca.crt",
        "-subj",
        "/CN=a CA",
        "-addext",
        "keyUsage=critical,keyCertSign",
    ]
    sign = ["openssl", "x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-extfile", "names"]
    for command in (
        [*new, *ca],
        [*new, "-keyout", "server.key", "-out", "request", "-subj", "/CN=a server"],
        [*sign, "-out", "server.crt"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "ca.crt", folder / "server.crt", folder / "server.key"


@dataclass
class ChatServer:
    """Where it is, and how it answers from now on.

    Attributes:
        mode: "" for a model that sees; "401", "404", "html" or "hang".
        keys: that were shown so far.
    """

    mode: str = ""
    port: int = 0
    tls_port: int = 0
    keys: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization", ""))
        if self.mode == "401":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        if self.mode == "404":
            return web.json_response({"error": {"message": f"The model {body['model']} does not exist."}}, status=404)
        if self.mode == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if self.mode == "hang":
            await asyncio.sleep(60)
        message = {"role": "assistant", "content": _said(body["messages"])}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def _said(messages: list[dict]) -> str:
    """The action as it was asked for: Qwen's call, or `computer_13`."""
    if "<tool_call>" not in json.dumps(messages):
        return reply(messages)
    asked = str([part for message in messages for part in message["content"]])
    x, y = target(asked, images(messages)[-1], 0)
    call = {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@contextmanager
def chat_server(certificate: Path, key: Path) -> Iterator[ChatServer]:
    """The server on loopback, on one port without and on one with TLS, in a thread of its own."""
    served, up, end = ChatServer(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", served.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        served.port, served.tls_port = (address[1] for address in runner.addresses)
        up.set()
        await end.wait()
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # answers that never come
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert up.wait(30)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)
        loop.close()
