"""Entry of the three programs: a Ctrl-C while a program loads ends it like any other program, without a traceback.

Invariant: nothing of the programs, and nothing that takes time, is imported before the signal is seen to.
"""

import signal
import sys
from collections.abc import Callable


def _entry(module: str) -> Callable[[], None]:
    def start() -> None:
        caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if caught:  # where the signal is ignored, it stays so
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        __import__(module)
        if caught:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.modules[module].main()

    return start


gym = _entry("dart_gym.commands.gym_cli")
agent = _entry("dart_agent.commands.agent_cli")
train = _entry("dart_train.commands.train_cli")
