"""Desktops of kind "osworld": what answers in the place of OSWorld's server is bounded, in bytes, time and structure.

It may be a program of the agent's, who has all rights on its machine. Here it is an HTTP server of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import time
import zlib

import pytest
from aiohttp import web
from PIL import Image

from dart_gym.core.actions import Click
from dart_gym.core.errors import DartGymError, DesktopError
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.osworld_vm import osworld_desktop
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot

pytestmark = [pytest.mark.security, pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")]

SIZE = {"width": 64, "height": 48}
OPERATIONS = {
    "/screenshot": lambda desktop: desktop.screenshot(),
    "/margin": lambda desktop: desktop.read_margin(),
    "/execute": lambda desktop: desktop.execute(["true"]),
    "/file": lambda desktop: desktop.read_file("/etc/hosts"),
    "/accessibility": lambda desktop: desktop.accessibility_tree(),
    "/setup/upload": lambda desktop: desktop.write_file("x", b""),
    "/setup/launch": lambda desktop: desktop.launch(["true"]),
}


async def without_end(request: web.Request) -> web.StreamResponse:
    """As many bytes as somebody takes."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"[" + b" " * 262_143)


async def drop_by_drop(request: web.Request) -> web.StreamResponse:
    """No single byte is late."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


def png(width: int, height: int) -> bytes:
    """An image that is small until it is decoded."""
    buffer = io.BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
async def machine():
    """`machine.answers[PATH]` is what it says there: an answer, or what handles the request; `machine.asked` counts."""
    screen = {"/platform": web.Response(text="Linux"), "/screen_size": web.json_response(SIZE)}

    class Machine:
        answers: dict[str, object] = {}
        asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        machine.asked.append(request.path)
        answer = {**screen, "/screenshot": web.Response(body=png(**SIZE)), **machine.answers}.get(request.path)
        with contextlib.suppress(ConnectionError):
            if callable(answer):
                return await answer(request)
        return (
            web.Response(body=answer.body, status=answer.status, headers=answer.headers)
            if answer
            else web.Response(status=500)
        )

    machine = Machine()
    machine.answers, machine.asked = {}, []
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    machine.spec = DesktopSpec(kind="osworld", url=url, profile="osworld", margin=1, **SIZE)
    machine.desktop = make_desktop(machine.spec)
    await machine.desktop.start(timeout=10.0)
    yield machine
    await machine.desktop.stop()
    await runner.cleanup()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def most_memory(running: asyncio.Future[object]) -> int:
    """By how many bytes this process grew, at most, until something was done."""
    before = most = resident_bytes()
    while not running.done():
        most = max(most, resident_bytes())
        await asyncio.sleep(0.005)
    return most - before


@pytest.mark.parametrize("path", OPERATIONS)
async def test_an_answer_without_end_is_not_taken(machine, monkeypatch, path):
    monkeypatch.setattr(osworld_desktop, "MAX_FILE", 8 << 20)
    machine.answers[path] = without_end
    asking = asyncio.ensure_future(OPERATIONS[path](machine.desktop))
    async with asyncio.timeout(60):
        grown = await most_memory(asking)
    with pytest.raises(DesktopError, match="more than [0-9]+ bytes, which are not read"):
        await asking
    assert grown < 96 << 20
    assert machine.desktop.alive == (path == "/accessibility"), "nobody knows whether what changes it was done"


@pytest.mark.parametrize("path", OPERATIONS)
async def test_an_answer_that_drips_has_its_deadline(machine, monkeypatch, path):
    for name in ("REQUEST_S", "UPLOAD_TIMEOUT_S", "CONNECT_TIMEOUT_S", "LONGEST_COMMAND_S", "_MARGIN_S"):
        monkeypatch.setattr(osworld_desktop, name, 0.3)
    monkeypatch.setitem(machine.desktop._request.__kwdefaults__, "timeout", 0.3)
    machine.answers[path] = drop_by_drop
    monkeypatch.setitem(OPERATIONS, "/accessibility", lambda desktop: desktop.accessibility_tree(timeout=0.3))
    started = time.monotonic()
    async with asyncio.timeout(30):
        if path == "/accessibility":
            assert not (await OPERATIONS[path](machine.desktop)).complete
        else:
            with pytest.raises(DesktopError):
                await OPERATIONS[path](machine.desktop)
    assert time.monotonic() - started < 10


async def test_what_is_packed_is_not_unpacked(machine):
    packed = gzip.compress(bytes(400 << 20), compresslevel=1)
    machine.answers["/file"] = web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    reading = asyncio.ensure_future(machine.desktop.read_file("/x"))
    grown = await most_memory(reading)
    assert await reading == packed and grown < 64 << 20


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


HEADER = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0\0\0\x40\0\0\0\x30\x08\2\0\0\0")
TEXT = chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(200 << 20), 1))
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\n(x) (w) file\nshowpage\n"


@pytest.mark.parametrize(
    "image",
    [png(12_000, 12_000), png(15_000, 15_000), HEADER + TEXT, HEADER + chunk(b"IDAT", b"x"), HEADER[:20], POSTSCRIPT],
    ids=["large", "larger", "text", "broken", "cut", "postscript"],
)
async def test_an_image_that_is_none_of_the_screen_is_not_decoded(machine, image):
    machine.answers["/screenshot"] = web.Response(body=image)
    looking = asyncio.ensure_future(machine.desktop.screenshot())
    grown = await most_memory(looking)
    with pytest.raises(DesktopError, match="no image|became 12000x12000|not read"):
        await looking
    assert grown < 96 << 20


INTRICATE = b"[" + b"[]," * 8_000_000 + b"0]"


@pytest.mark.parametrize("path", ["/execute", "/accessibility", "/screen_size"])
@pytest.mark.parametrize("text", [INTRICATE, b"[" * 400_000, b'{"returncode": Infinity, "output": "", "error": ""}'])
async def test_json_that_is_hard_to_read_holds_nobody_up(machine, path, text):
    machine.answers[path] = web.Response(body=text)
    asked = {**OPERATIONS, "/screen_size": lambda desktop: desktop.check_screen()}[path]
    running = asyncio.ensure_future(asked(machine.desktop))
    longest, last = 0.0, time.thread_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    with pytest.raises((DartGymError, ValueError)):
        await running
    assert longest < 0.5


async def test_no_redirect_is_followed(machine):
    machine.answers["/file"] = web.Response(status=307, headers={"Location": "/secret"})
    machine.answers["/secret"] = web.Response(text="of the host")
    with pytest.raises(DesktopError):
        await machine.desktop.read_file("/x")
    assert "/secret" not in machine.asked


async def test_an_episode_on_a_machine_that_turns_hostile_is_lost_and_the_next_one_is_played(machine):
    await machine.desktop.stop()
    session = Session(Slot("0", make_desktop))
    task = {"id": "t", "instruction": "", "evaluator": {"func": "infeasible"}, "dart": {}}
    asked = {"desktop": {"osworld_url": machine.spec.url, **SIZE}, "seed": 0}
    for _ in range(2):
        machine.answers["/execute"] = web.json_response({"returncode": 0, "output": "", "error": ""})
        result = await session.reset(task, **asked)
        assert result.terminal is None, result.evaluation
        assert (await session.step(Click(1, 1))).terminal is None
        machine.answers["/screenshot"] = without_end
        lost = await session.step(Click(1, 1))
        assert lost.terminal is TerminalState.ENV_ERROR and lost.evaluation.score is None
        machine.answers.clear()
    await session.slot.close()
