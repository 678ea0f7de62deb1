"""HumanPolicy: a person plays, in a browser page on this machine. What they do is recorded with `actor="human"`.

    GET  /human/<player>                 the page; it holds no secrets
    GET  /human/<player>/state?turn=N    JSON of the newest turn, as soon as it is not turn N (or after a while)
    GET  /human/<player>/frame/<turn>    PNG of what is to be seen
    POST /human/<player>/act             {"turn": N, "actions": [...]}: typed actions as dicts, carried out in order

Invariants:
    - The desk listens on loopback only. Everything but the page needs the key of this run, which stands in the fragment
      of the address that is printed: fragments are never sent, so no log has it.
    - A turn is answered once: what comes twice or late is refused (409), what is no action is explained (400).
    - Only typed actions get through; what arrives is data, never code.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from dart_agent.policies.policy import Decision, Episode, PlayableSession, Policy, PolicyFactory
from dart_gym.cluster.server.http_routes import HEADERS, content_policy
from dart_gym.core.actions import Action, action_from_dict
from dart_gym.core.errors import AddressError
from dart_gym.core.outcomes import Observation
from dart_gym.utils.page_guard import refusal
from dart_gym.utils.png import encode_png

POLL_S = 20.0
MAX_ACTIONS = 64
MAX_BODY = 1 << 20


class HumanPolicy:
    """A `Policy` that waits for what a person does on its page. Made by `HumanDesk.player`."""

    def __init__(self, url: str) -> None:
        """`url` is the page's address, with the key."""
        self.url = url
        self._turn = 0
        self._observation: Observation | None = None
        self._instruction = ""
        self._answer: asyncio.Future[tuple[Action, ...]] | None = None
        self._changed = asyncio.Condition()

    def reset(self, episode: Episode) -> None:
        """Show the instruction of a new episode."""
        self._instruction = episode.instruction

    async def act(self, observation: Observation) -> Decision:
        """Show what is to be seen, and wait for the person."""
        answer: asyncio.Future[tuple[Action, ...]] = asyncio.get_running_loop().create_future()
        async with self._changed:
            self._turn, self._observation, self._answer = self._turn + 1, observation, answer
            self._changed.notify_all()
        try:
            actions = await answer
        finally:
            async with self._changed:
                self._answer = None
                self._changed.notify_all()
        return Decision(actions, actor="human")

    async def state(self, known_turn: int) -> dict[str, object]:
        """The newest turn, as soon as it is another one than `known_turn` and waits, or after `POLL_S` seconds."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait_for(lambda: self._answer is not None and self._turn != known_turn)
            seen = self._observation
            height, width = seen.screenshot.shape[:2] if seen else (0, 0)
            return {
                "turn": self._turn,
                "waiting": self._answer is not None,
                "instruction": self._instruction,
                "action_error": seen.action_error if seen else "",
                "width": width,
                "height": height,
            }

    def frame(self, turn: int) -> NDArray[np.uint8] | None:
        """What is to be seen in a turn; None if it is not the newest."""
        return self._observation.screenshot if self._observation and turn == self._turn else None

    def answer(self, turn: int, actions: tuple[Action, ...]) -> bool:
        """Take the answer of a turn; False if that turn does not wait for one."""
        if self._answer is None or self._answer.done() or turn != self._turn:
            return False
        self._answer.set_result(actions)
        return True


class HumanDesk:
    """Serves the pages of human policies. Use as an async context manager."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._key = secrets.token_urlsafe(24)
        self._players: list[HumanPolicy] = []
        self._runner: web.AppRunner | None = None
        self._address = ""

    async def __aenter__(self) -> HumanDesk:
        """Listen. Raises `AddressError`: the port is taken."""
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_get("/human/{player}", self._page)
        application.router.add_get("/human/{player}/state", self._guarded(self._state))
        application.router.add_get("/human/{player}/frame/{turn}", self._guarded(self._frame))
        application.router.add_post("/human/{player}/act", self._guarded(self._act))
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise AddressError(f"cannot listen on port {self._port}: {error}; choose another one") from error
        host, port = self._runner.addresses[0][:2]
        self._address = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def player(self) -> HumanPolicy:
        """A new policy with a page of its own."""
        policy = HumanPolicy(f"{self._address}/human/{len(self._players)}#token={self._key}")
        self._players.append(policy)
        return policy

    def _guarded(
        self, handler: Callable[[web.Request, HumanPolicy], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            origins, hosts = request.headers.getall("Origin", []), request.headers.getall("Host", [])
            if reason := refusal(origins, hosts, loopback=True, own_page=True):
                return _text(403, reason)
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
                return _text(401, "open the address that the command printed")
            number = _number(request.match_info["player"])
            policy = self._players[number] if number is not None and number < len(self._players) else None
            return _text(404, "no such player") if policy is None else await handler(request, policy)

        return guarded

    async def _page(self, request: web.Request) -> web.Response:
        html = files("dart_agent").joinpath("assets/human.html").read_text(encoding="utf-8")
        headers = {**HEADERS, "Content-Security-Policy": content_policy(html)}
        return web.Response(text=html, content_type="text/html", headers=headers)

    async def _state(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        known = _number(request.query.get("turn", "0"))
        if known is None:
            return _text(400, "turn is a number")
        return web.json_response(await policy.state(known), headers=HEADERS)

    async def _frame(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        frame = policy.frame(_number(request.match_info["turn"]) or 0)
        if frame is None:
            return _text(404, "that turn is over")
        return web.Response(body=await asyncio.to_thread(encode_png, frame), content_type="image/png", headers=HEADERS)

    async def _act(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        try:
            given = await request.json()
            turn, listed = given["turn"], given["actions"]
            if not isinstance(turn, int) or not isinstance(listed, list) or not 1 <= len(listed) <= MAX_ACTIONS:
                raise ValueError(f"turn is a number, actions a list of 1 to {MAX_ACTIONS}")
            actions = tuple(action_from_dict(_frozen(one)) for one in listed)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return _text(400, f"not understood: {error}")
        if not policy.answer(turn, actions):
            return _text(409, "that turn is over")
        return _text(200, "done")


@contextlib.asynccontextmanager
async def open_human(announce: Callable[[str], None] = print, port: int = 0) -> AsyncIterator[PolicyFactory]:
    """Policies that are people; `announce` is told the address of every page, once."""
    async with HumanDesk(port) as desk:

        def make(session: PlayableSession) -> Policy:
            policy = desk.player()
            announce(f"play here: {policy.url}")
            return policy

        yield make


def _frozen(action: object) -> dict[str, object]:
    """An action from JSON, with tuples for its lists (keys, modifiers, a path)."""
    if not isinstance(action, dict):
        raise ValueError("an action is an object with a kind")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in action.items()}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=HEADERS)
