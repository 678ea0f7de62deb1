"""DART-Gym: real desktops as asynchronous Gymnasium environments.

Importing it registers `DartGym/Desktop-v0` and `DartGym/OSWorld-v0`; nothing starts before the first reset.

    import gymnasium as gym
    env = gym.make("dart_gym:DartGym/Desktop-v0", task="miniwob/click-tab")
    envs = gym.make_vec("dart_gym:DartGym/Desktop-v0", num_envs=4, suite="fake")
"""

from gymnasium.envs.registration import register, registry

from dart_gym.actions import (
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
from dart_gym.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState

if "DartGym/Desktop-v0" not in registry:
    register(
        id="DartGym/Desktop-v0",
        entry_point="dart_gym.env:DesktopEnv",
        vector_entry_point="dart_gym.vector:DesktopVectorEnv",
        nondeterministic=True,
    )

if "DartGym/OSWorld-v0" not in registry:
    register(
        id="DartGym/OSWorld-v0",
        entry_point="dart_gym.env:OSWorldEnv",
        vector_entry_point="dart_gym.vector:OSWorldVectorEnv",
        nondeterministic=True,
    )

__all__ = [
    "Action",
    "AskUser",
    "Click",
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
]
