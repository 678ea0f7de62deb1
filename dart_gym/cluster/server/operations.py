"""What the server's requests do: sessions get slots of the pool, and episodes run on them. Knows no sockets.

Invariants:
    - A session gets its slot with its first reset (or `acquire`), and keeps it until `end`.
    - An operation's error becomes a reply with a code; only broken requests (`ProtocolError`) and a client that went
      away while it waited for a slot (`ClientGoneError`, nothing was executed) are raised.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dart_gym.cluster.pool.desktop_pool import Pool
from dart_gym.cluster.server.access_tokens import ANYBODY, Principal
from dart_gym.cluster.server.live_view import LiveViews
from dart_gym.cluster.server.server_metrics import Metrics
from dart_gym.cluster.server.session_registry import ServedSession
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Reply, Request
from dart_gym.core.actions import action_from_dict, action_to_dict
from dart_gym.core.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    EpisodeStateError,
    ProtocolError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import EvaluationStatus, StepResult, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.sessions.reset_request import ResetRequest
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.place import Lacking, lacking_here

log = logging.getLogger(__name__)
_MAX_WORDS = 4000

T = TypeVar("T")

Gone = Callable[[], Coroutine[Any, Any, None]]
"""Waits until the client has gone."""


LIMITS = ("memory_mb", "processes", "cpus", "storage_mb")
"""Fields of a desktop's spec that say what its programs may use."""


class ClientGoneError(Exception):
    """The client went away while it waited for a desktop: nothing was executed."""


class Operations:
    """Executes requests.

    Args:
        choices: fields of a desktop's spec that replace the tasks'.
        osworld_urls: machines with OSWorld's server that clients may name; ("*",) for any.
        suites: suites that clients may name as "module:Class"; ("*",) for any.
        knows_programs: whether its desktops have the programs of this machine; those of containers do not.
    """

    def __init__(
        self,
        pool: Pool,
        choices: dict[str, Any],
        counters: Counter[str],
        osworld_urls: tuple[str, ...],
        suites: tuple[str, ...],
        metrics: Metrics,
        live_views: LiveViews,
        knows_programs: bool = True,
    ) -> None:
        self._pool = pool
        self._choices = choices
        self._counters = counters
        self._osworld_urls = osworld_urls
        self._metrics = metrics
        self._live_views = live_views
        self._suites = suites
        self._knows_programs = knows_programs
        self.closing = asyncio.Event()  # from then on no desktop is lent and no episode begins
        self._table: dict[str, Callable[[Request, ServedSession, Gone], Awaitable[Reply]]] = {
            "acquire": self._acquire,
            "reset": self._reset,
            "step": self._step,
            "finish": self._finish,
            "oracle": self._oracle,
            "lacking": self._lacking,
        }

    async def execute(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        """A request's reply. Raises `ProtocolError` for arguments against the protocol, and `ClientGoneError`."""
        started = time.perf_counter()
        reply = await self._execute(request, served, gone)
        self._metrics.record(request.op, time.perf_counter() - started, reply)
        if served.slot is not None:
            self._live_views.record(served.slot.name, request, reply)
        return reply

    async def _execute(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        if request.op == "close":
            self.end(served)
            return Reply(request.id)
        try:
            return await self._table[request.op](request, served, gone)
        except (ProtocolError, ClientGoneError):
            raise
        except (DartGymError, TimeoutError) as error:
            return Reply(request.id, code=frames.code_of(error), message=_words(error) or "the deadline has passed")
        except Exception as error:
            # The boundary of the process: a defect of one task must not end the other sessions.
            log.exception("%s of %s failed", request.op, served.slot.task if served.slot else "a new session")
            self._counters["internal_errors"] += 1
            return Reply(request.id, code=ErrorCode.INTERNAL, message=f"{type(error).__name__}: {_words(error)}")

    def end(self, served: ServedSession) -> None:
        """Take the slot back; an episode in progress gets no score."""
        served.ended = True
        self._vacate(served)

    def _vacate(self, served: ServedSession) -> None:
        if served.slot is not None:
            slot = served.slot
            served.slot = None
            served.session = None
            self._live_views.forget(slot.name)
            self._pool.release(slot)

    # --- slots

    async def _lend(
        self, served: ServedSession, spec: DesktopSpec | None, timeout: float, gone: Gone
    ) -> tuple[Session, Slot, float]:
        """Return what runs the episodes, and the slot, waited for if the session holds none; and the seconds waited."""
        if served.session is not None and served.slot is not None:
            return served.session, served.slot, 0.0
        started = time.monotonic()
        why = functools.partial(self._pool.why_waiting, served.owner)
        slot = await self._patiently(self._pool.acquire(spec, served.owner), timeout, gone, why, self._pool.release)
        served.slot = slot
        served.session = Session(slot)
        served.held_since = time.monotonic()
        waited = served.held_since - started
        self._counters["queue_ms"] += round(waited * 1000)
        return served.session, slot, waited

    @contextlib.asynccontextmanager
    async def _prepared(
        self, served: ServedSession, slot: Slot, spec: DesktopSpec, timeout: float, gone: Gone
    ) -> AsyncIterator[float]:
        """Have the desktop ready, or may boot one: the seconds waited. A session that gets neither loses its slot."""
        if slot.fits(spec):
            yield 0.0
            return
        started = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            entering = stack.enter_async_context(self._pool.prepared(slot, spec))
            why = functools.partial(_why_not_booted, self._pool)
            try:
                with slot.working("wait"):
                    await self._patiently(entering, timeout, gone, why)
            except BaseException:
                self._vacate(served)
                raise
            yield time.monotonic() - started

    async def _patiently(
        self,
        waiting: Coroutine[Any, Any, T],
        timeout: float,
        gone: Gone,
        why: Callable[[], str],
        give_back: Callable[[T], None] = lambda _: None,
    ) -> T:
        """Wait for what others must free. Raises `ClusterError` after `timeout` seconds, or when the server closes.

        `why` tells why it takes so long; `give_back` takes back what came at the very moment of our being cancelled.
        Raises `ClientGoneError` where the client has gone.
        """
        task = asyncio.ensure_future(waiting)
        leaving, closing = asyncio.ensure_future(gone()), asyncio.ensure_future(self.closing.wait())
        taken = False
        try:
            await asyncio.wait({task, leaving, closing}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                taken = True
                return task.result()
            if leaving.done():
                raise ClientGoneError
            self._refuse_when_closing()
            raise ClusterError(f"no desktop within {timeout:.1f} s: {why()}", ErrorCode.CAPACITY)
        finally:
            leaving.cancel()
            closing.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not taken and not task.cancelled() and task.exception() is None:
                give_back(task.result())

    def _refuse_when_closing(self) -> None:
        if self.closing.is_set():
            raise ClusterError(
                "the server is about to stop and lends no more desktops: use another one, or wait until it is back",
                ErrorCode.SHUTDOWN,
            )

    async def _acquire(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        self._refuse_when_closing()
        _, slot, waited = await self._lend(served, None, request.deadline_ms / 1000, gone)
        return Reply(request.id, {"slot": slot.name, "queue": waited})

    # --- episodes

    async def _reset(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        deadline = time.monotonic() + request.deadline_ms / 1000
        asked = ResetRequest.from_wire(request.args)
        self._refuse_when_closing()
        task = self._resolve(asked)
        session, slot, waited = await self._lend(served, task.desktop, request.deadline_ms / 1000, gone)
        slot.task, slot.client = task.id, served.client
        left = max(0.0, deadline - time.monotonic())
        async with self._prepared(served, slot, task.desktop, left, gone) as prepared_s:
            waited += prepared_s
            with slot.working("reset" if slot.fits(task.desktop) else "boot"):
                left = max(0.0, deadline - time.monotonic())
                result = await session.reset(dataclasses.replace(asked, task=task, desktop=None), deadline_s=left)
        result.timings["queue"] = waited
        result.timings["total"] += waited
        slot.episodes += result.terminal is None
        return self._step_reply(request, result)

    def _resolve(self, asked: ResetRequest) -> Task:
        name = asked.task if isinstance(asked.task, str) else ""
        if name.endswith(".json"):
            raise UnknownTaskError(f"{name!r} is a file of the client's machine: send its content")
        suite = name.partition("/")[0]
        if ":" in suite and not {"*", suite} & {*self._suites}:
            raise ConfigurationError(f"this cluster may not import the suite {suite!r}: start it with --suite {suite}")
        task = asked.resolve()
        url = task.desktop.url
        if url and "*" not in self._osworld_urls and url not in self._osworld_urls:
            raise ConfigurationError(f"this cluster may not use {url}: start it with --osworld-url {url}")
        if self._choices:
            task = dataclasses.replace(task, desktop=dataclasses.replace(task.desktop, **self._choices))
        return task

    async def _step(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        session, slot = _episode_of(served)
        try:
            action = action_from_dict(request.args.get("action"))  # type: ignore[arg-type]  # it checks
        except (ValueError, TypeError) as error:
            return Reply(request.id, code=ErrorCode.BAD_ACTION, message=str(error))
        with slot.working("step"):
            result = await session.step(action, deadline_s=request.deadline_ms / 1000)
        return self._step_reply(request, result)

    async def _finish(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        session, slot = _episode_of(served)
        try:
            terminal = TerminalState(str(request.args.get("terminal")))
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        with slot.working("evaluate"):
            result = await session.finish(terminal, deadline_s=request.deadline_ms / 1000)
        return self._step_reply(request, result)

    async def _oracle(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        session, slot = _episode_of(served)
        with slot.working("oracle"):
            action = await session.oracle(deadline_s=request.deadline_ms / 1000)
        return Reply(request.id, {"action": action_to_dict(action)})

    async def _lacking(self, request: Request, served: ServedSession, gone: Gone) -> Reply:
        asked = Lacking.from_wire(request.args)
        found = await asyncio.to_thread(lacking_here, asked) if self._knows_programs else Lacking()
        return Reply(request.id, found.to_wire())

    def _step_reply(self, request: Request, result: StepResult) -> Reply:
        self._counters[request.op] += 1
        if result.evaluation is not None:
            self._counters["episodes_ended"] += 1
            if result.evaluation.status is not EvaluationStatus.OK:
                self._counters[result.evaluation.status] += 1
        return frames.step_reply(request.id, result)


def _words(error: BaseException) -> str:
    """Return what an error says; it may repeat what a client sent, of any length."""
    text = str(error)
    return text if len(text) <= _MAX_WORDS else f"{text[: _MAX_WORDS // 2]} ... {text[-_MAX_WORDS // 2 :]}"


def _why_not_booted(pool: Pool) -> str:
    reason = pool.admission.reason or "others boot first, or the warm desktop did not boot in time"
    return f"{reason}; next step: use fewer desktops or smaller screens, or wait until others have ended"


def _episode_of(served: ServedSession) -> tuple[Session, Slot]:
    if served.session is None or served.slot is None:
        raise EpisodeStateError("this session has no desktop yet: call reset first")
    return served.session, served.slot


def describe(pool: Pool, principal: Principal = ANYBODY) -> dict[str, Any]:
    """Return what every desktop of a pool does, as plain values; without the tasks of other owners' desktops."""
    now = time.monotonic()
    hidden = {} if principal.watches_all else {"task": "", "client": ""}
    return {
        "desktops": [_describe(slot, now) | (hidden if slot.owner != principal.name else {}) for slot in pool.slots],
        "warm": [
            {"spec": _spec_text(one.spec), "ready": one.booting.done() and one.slot.alive}
            for one in pool.warm_pool.desktops
        ],
        "warm_taken": pool.warm_pool.taken,
        "warm_missed": pool.warm_pool.missed,
        "waiting": pool.waiting,
        "waiting_to_boot": pool.admission.waiting,
        "waiting_because": pool.admission.reason,
        **({"pid": os.getpid()} if principal.watches_all else {}),
    }


def _spec_text(spec: DesktopSpec | None) -> str:
    return f"{spec.kind} {spec.width}x{spec.height} {spec.profile}" if spec else ""


def _describe(slot: Slot, now: float) -> dict[str, Any]:
    busy: dict[str, float] = dict(slot.busy_s)
    if slot.phase not in ("idle", "held"):
        busy[slot.phase] = busy.get(slot.phase, 0.0) + now - slot.phase_since
    return {
        "slot": slot.name,
        "spec": _spec_text(slot.spec),
        "task": slot.task,
        "client": slot.client,
        "phase": slot.phase,
        "phase_s": now - slot.phase_since,
        "episodes": slot.episodes,
        "alive": slot.alive,
        "busy_s": busy,
        "limits": {name: getattr(slot.spec, name) for name in LIMITS} if slot.spec else {},
    }
