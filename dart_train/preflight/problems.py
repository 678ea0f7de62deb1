"""Problems as a list of sentences: each names the key or thing, what is wrong with it, and what to do."""

from collections.abc import Callable, Iterable, Sequence

from dart_agent.engines.base.engine import EngineError
from dart_gym.core.errors import DartGymError
from dart_train.core.train_errors import DartTrainError


class ProblemsError(DartTrainError):
    """A run cannot work as it is configured, here; the message lists everything that is known to be wrong."""

    hopeless = True


def found_by(*checks: Callable[[], object]) -> list[str]:
    """Return what checks refuse that raise at the first problem they find."""
    found: list[str] = []
    for check in checks:
        try:
            check()
        except (DartTrainError, DartGymError, EngineError, ValueError) as error:
            found.append(" ".join(str(error).split()))
    return found


def refuse(problems: Iterable[str]) -> None:
    """Raise `ProblemsError` if there are any."""
    listed = list(dict.fromkeys(problems))
    if listed:
        raise ProblemsError(text_of(listed))


def text_of(problems: Sequence[str]) -> str:
    """The message: one sentence, or a numbered list."""
    if len(problems) == 1:
        return problems[0]
    lines = [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
    return "\n".join([f"{len(problems)} problems, and nothing was started:", *lines])
