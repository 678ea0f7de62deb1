"""The closed set of error codes of the cluster, and how they map to exceptions and close codes.

Invariants:
    - Both sides know all codes; the client raises the class of error that the server raised.
"""

from collections.abc import Mapping
from enum import StrEnum

from dart_gym.core.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    DesktopError,
    EpisodeStateError,
    MissingDependencyError,
    ProtocolError,
    ServerDefectError,
    TaskError,
    UnknownTaskError,
)


class ErrorCode(StrEnum):
    """Why the cluster refused or failed. Closed: both sides know all of them."""

    PROTOCOL = "protocol"  # a frame that does not follow the protocol, or another version of it
    AUTH = "auth"  # no token, a wrong one, or one that was revoked
    CAPACITY = "capacity"  # no desktop was free within the deadline, or the token's quota of sessions is used up
    BUSY = "busy"  # another client uses the session
    TIMEOUT = "timeout"  # the operation was not done within its deadline
    STATE = "state"  # no episode is running
    BAD_ACTION = "bad_action"  # malformed action
    UNKNOWN_TASK = "unknown_task"
    TASK = "task"  # malformed task, or no oracle for it
    CONFIGURATION = "configuration"
    DEPENDENCY = "dependency"  # the server's machine lacks a program
    DESKTOP = "desktop"
    SESSION_LOST = "session_lost"  # the session to resume is gone
    IDLE = "idle"  # the session ended because nothing was asked for too long
    EXPIRED = "expired"  # the session ended because it had held its slot lasted as long as the server allows
    SHUTDOWN = "shutdown"  # the server stops, or drains and lends no more desktops
    UNREACHABLE = "unreachable"  # found by the client: nobody answers
    INTERNAL = "internal"  # a defect of the server; its log has the traceback


SESSION_OVER = frozenset({ErrorCode.SESSION_LOST, ErrorCode.IDLE, ErrorCode.EXPIRED})
"""The session cannot be resumed, but a new one can be opened."""

CLOSE_CODES: Mapping[ErrorCode, int] = {
    ErrorCode.PROTOCOL: 4400,
    ErrorCode.AUTH: 4401,
    ErrorCode.SESSION_LOST: 4408,
    ErrorCode.IDLE: 4408,
    ErrorCode.EXPIRED: 4408,
    ErrorCode.BUSY: 4409,
    ErrorCode.CAPACITY: 4429,
    ErrorCode.SHUTDOWN: 1001,
    ErrorCode.INTERNAL: 1011,
}
"""With which code the server closes a websocket after an error that answers no request."""

_EXCEPTIONS: tuple[tuple[ErrorCode, type[DartGymError]], ...] = (
    (ErrorCode.STATE, EpisodeStateError),
    (ErrorCode.UNKNOWN_TASK, UnknownTaskError),  # before its base
    (ErrorCode.TASK, TaskError),
    (ErrorCode.CONFIGURATION, ConfigurationError),
    (ErrorCode.DEPENDENCY, MissingDependencyError),
    (ErrorCode.DESKTOP, DesktopError),
    (ErrorCode.PROTOCOL, ProtocolError),
    (ErrorCode.INTERNAL, ServerDefectError),
)


def code_of(error: BaseException) -> ErrorCode:
    """The code under which an exception crosses the wire."""
    if isinstance(error, ClusterError):
        return ErrorCode(error.code)
    if isinstance(error, TimeoutError):
        return ErrorCode.TIMEOUT
    return next((code for code, cls in _EXCEPTIONS if isinstance(error, cls)), ErrorCode.INTERNAL)


def exception_for(code: ErrorCode, message: str) -> DartGymError:
    """The exception that the client raises for an error reply: the class that the server's side raised, if known."""
    cls = dict(_EXCEPTIONS).get(code)
    return cls(message) if cls else ClusterError(message, code)
