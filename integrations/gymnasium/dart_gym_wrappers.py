"""Small action and observation spaces over desktops, for Stable-Baselines3 and loops like CleanRL's; Minari data sets.

Invariants:
    - The wrapped environment stays what it is: rewards, ends and infos pass through untouched.
    - A number that stands for nothing at the moment (no such element) is a move of nothing: a wait of no length.
    - Wrappers count in pixels of the environment that they wrap, so that they can be put around each other.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.core.actions import Action, Click, Wait, as_action
from dart_gym.core.errors import MissingDependencyError
from dart_gym.envs.spaces import ActionSpace, Screenshot

_COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"
_PAIR = re.compile(r"\((-?\d+), ?(-?\d+)\)")


class ResizeScreenshot(gym.Wrapper):
    """Screenshots of another size inside the observation's dict; coordinates of actions are pixels of those.

    What Gymnasium's `ResizeObservation` does for environments whose observation is an image alone. `render` still
    gives the whole screen. Around `ElementActions`, whose actions have no coordinates, it resizes only.

    Args:
        env: a `DartGym/Desktop-v0` environment.
        shape: height and width in pixels.
    """

    def __init__(self, env: gym.Env[Any, Any], shape: tuple[int, int]) -> None:
        super().__init__(env)
        self.shape = height, width = shape
        self.mapped = isinstance(env.action_space, ActionSpace)
        if self.mapped:
            self.scale = env.action_space.width / width, env.action_space.height / height
            self.action_space = ActionSpace(height, width)
        screen = {"screenshot": Screenshot(height, width)}
        self.observation_space = gym.spaces.Dict({**env.observation_space.spaces, **screen})

    def _small(self, observation: dict[str, Any]) -> dict[str, Any]:
        screen = Image.fromarray(observation["screenshot"])
        small = screen.resize(self.shape[::-1], Image.Resampling.BOX)
        return {**observation, "screenshot": np.asarray(small)}

    def _point(self, x: int, y: int) -> tuple[int, int]:
        """The pixel of the whole screen below the middle of a small one."""
        return int((x + 0.5) * self.scale[0]), int((y + 0.5) * self.scale[1])

    def action(self, action: Any) -> Any:
        """The action in pixels of the whole screen."""
        if not self.mapped:
            return action
        typed: Any = as_action(action)
        if getattr(typed, "x", None) is not None:
            x, y = self._point(typed.x, typed.y)
            return dataclasses.replace(typed, x=x, y=y)
        if hasattr(typed, "path"):
            return dataclasses.replace(typed, path=tuple(self._point(x, y) for x, y in typed.path))
        return typed

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; see the wrapped environment."""
        observation, info = self.env.reset(**options)
        return self._small(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out an action on the whole screen."""
        observation, *rest = self.env.step(self.action(action))
        return self._small(observation), *rest


class DiscreteClicks(gym.Wrapper):
    """Actions are cells of a grid, row by row: a click in the middle of one.

    Args:
        env: a `DartGym/Desktop-v0` environment.
        rows: of the grid.
        columns: of the grid.
        blank: whether `action_masks` allows cells of a single color as well, in which nothing is drawn.
    """

    def __init__(self, env: gym.Env[Any, Any], rows: int, columns: int, *, blank: bool = True) -> None:
        super().__init__(env)
        self.rows, self.columns, self.blank = rows, columns, blank
        self.action_space = gym.spaces.Discrete(rows * columns)
        self._screen: NDArray[np.uint8] | None = None

    def action(self, action: int) -> Action:
        """The click that a cell's number stands for."""
        space = self.env.action_space
        row, column = divmod(int(action), self.columns)
        return Click(
            (2 * column + 1) * space.width // (2 * self.columns), (2 * row + 1) * space.height // (2 * self.rows)
        )

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; see the wrapped environment."""
        observation, info = self.env.reset(**options)
        self._screen = observation["screenshot"]
        return observation, info

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Click into a cell."""
        observation, *rest = self.env.step(self.action(action))
        self._screen = observation["screenshot"]
        return observation, *rest

    def action_masks(self) -> NDArray[np.bool_]:
        """Which cells can be clicked (the method that MaskablePPO of sb3-contrib asks); all where all are blank."""
        everything = np.ones(self.rows * self.columns, np.bool_)
        if self.blank or self._screen is None:
            return everything
        bands = np.array_split(self._screen, self.rows, axis=0)
        cells = [cell for band in bands for cell in np.array_split(band, self.columns, axis=1)]
        drawn = np.array([bool((cell != cell[0, 0]).any()) for cell in cells])
        return drawn if drawn.any() else everything


def elements(tree: str, height: int, width: int) -> list[tuple[str, tuple[int, int]]]:
    """Name and middle (x, y) of the elements without children that lie on the screen, in the tree's order. Pure."""
    found = []
    for element in ElementTree.fromstring(tree).iter() if tree else ():
        corner, size = (_PAIR.fullmatch(element.get(_COMPONENT + key, "")) for key in ("screencoord", "size"))
        if len(element) or corner is None or size is None:
            continue
        x, y = (int(corner[i]) + int(size[i]) // 2 for i in (1, 2))
        if 0 <= x < width and 0 <= y < height and int(size[1]) > 0 and int(size[2]) > 0:
            found.append((element.get("name", ""), (x, y)))
    return found


class ElementActions(gym.Wrapper):
    """Actions are numbers of elements in the accessibility tree: a click in the middle of one.

    Args:
        env: a `DartGym/Desktop-v0` environment made with `accessibility=True`.
        most: how many elements can be chosen; `action_masks` says which are there.

    Raises:
        ValueError: the environment's observations have no tree, or its clicks are not those of the whole screen.
    """

    def __init__(self, env: gym.Env[Any, Any], most: int = 64) -> None:
        super().__init__(env)
        if "accessibility_tree" not in env.observation_space.spaces:
            raise ValueError(
                "ElementActions reads the accessibility tree: make the environment with accessibility=True"
            )
        if env.action_space != env.unwrapped.action_space:
            raise ValueError("the tree tells places of the whole screen: put ResizeScreenshot around ElementActions")
        self.action_space = gym.spaces.Discrete(most)
        self.elements: list[tuple[str, tuple[int, int]]] = []

    def _look(self, observation: dict[str, Any]) -> dict[str, Any]:
        space = self.env.action_space
        found = elements(observation["accessibility_tree"], space.height, space.width)
        self.elements = found[: int(self.action_space.n)]
        return observation

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; see the wrapped environment."""
        observation, info = self.env.reset(**options)
        return self._look(observation), info

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Click an element; one that is not there is waited for, for no time."""
        chosen = int(action)
        typed = Click(*self.elements[chosen][1]) if 0 <= chosen < len(self.elements) else Wait(0.0)
        observation, *rest = self.env.step(typed)
        return self._look(observation), *rest

    def action_masks(self) -> NDArray[np.bool_]:
        """Which numbers stand for an element now (the method that MaskablePPO of sb3-contrib asks)."""
        return np.arange(int(self.action_space.n)) < len(self.elements)


class PixelsAndWords(gym.ObservationWrapper):
    """Observations as one vector in [0, 1]: mean colors of a grid's cells, row by row, and which words are asked for.

    Args:
        env: a `DartGym/Desktop-v0` environment.
        rows: of the grid over the screen.
        columns: of the grid over the screen.
        words: of the instruction, in lower case; each is a 1 where it stands in it.
    """

    def __init__(self, env: gym.Env[Any, Any], rows: int, columns: int, words: Sequence[str] = ()) -> None:
        super().__init__(env)
        self.rows, self.columns, self.words = rows, columns, tuple(words)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (rows * columns * 3 + len(self.words),), np.float32)

    def observation(self, observation: dict[str, Any]) -> NDArray[np.float32]:
        """The vector of an observation."""
        bands = np.array_split(observation["screenshot"].astype(np.float32) / 255.0, self.rows, axis=0)
        means = [cell.mean(axis=(0, 1)) for band in bands for cell in np.array_split(band, self.columns, axis=1)]
        asked = set(re.findall(r"\w+", observation["instruction"].lower()))
        return np.concatenate([*means, np.array([word in asked for word in self.words])]).astype(np.float32)


def record_minari(env: gym.Env[Any, Any], dataset_id: str, seeds: Iterable[int], policy: Any, **about: Any) -> Any:
    """Play an episode for each seed and keep them as a Minari data set; a fault's episode is left out.

    Args:
        env: with spaces that Minari can store: numbers and arrays, as of the wrappers here.
        dataset_id: as Minari has it, such as "desktop/click-button-v0".
        seeds: of the episodes.
        policy: a function of an observation that returns an action.
        about: what Minari keeps with the data set (`author`, `description`, ...).

    Raises:
        MissingDependencyError: Minari is not installed.
    """
    try:
        from minari import DataCollector
    except ImportError as error:
        raise MissingDependencyError("Minari is not installed; next step: pip install 'minari[hdf5,create]'") from error
    collector = DataCollector(env)
    for seed in seeds:
        observation, _ = collector.reset(seed=seed)
        ended, info = False, {"env_fault": False}
        while not ended:
            observation, _, terminated, truncated, info = collector.step(policy(observation))
            ended = terminated or truncated
        if info["env_fault"]:
            collector._buffer = None  # Minari drops what its buffer holds of the episode
    return collector.create_dataset(dataset_id=dataset_id, **about)
