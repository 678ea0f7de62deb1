"""A pair: a task in OSWorld's format that scores 1 once it is solved, and 0 as it was set up.

A pair uses real evaluator functions, getters and postconfig steps, addresses like those of OSWorld's hub, and a
solution of ordinary actions: what a person does with keyboard, mouse or terminal. Files of the hub are stand-ins, which
`files.stand_ins` makes. `test_solved_pairs` plays all pairs; `pair_suite` makes a suite of them, so that
`dart-gym tasks check EXAMPLES --solved --pairs tests.dart_gym.solved.pair_suite:SolvedPairs` knows what they cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dart_gym.tasks.catalog.task import Task

HUB = "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/"
DESKTOP = "/home/user/Desktop"


@dataclass(frozen=True)
class SolvedPair:
    """One task, its solution and its files.

    Attributes:
        id: "<application>/<what it is about>".
        evaluator: OSWorld's, postconfig included. Each of its functions must give 0 unsolved and 1 solved.
        solution: the actions, as dicts with waits (`dart_gym.tasks.osworld.oracle_script`). In the end programs rest:
            who is done has looked.
        config: OSWorld's set-up steps.
        files: stand-ins by address: their bytes, a function that makes them, or "module:function" of `files`, which
            OSWorld's own Python runs with the path to write.
        quick: whether it is among the few that `make test` plays.
        fresh: whether it is solved on another desktop than the one that was scored unsolved, because that
            evaluation changes what the solution begins with.
        max_s: seconds that it may take, twice the set-up included.
    """

    id: str
    evaluator: dict[str, Any]
    solution: list[dict[str, Any]]
    config: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes | str | Callable[[], bytes]] = field(default_factory=dict)
    instruction: str = ""
    quick: bool = False
    fresh: bool = False
    max_s: float = 240.0

    @property
    def task(self) -> Task:
        """The pair's task, as OSWorld's own: scored by OSWorld's evaluator on the profile osworld."""
        from dart_gym.tasks.catalog.registry import task_from_dict

        raw = {"id": self.id, "instruction": self.instruction or self.id, "config": self.config}
        task = task_from_dict({**raw, "evaluator": self.evaluator})
        return Task(task.id, task.instruction, task.desktop, 100, task.raw, (*self.solution, until(idle=True)))


# What tasks are made of


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    """A set-up or postconfig step."""
    return {"type": kind, "parameters": parameters}


def download(**files: str) -> dict[str, Any]:
    """A step that downloads: path on the desktop by the address."""
    return step("download", files=[{"url": url, "path": path} for path, url in files.items()])


def run(script: str) -> dict[str, Any]:
    """A step that runs a shell script."""
    return step("execute", command=script, shell=True)


def pyautogui(script: str) -> dict[str, Any]:
    """A step with the Python that OSWorld's tasks press keys with."""
    return step("execute", command=["python", "-c", f"import pyautogui; import time; {script}"])


def opened(path: str, url: str) -> list[dict[str, Any]]:
    """Steps that download a file and open it in its application."""
    return [step("download", files=[{"url": url, "path": path}]), step("open", path=path)]


def saved(window: str) -> list[dict[str, Any]]:
    """The postconfig with which OSWorld saves an open document, in 129 of its tasks."""
    return [
        step("activate_window", window_name=window, strict=True),
        step("sleep", seconds=0.5),
        pyautogui("pyautogui.hotkey('ctrl', 's'); time.sleep(0.5); "),
    ]


def vm_file(path: str, **more: Any) -> dict[str, Any]:
    """The getter of a file on the desktop."""
    return {"type": "vm_file", "path": path, "dest": path.rpartition("/")[2], **more}


def cloud_file(url: str, dest: str = "") -> dict[str, Any]:
    """The getter of an expected file of the hub."""
    return {"type": "cloud_file", "path": url, "dest": dest or "expected_" + url.rpartition("/")[2]}


def rule(**rules: Any) -> dict[str, Any]:
    """The getter of rules in the task itself."""
    return {"type": "rule", "rules": rules}


# What solutions are made of

IDLE = {"idle": True}


def press(*chords: str, when: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Chords such as "ctrl+s", one after the other, each when the programs rest."""
    return [{"kind": "press", "keys": chord.split("+"), "when": {**IDLE, **(when or {})}} for chord in chords]


def typed(text: str, **when: Any) -> dict[str, Any]:
    """Text, once the programs rest; `when`: further conditions, such as a window's title."""
    return {"kind": "type", "text": text, "when": {**IDLE, **when}}


def click(x: int, y: int, *, button: str = "left", count: int = 1, **when: Any) -> dict[str, Any]:
    """A click on the screen of 1920x1080, once the programs rest."""
    return {"kind": "click", "x": x, "y": y, "button": button, "count": count, "when": {**IDLE, **when}}


def until(**when: Any) -> dict[str, Any]:
    """Nothing but the wait until conditions hold: `command`, `window`, `gone`, `timeout`."""
    return {"kind": "wait", "seconds": 0, "when": when}


def in_terminal(script: str, done: str, timeout: float = 60.0) -> list[dict[str, Any]]:
    """A line typed in a new terminal; `done` is a command that succeeds once it has been carried out."""
    return [
        *press("ctrl+alt+t"),
        typed(script + "\n", window="Terminal"),
        until(command=done, idle=True, timeout=timeout),
    ]


def lines_in_terminal(*lines: str, timeout: float = 60.0) -> list[dict[str, Any]]:
    """Lines typed in a new terminal, which is left at their end; it must be the only one."""
    return [
        *press("ctrl+alt+t"),
        typed("\n".join([*lines, "exit\n"]), window="Terminal"),
        until(gone="Terminal", idle=True, timeout=timeout),
    ]


# What evaluators are made of


def judged(*checks: tuple[Any, ...], postconfig: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An evaluator of functions, each with its result, what is expected (or None), and perhaps its options."""
    return {
        "postconfig": postconfig or [],
        "func": [check[0] for check in checks],
        "result": [check[1] for check in checks],
        "expected": [check[2] for check in checks],
        "options": [check[3] if len(check) > 3 else {} for check in checks],
    }
