"""What answers an evaluator in the place of a browser, a player or a table leaves no episode out."""

from __future__ import annotations

import http.client
import importlib
import socket
import urllib.error

import pytest

from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.evaluation.evaluator import evaluate
from dart_gym.tasks.evaluation.evaluator_worker_main import is_ours
from dart_gym.tasks.setup.web_source import HOSTS_VARIABLE
from tests.helpers.judging import FILE, SAME, is_worth_0
from tests.helpers.web_site import site

pytestmark = pytest.mark.security


def failed(getter, config):
    try:
        return getter(None, config)
    except Exception as error:
        return is_ours(error, config, getter)


def raises(error):
    def getter(env, config):
        raise error

    return getter


def reads_with_a_library(env, config):
    return importlib.import_module("reads_tables").read(config["path"])


def lacks_a_package(env, config):
    import no_such_package  # noqa: F401


def lacks_a_name(env, config):
    return no_such_name  # noqa: F821


def takes_another_way(env, config):
    if env:
        found = 1
    return found


def lacks_a_parameter(env, config):
    return config["colour"]


def test_only_the_task_and_the_code_of_a_getter_make_its_failure_ours(tmp_path, monkeypatch):
    """Words of a network may be the agent's, as may the content that a library takes for a format without support."""
    (tmp_path / "reads_tables.py").write_text("def read(path):\n    import reads_old_tables\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"type": "vm_file", "path": "x"}
    for error in (
        ValueError("could not convert string to float: 'net::ERR_NAME_NOT_RESOLVED'"),
        urllib.error.URLError("http://localhost:9222: net::ERR_FAILED"),
        http.client.BadStatusLine("net::ERR_FAILED"),
        ConnectionError("HTTPConnectionPool(host='no.such.host', port=80): Max retries exceeded with url: /"),
        socket.gaierror("getaddrinfo failed"),
        KeyError("title"),
    ):
        assert failed(raises(error), config) is False, error
    assert failed(takes_another_way, config) is False
    assert failed(reads_with_a_library, config) is False
    assert failed(raises(NotImplementedError("File type pdf not supported")), config) is True
    assert failed(lacks_a_package, config) is True
    assert failed(lacks_a_name, config) is True
    assert failed(lacks_a_parameter, config) is True


VLC_ELSEWHERE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "http://no.such.host.invalid/")
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""
OLD_FORMAT = "printf '\\320\\317\\021\\340\\241\\261\\032\\341' > ~/result; head -c 2000 /dev/zero >> ~/result"
"""The begin of a file of Office 97: libraries that read tables want a package for it that OSWorld does not have."""
LAST_ROW = {
    "type": "content_from_vm_file",
    "path": "/home/user/result",
    "file_type": "xlsx",
    "file_content": "last_row",
}
EVADES = {
    "a player that leads elsewhere": {
        "func": "is_vlc_playing",
        "result": {"type": "vlc_playing_info", "dest": "status.xml"},
        "expected": {"type": "rule", "rules": {"type": "file_name", "file_name": "a.mp4"}},
    },
    "a table of another format": {
        "func": "is_in_list",
        "result": LAST_ROW,
        "expected": {"type": "rule", "rules": {"expected": "x"}},
    },
    "a table of another format, compared": {
        "func": "compare_table",
        "result": {**FILE, "dest": "result.xlsx"},
        "expected": {**FILE, "dest": "right.xlsx"},
        "options": {"rules": []},
    },
}


@pytest.mark.desktop
@pytest.mark.parametrize("how", EVADES)
async def test_no_answer_to_a_getter_of_osworld_is_a_way_out(desktop, how):
    await desktop.launch(["python3", "-c", VLC_ELSEWHERE])
    await desktop.execute(["sh", "-c", OLD_FORMAT])
    evaluation = await evaluate(desktop, EVADES[how], TerminalState.DONE, official=True)
    assert is_worth_0(evaluation), evaluation


NO_BROWSER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        listed = json.dumps([{"id": "1", "type": "page", "url": "http://a/", "title": ""}]).encode()
        self.send_response(200 if self.path == "/json" else 500)
        self.send_header("Content-Length", str(len(listed)))
        self.end_headers()
        self.wfile.write(listed)
    def do_PUT(self):
        REPLY
http.server.ThreadingHTTPServer(("127.0.0.1", 9222), Handler).serve_forever()
"""


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("kind", "parameters", "reply"),
    [
        ("chrome_open_tabs", {"urls_to_open": ["http://b/"]}, "self.connection.close()"),
        ("chrome_open_tabs", {"urls_to_open": ["http://b/"]}, "self.do_GET()"),
        ("chrome_close_tabs", {"urls_to_close": ["http://a/"]}, "pass"),
    ],
)
async def test_a_program_that_takes_the_place_of_the_browser_is_the_agent_s(desktop, kind, parameters, reply):
    step = {"type": kind, "parameters": parameters}
    await desktop.launch(["python3", "-c", NO_BROWSER.replace("REPLY", reply)])
    await desktop.execute(["sh", "-c", "echo right > ~/right; cp ~/right ~/result"])
    evaluation = await evaluate(desktop, {**SAME, "postconfig": [step]}, TerminalState.DONE)
    assert is_worth_0(evaluation) and kind in evaluation.detail, evaluation


NO_NETWORK = """
import base64, hashlib, http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if "Sec-WebSocket-Key" in self.headers:
            return self.converse()
        page = {"id": "1", "type": "page", "url": "http://a/", "title": "", "webSocketDebuggerUrl": "ws://localhost/1"}
        text = json.dumps([page] if self.path == "/json" else page).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_PUT = do_GET
    def converse(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while (begin := self.rfile.read(2)) and begin[0] == 0x81:
            size = begin[1] & 127
            size = int.from_bytes(self.rfile.read(2)) if size == 126 else size
            mask = self.rfile.read(4)
            call = json.loads(bytes(byte ^ mask[n % 4] for n, byte in enumerate(self.rfile.read(size))))
            result = {"errorText": "net::ERR_INTERNET_DISCONNECTED"} if call["method"] == "Page.navigate" else {}
            text = json.dumps({"id": call["id"], "result": result}).encode()
            assert len(text) < 126
            self.wfile.write(bytes([0x81, len(text)]) + text)
http.server.ThreadingHTTPServer(("127.0.0.1", 9222), Handler).serve_forever()
"""


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("page", "ours"),
    [("file:///home/user/a.html", False), ("http://shop.test/", False), ("SERVED", False), ("CLOSED", True)],
)
async def test_a_network_that_fails_by_the_desktop_s_word_alone_is_the_agent_s(desktop, monkeypatch, page, ours):
    """A page that this machine reaches is not missing for want of a network; one that it does not reach may be."""
    monkeypatch.setenv(HOSTS_VARIABLE, "127.0.0.2")
    with site(lambda path: b"a page", "127.0.0.2") as server, socket.socket() as unheard:
        unheard.bind(("127.0.0.2", 0))
        port = {"SERVED": server.server_address[1], "CLOSED": unheard.getsockname()[1]}.get(page)
        step = {
            "type": "chrome_open_tabs",
            "parameters": {"urls_to_open": [f"http://127.0.0.2:{port}/" if port else page]},
        }
        await desktop.launch(["python3", "-c", NO_NETWORK])
        await desktop.execute(["sh", "-c", "echo right > ~/right; cp ~/right ~/result"])
        evaluation = await evaluate(desktop, {**SAME, "postconfig": [step]}, TerminalState.DONE)
        assert "ERR_INTERNET_DISCONNECTED" in evaluation.detail, evaluation
        assert is_worth_0(evaluation) is not ours, evaluation
        assert ours or server.asked == (["/"] if page == "SERVED" else [])
