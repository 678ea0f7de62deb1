"""How long a keeper may take for an answer, before it is killed with its desktop. Pure.

What the desktop itself gives a time (`execute`, `settle`) is ended by the keeper when that is over; the keeper has
`ANSWER_S` more, which it needs only when a program of the desktop holds it up.
"""

from dart_gym.core.actions import Action, Drag, Type, Wait
from dart_gym.desktops.base.desktop import SettlePolicy

ANSWER_S = 15.0
FILE_S = 60.0 + ANSWER_S
STOP_S = 20.0
_KEY_S = 0.02  # of a character whose key must be mapped first, and of a point of a path
_TYPING_S = 10.0  # what a program may take that does not say how far it is


def of_action(action: Action) -> float:
    """Seconds for an action."""
    match action:
        case Wait(seconds=seconds):
            return ANSWER_S + seconds
        case Type(text=text):
            return ANSWER_S + _TYPING_S + _KEY_S * len(text)
        case Drag(path=path):
            return ANSWER_S + _KEY_S * len(path)
    return ANSWER_S


def of_settling(policy: SettlePolicy) -> float:
    """Seconds for a wait until the screen stands still."""
    return ANSWER_S + 1e-3 * max(policy.max_ms, policy.min_ms, policy.busy_ms)
