"""What goes wrong while a desktop is laid out and boots: the cause by its number, and nothing that goes on."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from dart_gym.core.errors import DesktopError
from dart_gym.core.os_remedies import remedy
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.sandbox import sandbox as sandbox_module
from dart_gym.desktops.xvfb import xvfb_desktop
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "open files"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "memory"),
        (errno.EACCES, "write"),
        (errno.EROFS, "read-only"),
    ],
)
def test_each_cause_has_its_own_next_step(number, words, monkeypatch):
    def fails(prefix: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sandbox_module, "own_directory", fails)
    with pytest.raises(DesktopError) as raised:
        sandbox_module.make_directory()
    assert os.strerror(number) in str(raised.value) and words in str(raised.value)
    assert ("space" in str(raised.value)) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_what_is_not_known_is_left_to_the_caller():
    assert remedy(OSError(errno.EPIPE, "broken")) is None and remedy(OSError("no number")) is None


async def test_a_boot_has_ended_when_the_desktop_is_stopped(monkeypatch):
    order = []

    class Sandbox:
        def __init__(self, *arguments):
            pass

    class Desktop(XvfbDesktop):
        async def _boot(self, sandbox):
            try:
                await asyncio.sleep(60)
            finally:
                order.append("boot ended")

        async def _serve_sites(self, sandbox, sites):
            await asyncio.sleep(0)
            raise DesktopError("the sites cannot be served")

        async def stop(self):
            order.append("stopped")

        def with_logs(self, message):
            return message

    monkeypatch.setattr(xvfb_desktop, "Sandbox", Sandbox)
    with pytest.raises(DesktopError, match="the sites cannot be served"):
        await Desktop(DesktopSpec()).start()
    assert order == ["boot ended", "stopped"]
