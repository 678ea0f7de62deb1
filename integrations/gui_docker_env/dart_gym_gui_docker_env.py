"""The provider "gui-docker-env": virtual machines of an existing GUI-Docker-Env cluster.

Its server answers `POST /start_emulator` only when the machine is up (seconds to minutes), counts machines by token,
and says 429 when a token has all that it may. Nothing expires there: a machine that nobody stops runs, and counts, for
ever.

Invariants:
    - A start that was asked for is followed to its end: when nobody waits for it any more, its machine is stopped.
    - A start is asked for again only after an answer that says that nothing was started (429).
    - After a lost reply the machine is looked for and stopped, if the token is this server's alone
      (`exclusive_token`); else a warning names what may be it, since others use the token too.
    - The token is read from the environment, and is never part of a message.
"""

import asyncio
import itertools
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
from dart_gym_gui_docker_env_replies import Failed, Full, Refused, Started, free_places, read_start
from pydantic import Field

from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError, words_of
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.lent_machines import Machine, osworld_machine
from dart_gym.providers.provider import Options

log = logging.getLogger(__name__)

BASE_URL_VARIABLE, TOKEN_VARIABLE = "OSWORLD_BASE_URL", "OSWORLD_TOKEN"
_CONNECT_TIMEOUT_S = 10.0
_ASK_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 60.0
_SEARCH_PERIOD_S = 5.0
_FULL = (
    "all places of the token are taken, and none came free in time; next step: fewer desktops, or a larger quota for "
    "the token"
)
_SLOW = (
    "no machine was up within {:.0f} s; what was asked for is stopped when it is up; next step: give resets a longer "
    "deadline, or look at the cluster's load"
)


class GuiDockerEnvOptions(Options):
    """Options of the provider "gui-docker-env".

    Attributes:
        base_url: addresses of the servers, separated by commas; "" for OSWORLD_BASE_URL.
        token_env: environment variable with the token.
        start_timeout_s: how long a server may take to start a machine; its own limit is 300.
        exclusive_token: the token is this server's alone: whatever else runs under it is an orphan, and is stopped.
        search_period_s: how often a machine is looked for whose reply was lost.
    """

    base_url: str = ""
    token_env: str = TOKEN_VARIABLE
    start_timeout_s: Annotated[float, Field(gt=0)] = 330.0
    exclusive_token: bool = False
    search_period_s: Annotated[float, Field(gt=0)] = _SEARCH_PERIOD_S


@dataclass(slots=True, eq=False)
class _Server:
    """One server of the cluster: its URL, where its machines' ports are, unanswered starts, ids of its machines."""

    base: str
    host: str
    starting: int = 0
    machines: set[str] = field(default_factory=set)


class GuiDockerEnvProvider:
    """See `dart_gym.providers.provider.Provider`. Raises `ConfigurationError`: no address, or no token."""

    name = "gui-docker-env"
    options_type = GuiDockerEnvOptions
    capacity: int | None = None
    local, warm = False, 0

    def __init__(self, options: GuiDockerEnvOptions) -> None:
        self.options = options
        self.longest_start_s = options.start_timeout_s
        self._token = os.environ.get(options.token_env, "")
        if not self._token:
            raise ConfigurationError(
                f"GUI-Docker-Env needs a token: export it as {options.token_env}, or name another variable with "
                "--provider-option token_env=NAME"
            )
        self._servers = [_server(url) for url in _urls(options.base_url)]
        self._client: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._searches: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    # --- life

    async def open(self) -> list[str]:
        """Look whether a server answers; with an exclusive token, stop what a dead server left running."""
        headers = {"Authorization": f"Bearer {self._token}"}
        self._client = httpx.AsyncClient(headers=headers, trust_env=False)
        stopped, errors = [], []
        for server in self._servers:
            try:
                (await self._ask(server, "GET", "/ping")).raise_for_status()
                if self.options.exclusive_token:
                    stopped += await self._stop_strangers(server)
            except httpx.HTTPError as error:
                errors.append(f"{server.base}: {type(error).__name__}: {error}")
        if len(errors) == len(self._servers):
            await self.close()
            raise ConfigurationError(
                f"no server of GUI-Docker-Env answers ({'; '.join(errors)}); next step: start one, or correct "
                f"{BASE_URL_VARIABLE}"
            )
        for problem in errors:
            log.warning("a server of GUI-Docker-Env does not answer: %s", problem)
        return stopped

    def desktop(self, spec: DesktopSpec) -> Desktop:
        """A desktop, not started yet."""
        return osworld_machine(spec, self, self.name)

    async def close(self) -> None:
        """Follow every start to its end, and stop its machine. Idempotent."""
        if not self.options.exclusive_token:
            for search in self._searches:  # they can but warn
                search.cancel()
        if self._tasks:
            log.info("waiting for %d starts of machines to end, so that none is left running", len(self._tasks))
            while self._tasks:
                await asyncio.wait(self._tasks)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # --- machines

    async def take(self, spec: DesktopSpec, timeout: float) -> Machine:
        """Start a machine on the server with most free places; where all are full, wait for one."""
        full = False
        try:
            async with asyncio.timeout(timeout):
                for attempt in itertools.count():
                    full = False
                    found = await self._try_servers(attempt)
                    if isinstance(found, Machine):
                        return found
                    full = True
                    await self._until_freed(found)
        except TimeoutError:
            raise DesktopTimeoutError(_FULL if full else _SLOW.format(timeout)) from None
        raise AssertionError("the loop has no end")  # for the type checker

    async def _until_freed(self, seconds: float) -> None:
        """Wait; a machine that is given back here ends the wait early."""
        self._freed.clear()
        try:
            await asyncio.wait_for(self._freed.wait(), seconds)
        except TimeoutError:
            return

    async def _try_servers(self, attempt: int) -> Machine | float:
        """A machine of the first server that has one, or the seconds to wait until the next try."""
        waits, failures = [], []
        for server in await self._by_free_places():
            answer = await self._started(server, attempt)
            match answer:
                case Machine():
                    return answer
                case Full(wait_s):
                    waits.append(wait_s)
                case Refused(message):
                    raise ConfigurationError(
                        f"{server.base} refuses the token ({message}); next step: put it into the server's "
                        f"configuration, or correct {self.options.token_env}"
                    )
                case Failed(message):
                    failures.append(f"{server.base}: {message}")
        if waits:
            return min(waits)
        raise DesktopError(f"no server of GUI-Docker-Env could start a machine: {'; '.join(failures)}")

    async def _by_free_places(self) -> list[_Server]:
        """The servers, those with most free places first. One that does not tell keeps its place in the list."""
        if len(self._servers) == 1:
            return self._servers
        replies = await asyncio.gather(*(self._places(server) for server in self._servers))
        ranked = sorted(zip(replies, self._servers, strict=True), key=lambda pair: -pair[0])
        return [server for _, server in ranked]

    async def _places(self, server: _Server) -> int:
        try:
            reply = await self._ask(server, "GET", "/tokens")
            return free_places(reply.json(), self._token) - server.starting
        except (httpx.HTTPError, ValueError) as error:
            log.debug("%s does not tell its quotas: %r", server.base, error)
            return -1

    async def _started(self, server: _Server, attempt: int) -> Machine | Full | Refused | Failed:
        """Ask a server for a machine. When nobody waits any more, it is stopped as soon as it is up."""
        starting = asyncio.create_task(self._start(server, attempt), name=f"start on {server.base}")
        self._keep(starting)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._keep(asyncio.create_task(self._stop_when_started(starting)))
            raise

    async def _start(self, server: _Server, attempt: int) -> Machine | Full | Refused | Failed:
        server.starting += 1
        limits = httpx.Timeout(self.options.start_timeout_s, connect=_CONNECT_TIMEOUT_S)
        try:
            response = await self._http.post(
                f"{server.base}/start_emulator", json={"token": self._token}, timeout=limits
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Failed(f"it cannot be reached: {words_of(error)}")
        except httpx.HTTPError as error:  # it got the request, and nobody knows what became of it
            search = asyncio.create_task(self._search(server))
            self._keep(search)
            self._searches.add(search)
            search.add_done_callback(self._searches.discard)
            return Failed(f"its reply was lost: {type(error).__name__}: {error}")
        finally:
            server.starting -= 1
        answer = read_start(response.status_code, response.text, response.headers.get("Retry-After"), attempt)
        if not isinstance(answer, Started):
            return answer
        server.machines.add(answer.emulator_id)
        url = f"http://{server.host}:{answer.server_port}?9222={answer.chromium_port}&8080={answer.vlc_port}"
        return Machine(answer.emulator_id, parse_machine_url(url), server)

    async def _stop_when_started(self, starting: asyncio.Task[Machine | Full | Refused | Failed]) -> None:
        answer = await starting
        if isinstance(answer, Machine):
            log.info("stopping the machine %s, for which nobody waits any more", answer.id)
            await self.give_back(answer)

    async def give_back(self, machine: Machine) -> None:
        """Stop a machine. A failure is logged, for a person; with an exclusive token, `open` stops it the next time."""
        server: _Server = machine.held
        try:
            await self._stop(server, machine.id)
        except httpx.HTTPError as error:
            log.error("the machine %s of %s was not stopped, and counts on: %r", machine.id, server.base, error)
        server.machines.discard(machine.id)
        self._freed.set()

    async def _stop(self, server: _Server, emulator_id: str) -> None:
        response = await self._ask(server, "DELETE", f"/emulators/{emulator_id}", timeout=_STOP_TIMEOUT_S)
        if response.status_code == 405:  # an older server
            data = {"emulator_id": emulator_id}
            response = await self._ask(server, "POST", "/stop_emulator", timeout=_STOP_TIMEOUT_S, json=data)
        if response.status_code != 404:  # it is gone already
            response.raise_for_status()

    # --- orphans

    async def _search(self, server: _Server) -> None:
        """Find the machine of a lost reply, which comes up within the server's own limit, and stop it."""
        deadline = time.monotonic() + self.options.start_timeout_s
        strangers: list[str] = []
        while time.monotonic() < deadline:
            try:
                strangers = await self._strangers(server)
                if self.options.exclusive_token and not server.starting and strangers:
                    log.warning("stopped %s, whose start was lost", await self._stop_strangers(server))
                    return
            except httpx.HTTPError as error:
                log.info("%s does not tell its machines: %r", server.base, error)
            await asyncio.sleep(self.options.search_period_s)
        log.warning(
            "the reply to a start on %s was lost; machines of the token that are not of this server: %s (one may be an "
            "orphan; exclusive_token=true would stop it)",
            server.base,
            ", ".join(strangers) or "none",
        )

    async def _strangers(self, server: _Server) -> list[str]:
        response = await self._ask(server, "GET", "/emulators_by_token", params={"token": self._token})
        response.raise_for_status()
        return [str(found) for found in response.json() if str(found) not in server.machines]

    async def _stop_strangers(self, server: _Server) -> list[str]:
        stopped = []
        for emulator_id in await self._strangers(server):
            await self._stop(server, emulator_id)
            stopped.append(f"machine {emulator_id} of {server.base}")
        return stopped

    # --- requests

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            raise DesktopError("the provider gui-docker-env is not open, or was closed")
        return self._client

    async def _ask(
        self, server: _Server, method: str, path: str, *, timeout: float = _ASK_TIMEOUT_S, **content: Any
    ) -> httpx.Response:
        return await self._http.request(method, server.base + path, timeout=timeout, **content)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _urls(given: str) -> list[str]:
    text = given or os.environ.get(BASE_URL_VARIABLE, "")
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    if not urls:
        raise ConfigurationError(
            f"GUI-Docker-Env needs the URL of its server: set {BASE_URL_VARIABLE}, or --provider-option base_url=URL"
        )
    return urls


def _server(url: str) -> _Server:
    url = url if "://" in url else f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"the URL of a GUI-Docker-Env server is like http://host:50003, got {url!r}")
    return _Server(url, parts.hostname)
