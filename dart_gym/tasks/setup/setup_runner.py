"""OSWorld's set-up steps (`config` and `evaluator.postconfig`) on a desktop.

Invariants:
    - A step that cannot be carried out raises `TaskError` with its number and type; none is skipped. OSWorld overlooks
      most failures and starts, or scores, a half-prepared desktop.
    - What OSWorld's tasks rely on is as there: a program's exit status does not make an `execute` step fail, and a
      window that the agent closed does not spoil its evaluation.
    - Commands run inside the desktop, as its user; nothing here reads or writes files of this side, except
      a step's `stdout` and `stderr`, which land in the evaluation's own directory, the download cache, and uploads
      from the directory that `DART_GYM_UPLOADS` names.
"""

import os
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DesktopError, DesktopStateError, DesktopTimeoutError, StuckProgramError, TaskError
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.setup import chrome_steps, command_steps, file_steps, launch_step, site_steps, window_steps
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.tasks.setup.setup_step import (
    EXECUTE_TIMEOUT_S,
    HOME,
    Handler,
    StepError,
    Surroundings,
    UnmetError,
    cached_path,
    command_line,
)

UPLOADS_VARIABLE = "DART_GYM_UPLOADS"

HANDLERS: dict[str, Handler] = {
    "download": file_steps.download,
    "launch": launch_step.launch,
    "open": file_steps.open_file,
    "execute": command_steps.execute,
    "command": command_steps.execute,
    "execute_with_verification": command_steps.execute_with_verification,
    "sleep": command_steps.sleep,
    "activate_window": window_steps.activate_window,
    "close_window": window_steps.close_window,
    "chrome_open_tabs": chrome_steps.open_tabs,
    "chrome_close_tabs": chrome_steps.close_tabs,
    "update_browse_history": chrome_steps.update_history,
    "upload_file": file_steps.upload_file,
    "change_wallpaper": file_steps.change_wallpaper,
    "write_file": file_steps.write_file,
    "site": site_steps.set_site,
    "run_script": command_steps.run_script,
}
"""What can be done, by OSWorld's type of step; `write_file`, `site` and `run_script` are our own."""

UNSUPPORTED = {
    "googledrive": "needs an account at Google",
    "login": "needs an account at Google",
    "proxy": "needs a proxy outside of the desktop",
}
"""OSWorld's other types, and why: tasks with them are skipped with this reason."""


async def run_steps(
    desktop: Desktop, steps: list[dict[str, Any]], *, cache: Path | None = None, downloads: DownloadCache | None = None
) -> None:
    """Carry out set-up steps, OSWorld's `{"type": ..., "parameters": {...}}`, in order.

    `cache` is a directory of this side for the output that steps ask to keep, in an evaluation; None where none may.

    Raises:
        DesktopStateError: in an evaluation, the agent's desktop is not as a step needs it.
        TaskError: a step is unknown, malformed, or did not work; the message names it.
        DesktopError: the desktop broke.
    """
    uploads = os.environ.get(UPLOADS_VARIABLE)
    where = Surroundings(desktop, downloads or DownloadCache.default(), cache, Path(uploads) if uploads else None)
    for number, step in enumerate(steps, start=1):
        kind, parameters = step.get("type"), step.get("parameters") or {}
        handler = HANDLERS.get(kind) if isinstance(kind, str) else None
        name = f"set-up step {number} of {len(steps)} ({kind})"
        if handler is None:
            why = UNSUPPORTED.get(str(kind), f"supported: {', '.join(sorted(HANDLERS))}")
            raise TaskError(f"{name} is not supported here; {why}")
        if not isinstance(parameters, dict):
            raise TaskError(f"{name}: 'parameters' must be an object, got {parameters!r}")
        try:
            await handler(where, parameters)
        except KeyError as error:
            raise TaskError(f"{name} lacks the parameter {error}") from error
        except (UnmetError, TaskError, OSError, StuckProgramError) as error:
            if where.evaluating:
                raise DesktopStateError(f"{name}: {error}") from error
            if isinstance(error, OSError):
                raise
            raise TaskError(f"{name}: {error}") from error
        except StepError as error:
            raise TaskError(f"{name}: {error}") from error
        except DesktopError as error:
            if where.evaluating:
                raise
            kind_of_error = TaskError if isinstance(error, DesktopTimeoutError) else DesktopError
            raise kind_of_error(f"{name}: {error}") from error


__all__ = [
    "EXECUTE_TIMEOUT_S",
    "HANDLERS",
    "HOME",
    "UNSUPPORTED",
    "StepError",
    "cached_path",
    "command_line",
    "run_steps",
]
