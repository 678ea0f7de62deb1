"""All commands of the three programs, as a user types them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from dart_agent.commands.agent_cli import app as agent
from dart_gym.commands.gym_cli import app as gym
from dart_train.commands.train_cli import app as train


def every_command() -> dict[str, Any]:
    """The commands by their words, groups that are commands themselves included."""
    programs = {"dart-gym": gym, "dart-agent": agent, "dart-train": train}
    return {
        words: command for name, app in programs.items() for words, command in _walk(typer.main.get_command(app), name)
    }


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None or command.invoke_without_command:
        yield name, command
    for word, one in (inner or {}).items():
        yield from _walk(one, f"{name} {word}")
