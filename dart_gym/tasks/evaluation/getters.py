"""OSWorld's getters, as far as they are needed here: they fetch state from a desktop for the metrics.

Names and meanings are those of desktop-env 1.0.2 (`evaluators/getters`). Files land in the evaluation's own cache
directory, and metrics get their paths, as upstream.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dart_gym.core.errors import EvaluationFailure
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.sites.site_state import changes
from dart_gym.tasks.evaluation.blame import NOT_THERE
from dart_gym.tasks.setup.setup_runner import EXECUTE_TIMEOUT_S, HOME, cached_path, command_line
from dart_gym.tasks.setup.site_steps import site_host

Getter = Callable[[Desktop, dict[str, Any], Path], Awaitable[Any]]


async def get_rule(desktop: Desktop, config: dict[str, Any], cache: Path) -> Any:
    """The rules that the task itself holds."""
    return config["rules"]


async def get_vm_command_line(desktop: Desktop, config: dict[str, Any], cache: Path) -> str:
    """Standard output of a command."""
    return (await desktop.execute(command_line(config), timeout=EXECUTE_TIMEOUT_S)).stdout.decode(errors="replace")


async def get_vm_command_error(desktop: Desktop, config: dict[str, Any], cache: Path) -> str:
    """Standard error of a command."""
    return (await desktop.execute(command_line(config), timeout=EXECUTE_TIMEOUT_S)).stderr.decode(errors="replace")


async def get_vm_file(desktop: Desktop, config: dict[str, Any], cache: Path) -> Path | None | list[Path | None]:
    """Copy of a file, or of several where `multi`; None without a regular file that can be read.

    `config` has `path` and `dest`, lists where `multi`, and `gives`: which of several the metric gets (the first).
    """
    multi = bool(config.get("multi", False))
    paths, names = (config["path"], config["dest"]) if multi else ([config["path"]], [config["dest"]])
    if config.get("time_suffix"):
        raise EvaluationFailure("getter vm_file: 'time_suffix' is not supported here")
    if not isinstance(paths, list) or not isinstance(names, list) or len(paths) != len(names):
        raise EvaluationFailure("getter vm_file: 'path' and 'dest' must be lists of the same length where 'multi'")
    given = set(config.get("gives", [0]))
    copies = [
        await _copy(desktop, path, cached_path(cache, name))
        for index, (path, name) in enumerate(zip(paths, names, strict=True))
        if index in given
    ]
    return copies[0] if len(copies) == 1 else copies


async def get_cache_file(desktop: Desktop, config: dict[str, Any], cache: Path) -> Path:
    """A file that a step of `postconfig` left in the cache."""
    path = cached_path(cache, config["path"])
    if not path.is_file():
        raise EvaluationFailure(f"getter cache_file: no step of postconfig left {config['path']!r}")
    return path


async def get_site_state(desktop: Desktop, config: dict[str, Any], cache: Path) -> Any:
    """The current state of a mock site, or the `part` of it that a path such as "cart.p1" names; None: it lacks it."""
    value = (await site_host(desktop).site_state(config["site"]))["current_state"]
    for key in filter(None, config.get("part", "").split(".")):
        value = value.get(key) if isinstance(value, dict) else None
    return value


async def get_site_changes(desktop: Desktop, config: dict[str, Any], cache: Path) -> str:
    """All that the episode has changed of a site but what is only shown (`ui`), in lines such as `cart.p1 = 2`."""
    found = await site_host(desktop).site_state(config["site"])
    changed = changes(found["initial_state"], found["current_state"])
    kept = sorted(path for path in changed if path.partition(".")[0] != "ui")
    return "".join(f"{path} = {json.dumps(changed[path], sort_keys=True, ensure_ascii=False)}\n" for path in kept)


async def _copy(desktop: Desktop, path: str, target: Path) -> Path | None:
    try:
        data = await desktop.read_file(HOME + path[1:] if path.startswith("~/") else path)
    except OSError:  # whatever stands there in its place: the desktop decides what its files are
        return NOT_THERE
    target.write_bytes(data)
    return target


GETTERS: dict[str, Getter] = {
    "rule": get_rule,
    "vm_command_line": get_vm_command_line,
    "vm_command_error": get_vm_command_error,
    "vm_file": get_vm_file,
    "cache_file": get_cache_file,
    "site_state": get_site_state,
    "site_changes": get_site_changes,
}
