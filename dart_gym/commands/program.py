"""What the three command lines have in common: --version, --debug, and an error that is one line and an exit status.

Invariants:
    - A traceback is printed with --debug, and in the log of a supervised process, and nowhere else.
    - Exit status: 0 it is done, 1 it is not, 2 the command was written wrongly, 130 Ctrl-C; commands add their own.
    - A wait of more than ten seconds, and each kind of retry, is a line on stderr.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from dart_gym.core.errors import DartGymError
from dart_gym.core.os_remedies import FULL, lost_output, output_is_gone, remedy
from dart_gym.utils import waits
from dart_gym.utils.processes import SUPERVISED, exit_status
from dart_gym.utils.shown_text import printable
from dart_gym.utils.version import VERSION

DEBUG = "--debug"
SUPERVISED_REST_S = 120.0
"""In the log of a supervised process, where hundreds of waits may be long, each kind of them is said so seldom."""
EXTRAS = {
    "train": (
        "torch", "transformers", "accelerate", "safetensors", "sqlalchemy", "alembic", "pymysql", "fsspec",
        "tensorboard", "matplotlib", "psutil", "peft",
    ),
    "docker": ("aiodocker",),
    "mcp": ("mcp",),
    "ray": ("ray", "cryptography"),
    "s3": ("s3fs", "aiobotocore", "botocore"),
    "apis": ("anthropic", "openai", "google"),
    "trackers": ("wandb", "trackio"),
    "export": ("datasets",),
}  # fmt: skip
"""Packages by the extra that installs them, as in pyproject.toml."""


class Program(typer.core.TyperGroup):
    """The top of a command line, which takes `--debug` wherever it stands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take out --debug, which `guarded` has seen."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [one for place, one in enumerate(args) if one != DEBUG or place > end])


def add_common_options(app: typer.Typer, name: str) -> None:
    """Give a command line the options that all three have."""

    def print_version(asked: bool) -> None:
        if asked:
            print(f"{name} {VERSION}")
            raise typer.Exit

    @app.callback()
    def common(
        version: Annotated[
            bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
        ] = False,
        debug: Annotated[bool, typer.Option(DEBUG, help="Print tracebacks of errors.")] = False,
    ) -> None:
        pass


def guarded(name: str, call: Callable[[], object], people: Sequence[type[Exception]] = (), prefix: str = "") -> None:
    """Run a command line; what goes wrong is one line on stderr and an exit status.

    Args:
        name: of the program.
        call: runs it.
        people: exceptions besides `DartGymError` whose message is meant for people.
        prefix: what the line begins with; the program's name by default.
    """
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")
    debug = DEBUG in sys.argv or SUPERVISED in os.environ
    say: Callable[[str], None] = lambda line: print(f"{name}: {printable(line)}", file=sys.stderr, flush=True)  # noqa: E731
    try:
        with waits.said(say, SUPERVISED_REST_S if SUPERVISED in os.environ else waits.SAID_AFTER_S):
            try:
                call()
            except SystemExit:  # how Typer ends; what is in the buffer has to get out before that counts
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except KeyboardInterrupt:
        _give_up_output()
        raise SystemExit(130) from None
    except Exception as error:
        first = _first(error)
        if isinstance(first, BrokenPipeError) and output_is_gone():
            _give_up_output()
            raise SystemExit(1) from None
        if lost := lost_output(first):
            print(f"{prefix or name}: {lost}", file=sys.stderr)
            _give_up_output()
            raise SystemExit(1) from None
        _give_up_output()
        known = isinstance(first, (DartGymError, *people))
        if debug and not known or DEBUG in sys.argv:
            traceback.print_exception(error)
        print(f"{prefix or name}: {printable(one_line(first, known))}", file=sys.stderr)  # it may quote a model, a task
        raise SystemExit(exit_status(hopeless=getattr(first, "hopeless", False))) from None


def _give_up_output() -> None:
    """Flush the output, or drop it, before the interpreter complains about it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def one_line(error: BaseException, known: bool = False) -> str:
    """Return an error in one line that names the cause and the next step."""
    if known:
        return str(error)
    if isinstance(error, ImportError) and (said := missing_package(error)):
        return said
    if isinstance(error, OSError) and error.errno is not None:
        where = f" {error.filename}" if error.filename else ""
        forbidden = isinstance(error, PermissionError)
        step = "check owner and rights" if forbidden else remedy(error) or "check space, owner and rights"
        if error.errno in FULL and not where:
            return f"cannot write a file: {error.strerror}; {step}"
        return f"cannot use{where or ' a file or connection'}: {error.strerror}; {step}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    text = " ".join(str(error).split())[:300]
    return f"unexpected {type(error).__name__}{place}: {text}; the same command with {DEBUG} prints the traceback"


def missing_package(error: ImportError) -> str:
    """Return which extra brings a package that is missing; "" where none does."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), "")
    if not isinstance(error, ModuleNotFoundError) or not package:
        return ""
    step = f"pip install 'dart-gui[{extra}]'" if extra else f"pip install {package}"
    return f"the package {package} is missing; next step: {step}"


def _first(error: BaseException) -> BaseException:
    """Return the first error of a task group, which ended the other tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
