"""The sites that are programs: each is started once for a server, when a desktop first needs it, and dies with it.

Such a program is the operator's: it reads what the server may read and has its network, but writes to its folder and
`/tmp` of its own alone. Desktops reach it through their `site_server`.
"""

import asyncio
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from contextlib import closing

from dart_gym.core.errors import DesktopError, MissingDependencyError
from dart_gym.sites.site_catalog import Site
from dart_gym.utils.processes import die_with_parent, free_port

START_S = 60.0
_POLL_S = 0.05
_LOG_TAIL = 300
_CONFINED = (
    *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"),
)
_Program = tuple[asyncio.subprocess.Process, int]
_running: dict[Site, _Program] = {}
_starting: defaultdict[tuple[Site, int], asyncio.Lock] = defaultdict(asyncio.Lock)  # a lock belongs to one event loop


async def program_port(site: Site) -> int:
    """Where the program of a site listens on loopback, started if need be; 0 for a site of pages.

    Raises:
        MissingDependencyError: its program is not installed.
        DesktopError: its port is in use, it ended, or it listened nowhere within `START_S`.
    """
    if not site.command:
        return 0
    async with _starting[site, id(asyncio.get_running_loop())]:
        if site not in _running or not _listens(_running[site][1]):
            if site in _running and _running[site][0].returncode is None:
                _running.pop(site)[0].kill()
            _running[site] = await _start(site)
        return _running[site][1]


async def _start(site: Site) -> _Program:
    program, port = shutil.which(site.command[0]), site.port or free_port()
    if program is None:
        lacking = f"the site {site.name!r} needs the program {site.command[0]!r}"
        raise MissingDependencyError(
            f"{lacking}; next step: install it (npm comes with nodejs), or leave its tasks out"
        )
    if _listens(port):
        raise DesktopError(f"the site {site.name!r} needs the port {port}, which is in use; next step: free it")
    words = [word.replace("{port}", str(port)) for word in site.command[1:]]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *_CONFINED,
            "--bind",
            site.folder,
            site.folder,
            "--setenv",
            "HOME",
            "/tmp",
            "--",
            program,
            *words,
            cwd=site.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
        )
        deadline = time.monotonic() + START_S
        while process.returncode is None and not _listens(port):
            if time.monotonic() > deadline:
                process.kill()
                await process.wait()
            await asyncio.sleep(_POLL_S)
        if process.returncode is not None:
            log.seek(0)
            said = " ".join(log.read().decode(errors="replace").split())[-_LOG_TAIL:] or "nothing"
            raise DesktopError(
                f"the program of the site {site.name!r} ended with status {process.returncode} before it listened at "
                f"port {port}, within {START_S:g} s; it said: {said}; next step: run its command in {site.folder}"
            )
    return process, port


def _listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
