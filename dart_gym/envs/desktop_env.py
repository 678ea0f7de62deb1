"""`DesktopEnv`: one desktop as a Gymnasium environment.

    import gymnasium as gym, dart_gym
    env = gym.make("DartGym/Desktop-v0", task="miniwob/click-test")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(dart_gym.Click(40, 60))

Invariants:
    - Nothing boots before the first reset.
    - No action of the action space raises: what a desktop cannot do is `info["action_error"]`, and is seen in the
      next observation.
    - A reward other than 0 comes only with the end of an episode, but for `shaped_reward`. A fault of the environment
      is `truncated` with `info["env_fault"]` and a score of nan, never a failure of the policy.
    - `max_episode_steps` of `gymnasium.make` is the step limit of episodes, which are scored when they reach it.
"""

import dataclasses
import inspect
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.actions import Action, as_action
from dart_gym.core.errors import DesktopError, EpisodeStateError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.env_settings import RENDER_MODES, EnvOptions, EnvSettings, check_options, osworld_options
from dart_gym.envs.episode_info import ending, make_info, make_observation, reward_of
from dart_gym.sessions.reset_request import MAX_SEED, ResetRequest, pacing_named

RESET_ATTEMPTS = 2  # the second one gets a fresh desktop


class DesktopEnv(gymnasium.Env[dict[str, Any], Action | dict[str, Any]], EzPickle):
    """A desktop with a task.

    Options of `reset`: `task_id` (a name), `task` (an OSWorld JSON), or `suite` (draw one of its tasks); without them a
    task is drawn from those given here. `pacing` replaces the one given here. A reset with a seed runs the task with
    exactly that seed.

    Args:
        task: the task of every episode; "miniwob/click-test" by default.
        options: the other settings by name; see `dart_gym.envs.env_settings.EnvSettings`.

    Raises:
        UnknownTaskError: no such task.
        ValueError: tasks with screens of different sizes.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 2}

    def __init__(self, task: str | None = None, **options: Unpack[EnvOptions]) -> None:
        EzPickle.__init__(self, task, **options)
        self._settings = EnvSettings.make(task, options)
        self.render_mode = self._settings.render_mode
        (self._choice,) = self._settings.choices()
        self.observation_space = self._settings.observation_space(self._choice)
        self.action_space = self._settings.action_space(self._choice)
        self._link = self._settings.link()
        self._session: ClientSession | None = None
        self._frame: NDArray[np.uint8] | None = None
        self._closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Raises:
            ValueError: an unknown option, or a task with a screen of another size.
            DesktopError: two fresh desktops in a row broke; the message says how.
            ClusterError: no cluster can be reached.
        """
        super().reset(seed=seed)
        if self._closed:
            raise EpisodeStateError("the environment is closed: make a new one")
        given = check_options(options, ("task_id", "task", "suite", "pacing"))
        pacing = pacing_named(given.pop("pacing", self._settings.pacing)).name
        task = self._choice.choose(self.np_random, given)
        episode_seed = int(self.np_random.integers(MAX_SEED)) if seed is None else seed
        request = self._settings.request(self._choice, task, episode_seed, pacing)
        if request.max_steps is None:
            request = dataclasses.replace(request, max_steps=_limit_around(self))
        result = self._link.loop.run(self._reset, request)
        return self._observe(result), make_info(result)

    async def _reset(self, request: ResetRequest) -> StepResult:
        detail = ""
        for _ in range(RESET_ATTEMPTS):
            if self._session is None:
                self._session = (await self._link.client()).session()
            result = await self._session.reset(request, deadline_s=self._settings.deadline_s)
            if result.terminal is None:
                return result
            detail = result.observation.action_error
        raise DesktopError(f"{RESET_ATTEMPTS} desktops in a row failed to start the task: {detail}")

    def step(self, action: Action | dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out an action, or its dict. Raises `TypeError`, `ValueError`: none; `EpisodeStateError`: no episode."""
        typed = as_action(action)
        if self._session is None:
            raise EpisodeStateError("no episode is running: call reset first")
        result = self._link.loop.run(self._session.step, typed, deadline_s=self._settings.deadline_s)
        reward = reward_of(result, shaped=self._settings.shaped_reward)
        return self._observe(result), reward, *ending(result), make_info(result)

    def _observe(self, result: StepResult) -> dict[str, Any]:
        self._frame = result.observation.screenshot
        return make_observation(result, accessibility=self._settings.accessibility)

    def oracle(self) -> Action:
        """The next action of a perfect user, where the suite knows one (for tests and demonstrations)."""
        if self._session is None:
            raise EpisodeStateError("no episode is running: call reset first")
        return self._link.loop.run(self._session.oracle)

    def render(self) -> NDArray[np.uint8] | None:
        """The last frame that was observed, as a copy; None without a render mode."""
        if self.render_mode is None or self._frame is None:
            return None
        return self._frame.copy()

    def close(self) -> None:
        """Give the desktop back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._link.loop.run(self._close)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._link.close()


def _limit_around(env: DesktopEnv) -> int | None:
    """The steps that a `TimeLimit` lets an environment take, seen from within its `reset`; None without one.

    An environment is told nothing of its wrappers, and this one, which `gymnasium.make` makes of `max_episode_steps`,
    would cut an episode without a score. The calls that led here are the only way to it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is TimeLimit.reset.__code__ and frame.f_locals["self"].unwrapped is env:
            return int(frame.f_locals["self"]._max_episode_steps)
        frame = frame.f_back
    return None


class OSWorldEnv(DesktopEnv):
    """`DesktopEnv` with OSWorld's tasks: all of `DART_GYM_OSWORLD`, unless a task's id or file is named."""

    def __init__(self, task: str | None = None, **options: Unpack[EnvOptions]) -> None:
        super().__init__(task, **osworld_options(task, options))
