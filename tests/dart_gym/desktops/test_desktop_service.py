"""One desktop as a process of its own, over Unix sockets, as it runs in a container: real processes, no Docker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.applications.browser import DEVTOOLS_PORT
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.desktop_service import API, LIFE, LOG, PORTS, Lifeline, parse_spec
from dart_gym.desktops.osworld_vm.machine_address import MachineAddress
from dart_gym.desktops.osworld_vm.osworld_desktop import OSWorldDesktop
from dart_gym.desktops.xvfb.xvfb_desktop import BACKGROUND
from dart_gym.providers.docker_provider import log_tail, socket_path

pytestmark = pytest.mark.process

SIZE = {"width": 320, "height": 240}


def as_json(spec: DesktopSpec) -> str:
    return json.dumps({name: getattr(spec, name) for name in spec.__slots__})


def address_of(directory) -> MachineAddress:
    return MachineAddress(str(directory), "http://desktop", socket=directory / API, ports_socket=directory / PORTS)


@pytest.fixture
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def start_service(directory):
    started = []

    def start(spec: DesktopSpec | str) -> subprocess.Popen:
        text = spec if isinstance(spec, str) else as_json(spec)
        process = subprocess.Popen([sys.executable, "-m", "dart_gym.desktops.desktop_service", str(directory), text])
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.wait(20)


async def held(directory, until) -> socket.socket:
    """The lifeline, as soon as the desktop is ready."""

    def connect():
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(directory / LIFE))
        except OSError:
            connection.close()
            return None
        return connection

    return await until(connect, timeout=60)


async def ended(process, until) -> int:
    await until(lambda: process.poll() is not None, timeout=30)
    return process.returncode


# --- values


def test_a_spec_survives_its_way_as_json():
    spec = DesktopSpec(profile="browser", env=(("A", "1"),), reusable=True, **SIZE)
    assert parse_spec(as_json(spec)) == spec


@pytest.mark.parametrize("text", ["", "[]", '{"color": "red"}', '"x"'])
def test_what_is_no_spec_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        parse_spec(text)


async def test_nobody_holding_on_ends_the_wait():
    await asyncio.wait_for(Lifeline(longest_alone_s=0.01).wait(), 5)


# --- processes


async def test_it_lives_as_long_as_somebody_holds_on(start_service, directory, until):
    process = start_service(DesktopSpec(kind="fake", **SIZE))
    first = await held(directory, until)
    second = await held(directory, until)
    desktop = OSWorldDesktop(DesktopSpec(kind="osworld", **SIZE), address_of(directory))
    await desktop.start()
    assert (await desktop.screenshot()).shape == (240, 320, 3)
    await desktop.stop()
    first.close()
    await desktop.start()  # the second one still holds on
    await desktop.stop()
    second.close()
    assert await ended(process, until) == 0


async def test_only_this_user_can_open_its_sockets(start_service, directory, until):
    start_service(DesktopSpec(kind="fake", **SIZE))
    with await held(directory, until):
        modes = {name: (directory / name).stat().st_mode & 0o077 for name in (API, PORTS, LIFE, LOG)}
    assert not any(modes.values()), modes


async def test_a_signal_ends_it(start_service, directory, until):
    process = start_service(DesktopSpec(kind="fake", **SIZE))
    with await held(directory, until):
        process.terminate()
        assert await ended(process, until) == 0


async def test_what_cannot_start_says_why_where_the_host_can_read_it(start_service, directory, until):
    process = start_service(DesktopSpec(profile="no such profile"))
    assert await ended(process, until) == 1
    assert "unknown profile" in log_tail(directory)


async def test_a_port_that_is_none_drops_its_client_and_nobody_else(start_service, directory, until):
    start_service(DesktopSpec(kind="fake", **SIZE))
    with await held(directory, until):
        for line in (b"x\n", b"70000\n", b"9" * 200_000, b"", b"9222\n"):
            reader, writer = await asyncio.open_unix_connection(directory / PORTS)
            writer.write(line)
            with contextlib.suppress(OSError):
                if not line:
                    writer.write_eof()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        desktop = OSWorldDesktop(DesktopSpec(kind="osworld", **SIZE), address_of(directory))
        await desktop.start()
        await desktop.stop()


# --- what the container may not do to the host


def test_a_link_in_the_place_of_a_socket_is_refused(directory):
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX) as host:
        host.bind(str(directory / "host.sock"))
        (directory / API).symlink_to(directory / "host.sock")
        with pytest.raises((DesktopError, OSError)):
            socket_path(directory / API, stack)
        (directory / PORTS).write_text("no socket")
        with pytest.raises(DesktopError, match="something else than a socket"):
            socket_path(directory / PORTS, stack)
        with pytest.raises(FileNotFoundError):
            socket_path(directory / LIFE, stack)


async def test_a_socket_stays_the_one_that_was_opened(directory):
    async def answer(reader, writer):
        writer.write(b"the first")
        writer.close()

    server = await asyncio.start_unix_server(answer, directory / API)
    with contextlib.ExitStack() as stack:
        path = socket_path(directory / API, stack)
        os.rename(directory / API, directory / "elsewhere")
        (directory / API).write_text("another")
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b"the first"
        writer.close()
    server.close()


def test_a_pipe_in_the_place_of_the_log_does_not_hang_the_host(directory):
    os.mkfifo(directory / LOG)
    assert log_tail(directory)


# --- a real desktop


@pytest.mark.desktop
async def test_a_real_desktop_is_used_through_its_sockets(start_service, directory, until):
    process = start_service(DesktopSpec(profile="browser", **SIZE))
    with await held(directory, until):
        desktop = OSWorldDesktop(DesktopSpec(kind="osworld", **SIZE), address_of(directory))
        await desktop.start()
        await desktop.write_file("note.txt", b"hello")
        assert (await desktop.execute(["cat", "note.txt"])).stdout == b"hello"
        transport = httpx.AsyncHTTPTransport(uds=str(await desktop.open_port(DEVTOOLS_PORT)))
        async with httpx.AsyncClient(transport=transport) as client:
            assert "Chrom" in (await client.get("http://localhost/json/version")).json()["Browser"]
        await desktop.stop()
    assert await ended(process, until) == 0


@pytest.mark.desktop
async def test_rows_below_the_screen_are_seen_through_its_sockets(start_service, directory, until):
    start_service(DesktopSpec(margin=2, **SIZE))
    with await held(directory, until):
        desktop = OSWorldDesktop(DesktopSpec(margin=2, **SIZE), address_of(directory))
        await desktop.start()
        red, green, blue = BACKGROUND
        assert np.array_equal(await desktop.read_margin(), np.full((2, 320, 3), (red, green, blue)))
        assert (await desktop.screenshot()).shape == (240, 320, 3)
        await desktop.stop()


async def test_a_desktop_without_the_rows_that_were_asked_for_is_an_error(start_service, directory, until):
    start_service(DesktopSpec(kind="fake", **SIZE))
    with await held(directory, until):
        desktop = OSWorldDesktop(DesktopSpec(margin=1, **SIZE), address_of(directory))
        await desktop.start()
        with pytest.raises(DesktopError, match="no 1 rows below its screen"):
            await desktop.read_margin()
        await desktop.stop()


@pytest.mark.desktop
async def test_a_desktop_that_dies_ends_its_process(start_service, directory, until, descendants):
    process = start_service(DesktopSpec(**SIZE))
    with await held(directory, until):
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants(process.pid)}
        display = next(pid for pid, name in names.items() if name == "Xvfb")
        os.kill(display, signal.SIGKILL)
        assert await ended(process, until) == 0
    assert "the desktop has died" in log_tail(directory)
