"""`dart-train`: the entry point, which also works where the trainer's packages are missing, to say so."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from dart_agent.engines.base.engine import EngineError
from dart_gym.commands.program import guarded
from dart_train.core.train_errors import DartTrainError, Interrupted

INTERRUPTED = 130


def __getattr__(name: str) -> Any:
    """Import the application, which needs SQLAlchemy and torch, when it is first used."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dart_train.commands.train_program import app

    return app


def main() -> None:
    """Run the command. Errors that a person must act on become one message instead of a traceback."""

    def call() -> None:
        from dart_train.commands.train_program import app

        try:
            app()
        except Interrupted as error:
            Console(stderr=True).print(Text(str(error), "yellow"))
            sys.exit(INTERRUPTED)

    guarded("dart-train", call, (DartTrainError, EngineError), prefix="error")


if __name__ == "__main__":
    main()
