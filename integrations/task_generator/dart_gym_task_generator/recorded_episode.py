"""A task from a recorded episode: its steps become the oracle's script, what they changed a proposed evaluator.

A record holds actions and screenshots, no files. So the episode is played again, from the same task and seed on a
desktop of this machine, and what lies in the home and which windows are shown is compared before and after.

Invariants:
    - The steps are waited for as programs need it: until they are idle, and windows that came or went.
    - The evaluator asks for what was found after the last step and was not so before the first.
"""

import shlex
from pathlib import Path
from typing import Any

import msgpack

from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import TaskError
from dart_gym.desktops.base.desktop import ActionError, Desktop
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import SUITES, get_task, make_scenario
from dart_gym.tasks.osworld.osworld_scenario import instantiate
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import list_windows

_LIST = "cd && find . -path './.*' -prune -o -type f -size -65k -exec sha256sum -- {} +"
_IDLE_S = 20.0


def read_record(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a record says of its episode, and its actions. Raises `TaskError`: it is none, or cannot be a task."""
    try:
        with (directory / "trajectory.msgpack").open("rb") as file:
            beginning, *steps = msgpack.Unpacker(file, unicode_errors="surrogatepass")
        if beginning.get("format") != 2:
            raise ValueError(f"it has format {beginning.get('format')!r}, this version reads 2")
        if not steps or "ended_at" not in steps[-1]:
            raise ValueError("it has no end: it was cut off while it was written")
        actions = [action for step in steps for action in step.get("actions", ())]
        if any(action["kind"] == "fail" for action in actions):
            raise ValueError("it ended with Fail, so there is no way to the goal in it")
        kept = [action for action in actions if action_from_dict(action).kind != "done"]
        beginning["instruction"], int(beginning["seed"]), beginning["task_id"].partition("/")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise TaskError(f"{directory} is no recorded episode to make a task of: {error}") from error
    if not kept:
        raise TaskError(f"{directory}: nothing was done in this episode, so there is no task in it")
    return beginning, kept


async def from_episode(directory: Path, name: str, instruction: str = "", own: str = "") -> dict[str, Any]:
    """A task's JSON from the directory of a recorded episode, which is played again.

    Args:
        directory: of the episode; what it names is imported only where it is an installed suite, or `own`.
        name: the new task's id.
        instruction: "" for the recorded one.
        own: the module of a suite of one's own that need not be installed.

    Raises:
        TaskError: no such record or task, or nothing changed that an evaluator could see.
    """
    record, actions = read_record(directory)
    suite = record["task_id"].partition("/")[0]
    if suite not in SUITES.names() and (not own or suite.partition(":")[0] != own):
        raise TaskError(f"{directory}: the suite {suite!r} of this episode is not installed: install its package")
    task, seed = get_task(record["task_id"]), int(record["seed"])
    if not task.config or (record.get("task_hash") or task.hash) != task.hash:
        why = "has changed since" if task.config else "is not in OSWorld's format"
        raise TaskError(f"{directory}: the task {task.id} {why}, so no other can be made of its episode")
    instance, script = instantiate(task, seed), []
    desktop, scenario = make_desktop(task.desktop), make_scenario(task.suite)
    await desktop.start()
    try:
        settle = (await scenario.prepare(desktop, task, seed)).settle
        first, windows, when = await _files(desktop), await _windows(desktop), {}
        shown = windows
        for fields in [*actions, {"kind": "wait", "seconds": 0.1}]:
            try:
                await desktop.perform(action_from_dict(fields))
            except ActionError:  # as it was when it was recorded: nothing happened
                continue
            await desktop.settle(settle)
            await wait_until_idle(desktop, timeout=_IDLE_S)
            script.append({**fields, "when": {"idle": True, **when}})
            now = await _windows(desktop)
            came = sorted(now - shown)
            went = sorted(old for old in shown - now if not any(old in title for title in now))  # they are parts
            when, shown = {**({"window": came[-1]} if came else {}), **({"gone": went[-1]} if went else {})}, now
        command = await _proposed(desktop, first, windows)
        expected = await _said(desktop, command)
    finally:
        await scenario.close()
        await desktop.stop()
    spec, rules = task.desktop, {"type": "rule", "rules": {"expected": expected}}
    result = {"type": "vm_command_line", "command": command, "shell": True}
    return {
        "id": name,
        "instruction": instruction or record["instruction"],
        "source": f"recorded: {task.id} seed {seed}",
        "config": instance["config"],
        "related_apps": task.raw.get("related_apps") or [],
        "evaluator": {"func": "exact_match", "result": result, "expected": rules},
        "dart": {
            "desktop": {"width": spec.width, "height": spec.height, "profile": spec.profile},
            "max_steps": 2 * len(script) + 2,
            "ready": instance["ready"],
            "oracle": script,
        },
    }


async def _proposed(desktop: Desktop, first: dict[str, str], windows: set[str]) -> str:
    """The shell command whose output tells the end of the episode from its beginning. Raises `TaskError`: none."""
    last, parts = await _files(desktop), []
    for path in sorted({path for path, _ in first.items() ^ last.items()}):
        if path not in last:
            parts.append(f"{{ test -e {shlex.quote(path)} || echo {shlex.quote(path)} is gone; }}")
        elif (
            "\0" not in (content := await _said(desktop, f"cd && cat -- {shlex.quote(path)}"))
            and "\ufffd" not in content
        ):
            parts.append(f"cat -- {shlex.quote(path)}")
    if parts:
        return "cd && " + " && ".join(parts)
    titles = sorted(await _windows(desktop) ^ windows)
    if not titles:
        raise TaskError(
            "nothing that an evaluator could see was changed by this episode: no text in the home, no window; write "
            "the task from a template, with an evaluator of your own"
        )
    return "; ".join(f"wmctrl -l | grep -cF -e {shlex.quote(title)}" for title in titles)


async def _files(desktop: Desktop) -> dict[str, str]:
    """Digest by path of the small files in the home, hidden ones left out."""
    lines = (await _said(desktop, _LIST)).splitlines()
    return {line[66:]: line[:64] for line in lines if not line.startswith("\\")}


async def _windows(desktop: Desktop) -> set[str]:
    return {window.title for window in await list_windows(desktop)}


async def _said(desktop: Desktop, command: str) -> str:
    return (await desktop.execute(["/bin/sh", "-c", command], timeout=_IDLE_S)).stdout.decode(errors="replace")
