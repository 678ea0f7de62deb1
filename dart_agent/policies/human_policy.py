"""A person plays in the page of this machine, or takes over from a policy; their steps are recorded with actor="human".

    GET  /watch/play/<player>                 the page; it holds no secrets
    GET  /watch/play/<player>/state?turn=N    JSON of the newest turn, as soon as it is not turn N (or after a while)
    GET  /watch/play/<player>/frame/<turn>    PNG of what is to be seen
    POST /watch/play/<player>/act             {"turn": N, "actions": [...]}: typed actions as dicts, in order,
                                              or {"drives": "person" or "policy"}: who decides from now on

Invariants:
    - A turn is answered once: what comes twice or late is refused (409), what is no action is explained (400).
    - Only typed actions get through; what arrives is data, never code.
    - A policy's decision that is being made is carried out; taking over begins with the decision after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from dart_agent.policies.policy import Decision, Episode, PlayableSession, Policy, PolicyFactory
from dart_gym.cluster.server.page_server import PageServer, plain
from dart_gym.cluster.server.watch_page import HEADERS
from dart_gym.core.actions import Action, action_from_dict
from dart_gym.core.outcomes import Observation
from dart_gym.utils.png import encode_png

POLL_S = 20.0
MAX_ACTIONS = 64
PAGE = "/watch/play/{player}"


class HumanPolicy:
    """A `Policy` that waits for what a person does on its page. Made by `HumanDesk.player`."""

    def __init__(self, url: str, inner: Policy | None = None) -> None:
        """`url` is the page's address, with the key; `inner` decides until a person takes over."""
        self.url = url
        self._inner = inner
        self._person = inner is None
        self.turn = 0
        self._observation: Observation | None = None
        self._instruction = ""
        self._answer: asyncio.Future[tuple[Action, ...]] | None = None
        self._changed = asyncio.Condition()

    def reset(self, episode: Episode) -> None:
        """Show the instruction of a new episode."""
        self._instruction = episode.instruction
        if self._inner is not None:
            self._inner.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        """Show what is to be seen, and wait for the person, or ask the policy."""
        async with self._changed:
            self.turn, self._observation = self.turn + 1, observation
            self._answer = asyncio.get_running_loop().create_future() if self._person else None
            self._changed.notify_all()
        try:
            actions = await self._answer if self._answer is not None else ()
        finally:
            async with self._changed:
                self._answer = None
                self._changed.notify_all()
        if actions or self._inner is None:
            return Decision(actions, actor="human")
        return await self._inner.act(observation)

    @property
    def waits(self) -> bool:
        """Return whether a person has been asked and has not answered yet."""
        return self._answer is not None and not self._answer.done()

    async def state(self, turn: int, waiting: bool = False, drives: str = "person") -> dict[str, object]:
        """Return the newest turn, whether it waits, and who decides.

        Returns as soon as one of them differs from the arguments, or after `POLL_S` seconds.
        """

        def news() -> bool:
            now = (self.turn, self.waits, "person" if self._person else "policy")
            return now != (turn, waiting, drives) and (self.waits or self._inner is not None)

        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait_for(news)
            seen = self._observation
            height, width = seen.screenshot.shape[:2] if seen else (0, 0)
            return {
                "turn": self.turn,
                "waiting": self.waits,
                "drives": "person" if self._person else "policy",
                "shared": self._inner is not None,
                "instruction": self._instruction,
                "action_error": seen.action_error if seen else "",
                "width": width,
                "height": height,
            }

    def frame(self, turn: int) -> NDArray[np.uint8] | None:
        """Return what is to be seen in a turn; None if it is not the newest."""
        return self._observation.screenshot if self._observation and turn == self.turn else None

    def answer(self, turn: int, actions: tuple[Action, ...]) -> bool:
        """Take the answer of a turn; False if that turn does not wait for one."""
        if self._answer is None or self._answer.done() or turn != self.turn:
            return False
        self._answer.set_result(actions)
        return True

    async def drive(self, drives: str) -> None:
        """Have the person or the policy decide from now on; a turn that waits for the person is the policy's again."""
        async with self._changed:
            self._person = drives == "person"
            if not self._person:
                self.answer(self.turn, ())
            self._changed.notify_all()


class HumanDesk:
    """Serves the pages of human policies. Use as an async context manager."""

    def __init__(self, port: int = 0) -> None:
        self._players: list[HumanPolicy] = []
        routes = [
            web.get(f"{PAGE}/state", self._of_player(self._state)),
            web.get(f"{PAGE}/frame/{{turn}}", self._of_player(self._frame)),
            web.post(f"{PAGE}/act", self._of_player(self._act)),
        ]
        self._server = PageServer(("play",), routes, port, PAGE)

    async def __aenter__(self) -> HumanDesk:
        """Listen.

        Raises:
            AddressError: if the port is taken.
        """
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.__aexit__()

    def player(self, inner: Policy | None = None) -> HumanPolicy:
        """A new policy with a page of its own; where there is an `inner` one, a person may take over from that."""
        self._players.append(HumanPolicy(self._server.url.replace("{player}", str(len(self._players))), inner))
        return self._players[-1]

    def _of_player(
        self, handler: Callable[[web.Request, HumanPolicy], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def found(request: web.Request) -> web.Response:
            number = _number(request.match_info["player"])
            policy = self._players[number] if number is not None and number < len(self._players) else None
            return plain(404, "no such player") if policy is None else await handler(request, policy)

        return found

    async def _state(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        known = _number(request.query.get("turn", "0"))
        if known is None:
            return plain(400, "turn is a number")
        waiting, drives = request.query.get("waiting") == "1", request.query.get("drives", "person")
        return web.json_response(await policy.state(known, waiting, drives), headers=HEADERS)

    async def _frame(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        frame = policy.frame(_number(request.match_info["turn"]) or 0)
        if frame is None:
            return plain(404, "that turn is over")
        return web.Response(body=await asyncio.to_thread(encode_png, frame), content_type="image/png", headers=HEADERS)

    async def _act(self, request: web.Request, policy: HumanPolicy) -> web.Response:
        try:
            given = await request.json()
            if given.get("drives") in ("person", "policy"):
                await policy.drive(given["drives"])
                return plain(200, "done")
            turn, listed = given["turn"], given["actions"]
            if not isinstance(turn, int) or not isinstance(listed, list) or not 1 <= len(listed) <= MAX_ACTIONS:
                raise ValueError(f"turn is a number, actions a list of 1 to {MAX_ACTIONS}")
            actions = tuple(action_from_dict(_frozen(one)) for one in listed)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return plain(400, f"not understood: {error}")
        if not policy.answer(turn, actions):
            return plain(409, "that turn is over")
        return plain(200, "done")


@contextlib.asynccontextmanager
async def open_human(
    announce: Callable[[str], None] = print, port: int = 0, inner: PolicyFactory | None = None
) -> AsyncIterator[PolicyFactory]:
    """Policies that are people, or that people may take over from; `announce` is told the address of every page."""
    async with HumanDesk(port) as desk:

        def make(session: PlayableSession) -> Policy:
            policy = desk.player(inner(session) if inner is not None else None)
            announce(f"{'watch and take over' if inner is not None else 'play'} here: {policy.url}")
            return policy

        yield make


def _frozen(action: object) -> dict[str, object]:
    """An action from JSON, with tuples for its lists (keys, modifiers, a path)."""
    if not isinstance(action, dict):
        raise ValueError("an action is an object with a kind")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in action.items()}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
