"""`DesktopVectorEnv`: many desktops as one Gymnasium vector environment, driven by one event loop.

Two faces: `reset`/`step`, a barrier over all desktops, as Gymnasium has it; and `async_reset`/`send`/`recv`/`abandon`,
which let fast desktops run ahead of slow ones.

Invariants:
    - One request at a time per environment; replies are matched by request id, so a late one is never taken for
      another.
    - A fault of one desktop is that environment's `truncated` with `info["env_fault"]`; the others do not notice, and
      its next reset gets a fresh desktop.
    - Every observation is a fresh array.

Autoreset (`autoreset_mode`): DISABLED by default, because whoever trains chooses the next task and must not waste a
generation on an environment that has ended: reset it with `options={"reset_mask": mask}`. NEXT_STEP (the action of an
environment that has ended is ignored, it is reset instead) and SAME_STEP (reset at once, `final_obs` and `final_info`
in the info) are for code that expects them; both concern `step` only.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dart_gym.actions import Action
from dart_gym.cluster.client import ClientSession
from dart_gym.cluster.protocol import ErrorCode
from dart_gym.env import check_render_mode
from dart_gym.episodes import (
    MAX_SEED,
    ClusterLink,
    TaskChoice,
    check_options,
    ending,
    make_info,
    make_observation,
)
from dart_gym.errors import ClusterError, ConfigurationError, DesktopError, EpisodeStateError
from dart_gym.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.spaces import ActionSpace, as_action, observation_space

FAULTS = (ErrorCode.SESSION_LOST, ErrorCode.TIMEOUT, ErrorCode.SHUTDOWN, ErrorCode.IDLE, ErrorCode.INTERNAL)
OPTIONS = ("task_ids", "tasks", "reset_mask")


@dataclass(frozen=True, slots=True)
class Transition:
    """What one environment answered.

    Attributes:
        env_id: which one.
        request_id: of the request, as `send` or `async_reset` returned it.
        is_reset: whether it answers a reset.
        result: the step result: typed ending, evaluation, timings.
    """

    env_id: int
    request_id: int
    is_reset: bool
    result: StepResult

    @property
    def observation(self) -> dict[str, Any]:
        """As a member of the single observation space."""
        return make_observation(self.result)

    @property
    def reward(self) -> float:
        """The score at the end of an episode that has one, else 0."""
        return self.result.reward

    @property
    def terminated(self) -> bool:
        """Whether the episode ended by the task or the policy."""
        return ending(self.result)[0]

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut."""
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


def _is_fault(error: Exception) -> bool:
    """Whether an exception concerns this one desktop, which a reset replaces."""
    if isinstance(error, ClusterError):
        return error.code in FAULTS
    return isinstance(error, DesktopError)


class DesktopVectorEnv(VectorEnv[dict[str, Any], Sequence[Action], NDArray[Any]]):
    """Desktops side by side.

    Options of `reset`: `task_ids` (one name per environment), or `tasks` (one OSWorld JSON each), and `reset_mask`
    (bool array: only these).

    Args:
        num_envs: how many.
        task, tasks, suite, url, token_env, width, height: see `DesktopEnv`, and so for what follows.
        render_mode, max_steps, time_limit_s, deadline_s: likewise.
        max_episode_steps: `gymnasium.make_vec`'s name for `max_steps`.
        autoreset_mode: "DISABLED", "NEXT_STEP" or "SAME_STEP"; see the module.

    Raises:
        UnknownTaskError: no such task.
        ValueError: tasks with screens of different sizes.
    """

    def __init__(
        self,
        num_envs: int = 1,
        task: str | None = None,
        *,
        tasks: Sequence[str] | None = None,
        suite: str | None = None,
        url: str | None = None,
        token_env: str | None = None,
        width: int | None = None,
        height: int | None = None,
        render_mode: str | None = None,
        max_steps: int | None = None,
        max_episode_steps: int | None = None,
        time_limit_s: float | None = None,
        deadline_s: float = 120.0,
        autoreset_mode: str | AutoresetMode = AutoresetMode.DISABLED,
    ) -> None:
        if num_envs < 1:
            raise ConfigurationError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 2, "autoreset_mode": self.autoreset_mode}
        check_render_mode(render_mode, self.metadata)
        self.render_mode = render_mode
        self._choice = TaskChoice.make(task, tasks, suite, width, height)
        self.single_observation_space = observation_space(self._choice.height, self._choice.width)
        self.single_action_space = ActionSpace(self._choice.height, self._choice.width)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._limits = {"max_steps": max_steps or max_episode_steps, "time_limit_s": time_limit_s}
        self._deadline_s = deadline_s
        self._link = ClusterLink(url, token_env)
        self._sessions: list[ClientSession | None] = [None] * num_envs
        self._request_ids = itertools.count(1)
        self._in_flight: dict[int, int] = {}
        self._ready: queue.SimpleQueue[Transition | _Failure] = queue.SimpleQueue()
        self._latest: list[StepResult | None] = [None] * num_envs
        self._background: set[Future[None]] = set()

    # --- send and recv

    def async_reset(
        self,
        env_ids: Iterable[int] | None = None,
        *,
        tasks: Sequence[str | dict[str, Any] | None] | None = None,
        seeds: Sequence[int | None] | None = None,
    ) -> list[int]:
        """Ask environments to start an episode; `recv` gives the first observations.

        Args:
            env_ids: which; all by default.
            tasks: one per environment asked for, None to draw one.
            seeds: likewise.

        Returns:
            Request ids, one per environment.

        Raises:
            EpisodeStateError: an environment has a request in flight.
            ValueError: a task that does not fit, or a length that does not match.
        """
        ids = list(range(self.num_envs)) if env_ids is None else [int(i) for i in env_ids]
        tasks = _per_env("tasks", tasks, ids)
        seeds = _per_env("seeds", seeds, ids)
        self._check_free(ids)
        chosen = [self._choice.draw(self.np_random) if task is None else self._choice.check(task) for task in tasks]
        numbers = [int(self.np_random.integers(MAX_SEED)) if seed is None else int(seed) for seed in seeds]
        return [
            self._submit(i, True, partial(self._reset_one, i, task, seed))
            for i, task, seed in zip(ids, chosen, numbers, strict=True)
        ]

    def send(self, actions: Iterable[Action | dict[str, Any]], env_ids: Iterable[int]) -> list[int]:
        """Send one action to each of some environments; returns the request ids.

        Raises:
            EpisodeStateError: an environment has a request in flight, or no running episode.
            TypeError, ValueError: not an action. Nothing has been sent then.
        """
        pairs = list(zip((as_action(action) for action in actions), (int(i) for i in env_ids), strict=True))
        self._check_free([i for _, i in pairs])
        for _, i in pairs:
            latest = self._latest[i]
            if latest is None or latest.terminal is not None:
                raise EpisodeStateError(f"environment {i} has no running episode: reset it first (reset_mask)")
        return [self._submit(i, False, partial(self._step_one, i, action)) for action, i in pairs]

    def recv(
        self, *, min_ready: int = 1, max_ready: int | None = None, timeout: float | None = None
    ) -> list[Transition]:
        """Answers in the order of their arrival.

        Args:
            min_ready: wait for so many (or for all that are in flight, if fewer).
            max_ready: return at most so many.
            timeout: in seconds; fewer answers, or none, when it has passed.

        Raises:
            DartGymError: what is no fault of one desktop (an unreachable cluster, a missing program).
        """
        end = None if timeout is None else time.monotonic() + timeout
        wanted = min(min_ready, len(self._in_flight))
        found: list[Transition] = []
        while self._in_flight and (max_ready is None or len(found) < max_ready):
            try:
                if len(found) >= wanted:
                    answer = self._ready.get_nowait()
                else:
                    answer = self._ready.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if self._in_flight.get(answer.env_id) != answer.request_id:
                continue  # of a request that was abandoned
            del self._in_flight[answer.env_id]
            if isinstance(answer, _Failure):
                self._latest[answer.env_id] = None
                raise answer.error
            self._latest[answer.env_id] = answer.result
            found.append(answer)
        return found

    def abandon(self, env_ids: Iterable[int]) -> None:
        """Give up requests in flight; their environments need a reset.

        The desktops are thrown away in the middle of whatever they do, so no action can land in a later episode.
        """
        for i in env_ids:
            if self._in_flight.pop(i, None) is None:
                continue
            session, self._sessions[i] = self._sessions[i], None
            self._latest[i] = None
            if session is not None:
                future = self._link.loop.submit(session.close)
                self._background.add(future)
                future.add_done_callback(self._background.discard)

    def _check_free(self, env_ids: Sequence[int]) -> None:
        if self.closed:
            raise EpisodeStateError("the environment is closed: make a new one")
        seen = set()
        for i in env_ids:
            if not 0 <= i < self.num_envs:
                raise ValueError(f"there is no environment {i}: they are numbered 0 to {self.num_envs - 1}")
            if i in self._in_flight:
                raise EpisodeStateError(
                    f"environment {i} already has request {self._in_flight[i]} in flight: recv or abandon it first"
                )
            if i in seen:
                raise ValueError(f"environment {i} is named twice")
            seen.add(i)

    def _submit(self, env_id: int, is_reset: bool, make: Callable[[], Coroutine[Any, Any, StepResult]]) -> int:
        """Run a coroutine in the loop; its result, or its fault as a value, goes to the queue."""
        request_id = self._in_flight[env_id] = next(self._request_ids)

        async def run() -> None:
            try:
                result = await make()
            except Exception as error:
                if not _is_fault(error):  # a person must act: raised where the answer is waited for
                    self._ready.put(_Failure(env_id, request_id, error))
                    return
                result = self._fault(f"{type(error).__name__}: {error}")
            self._ready.put(Transition(env_id, request_id, is_reset, result))

        self._link.loop.submit(run)
        return request_id

    async def _reset_one(self, env_id: int, task: str | dict[str, Any], seed: int) -> StepResult:
        session = self._sessions[env_id]
        if session is None:
            session = self._sessions[env_id] = (await self._link.client()).session()
        override = self._choice.override or None
        return await session.reset(
            task,
            seed=seed,
            desktop=override,
            deadline_s=self._deadline_s,
            **self._limits,  # type: ignore[arg-type]
        )

    async def _step_one(self, env_id: int, action: Action) -> StepResult:
        session = self._sessions[env_id]
        if session is None:
            raise EpisodeStateError(f"environment {env_id} has no session")
        return await session.step(action, deadline_s=self._deadline_s)

    def _fault(self, detail: str) -> StepResult:
        frame = np.zeros((self._choice.height, self._choice.width, 3), np.uint8)
        evaluation = Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, "cluster", detail)
        return StepResult(Observation(frame, "", detail), TerminalState.ENV_ERROR, evaluation)

    # --- reset and step

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in all environments, or those of the mask. See the class for the options.

        A desktop that failed to start has `info["env_fault"]`; stepping it is refused until a reset went well.

        Args:
            seed: one number (environment i gets seed + i), or one per environment.
            options: see the class.
        """
        if isinstance(seed, int):
            super().reset(seed=seed)
            seed = [seed + i for i in range(self.num_envs)]
        given = check_options(options, OPTIONS)
        if "task_ids" in given and "tasks" in given:
            raise ValueError("give one of the reset options 'task_ids' and 'tasks', not both")
        ids = _masked(given.get("reset_mask"), self.num_envs)
        everyone = range(self.num_envs)
        tasks = _per_env("task_ids", given.get("task_ids", given.get("tasks")), everyone)
        seeds = _per_env("seed", seed, everyone)
        self.abandon(list(self._in_flight))
        self.async_reset(ids, tasks=[tasks[i] for i in ids], seeds=[seeds[i] for i in ids])
        self.recv(min_ready=len(ids))
        for i in everyone:
            if self._latest[i] is None:
                raise EpisodeStateError(f"environment {i} was never reset: the first reset needs all of them")
        infos: dict[str, Any] = {}
        for i in ids:
            infos = self._add_info(infos, make_info(self._result(i)), i)
        return self._observations(), infos

    def step(
        self, actions: Sequence[Action | dict[str, Any]]
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments and wait for the slowest. See the module for what happens to those that have ended.

        Raises:
            EpisodeStateError: an environment has ended and autoreset is disabled.
        """
        everyone = range(self.num_envs)
        ended = [i for i in everyone if self._latest[i] is not None and self._result(i).terminal is not None]
        actions = _per_env("actions", actions, everyone)
        resets = ended if self.autoreset_mode is AutoresetMode.NEXT_STEP else []
        stepped = [i for i in everyone if i not in resets]
        self.send([actions[i] for i in stepped], stepped)
        self.async_reset(resets)
        self.recv(min_ready=self.num_envs)
        results = [self._result(i) for i in everyone]
        # A reset that failed is truncated at once; with autoreset the next step tries again.
        endings = [ending(result) for result in results]
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = self._reset_same_step(results)
        for i in everyone:
            infos = self._add_info(infos, make_info(self._result(i)), i)
        return (
            self._observations(),
            np.array([result.reward for result in results], np.float64),
            np.array([terminated for terminated, _ in endings], np.bool_),
            np.array([truncated for _, truncated in endings], np.bool_),
            infos,
        )

    def _reset_same_step(self, results: Sequence[StepResult]) -> dict[str, Any]:
        ended = [i for i, result in enumerate(results) if result.terminal is not None]
        infos: dict[str, Any] = {}
        for i in ended:
            final = {"final_obs": make_observation(results[i]), "final_info": make_info(results[i])}
            infos = self._add_info(infos, final, i)
        self.async_reset(ended)
        self.recv(min_ready=len(ended))
        return infos

    def _result(self, env_id: int) -> StepResult:
        result = self._latest[env_id]
        if result is None:
            raise EpisodeStateError(f"environment {env_id} was never reset")
        return result

    def _observations(self) -> dict[str, Any]:
        rows = [self._result(i).observation for i in range(self.num_envs)]
        return {
            "screenshot": np.stack([row.screenshot for row in rows]),
            "instruction": tuple(row.instruction for row in rows),
            "action_error": tuple(row.action_error for row in rows),
        }

    def oracle(self, env_id: int) -> Action:
        """The next action of a perfect user, where the suite knows one."""
        session = self._sessions[env_id]
        if session is None:
            raise EpisodeStateError(f"environment {env_id} has no running episode: reset it first")
        return self._link.loop.run(session.oracle)

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """The last frame of each environment, as copies; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._result(i).observation.screenshot.copy() for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Give all desktops back, in the middle of whatever they do."""
        self._link.loop.run(self._close)

    async def _close(self) -> None:
        sessions, self._sessions = self._sessions, [None] * self.num_envs
        for session in sessions:
            if session is not None:
                await session.close()
        await self._link.close()


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    try:
        return AutoresetMode[mode.upper()]
    except KeyError:
        names = ", ".join(AutoresetMode.__members__)
        raise ConfigurationError(f"autoreset_mode must be one of {names}, got {mode!r}") from None


def _masked(mask: Any, num_envs: int) -> list[int]:
    """Numbers of the environments that a reset mask names; all without one."""
    if mask is None:
        return list(range(num_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f"reset_mask must be a bool array of shape ({num_envs},) with a True in it, got {mask!r}")
    return [int(i) for i in np.flatnonzero(mask)]


def _per_env(name: str, values: Any, env_ids: Sequence[int]) -> list[Any]:
    """One value per environment; Nones if there are none."""
    if values is None:
        return [None] * len(env_ids)
    if isinstance(values, (str, bytes, dict)) or len(values) != len(env_ids):
        raise ValueError(f"{name} needs one value for each of {len(env_ids)} environments, got {values!r:.200}")
    return list(values)
