"""DART-Gym: real desktops as asynchronous Gymnasium environments.

Importing it registers `DartGym/Desktop-v0` and `DartGym/OSWorld-v0`; nothing starts before the first reset.

    import gymnasium as gym
    env = gym.make("dart_gym:DartGym/Desktop-v0", task="miniwob/click-tab")
    envs = gym.make_vec("dart_gym:DartGym/Desktop-v0", num_envs=4, suite="fake")

Who writes coroutines uses the sessions themselves: see `connect`.
"""

from typing import TYPE_CHECKING

from gymnasium.envs.registration import WrapperSpec, register, registry

from dart_gym.core.actions import (
    Action,
    AskUser,
    Click,
    Done,
    Drag,
    Fail,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Press,
    Scroll,
    Type,
    Wait,
    action_from_dict,
    action_to_dict,
)
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.utils.lazy_names import lazy_names
from dart_gym.utils.uncounted_wrappers import UncountedWrappers
from dart_gym.utils.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
    from dart_gym.envs.cluster_link import connect

_STEP_LIMIT = UncountedWrappers((WrapperSpec("ScoredStepLimit", "dart_gym.envs.step_limit:ScoredStepLimit", {}),))

if "DartGym/Desktop-v0" not in registry:
    register(
        id="DartGym/Desktop-v0",
        entry_point="dart_gym.envs.desktop_env:DesktopEnv",
        vector_entry_point="dart_gym.envs.vector_env:DesktopVectorEnv",
        nondeterministic=True,
        additional_wrappers=_STEP_LIMIT,
    )

if "DartGym/OSWorld-v0" not in registry:
    register(
        id="DartGym/OSWorld-v0",
        entry_point="dart_gym.envs.desktop_env:OSWorldEnv",
        vector_entry_point="dart_gym.envs.vector_env:OSWorldVectorEnv",
        nondeterministic=True,
        additional_wrappers=_STEP_LIMIT,
    )

__getattr__ = lazy_names(  # they need more packages than registering environments does
    __name__,
    {
        "ClientSession": "dart_gym.cluster.client.cluster_client",
        "ClusterClient": "dart_gym.cluster.client.cluster_client",
        "connect": "dart_gym.envs.cluster_link",
    },
)

__all__ = [
    "Action",
    "AskUser",
    "Click",
    "ClientSession",
    "ClusterClient",
    "Done",
    "Drag",
    "Evaluation",
    "EvaluationStatus",
    "Fail",
    "KeyDown",
    "KeyUp",
    "MouseDown",
    "MouseUp",
    "Move",
    "Observation",
    "Press",
    "Scroll",
    "StepResult",
    "TerminalState",
    "Type",
    "Wait",
    "action_from_dict",
    "action_to_dict",
    "connect",
]
