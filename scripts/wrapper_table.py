"""Which of Gymnasium's wrappers work on our environments: the table in docs/guides/environments.md.

    python scripts/wrapper_table.py             # print it
    python scripts/wrapper_table.py --write     # put it into docs/guides/environments.md

Each cell is tried: an environment is made, wrapped, reset and stepped over the end of an episode.
`tests/dart_gym/envs/test_wrapper_table.py` tries them all, and compares the table in the docs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium import wrappers as single
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector

from dart_gym.core.actions import Click, Done, Move
from dart_gym.envs.cluster_link import acquire_shared, background_loop, release_shared

ID, TASK = "DartGym/Desktop-v0", "fake/two-steps"
MODES = list(AutoresetMode)
KINDS = ("one", *(f"{kind} {mode.name}" for kind in ("Sync", "Async", "native") for mode in MODES))
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "environments.md"
BEGIN, END = "<!-- wrapper table: python scripts/wrapper_table.py --write -->", "<!-- end of the wrapper table -->"
SCREEN = ["screenshot"]
HALF = spaces.Dict(screenshot=spaces.Box(0, 255, (112, 84, 3), np.uint8))
IDS = spaces.Discrete(2)

Wrap = Callable[[Any], Any]


def halved(observation: dict[str, Any]) -> dict[str, Any]:
    """Every second pixel of the screen."""
    return {"screenshot": observation["screenshot"][..., ::2, ::2, :]}


def image(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The screenshot alone, for wrappers that take one array."""
    space = env.observation_space["screenshot"]
    return single.TransformObservation(env, lambda seen: seen["screenshot"], space)


def images(envs: Any) -> Any:
    """The screenshots alone, of a vector."""
    one = envs.single_observation_space["screenshot"]
    return vector.TransformObservation(envs, lambda seen: seen["screenshot"], single_observation_space=one)


def chosen(number: int) -> Any:
    """An action of a number, as policies with few actions have it."""
    return Done() if number else Click(5, 5)


_VIDEOS = tempfile.TemporaryDirectory(prefix="wrapper-table-")


def videos() -> str:
    """A new directory that is thrown away in the end."""
    return tempfile.mkdtemp(dir=_VIDEOS.name)


ONE: dict[str, Wrap] = {
    "DelayObservation": lambda env: single.DelayObservation(env, 2),
    "DtypeObservation": lambda env: single.DtypeObservation(image(env), np.float32),
    "FilterObservation": lambda env: single.FilterObservation(env, SCREEN),
    "FlattenObservation": single.FlattenObservation,
    "FrameStackObservation": lambda env: single.FrameStackObservation(env, 3),
    "GrayscaleObservation": lambda env: single.GrayscaleObservation(image(env)),
    "TransformObservation": lambda env: single.TransformObservation(env, halved, HALF),
    "MaxAndSkipObservation": lambda env: single.MaxAndSkipObservation(image(env), 2),
    "NormalizeObservation": lambda env: single.NormalizeObservation(single.DtypeObservation(image(env), np.float32)),
    "AddRenderObservation": lambda env: single.AddRenderObservation(env, render_only=False, render_key="frame"),
    "ResizeObservation": lambda env: single.ResizeObservation(image(env), (64, 48)),
    "ReshapeObservation": lambda env: single.ReshapeObservation(image(env), (224 * 168, 3)),
    "RescaleObservation": lambda env: single.RescaleObservation(
        single.DtypeObservation(image(env), np.float32), np.float32(0), np.float32(1)
    ),
    "TimeAwareObservation": lambda env: single.TimeAwareObservation(
        single.TimeLimit(env, 50), flatten=False, dict_time_key="time"
    ),
    "TransformAction": lambda env: single.TransformAction(env, chosen, IDS),
    "StickyAction": lambda env: single.StickyAction(env, 0.25),
    "RepeatAction": lambda env: single.RepeatAction(env, 2),
    "ClipReward": lambda env: single.ClipReward(env, 0, 1),
    "TransformReward": lambda env: single.TransformReward(env, lambda reward: 2 * reward),
    "NormalizeReward": single.NormalizeReward,
    "TimeLimit": lambda env: single.TimeLimit(env, 50),
    "Autoreset": single.Autoreset,
    "PassiveEnvChecker": single.PassiveEnvChecker,
    "OrderEnforcing": single.OrderEnforcing,
    "RecordEpisodeStatistics": single.RecordEpisodeStatistics,
    "AddWhiteNoise": lambda env: single.AddWhiteNoise(env, probability_of_noise_per_pixel=0.1),
    "ObstructView": lambda env: single.ObstructView(env, obstructed_pixels_ratio=0.1, obstruction_width=9),
    "RenderCollection": single.RenderCollection,
    "RecordVideo": lambda env: single.RecordVideo(env, videos(), episode_trigger=lambda episode: False),
    "NumpyToTorch": lambda env: single.NumpyToTorch(image(env)),
}
"""Wrappers of one environment, alone and within `SyncVectorEnv` and `AsyncVectorEnv`."""

MANY: dict[str, Wrap] = {
    "VectorizeTransformObservation": lambda envs: vector.VectorizeTransformObservation(
        envs, single.TransformObservation, func=halved, observation_space=HALF
    ),
    "VectorizeTransformAction": lambda envs: vector.VectorizeTransformAction(
        envs, single.TransformAction, func=chosen, action_space=IDS
    ),
    "VectorizeTransformReward": lambda envs: vector.VectorizeTransformReward(
        envs, single.TransformReward, func=lambda reward: 2 * reward
    ),
    "DictInfoToList": vector.DictInfoToList,
    "TransformObservation": lambda envs: vector.TransformObservation(envs, halved, single_observation_space=HALF),
    "FilterObservation": lambda envs: vector.FilterObservation(envs, SCREEN),
    "FlattenObservation": vector.FlattenObservation,
    "GrayscaleObservation": lambda envs: vector.GrayscaleObservation(images(envs)),
    "ResizeObservation": lambda envs: vector.ResizeObservation(images(envs), (64, 48)),
    "ReshapeObservation": lambda envs: vector.ReshapeObservation(images(envs), (224 * 168, 3)),
    "RescaleObservation": lambda envs: vector.RescaleObservation(
        vector.DtypeObservation(images(envs), np.float32), np.float32(0), np.float32(1)
    ),
    "DtypeObservation": lambda envs: vector.DtypeObservation(images(envs), np.float32),
    "NormalizeObservation": lambda envs: vector.NormalizeObservation(vector.DtypeObservation(images(envs), np.float32)),
    "TransformAction": lambda envs: vector.TransformAction(
        envs, lambda actions: [chosen(number) for number in actions], single_action_space=IDS
    ),
    "TransformReward": lambda envs: vector.TransformReward(envs, lambda rewards: 2 * rewards),
    "ClipReward": lambda envs: vector.ClipReward(envs, 0, 1),
    "NormalizeReward": vector.NormalizeReward,
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "RecordVideo": lambda envs: vector.RecordVideo(envs, videos(), episode_trigger=lambda episode: False),
    "NumpyToTorch": lambda envs: vector.NumpyToTorch(images(envs)),
}
"""Wrappers of a vector."""

NUMBERED = {"TransformAction", "VectorizeTransformAction"}  # whose actions are numbers

LEFT_OUT = {
    "AtariPreprocessing": "for Atari's own environments",
    "DiscretizeObservation": "for spaces of one array of few numbers",
    "ClipAction, RescaleAction, DiscretizeAction": "for actions that are one array",
    "HumanRendering": 'opens a window; an environment is made with `render_mode="rgb_array"`',
    "ArrayConversion, JaxToNumpy, JaxToTorch": "for environments in JAX or another array library",
}
"""Wrappers that cannot apply, and why."""


def make(kind: str, wrap: Wrap | None, wrap_many: Wrap | None) -> Any:
    """An environment of a kind, wrapped within and without."""
    url = background_loop().run(acquire_shared)  # one cluster for all cells, those of other processes too
    background_loop().run(release_shared)
    arguments = {"task": TASK, "max_steps": 9, "render_mode": "rgb_array", "url": url}

    def one() -> Any:
        env = gymnasium.make(ID, **arguments)
        return wrap(env) if wrap else env

    name, _, mode = kind.partition(" ")
    if name == "one":
        return one()
    if name == "native":
        envs: Any = gymnasium.make_vec(ID, 2, autoreset_mode=mode, **arguments)
    else:
        envs = (SyncVectorEnv if name == "Sync" else AsyncVectorEnv)([one] * 2, autoreset_mode=AutoresetMode[mode])
    return wrap_many(envs) if wrap_many else envs


def play(env: Any, kind: str, *, numbered: bool) -> None:
    """Step over the end of an episode, in the mode's way; observations must be members of their space."""
    end, go = (1, 0) if numbered else (Done(), Move(1, 1))
    many = kind != "one"
    observation, _ = env.reset(seed=0)
    _look(env, observation)
    observation, *_ = env.step([go, go] if many else go)
    _look(env, observation)
    observation, _, ended, *_ = env.step([end, go] if many else end)
    _look(env, observation)
    if kind.endswith("DISABLED"):
        env.reset(options={"reset_mask": np.asarray(ended, np.bool_)})
    elif many:
        env.step([go, go])
    else:
        env.reset(seed=1)


def _look(env: Any, observation: Any) -> None:
    seen = env.observation_space
    if not hasattr(observation, "numpy") and observation not in seen:
        raise ValueError(f"the observation is no member of {seen}")


def verdict(kind: str, name: str, *, of_vector: bool) -> str:
    """Return "yes", or the first line of why not."""
    wrap, wrap_many = (None, MANY[name]) if of_vector else (ONE[name], None)
    env = None
    try:
        env = make(kind, wrap, wrap_many)
        play(env, kind, numbered=name in NUMBERED)
    except (ImportError, DependencyNotInstalled) as error:
        return f"needs a package more: {error}"[:160]
    except Exception as error:  # whatever a wrapper raises is the cell's content
        return f"{type(error).__name__}: {error}".split("\n")[0][:160]
    finally:
        if env is not None:
            env.close()
    return "yes"


def cells() -> list[tuple[str, bool, str]]:
    """All cells: a wrapper's name, whether it is one of vectors, and the kind of environment."""
    found = [(name, False, kind) for name in ONE for kind in KINDS if not kind.startswith("native")]
    return found + [(name, True, kind) for name in MANY for kind in KINDS if kind != "one"]


def table(verdicts: dict[tuple[str, bool, str], str]) -> str:
    """The tables as Markdown; what does not work is explained below."""
    notes: dict[str, int] = {}
    lines = []
    for title, of_vector, names in (("gymnasium.wrappers", False, ONE), ("gymnasium.wrappers.vector", True, MANY)):
        kinds = [kind for kind in KINDS if (next(iter(names)), of_vector, kind) in verdicts]
        lines += [f"| `{title}` | {' | '.join(kind.replace('_', ' ').lower() for kind in kinds)} |"]
        lines += ["|---" * (len(kinds) + 1) + "|"]
        for name in names:
            row = [verdicts[name, of_vector, kind] for kind in kinds]
            marks = [cell if cell == "yes" else f"no ({notes.setdefault(cell, len(notes) + 1)})" for cell in row]
            lines.append(f"| `{name}` | {' | '.join(marks)} |")
        lines.append("")
    lines += [f"{number}. {text}" for text, number in notes.items()]
    lines += [""] if notes else []
    lines += ["Not in the table:", ""]
    lines += [f"- {', '.join(f'`{part}`' for part in name.split(', '))}: {why}" for name, why in LEFT_OUT.items()]
    return "\n".join(lines)


def main() -> None:
    """Try all, and print or write the tables."""
    background_loop().run(acquire_shared)
    text = table({cell: verdict(cell[2], cell[0], of_vector=cell[1]) for cell in cells()})
    if "--write" not in sys.argv:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
