"""A desktop elsewhere: any machine that runs OSWorld's in-VM server (port 5000), used through its HTTP routes.

Invariants:
    - An action is one `POST /execute`, sent at most once: after a failure nobody knows whether it was carried out, so
      the desktop counts as broken and is not used again.
    - Every request has a deadline; what goes wrong is a `DesktopError` that names address, route and cause.
    - What a machine says is bounded before it is taken, for its programs may have replaced the server there: an answer
      in bytes and in structure, an image in its kind and size before it is decoded.
    - Nothing that a model wrote is run: a fixed program gets numbers (`sent_program`, `remote_input`).
    - Two sessions of one process never use a machine at the same time.

The machine is used as it is: its provider must reset it between episodes.
"""

import asyncio
import contextlib
import io
import json
import math
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.core.actions import Action, MouseDown, MouseUp, Move, Wait
from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError, MissingProgramError
from dart_gym.desktops.base.desktop import (
    AccessibilityTree,
    ActionError,
    CommandResult,
    DesktopSpec,
    SettlePolicy,
    SettleResult,
)
from dart_gym.desktops.base.settling import Settling, differs
from dart_gym.desktops.input.input_events import InputEvent, input_events
from dart_gym.desktops.osworld_api.port_forwarder import join
from dart_gym.desktops.osworld_vm.machine_address import MachineAddress, parse_machine_url
from dart_gym.desktops.osworld_vm.remote_input import REFUSED
from dart_gym.desktops.osworld_vm.sent_program import sent_program
from dart_gym.desktops.sandbox.guest_client import MAX_FILE

CONNECT_TIMEOUT_S = 10.0
REQUEST_S = 30.0
UPLOAD_TIMEOUT_S = 300.0
LONGEST_COMMAND_S = 115.0  # OSWorld's server ends commands after 120 s
_MARGIN_S = 5.0
_POLL_S = 0.5
_FREE_POLL_S = 0.02
_TIMED_OUT = 124  # what coreutils' `timeout` says
_NOT_FOUND = 127
_JSON, _MOST_PARTS = 32 << 20, 500_000  # bytes; brackets, braces and commas: a tenth of a second to parse
_PLAIN = {"Accept-Encoding": "identity"}
_IMAGES = ("PNG", "JPEG")  # for others Pillow may start a program, or unpack without end


class OSWorldDesktop:
    """See `dart_gym.desktops.base.desktop.Desktop`.

    Raises:
        ConfigurationError: if the address is impossible.
    """

    _in_use: ClassVar[set[str]] = set()

    def __init__(self, spec: DesktopSpec, address: MachineAddress | None = None) -> None:
        self.spec = spec
        self._address = address or parse_machine_url(spec.url)
        self._client: httpx.AsyncClient | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._relays: dict[int, tuple[asyncio.Server, Path]] = {}
        self._buttons: set[str] = set()  # that MouseDown left held
        self._touched = False

    @property
    def shown(self) -> str:
        """The address of the machine, as messages show it."""
        return self._address.shown

    # --- life

    async def start(self, *, timeout: float = 60.0) -> None:
        """Wait until the server answers, and look whether its screen is as asked."""
        if self._client is not None:
            raise DesktopError("the desktop is started already; stop it first")
        deadline = time.monotonic() + timeout
        while self.shown in self._in_use:  # perhaps by the episode before, which is just being stopped
            if time.monotonic() > deadline:
                raise DesktopTimeoutError(f"the machine {self.shown} is in use by another session of this process")
            await asyncio.sleep(_FREE_POLL_S)
        self._in_use.add(self.shown)
        self._client = self._address.client()
        try:
            await self._wait_until_it_answers(deadline)
            await self.check_screen()
        except BaseException:
            await self.stop()
            raise

    async def _wait_until_it_answers(self, deadline: float) -> None:
        while True:
            try:
                await self._request("GET", "/platform", timeout=CONNECT_TIMEOUT_S, fatal=False)
                return
            except DesktopError as error:
                if time.monotonic() + _POLL_S > deadline:
                    raise DesktopTimeoutError(
                        f"no OSWorld server answers ({error}); next step: start the machine, or correct the address"
                    ) from error
            await asyncio.sleep(_POLL_S)

    async def check_screen(self) -> None:
        """Compare the size of the machine's screen with the size in the specification.

        Raises:
            ConfigurationError: if they differ.
        """
        answer = await self._json("POST", "/screen_size")
        found = (answer.get("width"), answer.get("height"))
        if found != (self.spec.width, self.spec.height):
            raise ConfigurationError(
                f"the screen of {self.shown} is {found[0]}x{found[1]} pixels, the task's is "
                f"{self.spec.width}x{self.spec.height}: give width and height, or set the machine's"
            )

    async def stop(self) -> None:
        """Release the machine; programs there keep running. Idempotent."""
        client, self._client = self._client, None
        relays, self._relays = self._relays, {}
        for server, _ in relays.values():
            server.close()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None
        self._buttons.clear()
        self._touched = False
        if client is not None:
            self._in_use.discard(self.shown)
            await client.aclose()

    @property
    def alive(self) -> bool:
        """Return whether it is started and every request so far went well."""
        return self._client is not None

    # --- requests

    async def _request(
        self, method: str, path: str, *, timeout: float = REQUEST_S, fatal: bool = True, limit: int = _JSON, **sent: Any
    ) -> httpx.Response:
        """One request, for at most `limit` bytes, never repeated; a `fatal` failure ends the desktop."""
        client = self._client
        if client is None:
            raise DesktopError("the desktop is not started, was stopped, or broke")
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT_S)
        try:
            async with asyncio.timeout(timeout + CONNECT_TIMEOUT_S):
                async with client.stream(method, path, timeout=limits, headers=_PLAIN, **sent) as answer:
                    response = await _taken(answer, limit)
        except (httpx.TimeoutException, TimeoutError) as error:
            problem: DesktopError = DesktopTimeoutError(f"{self.shown} did not answer {path} within {timeout:g} s")
            problem.__cause__ = error
        except DesktopError as error:
            problem = DesktopError(f"{self.shown} answered {path} with {error}")
        except httpx.HTTPError as error:
            problem = DesktopError(f"{self.shown} cannot be reached for {path}: {type(error).__name__}: {error}")
            problem.__cause__ = error
        else:
            if response.status_code in (401, 403):
                raise DesktopError(f"{self.shown} refuses {path} ({response.status_code}): the address needs its token")
            return response
        if fatal:
            await self.stop()
        raise problem

    async def _json(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        response = await self._request(method, path, **content)
        answer = _parsed(response.content)
        if response.status_code != 200 or not isinstance(answer, dict):
            said = response.text.strip()[:300]
            raise DesktopError(f"{self.shown} answered {path} with status {response.status_code}: {said!r}")
        return answer

    # --- screen and input

    async def screenshot(self) -> NDArray[np.uint8]:
        """A fresh frame; the server draws the cursor in."""
        shape = (self.spec.height, self.spec.width)
        response = await self._request("GET", "/screenshot", limit=8 * math.prod(shape) + (1 << 20))
        if response.status_code != 200:
            raise DesktopError(f"{self.shown} gave no screenshot: status {response.status_code}")
        try:
            return await asyncio.to_thread(_decoded, response.content, shape)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DesktopError(f"{self.shown} gave a screenshot that is no image: {error}") from error

    async def read_margin(self) -> NDArray[np.uint8]:
        """The rows below the screen. Only desktops of this package have some: OSWorld's machines are not asked."""
        shape = (self.spec.margin, self.spec.width, 3)
        if not self.spec.margin:
            return np.empty(shape, np.uint8)
        response = await self._request("GET", "/margin", limit=math.prod(shape))
        if response.status_code != 200 or len(response.content) != math.prod(shape):
            raise DesktopError(
                f"{self.shown} gave no {self.spec.margin} rows below its screen (status {response.status_code}); "
                "next step: use an image of this version"
            )
        return np.frombuffer(response.content, np.uint8).reshape(shape)

    async def perform(self, action: Action) -> None:
        """Carry out an action by one request, at most once."""
        if isinstance(action, Wait):
            await asyncio.sleep(action.seconds)
            return
        dragging = isinstance(action, Move) and bool(self._buttons)
        pointer = await self._pointer() if dragging else None
        events = input_events(action, self.spec.width, self.spec.height, pointer)
        if events:
            self._touched = True
            await self._carry_out(events)
        if isinstance(action, MouseDown):
            self._buttons.add(action.button)
        elif isinstance(action, MouseUp):
            self._buttons.discard(action.button)

    async def _pointer(self) -> tuple[int, int]:
        response = await self._request("GET", "/cursor_position")
        match _parsed(response.content):
            case [int(x), int(y)] if response.status_code == httpx.codes.OK:
                return x, y
        raise DesktopError(f"{self.shown} answered /cursor_position with {response.text[:300]!r}")

    async def _carry_out(self, events: list[InputEvent]) -> None:
        answer = await self._json(
            "POST",
            "/execute",
            json={
                "command": ["python", "-c", sent_program(), json.dumps(events, separators=(",", ":"))],
                "shell": False,
            },
            timeout=LONGEST_COMMAND_S,
        )
        if answer.get("returncode") != 0:
            reason = str(answer.get("error") or answer.get("output") or answer)[-500:].strip()
            if answer.get("returncode") == REFUSED:
                raise ActionError(reason)
            raise DesktopError(f"{self.shown} could not carry out an action: {reason}")

    async def release_inputs(self) -> None:
        """Bring keyboard, buttons and selections into a fresh state, if there was an action."""
        if self._touched:
            await self._carry_out([])
        self._touched = False
        self._buttons.clear()

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        """Wait until screenshots stop to differ. A screenshot takes its time: two equal ones are often enough."""
        state, started = Settling(policy), time.perf_counter()
        previous, frames = await self.screenshot(), 1
        while True:
            frame = await self.screenshot()
            frames += 1
            now = 1e3 * (time.perf_counter() - started)
            verdict = state.observe(now, differs(frame, previous))
            if verdict is not None:
                return SettleResult(verdict, time.perf_counter() - started, frames)
            await asyncio.sleep(1e-3 * state.next_look_ms(now))

    # --- programs and files

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """Run a program to its end, at most 115 s: OSWorld's server allows no more."""
        limit = min(timeout, LONGEST_COMMAND_S)
        line = ["timeout", "-k", "1", f"{limit:g}", *_environment(env), *command]
        fed = f"/tmp/dart-stdin-{uuid.uuid4().hex}" if stdin else ""
        if fed:
            await self.write_file(fed, stdin)
            line = ["sh", "-c", 'file=$1; shift; "$@" < "$file"; code=$?; rm -f "$file"; exit $code', "sh", fed, *line]
        started = time.monotonic()
        content = {"command": line, "shell": False}
        answer = await self._json("POST", "/execute", json=content, timeout=limit + _MARGIN_S)
        try:
            code, output = int(answer["returncode"]), str(answer["output"]).encode()
            missing = code == _NOT_FOUND and not output  # `timeout` says no more
            result = CommandResult(code, output, str(answer["error"]).encode(), missing)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DesktopError(f"{self.shown} answered /execute with {str(answer)[:300]!r}") from error
        if result.returncode == _TIMED_OUT and time.monotonic() - started >= limit:
            raise DesktopTimeoutError(f"{command[0]!r} did not end within {limit:g} s and was killed")
        return result

    async def launch(self, command: list[str], *, env: dict[str, str] | None = None) -> None:
        """Start a program and leave it running.

        Raises:
            MissingProgramError: if no program has this name.
        """
        content = {"command": [*_environment(env), *command], "shell": False}
        response = await self._request("POST", "/setup/launch", json=content)
        if response.status_code != 200:
            said = response.text.strip()[:300]
            look = await self.execute(["sh", "-c", 'command -v -- "$1"', "sh", command[0]])
            if look.returncode:
                raise MissingProgramError(f"{self.shown} has no program {command[0]!r}; next step: install it there")
            raise DesktopError(f"{self.shown} could not launch {command[0]!r}: {said}")

    async def read_file(self, path: str) -> bytes:
        """Content of a file; relative paths start at the home directory."""
        data = {"file_path": _absolute(path)}
        response = await self._request("POST", "/file", data=data, timeout=UPLOAD_TIMEOUT_S, limit=MAX_FILE)
        if response.status_code == 404:
            raise FileNotFoundError(f"there is no {path} on {self.shown}")
        if response.status_code != 200:
            raise DesktopError(f"{self.shown} did not give {path}: {response.text.strip()[:300]}")
        return response.content

    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file, making its parent directories."""
        response = await self._request(
            "POST",
            "/setup/upload",
            data={"file_path": _absolute(path)},
            files={"file_data": (path.rsplit("/", 1)[-1], data)},
            timeout=UPLOAD_TIMEOUT_S,
        )
        if response.status_code != 200:
            raise DesktopError(f"{self.shown} did not take {path}: {response.text.strip()[:300]}")

    async def accessibility_tree(self, *, timeout: float = 10.0) -> AccessibilityTree:
        """The tree, or an empty one that says that it is incomplete when the server needs longer."""
        try:
            response = await self._request("GET", "/accessibility", timeout=timeout, fatal=False)
        except DesktopTimeoutError:
            return AccessibilityTree("<desktop-frame/>", complete=False, nodes=0)
        if not isinstance(answer := _parsed(response.content), dict) or "AT" not in answer:
            raise DesktopError(f"{self.shown} gave no accessibility tree: {response.text.strip()[:300]}")
        xml = str(answer["AT"])
        return AccessibilityTree(xml, complete=True, nodes=xml.count("<") - sum(map(xml.count, ("</", "<!", "<?"))))

    async def open_port(self, port: int) -> Path:
        """Path of a Unix socket that leads to a port which the machine shows to the outside."""
        if self._client is None:
            raise DesktopError("the desktop is not started, was stopped, or broke")
        if port not in self._relays:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="dart-osworld-")
            path = Path(self._directory.name) / f"{port}.sock"
            self._relays[port] = (await asyncio.start_unix_server(self._relay(port), path), path)
        return self._relays[port][1]

    def _relay(self, port: int) -> Any:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError):  # the one side sees that the other one has gone
                await join(reader, writer, self._address.connect(port), CONNECT_TIMEOUT_S)

        return connected


async def _taken(answer: httpx.Response, limit: int) -> httpx.Response:
    """An answer with its body as it came: nothing is unpacked, which might have no end. Raises `DesktopError`."""
    body, most = bytearray(), limit if answer.status_code == httpx.codes.OK else 1 << 16  # an error's words
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > most:
            raise DesktopError(f"more than {most} bytes, which are not read")
    return httpx.Response(answer.status_code, content=bytes(body))


def _parsed(data: bytes) -> Any:
    """Return the value of a JSON text, or None if it is invalid or nested so deeply that reading it takes long."""
    if sum(map(data.count, (b"[", b"{", b","))) > _MOST_PARTS:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _decoded(data: bytes, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode an image.

    Raises:
        DesktopError: if the image has another shape. Errors of Pillow pass through.
    """
    with Image.open(io.BytesIO(data), formats=_IMAGES) as image:
        if image.size != shape[::-1]:
            raise DesktopError(f"the machine's screen became {image.width}x{image.height} pixels large")
        return np.asarray(image.convert("RGB")).copy()


def _environment(env: dict[str, str] | None) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in env.items())] if env else []


def _absolute(path: str) -> str:
    return path if path.startswith(("/", "~")) else f"~/{path}"
