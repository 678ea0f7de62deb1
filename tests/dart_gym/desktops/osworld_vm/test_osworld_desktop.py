"""A desktop behind OSWorld's HTTP routes: used through them, and typed errors where they fail."""

from __future__ import annotations

import asyncio
import json
import time

import gymnasium
import numpy as np
import pytest
from aiohttp import web

from dart_gym import Click, Done, KeyDown, Move, Press, Type, Wait
from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_gym.tasks.screen import idleness

SIZE = {"width": 640, "height": 480}


# --- a real desktop, seen through its OSWorld API


@pytest.fixture
async def api():
    local = make_desktop(DesktopSpec(profile="osworld", **SIZE))
    await local.start()
    async with OSWorldAPI(local, open_to_all=True) as served:
        yield served.address
    await local.stop()


@pytest.fixture
async def remote(api):
    url = f"{api.url}?9222={api.chromium_port}&8080={api.vlc_port}"
    desktop = make_desktop(DesktopSpec(kind="osworld", url=url, **SIZE))
    await desktop.start(timeout=20.0)
    yield desktop
    await desktop.stop()


@pytest.mark.desktop
async def test_it_does_what_a_local_desktop_does(remote, until):
    assert remote.alive
    before = await remote.screenshot()
    assert before.shape == (480, 640, 3) and before.dtype == np.uint8
    text = 'é 中文 😀 < "quoted" $HOME `x`\tend'
    await remote.launch(["zenity", "--entry", "--title=Word", "--width=400"])

    async def shown():
        return b"Word" in (await remote.execute(["wmctrl", "-l"])).stdout

    await until(shown, 20.0)
    assert (await remote.settle(SettlePolicy(quiet_ms=100, max_ms=3000))).frames >= 2
    await remote.perform(Type(text.replace("\t", " ")))
    await remote.settle(SettlePolicy())
    await remote.perform(Press(("ctrl", "a")))
    await remote.perform(Press(("ctrl", "x")))
    copied = await until(lambda: _clipboard(remote))
    assert copied == text.replace("\t", " ")
    await remote.perform(KeyDown("ctrl"))
    await remote.release_inputs()
    assert not np.array_equal(await remote.screenshot(), before)


@pytest.mark.desktop
async def test_other_peoples_programs_on_a_machine_are_not_waited_for(remote, monkeypatch):
    monkeypatch.setattr(idleness, "MACHINE_STILL_S", 2.0)
    await remote.launch(["/usr/bin/python3", "-c", "while True: pass"])
    waited = await idleness.wait_until_idle(remote, timeout=120.0)
    assert waited.stable and 2.0 <= waited.waited_s < 60.0


async def _clipboard(desktop) -> str:
    return (await desktop.execute(["xclip", "-o", "-selection", "clipboard"], timeout=10)).stdout.decode()


@pytest.mark.desktop
async def test_files_programs_ports_and_the_tree(remote, tmp_path):
    data = bytes(range(256))
    await remote.write_file("sub/a.bin", data)
    assert await remote.read_file("/home/user/sub/a.bin") == data == await remote.read_file("sub/a.bin")
    with pytest.raises(FileNotFoundError):
        await remote.read_file("none")
    result = await remote.execute(["sh", "-c", "cat; echo $A; echo bad >&2; exit 3"], stdin=b"in\n", env={"A": "1"})
    assert (result.returncode, result.stdout, result.stderr) == (3, b"in\n1\n", b"bad\n")
    assert (await remote.execute(["no-such-program"])).returncode == 127
    with pytest.raises(FileNotFoundError):
        await remote.launch(["no-such-program"])
    with pytest.raises(DesktopTimeoutError, match="within 0.3 s"):
        await remote.execute(["sleep", "20"], timeout=0.3)
    tree = await remote.accessibility_tree(timeout=20.0)
    assert tree.xml.startswith("<desktop-frame") and tree.nodes >= 1
    await remote.write_file("pages/x.txt", b"served")
    await remote.launch(["python3", "-m", "http.server", "-b", "127.0.0.1", "-d", "/home/user/pages", "9222"])
    path = await remote.open_port(9222)
    assert b"served" in await _get(path, "/x.txt")
    assert remote.alive


async def _get(path, target: str) -> bytes:
    deadline = time.monotonic() + 10
    while True:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        if answer or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.05)


@pytest.mark.thorough
@pytest.mark.desktop
async def test_an_environment_uses_it_instead_of_a_local_desktop(api):
    task = {
        "id": "touch",
        "instruction": "Make a folder.",
        "config": [{"type": "execute", "parameters": {"command": ["mkdir", "-p", "/home/user/x"]}}],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["ls", "/home/user/x"]},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
        "dart": {},
    }

    def play():
        with gymnasium.make("DartGym/OSWorld-v0", osworld_url=api.url, **SIZE) as env:
            for _ in range(2):  # the machine is free again for the second one
                observation, info = env.reset(seed=0, options={"task": task})
                assert observation["screenshot"].shape == (480, 640, 3) and not info["env_fault"]
                env.step(Click(10, 10))
                assert env.step(Done())[1] == 1.0

    await asyncio.to_thread(play)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", 3])
def test_impossible_addresses_are_refused(url):
    with pytest.raises(ConfigurationError, match="http://host:5000"):
        make_desktop(DesktopSpec(kind="osworld", url=url))


# --- machines that misbehave


class Broken:
    """A server that answers as told, and counts the requests."""

    def __init__(self):
        self.answers: dict[str, object] = {"/platform": "Linux", "/screen_size": SIZE}
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        answer = self.answers.get(request.path, web.Response(status=500, text="broken"))
        if answer == "hang":
            await asyncio.sleep(30)
        if answer == "cut":
            request.transport.close()
            return web.Response()
        if isinstance(answer, web.Response):
            return answer
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))


@pytest.fixture
async def broken():
    server = Broken()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server.desktop = make_desktop(DesktopSpec(kind="osworld", url=server.url, **SIZE))
    yield server
    await server.desktop.stop()
    await runner.cleanup()


async def test_an_absent_machine_is_named_within_the_deadline():
    desktop = make_desktop(DesktopSpec(kind="osworld", url="http://127.0.0.1:1", **SIZE))
    started = time.monotonic()
    with pytest.raises(DesktopTimeoutError, match=r"127\.0\.0\.1:1 cannot be reached.*start the machine"):
        await desktop.start(timeout=0.5)
    assert time.monotonic() - started < 5 and not desktop.alive


async def test_another_screen_size_is_refused(broken):
    broken.answers["/screen_size"] = {"width": 1280, "height": 800}
    with pytest.raises(ConfigurationError, match="1280x800.*640x480"):
        await broken.desktop.start(timeout=2.0)


@pytest.mark.parametrize("failure", ["cut", "hang"])
async def test_an_action_is_never_sent_twice(broken, failure, monkeypatch):
    monkeypatch.setattr("dart_gym.desktops.osworld_vm.osworld_desktop.LONGEST_COMMAND_S", 0.3)
    await broken.desktop.start(timeout=2.0)
    broken.answers["/execute"] = failure
    with pytest.raises(DesktopError, match="/execute"):
        await broken.desktop.perform(Click(1, 1))
    assert broken.asked.count("/execute") == 1 and not broken.desktop.alive
    with pytest.raises(DesktopError, match="broke"):
        await broken.desktop.perform(Click(1, 1))


@pytest.mark.parametrize(
    ("path", "answer", "operation", "match"),
    [
        ("/execute", "no json", lambda d: d.perform(Click(1, 1)), "answered /execute"),
        ("/execute", {"returncode": 1, "error": "no display"}, lambda d: d.perform(Move(1, 1)), "no display"),
        ("/execute", {"output": ""}, lambda d: d.execute(["true"]), "answered /execute"),
        ("/execute", [], lambda d: d.execute(["true"]), "answered /execute"),
        ("/screenshot", "no image", lambda d: d.screenshot(), "no image"),
        ("/screenshot", web.Response(status=500), lambda d: d.screenshot(), "status 500"),
        ("/file", web.Response(status=500, text="odd"), lambda d: d.read_file("/x"), "odd"),
        ("/setup/upload", web.Response(status=507, text="disk full"), lambda d: d.write_file("/x", b""), "disk full"),
        ("/accessibility", "x", lambda d: d.accessibility_tree(), "no accessibility tree"),
        ("/screenshot", web.Response(status=401), lambda d: d.screenshot(), "token"),
    ],
)
async def test_bad_answers_are_typed_errors(broken, path, answer, operation, match):
    await broken.desktop.start(timeout=2.0)
    broken.answers[path] = answer
    with pytest.raises(DesktopError, match=match):
        await operation(broken.desktop)


async def test_a_tree_that_takes_too_long_is_partial(broken):
    await broken.desktop.start(timeout=2.0)
    broken.answers["/accessibility"] = "hang"
    tree = await broken.desktop.accessibility_tree(timeout=0.2)
    assert (tree.complete, tree.nodes) == (False, 0) and broken.desktop.alive


async def test_waiting_needs_no_request(broken):
    await broken.desktop.start(timeout=2.0)
    await broken.desktop.perform(Wait(0.0))
    assert "/execute" not in broken.asked
