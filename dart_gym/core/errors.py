"""Errors that a person must act on. Each message names the cause and the next step.

What a policy or a trainer must go on with is a value instead: see `dart_gym.core.outcomes`.
"""

from typing import ClassVar


class DartGymError(Exception):
    """Base of all errors of this package; `hopeless`: the same call fails until a person has mended something."""

    hopeless: ClassVar[bool] = False


class ConfigurationError(DartGymError):
    """A setting is wrong: unknown key, wrong type, impossible combination."""

    hopeless = True


class OptionError(ConfigurationError, ValueError):
    """An argument or option has a wrong type or value; the message names it."""


class PluginError(ConfigurationError):
    """A plug-in cannot be used; the message names its package, the reason and the next step."""


class UnknownNameError(PluginError):
    """A name that stands for nothing; the message suggests near names."""


class AddressError(ConfigurationError):
    """A server cannot listen where it was told to; a server that is just ending may still be there."""

    hopeless = False


class MissingDependencyError(DartGymError):
    """A program or a right that the machine lacks. `dart-gym doctor` lists them all."""

    hopeless = True


class MissingProgramError(MissingDependencyError, FileNotFoundError):
    """A program that a desktop was to start is not there; the message names the package that has it."""


class DesktopError(DartGymError):
    """A desktop did not start, died, or stopped answering. The episode is lost, the next reset gets a fresh one."""


class DesktopTimeoutError(DesktopError):
    """A desktop did not do something within its deadline."""


class DesktopKilledError(DesktopError):
    """A desktop was ended, or held up for good, by a program inside: the doing of who acts there, no fault of ours."""


class DesktopStateError(DesktopError):
    """An operation failed because of what programs of the desktop did to it: the agent's doing, and no fault of ours.

    The desktop still works. Only this operation has failed, such as one that needs a process where there are too many.
    """


class StuckProgramError(DesktopStateError, DesktopTimeoutError):
    """A program on a desktop did not end in time, on a machine that had time for it."""


class TaskError(DartGymError):
    """A task is malformed, unknown, or its set-up failed."""


class UnknownTaskError(TaskError):
    """No such task; the message suggests near names."""

    hopeless = True


class UnrunnableTaskError(TaskError):
    """A task cannot run on this machine, or none of a suite can; the message says why."""

    hopeless = True


class NoOracleError(TaskError):
    """Nobody has written down how a task is solved."""


class EvaluationFailure(DartGymError):
    """The evaluator itself failed: there is no score. Becomes `Evaluation(status=EVALUATION_ERROR)`, never a 0."""


class EpisodeStateError(DartGymError):
    """An operation that needs a running episode, without one."""


class ForkError(EpisodeStateError, RuntimeError):
    """An environment was used in a fork of the process that it belongs to."""

    hopeless = True


class ProtocolError(DartGymError):
    """A frame that does not follow the protocol."""


class ClusterError(DartGymError):
    """The cluster answered with an error of this `code` (`wire.frames.ErrorCode`), or cannot be reached."""

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message)
        self.code = code


class ServerDefectError(ClusterError):
    """Code of the server, such as a suite's, failed at a request.

    The connection is whole, and the server's log has the traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "internal")


def words_of(error: BaseException) -> str:
    """Return what an exception says, or the name of its type if it says nothing, as those of a timeout do."""
    return str(error) or type(error).__name__
