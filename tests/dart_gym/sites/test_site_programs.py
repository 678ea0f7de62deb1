"""Sites that are programs: started once, one line when they do not start, and nobody reaches another's state."""

import asyncio
import json
import shutil
import socket

import pytest

from dart_gym.core.errors import DesktopError, MissingDependencyError
from dart_gym.sites.site_catalog import find_site
from dart_gym.sites.site_programs import program_port
from dart_gym.sites.site_server import SiteServer

pytestmark = pytest.mark.process

# The State API as CUA-Gym-Hub documents it, in a program that keeps each `sid` apart and trusts it.
PROGRAM = """
import http.server, json, os, sys, urllib.parse
states = {}
class Mock(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        sid = urllib.parse.parse_qs(url.query).get("sid", [None])
        initial, current = states.get(sid[-1], (None, None))
        if url.path == "/go": return self.reply({"initial_state": initial, "current_state": current, "state_diff": {}})
        if url.path == "/state": return self.reply({"stored_state": current, "sid": sid, "known": len(states)})
        self.reply({"path": self.path, "cookie": self.headers.get("Cookie"), "host": self.headers.get("Host")})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sid = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["sid"][-1]
        if body["action"] == "reset": states.pop(sid, None)
        else: states[sid] = (body["state"] if body["action"] == "set" else states.get(sid, (None,))[0], body["state"])
        self.reply({"success": True})
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Mock).serve_forever()
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("DART_GYM_SITES", str(tmp_path))

    def make(name, command, **fields):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "site.json").write_text(json.dumps({"command": command, **fields}))
        (folder / "mock.py").write_text(PROGRAM)
        return find_site(name)

    return make


@pytest.fixture
def serving():
    """Serves sites at a port of loopback, as a desktop does at its own port 80."""

    async def serve(stack, site):
        server = SiteServer(
            [{"name": site.name, "host": site.host, "folder": str(site.folder), "port": await program_port(site)}]
        )
        listener = socket.create_server(("127.0.0.1", 0))
        await server.serve(listener)
        stack.push_async_callback(server.close)
        return server, listener.getsockname()[1]

    return serve


async def ask(port, host, target, body=None):
    """One request, its target as it is; the status and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nHost: {host}\r\nCookie: a=b\r\nConnection: close\r\n"
    )
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    text = rest.partition(b"\r\n\r\n")[2]
    return int(status.split()[1]), json.loads(text) if text.startswith(b"{") else text


@pytest.mark.desktop
def test_a_program_is_started_once_and_no_request_reaches_the_state_of_another_episode(hub, serving):
    site = hub("tracker", ["python3", "mock.py", "{port}"])

    async def run():
        import contextlib

        async with contextlib.AsyncExitStack() as stack:
            (one, first), (two, second) = [await serving(stack, site) for _ in range(2)]
            assert await program_port(site) == await program_port(site)
            await one.set_state("tracker", {"secret": 1})
            await two.set_state("tracker", {"secret": 2})
            sid = (await ask(first, "tracker.test", "/state"))[1]["sid"]
            for target in (
                f"/go?sid={sid[0]}",
                f"/go?sid=x&sid={sid[0]}",
                f"/go?%73id={sid[0]}",
                f"/state?sid={sid[0]}",
            ):
                _, answer = await ask(second, "tracker.test", target)
                assert (answer.get("current_state") or answer.get("stored_state")) == {"secret": 2}, target
            for target in (f"/files/{sid[0]}/a.txt", f"/FILES/{sid[0]}/a.txt", f"//files//{sid[0]}/a.txt"):
                assert sid[0] not in (await ask(second, "tracker.test", target))[1]["path"], target
            wanted = {"action": "set_current", "state": {"secret": 3}}
            assert (await ask(second, "tracker.test", f"/post?sid={sid[0]}", wanted))[0] == 200
            assert (await one.state("tracker"))["current_state"] == {"secret": 1}
            assert (await two.state("tracker"))["current_state"] == {"secret": 3}
            two.seal()
            assert (await ask(second, "tracker.test", "/go"))[0] == 403
            assert (await ask(second, "tracker.test", "/GO/"))[0] == 403
            assert (await ask(second, "tracker.test", "/post", {"action": "set", "state": {}}))[0] == 403
        async with contextlib.AsyncExitStack() as stack:
            _, port = await serving(stack, site)
            assert (await ask(port, "tracker.test", "/state"))[1]["known"] == 0  # ended episodes are forgotten

    asyncio.run(run())


@pytest.mark.desktop
def test_a_program_that_has_ended_is_started_again_and_can_write_to_its_folder_alone(hub, tmp_path):
    check = (
        "import os, sys, socket\n"
        "open('mark', 'a').write('x')\n"
        "try: open('../outside', 'w')\n"
        "except OSError: pass\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True:\n    server.accept()[0].recv(1) and os._exit(3)\n"
    )
    site = hub("fragile", ["python3", "-c", check, "{port}"])

    async def run():
        port = await program_port(site)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"end")
        while True:  # until the kernel says that nothing listens there any more
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
            except ConnectionRefusedError:
                break
            await asyncio.sleep(0.02)
        await program_port(site)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (site.folder / "mark").read_text() == "xx" and not (tmp_path / "outside").exists()


@pytest.mark.desktop
def test_sites_that_do_not_start_say_why_in_one_line_and_the_others_go_on(hub):
    busy = socket.create_server(("127.0.0.1", 0))
    sites = [
        (
            hub("ends", ["python3", "-c", "import sys; sys.exit('the data\\nis missing')"]),
            DesktopError,
            "the data is missing",
        ),
        (
            hub("taken", ["python3", "mock.py", "{port}"], port=busy.getsockname()[1]),
            DesktopError,
            "is in use; next step",
        ),
        (hub("lacking", ["no-such-program"]), MissingDependencyError, "needs the program 'no-such-program'; next step"),
    ]
    good = hub("good", ["python3", "mock.py", "{port}"])

    async def run():
        found = await asyncio.gather(
            *(program_port(site) for site, *_ in sites), program_port(good), return_exceptions=True
        )
        for (site, kind, reason), error in zip(sites, found, strict=False):
            assert isinstance(error, kind) and reason in str(error) and repr(site.name) in str(error), error
            assert "\n" not in str(error)
        assert isinstance(found[-1], int)

    asyncio.run(run())
    busy.close()


@pytest.mark.desktop
def test_a_site_in_the_hubs_layout_runs_by_npm_or_says_that_it_is_missing(tmp_path, monkeypatch, serving):
    folder = tmp_path / "websites" / "notes_mock"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"name": "notes", "scripts": {"preview": "node server.mjs"}}))
    (folder / "server.mjs").write_text(
        "import http from 'node:http'\n"
        "const at = process.argv.indexOf('--port')\n"
        "const answer = request => JSON.stringify({ path: request.url, args: process.argv.slice(2) })\n"
        "http.createServer((request, response) => response.end(answer(request)))\n"
        "  .listen(Number(process.argv[at + 1]), '127.0.0.1')\n"
    )
    monkeypatch.setenv("DART_GYM_SITES", str(tmp_path))
    site = find_site("notes")

    async def run():
        import contextlib

        if shutil.which("npm") is None:
            with pytest.raises(MissingDependencyError, match="needs the program 'npm'; next step: install it"):
                await program_port(site)
            return
        async with contextlib.AsyncExitStack() as stack:
            server, port = await serving(stack, site)
            status, answer = await ask(port, "notes.test", "/page?sid=mine&x=1")
            assert status == 200 and answer["path"].startswith("/page?x=1&sid=") and "mine" not in answer["path"]
            assert answer["args"][:2] == ["--host", "127.0.0.1"] and "--strictPort" in answer["args"]

    asyncio.run(run())
