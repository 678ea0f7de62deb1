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
    - `max_episode_steps` of `gymnasium.make` is a step limit of episodes (`step_limit`), which are scored when they
      reach it; of two limits the smaller one applies.
    - No array is shared with the caller: what is written into an observation shows nowhere else.
    - An interrupt of an operation gives the desktop up, so that the next reset, or `close`, need not wait for its end.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, Unpack

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.actions import Action, as_action
from dart_gym.core.arguments import seed_of, text
from dart_gym.core.errors import DesktopError, EpisodeStateError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.env_settings import RENDER_MODES, EnvOptions, EnvSettings, check_options, check_task, osworld_options
from dart_gym.envs.episode_info import ending, make_info, make_observation, reward_of
from dart_gym.sessions.reset_request import MAX_SEED, ResetRequest, pacing_named

T = TypeVar("T")
OPTIONS = {"task_id": text, "task": check_task, "suite": text, "pacing": text}
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
        self.settings = EnvSettings.make(task, options)
        self.render_mode = self.settings.render_mode
        (self.choice,) = self.settings.choices()
        self.observation_space = self.settings.observation_space(self.choice)
        self.action_space = self.settings.action_space(self.choice)
        self._link = self.settings.link()
        self._session: ClientSession | None = None
        self._frame: NDArray[np.uint8] | None = None
        self._closed = False
        self.time_limit_steps: int | None = (
            None  # steps after which a `TimeLimit` around this environment cuts episodes
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Raises:
            ValueError: an unknown option, or a task with a screen of another size.
            OptionError: a seed or an option of a wrong type or out of range.
            TaskError: a task that cannot run on this machine.
            DesktopError: two fresh desktops in a row broke; the message says how.
            ClusterError: no cluster can be reached.
        """
        if self._closed:
            raise EpisodeStateError("the environment is closed: make a new one")
        seed = None if seed is None else seed_of(seed)
        given = check_options(options, OPTIONS)
        super().reset(seed=seed)
        pacing = pacing_named(given.pop("pacing", self.settings.pacing)).name
        task = self.choice.choose(self.np_random, given)
        episode_seed = int(self.np_random.integers(MAX_SEED)) if seed is None else seed
        request = self.settings.request(self.choice, task, episode_seed, pacing, self.time_limit_steps)
        result = self._run(self._reset, request)
        return self._observe(result), make_info(result)

    async def _reset(self, request: ResetRequest) -> StepResult:
        detail = ""
        for _ in range(RESET_ATTEMPTS):
            if self._session is None:
                self._session = (await self._link.client()).session()
            result = await self._session.reset(request, deadline_s=self.settings.deadline_s)
            if result.terminal is None:
                return result
            detail = result.observation.action_error
        raise DesktopError(f"{RESET_ATTEMPTS} desktops in a row failed to start the task: {detail}")

    def step(self, action: Action | dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Perform an action or its dict.

        Raises:
            TypeError: if it is neither.
            ValueError: if the dict describes no action.
            EpisodeStateError: if no episode is running.
        """
        typed = as_action(action)
        if self._session is None:
            raise EpisodeStateError("no episode is running: call reset first")
        result = self._run(self._session.step, typed, deadline_s=self.settings.deadline_s)
        reward = reward_of(result, shaped=self.settings.shaped_reward)
        return self._observe(result), reward, *ending(result), make_info(result)

    def _run(self, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        return self._link.loop.run(operation, *args, on_interrupt=self._give_up, **kwargs)

    def _give_up(self) -> None:
        """Throw the desktop away in the middle of an operation; the next reset gets another one."""
        session, self._session = self._session, None
        if session is not None:
            self._link.loop.submit(session.close)

    def _observe(self, result: StepResult) -> dict[str, Any]:
        if self.render_mode is not None:
            self._frame = result.observation.screenshot.copy()
        return make_observation(result, accessibility=self.settings.accessibility)

    def oracle(self) -> Action:
        """The next action of a perfect user, where the suite knows one (for tests and demonstrations)."""
        if self._session is None:
            raise EpisodeStateError("no episode is running: call reset first")
        return self._run(self._session.oracle)

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
        if not self._link.is_inherited:  # a fork must leave the desktop of its parent alone
            self._link.loop.run(self._close)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._link.close()


class OSWorldEnv(DesktopEnv):
    """`DesktopEnv` with OSWorld's tasks: all of `DART_GYM_OSWORLD`, unless a task's id or file is named."""

    def __init__(self, task: str | None = None, **options: Unpack[EnvOptions]) -> None:
        super().__init__(task, **osworld_options(task, options))
