"""The state that one episode has of one site. Pure.

Requests and answers are those of CUA-Gym-Hub's State API.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SiteState:
    """A site's state as the episode began, and as it is; None: the site's pages know."""

    initial: Any = None
    current: Any = None

    def post(self, request: dict[str, Any]) -> None:
        """Change it, as `{"action": "set" | "set_current" | "reset", "state", "merge"}` asks. Raises `ValueError`."""
        action = request.get("action", "set")
        if action == "reset":
            self.current = self.initial
            return
        if action not in ("set", "set_current") or "state" not in request:
            raise ValueError("an action is set or set_current, with a state, or reset")
        state = merged(self.current, request["state"]) if request.get("merge") else request["state"]
        if action == "set" or self.initial is None:
            self.initial = state
        self.current = state

    def go(self) -> dict[str, Any]:
        """Both states, and by key of the first level what is new or changed."""
        first = self.initial if isinstance(self.initial, dict) else {}
        now = self.current if isinstance(self.current, dict) else {}
        changed = {key: value for key, value in now.items() if key not in first or value != first[key]}
        diff = {key: {"modified" if first.get(key) else "added": value} for key, value in changed.items()}
        return {"initial_state": self.initial, "current_state": self.current, "state_diff": diff}


def merged(old: Any, new: Any) -> Any:
    """A state with another one laid over it, object by object."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}


def changes(initial: Any, current: Any, path: str = "") -> dict[str, Any]:
    """Return what differs, by path ("messages.m3.folder"), down to values that are no objects; None if removed."""
    if not isinstance(initial, dict) or not isinstance(current, dict):
        return {} if initial == current and type(initial) is type(current) else {path: current}
    found: dict[str, Any] = {}
    for key in sorted({*initial, *current}):
        found |= changes(initial.get(key), current.get(key), f"{path}.{key}" if path else key)
    return found
