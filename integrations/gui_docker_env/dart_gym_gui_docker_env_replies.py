"""What the replies of a GUI-Docker-Env server mean. Functions of values, no effects."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from dart_gym.utils.backoff import backoff

SHORTEST_WAIT_S, FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0, 15.0
_SAID = 200


@dataclass(frozen=True, slots=True)
class Started:
    """A machine is up: its id, and the ports of the server's host that lead to it."""

    emulator_id: str
    server_port: int
    chromium_port: int
    vlc_port: int


@dataclass(frozen=True, slots=True)
class Full:
    """The token has all the machines that it may have; nothing was started. Ask again after `wait_s`."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not know the token; nothing was started, and asking again is no use."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The machine was not started, as far as the server knows."""

    message: str


def read_start(status: int, text: str, retry_after: str | None, attempt: int) -> Started | Full | Refused | Failed:
    """What a reply to `/start_emulator` means."""
    body = _object(text)
    said = str(body.get("message") or text.strip())[:_SAID]
    if status == 429:
        return Full(wait_seconds(retry_after, attempt))
    if status in (401, 403):
        return Refused(f"status {status}")  # what it says repeats the token
    if status != 200 or body.get("code") != 0:
        return Failed(f"status {status}: {said!r}")
    data = body.get("data")
    try:
        ports = [int(data[name]) for name in ("server_port", "chromium_port", "vlc_port")]  # type: ignore[index]
        return Started(str(data["emulator_id"]), *ports)  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return Failed(f"its reply names no machine: {said!r}")


def wait_seconds(retry_after: str | None, attempt: int, now: datetime | None = None) -> float:
    """Seconds until a full server is asked again: as it says (seconds or a date), else twice as long each time."""
    usual = backoff(attempt + 1, FIRST_WAIT_S, LONGEST_WAIT_S)
    if retry_after is None:
        return usual
    if retry_after.strip().isdigit():
        return max(SHORTEST_WAIT_S, float(retry_after))
    try:
        return max(SHORTEST_WAIT_S, (parsedate_to_datetime(retry_after) - (now or datetime.now(UTC))).total_seconds())
    except (TypeError, ValueError):
        return usual


def free_places(tokens: Any, token: str) -> int:
    """How many machines a token may still start, by the reply to `/tokens`; -1 when it does not say."""
    entry: Any = tokens.get(token) if isinstance(tokens, dict) else None
    try:
        return int(entry["limit"]) - int(entry["current"])
    except (KeyError, TypeError, ValueError):
        return -1


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
