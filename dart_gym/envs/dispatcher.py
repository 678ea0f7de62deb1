"""Requests to many sessions at once from synchronous code: sent, answered in any order, or given up.

Invariants:
    - One request at a time per environment; answers are matched by request id, so a late one is never taken for
      another.
    - What concerns one desktop is an answer with terminal ENV_ERROR. What a person must act on is raised by `recv`.
    - The two threads meet once per batch, not once per request: with hundreds of environments, handing over between
      them would cost more than the requests do.
"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.cluster.wire.frames import SESSION_OVER, ErrorCode
from dart_gym.core.actions import Action
from dart_gym.core.errors import ClusterError, DesktopError, EpisodeStateError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.cluster_link import ClusterLink
from dart_gym.envs.episode_info import copied_observation, ending, make_info, reward_of

Operation = Callable[[ClientSession], Coroutine[Any, Any, StepResult]]
FAULTS = (*SESSION_OVER, ErrorCode.TIMEOUT, ErrorCode.SHUTDOWN, ErrorCode.INTERNAL)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one environment answered.

    Attributes:
        request_id: id of the request, as `send` or `async_reset` returned it.
    """

    env_id: int
    request_id: int
    is_reset: bool
    result: StepResult
    accessibility: bool = False
    shaped: bool = False

    @property
    def observation(self) -> dict[str, Any]:
        """As a member of the single observation space; the caller's own."""
        return copied_observation(self.result, accessibility=self.accessibility)

    @property
    def reward(self) -> float:
        """The score at the end of an episode that has one, else 0; with `shaped_reward` see `reward_of`."""
        return reward_of(self.result, shaped=self.shaped)

    @property
    def terminated(self) -> bool:
        """Return whether the episode ended by the task or the policy."""
        return ending(self.result)[0]

    @property
    def truncated(self) -> bool:
        """Return whether the episode was cut."""
        return ending(self.result)[1]

    @property
    def info(self) -> dict[str, Any]:
        """As `DesktopEnv`'s."""
        return make_info(self.result)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An answer that is an exception."""

    env_id: int
    request_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Submission:
    """An operation for one environment's session."""

    env_id: int
    is_reset: bool
    operation: Operation


class Mailbox:
    """Answers on their way from the loop's thread to the one that waits for them."""

    def __init__(self) -> None:
        self._answers: deque[Transition | _Failure] = deque()
        self._arrived = threading.Condition()
        self._wanted = 1

    def put(self, answer: Transition | _Failure) -> None:
        """Add an answer; wakes the reader when there are as many as it waits for, or at a failure."""
        with self._arrived:
            self._answers.append(answer)
            if isinstance(answer, _Failure):
                self._wanted = 0
            if len(self._answers) >= self._wanted:
                self._arrived.notify()

    def wait(self, wanted: int, timeout: float | None) -> bool:
        """Wait for `count` answers, a failure or the end of the time, and return whether there is any."""
        with self._arrived:
            self._wanted = wanted
            self._arrived.wait_for(lambda: len(self._answers) >= self._wanted, timeout)
            return bool(self._answers)

    def take(self) -> Transition | _Failure:
        """The oldest answer; there must be one."""
        return self._answers.popleft()


class Dispatcher:
    """One session per environment, opened with its first request; `latest` results, None before and if abandoned."""

    def __init__(
        self, link: ClusterLink, num_envs: int, size: tuple[int, int], accessibility: bool = False, shaped: bool = False
    ) -> None:
        self.latest: list[StepResult | None] = [None] * num_envs
        self._link = link
        self._size = size
        self._accessibility = accessibility
        self._shaped = shaped
        self._sessions: list[ClientSession | None] = [None] * num_envs
        self._request_ids = itertools.count(1)
        self._in_flight: dict[int, int] = {}
        self._ready = Mailbox()
        self._running: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks weakly

    @property
    def is_inherited(self) -> bool:
        """Return whether it belongs to the process from which this one was forked."""
        return self._link.is_inherited

    @property
    def in_flight(self) -> list[int]:
        """Environments whose answer is still to come."""
        return list(self._in_flight)

    def oracle(self, env_id: int) -> Action:
        """The next action of a perfect user; raises `EpisodeStateError` without a running episode."""
        session = self._sessions[env_id]
        if session is None:
            raise EpisodeStateError(f"environment {env_id} has no running episode: reset it first")
        return self._link.loop.run(session.oracle)

    def check_free(self, env_ids: Sequence[int]) -> None:
        """Raise unless each of these exists, is named once, and has no request in flight."""
        seen = set()
        for i in env_ids:
            if not 0 <= i < len(self.latest):
                raise ValueError(f"there is no environment {i}: they are numbered 0 to {len(self.latest) - 1}")
            if i in seen:
                raise ValueError(f"environment {i} is named twice")
            if i in self._in_flight:
                raise EpisodeStateError(
                    f"environment {i} already has request {self._in_flight[i]} in flight: recv or abandon it first"
                )
            seen.add(i)

    def submit(self, submissions: Sequence[Submission]) -> list[int]:
        """Run operations, each on its environment's session; returns the requests' ids."""
        batch = []
        for submission in submissions:
            request_id = self._in_flight[submission.env_id] = next(self._request_ids)
            batch.append((request_id, submission))
        if batch:
            self._link.loop.post(self._start, batch)
        return [request_id for request_id, _ in batch]

    def _start(self, batch: list[tuple[int, Submission]]) -> None:
        for request_id, submission in batch:
            task = asyncio.create_task(self._run(request_id, submission))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, request_id: int, submission: Submission) -> None:
        env_id = submission.env_id
        try:
            session = self._sessions[env_id]
            if session is None:
                client = await self._link.client()
                if self._in_flight.get(env_id) != request_id:
                    return  # abandoned before it began
                session = self._sessions[env_id] = client.session()
            result = await submission.operation(session)
        except Exception as error:
            if not is_fault(error):
                self._ready.put(_Failure(env_id, request_id, error))
                return
            result = StepResult.lost(self._size, f"{type(error).__name__}: {error}", evaluator="cluster")
        self._ready.put(Transition(env_id, request_id, submission.is_reset, result, self._accessibility, self._shaped))

    def swap(self, env_id: int, session: ClientSession, result: StepResult) -> ClientSession | None:
        """Give an environment a session whose episode has been started; returns the one that it had."""
        self.check_free([env_id])
        replaced, self._sessions[env_id] = self._sessions[env_id], session
        self.latest[env_id] = result
        return replaced

    def recv(self, min_ready: int, max_ready: int | None = None, timeout: float | None = None) -> list[Transition]:
        """Answers in the order of their arrival. See `DesktopVectorEnv.recv`."""
        self._link.check_owner()
        end = None if timeout is None else time.monotonic() + timeout
        wanted = min(min_ready, len(self._in_flight))
        found: list[Transition] = []
        while self._in_flight and (max_ready is None or len(found) < max_ready):
            remaining = None if end is None else max(0.0, end - time.monotonic())
            if not self._ready.wait(wanted - len(found), remaining):
                break
            answer = self._ready.take()
            if self._in_flight.get(answer.env_id) != answer.request_id:
                continue  # of a request that was abandoned
            del self._in_flight[answer.env_id]
            if isinstance(answer, _Failure):
                self.latest[answer.env_id] = None
                raise answer.error
            # It is shown again (`render`, resets of others): the caller must not change it.
            answer.result.observation.screenshot.flags.writeable = False
            self.latest[answer.env_id] = answer.result
            found.append(answer)
        return found

    def abandon(self, env_ids: Iterable[int]) -> None:
        """Give requests up, and their sessions with them. See `DesktopVectorEnv.abandon`."""
        for i in list(env_ids):
            if self._in_flight.pop(i, None) is None:
                continue
            self.latest[i] = None
            session, self._sessions[i] = self._sessions[i], None
            if session is not None:
                self._link.loop.submit(session.close)

    def close(self, also: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close all sessions, even in the middle of an operation, `also`, and the link."""
        self._link.loop.run(self._close, also)

    async def _close(self, also: Callable[[], Coroutine[Any, Any, None]]) -> None:
        sessions, self._sessions = self._sessions, [None] * len(self._sessions)
        try:
            await asyncio.gather(also(), *(session.close() for session in sessions if session is not None))
        finally:
            await self._link.close()


def is_fault(error: Exception) -> bool:
    """Return whether an exception concerns this one desktop, which a reset replaces."""
    if isinstance(error, ClusterError):
        return error.code in FAULTS
    return isinstance(error, DesktopError)
