"""Writing in a thread during training: one write at a time; the training's own thread raises its error."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

_log = logging.getLogger(__name__)


class BackgroundWrite:
    """The write that runs, or the last one.

    Args:
        what: names it in the log, such as "state".

    Attributes:
        future: of the writing; None before the first, and once its end was waited for.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.future: Future[None] | None = None

    def check(self) -> None:
        """Raise what the writing raised, if it has ended."""
        if self.future is not None and self.future.done():
            self.settle()

    def settle(self) -> None:
        """Wait until it is on the disk. Raises what its writing raised."""
        future, self.future = self.future, None
        if future is not None:
            future.result()

    def close(self) -> None:
        """Let it be written to its end, where training ends in an error of its own."""
        if self.future is not None and (error := self.future.exception()) is not None:
            _log.error("the last %s was not written: %s", self._what, error)
        self.future = None


def beside(work: Callable[[], None]) -> Future[None]:
    """Work in a thread of its own, which a process that ends waits for."""
    done: Future[None] = Future()
    threading.Thread(target=_settled, args=(work, done), name="writer").start()
    return done


def at_once(work: Callable[[], None]) -> Future[None]:
    """Work now, as `beside` does in a thread."""
    done: Future[None] = Future()
    _settled(work, done)
    return done


def _settled(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # the caller that asks for the result gets it
        done.set_exception(error)
    else:
        done.set_result(None)
