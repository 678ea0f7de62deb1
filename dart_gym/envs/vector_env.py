"""`DesktopVectorEnv`: many desktops as one Gymnasium vector environment, driven by one event loop.

Two ways to use it: `reset`/`step`, a barrier over all desktops, as Gymnasium has it; and `async_reset`, `send`, `recv`
and `abandon`, which let fast desktops run ahead of slow ones.

Invariants:
    - One request at a time per environment; replies are matched by request id, so a late one is never taken for
      another.
    - A fault of one desktop is that environment's `truncated` with `info["env_fault"]`; the others do not notice, and
      its next reset gets a fresh desktop.
    - Every observation is a fresh array; what is written into one shows nowhere else.

Autoreset (`autoreset_mode`): DISABLED by default, because a trainer chooses the next task and must not waste a
generation on an environment that has ended: reset it with `options={"reset_mask": mask}`. NEXT_STEP (the action of an
environment that has ended is ignored, it is reset instead) and SAME_STEP (reset at once, `final_obs` and `final_info`
in the info) are for code that expects them; both concern `step` only. Their episodes are drawn from a random stream of
their own, in the order of steps and, within a step, of environments. With SAME_STEP and `prefetch` they are prepared on
spare desktops while the others step (`dart_gym.envs.prefetch`), which changes no draw.

An environment whose automatic reset failed (`info["env_fault"]`) is reset again by the next step, which ignores its
action.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.actions import Action, as_action
from dart_gym.core.arguments import SEEDS, integer, seed_of
from dart_gym.core.errors import ConfigurationError, EpisodeStateError, OptionError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.dispatcher import Dispatcher, Operation, Submission, Transition
from dart_gym.envs.env_settings import (
    RENDER_MODES,
    Check,
    EnvOptions,
    EnvSettings,
    check_options,
    check_task,
    osworld_options,
)
from dart_gym.envs.episode_info import copied_observation, ending, make_info, make_observation, reward_of, stack_infos
from dart_gym.envs.prefetch import Draw, Prefetch
from dart_gym.sessions.reset_request import MAX_SEED

UNLIMITED = -1  # what `gymnasium.make` takes as no limit
OPTIONS: dict[str, Check] = dict.fromkeys(("task_ids", "tasks", "reset_mask"), lambda name, value: value)


class DesktopVectorEnv(VectorEnv[dict[str, Any], Sequence[Action], NDArray[Any]], EzPickle):
    """Desktops side by side.

    Options of `reset`: `task_ids` (one name per environment), or `tasks` (one OSWorld JSON each), and `reset_mask`
    (bool array: only these).

    Args:
        num_envs: number of desktops.
        task: the task of every episode; "miniwob/click-test" by default.
        max_episode_steps: `gymnasium.make_vec`'s name for `max_steps`; the smaller one of both applies.
        autoreset_mode: "DISABLED", "NEXT_STEP" or "SAME_STEP"; see the module.
        prefetch: spare desktops on which SAME_STEP prepares the next episodes; the cluster needs that many more.
        options: the other settings by name; see `dart_gym.envs.env_settings.EnvSettings`.

    Raises:
        UnknownTaskError: no such task.
        ValueError: tasks with screens of different sizes.
    """

    def __init__(
        self,
        num_envs: int = 1,
        task: str | None = None,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.DISABLED,
        prefetch: int = 0,
        **options: Unpack[EnvOptions],
    ) -> None:
        limits: dict[str, Any] = {"max_episode_steps": max_episode_steps, "autoreset_mode": autoreset_mode}
        EzPickle.__init__(self, num_envs, task, **limits, prefetch=prefetch, **options)
        self.num_envs = num_envs = integer("num_envs", num_envs, 1)
        prefetch = integer("prefetch", prefetch, 0)
        if max_episode_steps is not None and max_episode_steps != UNLIMITED:
            limit = integer("max_episode_steps", max_episode_steps, 1)
            given = options.get("max_steps")
            options["max_steps"] = limit if given is None else min(integer("max_steps", given, 1), limit)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.settings = settings = EnvSettings.make(task, options)
        if prefetch and (self.autoreset_mode is not AutoresetMode.SAME_STEP or settings.osworld_url):
            needs = "autoreset_mode='SAME_STEP', and desktops that the cluster makes (no osworld_url)"
            raise ConfigurationError(f"prefetch={prefetch} needs {needs}")
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": 2, "autoreset_mode": self.autoreset_mode}
        self.render_mode = settings.render_mode
        self.choices = settings.choices(num_envs)
        self.choice = self.choices[0]
        self.single_observation_space = settings.observation_space(self.choice)
        self.single_action_space = settings.action_space(self.choice)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        link = settings.link()
        size = self.choice.height, self.choice.width
        self._dispatcher = Dispatcher(link, num_envs, size, settings.accessibility, settings.shaped_reward)
        self._automatic: np.random.Generator | None = None  # draws the episodes of autoreset
        self._prefetch = Prefetch(link, prefetch, self._draw_automatic, self._start_ahead, settings.deadline_s)

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
            env_ids: numbers of the environments; all by default.
            tasks: one per environment asked for, None to draw one.
            seeds: one per environment asked for, None to draw one.

        Returns:
            Request ids, one per environment.

        Raises:
            EpisodeStateError: an environment has a request in flight.
            ValueError: a task that does not fit, or a length that does not match.
        """
        ids = list(range(self.num_envs)) if env_ids is None else _numbers(env_ids)
        asked = [None if task is None else check_task("each of tasks", task) for task in _per_env("tasks", tasks, ids)]
        given = [None if seed is None else seed_of(seed, "each of seeds") for seed in _per_env("seeds", seeds, ids)]
        self._check_free(ids)
        draws = [self._draw(task, seed) for task, seed in zip(asked, given, strict=True)]
        return self._submit_resets(zip(ids, draws, strict=True))

    def _draw(self, task: str | dict[str, Any] | None, seed: int | None) -> Draw:
        """The episode of an environment. One with a seed of its own is drawn as `DesktopEnv` draws it from that."""
        rng = self.np_random if seed is None else np_random(seed)[0]
        chosen = self.choice.draw(rng) if task is None else self.choice.check(task)
        return Draw(chosen, int(rng.integers(MAX_SEED)) if seed is None else seed)

    def send(self, actions: Iterable[Action | dict[str, Any]], env_ids: Iterable[int]) -> list[int]:
        """Send one action to each of some environments; returns the request ids.

        Raises:
            EpisodeStateError: an environment has a request in flight, or no running episode.
            TypeError, ValueError: not an action. Nothing has been sent then.
        """
        pairs = list(zip((as_action(action) for action in actions), _numbers(env_ids), strict=True))
        self._check_free([i for _, i in pairs])
        for _, i in pairs:
            latest = self._dispatcher.latest[i]
            if latest is None or latest.terminal is not None:
                raise EpisodeStateError(f"environment {i} has no running episode: reset it first (reset_mask)")
        return self._dispatcher.submit([Submission(i, False, self._step_operation(action)) for action, i in pairs])

    def recv(
        self, *, min_ready: int = 1, max_ready: int | None = None, timeout: float | None = None
    ) -> list[Transition]:
        """Answers in the order of their arrival.

        Args:
            min_ready: wait for at least this many (or for all that are in flight, if fewer).
            max_ready: return at most this many.
            timeout: longest wait in seconds; fewer answers, or none, when it has passed.

        Raises:
            DartGymError: what is no fault of one desktop (an unreachable cluster, a missing program).
        """
        return self._dispatcher.recv(min_ready, max_ready, timeout)

    def abandon(self, env_ids: Iterable[int]) -> None:
        """Give up requests in flight; their desktops are thrown away, and the environments need a reset."""
        self._dispatcher.abandon(env_ids)

    def _check_free(self, env_ids: Sequence[int]) -> None:
        self._check_open()
        self._dispatcher.check_free(env_ids)

    def _check_open(self) -> None:
        if self.closed:
            raise EpisodeStateError("the environment is closed: make a new one")

    def _submit_resets(self, draws: Iterable[tuple[int, Draw]]) -> list[int]:
        return self._dispatcher.submit([Submission(i, True, self._reset_operation(i, draw)) for i, draw in draws])

    def _reset_operation(self, env_id: int, draw: Draw) -> Operation:
        request = self.settings.request(self.choices[env_id], draw.task, draw.seed)
        return lambda session: session.reset(request, deadline_s=self.settings.deadline_s)

    async def _start_ahead(self, session: ClientSession, draw: Draw) -> StepResult:
        return await self._reset_operation(0, draw)(session)

    def _step_operation(self, action: Action) -> Operation:
        return lambda session: session.step(action, deadline_s=self.settings.deadline_s)

    # --- reset and step

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in all environments, or those of the mask. See the class for the options.

        A desktop that failed to start has `info["env_fault"]`; stepping it is refused until a reset went well.

        Args:
            seed: one number (environment i gets seed + i), or one per environment, None to draw one. Equal seeds give
                equal tasks, also of later resets and automatic ones where each environment has a seed.
            options: options of the reset, listed at the class.
        """
        everyone = range(self.num_envs)
        given = check_options(options, OPTIONS)
        if "task_ids" in given and "tasks" in given:
            raise OptionError("give one of the reset options 'task_ids' and 'tasks', not both")
        ids = _masked(given.get("reset_mask"), self.num_envs)
        tasks = _per_env("task_ids", given.get("task_ids", given.get("tasks")), everyone)
        seeds = self._seeds(seed)
        self._check_open()
        if None not in seeds:
            self.np_random, self._automatic = np.random.default_rng(np.array(seeds, np.uint64)), None
            self._prefetch.forget()
        self.abandon(self._dispatcher.in_flight)
        self.async_reset(ids, tasks=[tasks[i] for i in ids], seeds=[seeds[i] for i in ids])
        self.recv(min_ready=len(ids))
        for i in everyone:
            if self._dispatcher.latest[i] is None:
                raise EpisodeStateError(f"environment {i} was never reset: the first reset needs all of them")
        self._prefetch.fill()
        return self._observations(), stack_infos({i: make_info(self._result(i)) for i in ids}, self.num_envs)

    def _seeds(self, seed: Any) -> list[int | None]:
        """One seed per environment, None where none is given. Raises `OptionError`."""
        if seed is None or (hasattr(seed, "__len__") and not isinstance(seed, (str, bytes))):
            seeds = _per_env("seed", seed, range(self.num_envs))
            return [None if one is None else seed_of(one, "each of seed") for one in seeds]
        first = integer("seed", seed, 0, SEEDS - self.num_envs)
        return [first + i for i in range(self.num_envs)]

    def step(
        self, actions: Sequence[Action | dict[str, Any]]
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments and wait for the slowest.

        Raises:
            EpisodeStateError: if an episode has ended and autoreset is disabled.
        """
        everyone = range(self.num_envs)
        ended = [i for i in everyone if self._dispatcher.latest[i] is not None and self._result(i).terminal is not None]
        actions = _per_env("actions", actions, everyone)
        resets = ended if self.autoreset_mode is not AutoresetMode.DISABLED else []
        stepped = [i for i in everyone if i not in resets]
        self.send([actions[i] for i in stepped], stepped)
        self._restart(resets)
        self.recv(min_ready=self.num_envs)
        results, settings = [self._result(i) for i in everyone], self.settings
        endings = [ending(result) for result in results]  # a reset that failed is truncated at once
        finals: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            finals = self._finish([i for i in stepped if results[i].terminal is not None])
        return (
            self._observations(),
            np.array([reward_of(result, shaped=settings.shaped_reward) for result in results], np.float64),
            np.array([terminated for terminated, _ in endings], np.bool_),
            np.array([truncated for _, truncated in endings], np.bool_),
            {**finals, **stack_infos({i: make_info(self._result(i)) for i in everyone}, self.num_envs)},
        )

    def _finish(self, ended: Sequence[int]) -> dict[str, Any]:
        """Start the next episodes of environments that have just ended; returns how they ended."""
        infos: dict[str, Any] = {}
        for i in ended:
            result = self._result(i)
            observation = copied_observation(result, accessibility=self.settings.accessibility)
            final = {"final_obs": observation, "final_info": make_info(result)}
            infos = self._add_info(infos, final, i)
        self._restart(ended)
        self.recv(min_ready=len(ended))
        self._prefetch.fill()
        return infos

    def _restart(self, env_ids: Sequence[int]) -> None:
        """Start drawn episodes: prepared ones first, the others in place; `recv` waits for those."""
        episodes = [(i, self._prefetch.take() or self._draw_automatic()) for i in env_ids]
        self._submit_resets((i, episode) for i, episode in episodes if isinstance(episode, Draw))
        for i, episode in episodes:
            if isinstance(episode, Draw):
                continue
            result = episode.wait()
            if result is None:
                self._prefetch.give(episode.session)
                self._submit_resets([(i, episode.draw)])
            else:
                self._prefetch.give(self._dispatcher.swap(i, episode.session, result))

    def _draw_automatic(self) -> Draw:
        """The next episode of autoreset."""
        if self._automatic is None:
            (self._automatic,) = self.np_random.spawn(1)
        return Draw(self.choice.draw(self._automatic), int(self._automatic.integers(MAX_SEED)))

    def _result(self, env_id: int) -> StepResult:
        result = self._dispatcher.latest[env_id]
        if result is None:
            raise EpisodeStateError(f"environment {env_id} was never reset")
        return result

    def _observation(self, result: StepResult) -> dict[str, Any]:
        return make_observation(result, accessibility=self.settings.accessibility)

    def _observations(self) -> dict[str, Any]:
        rows = [self._observation(self._result(i)) for i in range(self.num_envs)]
        stacked: dict[str, Any] = {key: tuple(row[key] for row in rows) for key in rows[0]}
        stacked["screenshot"] = np.stack([row["screenshot"] for row in rows])
        return stacked

    def oracle(self, env_id: int) -> Action:
        """The next action of a perfect user, where the suite knows one."""
        return self._dispatcher.oracle(env_id)

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """The last frame of each environment, as copies; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._result(i).observation.screenshot.copy() for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Give all desktops back, even in the middle of an operation."""
        if not self._dispatcher.is_inherited:  # a fork must leave the desktops of its parent alone
            self._dispatcher.close(self._prefetch.close)


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    if isinstance(mode, str) and mode.upper() in AutoresetMode.__members__:
        return AutoresetMode[mode.upper()]
    raise OptionError(f"autoreset_mode must be one of {', '.join(AutoresetMode.__members__)}, got {mode!r}")


def _masked(mask: Any, num_envs: int) -> list[int]:
    """Numbers of the environments that a reset mask names; all without one."""
    if mask is None:
        return list(range(num_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise OptionError(
            f"the reset option 'reset_mask' must be a bool array of shape ({num_envs},) with a True in it, got {mask!r}"
        )
    return [int(i) for i in np.flatnonzero(mask)]


def _per_env(name: str, values: Any, env_ids: Sequence[int]) -> list[Any]:
    """Return one value per environment; all are None without values."""
    if values is None:
        return [None] * len(env_ids)
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or len(values) != len(env_ids):
        raise OptionError(f"{name} needs one value for each of {len(env_ids)} environments, got {values!r:.200}")
    return list(values)


def _numbers(env_ids: Iterable[int]) -> list[int]:
    return [integer("the number of an environment", i, 0) for i in env_ids]


class OSWorldVectorEnv(DesktopVectorEnv):
    """`DesktopVectorEnv` with OSWorld's tasks; see `dart_gym.envs.desktop_env.OSWorldEnv`."""

    def __init__(self, num_envs: int = 1, task: str | None = None, **options: Any) -> None:
        super().__init__(num_envs, task, **osworld_options(task, options))  # type: ignore[arg-type]  # of both kinds


__all__ = ["DesktopVectorEnv", "OSWorldVectorEnv", "Transition"]
